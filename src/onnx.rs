//! Networks from ONNX files, as far as files go: reading one, with what it keeps beside it, and the copy in a study.
//!
//! A study keeps the architecture, so that `run` and a second `auto` need the file no more, and know whether it is still the
//! one that was measured: the network's name ends with a hash of it. Weights are not read; that is said each time.

use crate::failure::Failure;
use crate::files;
use crate::study::Study;
use plimsoll_ir::network::{Network, NetworkSpec};
use plimsoll_networks::onnx::{External, OnnxError, OnnxNetwork, OnnxSource, name_in_file, read};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// No ONNX file is larger: protocol buffers end here, and exporters put the weights of larger networks into files beside it.
const BYTES_MAX: u64 = 1 << 31;

/// Reads the network of a file, for images of this size where the file leaves it open.
pub fn network(path: &Path, image: Option<[u32; 2]>) -> Result<OnnxNetwork, Failure> {
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let found = read_as(path, &name, image)?;
    for note in &found.notes {
        tracing::info!("{}: {note}", path.display());
    }
    tracing::info!("{}: its weights are not read; training begins with fresh ones", path.display());
    Ok(found)
}

/// The network that a spec names: one of the zoo, or one from a file of which the study in this folder keeps the architecture.
pub fn rebuilt(spec: &NetworkSpec, folder: &Path) -> Result<Network, Failure> {
    let Some(name) = name_in_file(&spec.name) else { return Ok(plimsoll_networks::build(spec)?) };
    let path = Study::at(folder).architecture();
    if !path.exists() {
        let message = format!("`{}` is from an ONNX file, and {} is not there", spec.name, path.display());
        return Err(
            Failure::usage(message).help("leave the study's files together, or tune again with --onnx FILE")
        );
    }
    let found = read_as(&path, name, Some(spec.image))?;
    if found.network.spec != *spec {
        let message = format!("{} is another network than `{}`", path.display(), spec.name);
        return Err(
            Failure::usage(message).help("put the study's own file back, or tune again with --onnx FILE")
        );
    }
    Ok(found.network)
}

/// Keeps the architecture in a study's folder; where another is kept there only if all is to be `fresh`, and nothing was trained
/// with that one.
pub fn keep(study: &Study, architecture: &[u8], fresh: bool) -> Result<(), Failure> {
    let path = study.architecture();
    match fs::read(&path) {
        Ok(there) if there == architecture => Ok(()),
        Ok(_) if !fresh => {
            let message = format!("{} keeps another network", path.display());
            Err(Failure::usage(message)
                .help("choose another folder with --study DIR, or start anew with --fresh"))
        }
        Ok(_) => study.without_training().and_then(|()| files::write_bytes(&path, architecture)),
        Err(_) => files::write_bytes(&path, architecture),
    }
}

fn read_as(path: &Path, name: &str, image: Option<[u32; 2]>) -> Result<OnnxNetwork, Failure> {
    let failed = |error: std::io::Error| Failure::file(path, "read", &error);
    let metadata = fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Err(
            Failure::usage(format_args!("{} is a folder", path.display())).help("name an ONNX file in it")
        );
    }
    if metadata.len() > BYTES_MAX {
        return Err(Failure::usage(format_args!("{} is larger than any ONNX file", path.display()))
            .help("export with the weights in files of their own (external data)"));
    }
    let mut file = Vec::new();
    // A pipe may hold more than it says.
    File::open(path).and_then(|open| open.take(BYTES_MAX).read_to_end(&mut file)).map_err(failed)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let external = |wanted: &External| beside(folder, wanted);
    read(OnnxSource { file, name, image, external: &external }).map_err(|error| {
        let failure = Failure::usage(format_args!("{}: {error}", path.display()));
        match error {
            OnnxError::Unsupported(_) => {
                failure.help("export the network without them, or report what you would train")
            }
            _ => failure,
        }
    })
}

/// Part of a file in a folder, links that lead out of which are refused.
fn beside(folder: &Path, wanted: &External) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| error.to_string();
    let folder = fs::canonicalize(folder).map_err(words)?;
    let path = fs::canonicalize(folder.join(&wanted.location)).map_err(words)?;
    if !path.starts_with(&folder) {
        return Err(
            "it is a link to outside the folder of the ONNX file; put the file itself there".to_owned()
        );
    }
    let mut file = File::open(&path).map_err(words)?;
    let metadata = file.metadata().map_err(words)?;
    let end = wanted.offset.checked_add(wanted.length);
    if !metadata.is_file() || end.is_none_or(|end| end > metadata.len()) {
        let (offset, length) = (wanted.offset, wanted.length);
        return Err(format!("it does not hold {length} bytes at {offset}; copy it again"));
    }
    file.seek(SeekFrom::Start(wanted.offset)).map_err(words)?;
    let mut bytes = Vec::new();
    file.take(wanted.length).read_to_end(&mut bytes).map_err(words)?;
    Ok(bytes)
}
