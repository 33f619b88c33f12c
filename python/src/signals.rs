//! Ctrl-C while the interpreter's lock is given back: looked for now and then, and handed on as Python's exception.

use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// How long a Ctrl-C may go unnoticed.
const EVERY: Duration = Duration::from_millis(50);

/// Looks for signals.
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
    /// Whether one came that Python's handler made an exception of.
    // The method that clippy would rather have named is not general enough over the lifetime of the lock.
    #[allow(clippy::redundant_closure_for_method_calls)]
    pub fn came(&self) -> bool {
        if self.looked.get().elapsed() > EVERY {
            self.looked.set(Instant::now());
            if let Err(error) = Python::attach(|py| py.check_signals()) {
                self.error.replace(Some(error));
            }
        }
        self.error.borrow().is_some()
    }

    /// The exception.
    pub fn into_error(self) -> Option<PyErr> {
        self.error.into_inner()
    }
}
