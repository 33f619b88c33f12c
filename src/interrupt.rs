//! Ctrl-C: the first press asks the work to save and stop, the second ends the process at once.
//!
//! Work looks at it between iterations, and paced links are told to wait no longer, so that an iteration ends soon however
//! slow its link is. What was timed meanwhile counts for nothing: who measures looks at it once more before a time is used.

use plimsoll_runtime::Hurry;
use plimsoll_study::error::Kind;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

static PRESSED: AtomicBool = AtomicBool::new(false);

static HURRY: LazyLock<Hurry> = LazyLock::new(Hurry::default);

/// Starts to listen. Called once, by `main`.
pub fn listen() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if PRESSED.swap(true, Ordering::SeqCst) {
            std::process::exit(Kind::Interrupted as i32);
        }
        // After the mark: a time that was hurried is never taken for one that was not.
        HURRY.up();
        tracing::warn!("stopping: saving what is done (press Ctrl-C again to stop at once)");
    })
}

/// Whether Ctrl-C was pressed.
pub fn pressed() -> bool {
    PRESSED.load(Ordering::SeqCst)
}

/// What has paced links wait no longer once Ctrl-C is pressed.
pub fn hurry() -> Hurry {
    HURRY.clone()
}
