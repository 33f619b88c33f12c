//! What must come of any bytes that are given as an ONNX file: the body that the tests and the fuzz target share.
//!
//! Either an error that says something, or a network that can be lowered, and a copy of its architecture from which the
//! same network is read again. Never a panic, never much time or memory.
//!
//! What this file does not do: ask whether a network is the one that the file means.

use plimsoll_ir::Document;
use plimsoll_networks::onnx::{External, OnnxError, OnnxNetwork, OnnxSource, read};
use plimsoll_networks::{LowerOptions, lower};

/// Reads bytes as a file, without any other file beside it, for images of 32x32 where it leaves them open.
pub fn read_bytes(file: &[u8]) -> Result<OnnxNetwork, OnnxError> {
    let external = |_: &External| Err("there is no other file".to_owned());
    read(OnnxSource { file: file.to_vec(), name: "net", image: None, external: &external })
}

/// Reads bytes, and holds what comes of it to what is promised; says whether it was a network.
pub fn judge_bytes(file: &[u8]) -> bool {
    let found = match read_bytes(file) {
        Ok(found) => found,
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() > 10 && text.len() < 40_000, "an error of {} characters", text.len());
            return false;
        }
    };
    let again = read_bytes(&found.architecture);
    let again = again.unwrap_or_else(|error| panic!("its own copy is refused: {error}"));
    assert_eq!(found.network, again.network, "another network is read from the copy");
    assert_eq!(found.architecture, again.architecture, "the copy's copy differs");
    // A network may be sound and still too large to be lowered at a batch; that is an error, and no panic.
    for batch in [1, 3] {
        if let Ok(program) = lower(&found.network, batch, &LowerOptions::default()) {
            assert_eq!(program.trace.validate(), Ok(()), "the trace of {}", found.network.spec.name);
        }
    }
    true
}
