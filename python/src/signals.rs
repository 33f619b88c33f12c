//! Ctrl-C while the interpreter's lock is released: checked now and then, and passed on as Python's exception.

use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Longest delay until a Ctrl-C is noticed.
const EVERY: Duration = Duration::from_millis(50);

/// Checks for signals.
pub struct Signals {
    looked: Cell<Instant>,
    error: RefCell<Option<PyErr>>,
}

impl Default for Signals {
    fn default() -> Signals {
        Signals { looked: Cell::new(Instant::now()), error: RefCell::new(None) }
    }
}

impl Signals {
    /// Returns `true` if a signal came that Python's handler turned into an exception.
    #[allow(
        clippy::redundant_closure_for_method_calls,
        reason = "not general enough over the lifetime of the lock"
    )]
    pub fn came(&self) -> bool {
        if self.looked.get().elapsed() > EVERY {
            self.looked.set(Instant::now());
            if let Err(error) = Python::attach(|py| py.check_signals()) {
                self.error.replace(Some(error));
            }
        }
        self.error.borrow().is_some()
    }

    /// Returns the exception.
    pub fn into_error(self) -> Option<PyErr> {
        self.error.into_inner()
    }
}
