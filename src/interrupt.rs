//! Ctrl-C: the first press asks the work to save and stop, the second ends the process at once.

use crate::failure::Exit;
use std::sync::atomic::{AtomicBool, Ordering};

static PRESSED: AtomicBool = AtomicBool::new(false);

/// Starts to listen. Called once, by `main`.
pub fn listen() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if PRESSED.swap(true, Ordering::SeqCst) {
            std::process::exit(Exit::Interrupted as i32);
        }
        tracing::warn!("stopping: saving what is done (press Ctrl-C again to stop at once)");
    })
}

/// Whether Ctrl-C was pressed.
pub fn pressed() -> bool {
    PRESSED.load(Ordering::SeqCst)
}
