//! Ctrl-C: the first press asks the work to save and stop, the second ends the process at once.
//!
//! Work checks it between iterations, and paced links stop waiting, so that an iteration ends soon on any link. Times
//! measured meanwhile are invalid: measuring code checks it again before using a time.

use plimsoll_runtime::Hurry;
use plimsoll_study::error::Kind;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

static PRESSED: AtomicBool = AtomicBool::new(false);

static HURRY: LazyLock<Hurry> = LazyLock::new(Hurry::default);

/// Starts to listen for Ctrl-C. `main` calls it once.
pub fn listen() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if PRESSED.swap(true, Ordering::SeqCst) {
            std::process::exit(Kind::Interrupted as i32);
        }
        // Set after `PRESSED`, so that no time of a hurried link counts as valid.
        HURRY.up();
        tracing::warn!("stopping: saving what is done (press Ctrl-C again to stop at once)");
    })
}

/// Returns `true` if Ctrl-C was pressed.
pub fn pressed() -> bool {
    PRESSED.load(Ordering::SeqCst)
}

/// Handle that ends the waiting of paced links once Ctrl-C is pressed.
pub fn hurry() -> Hurry {
    HURRY.clone()
}
