//! Names in a profiler such as Nsight Systems: NVTX ranges around an iteration and around each command while it is
//! enqueued.
//!
//! NVTX is found like every library of CUDA; without it there are no names, and nothing else changes. A replayed graph is
//! one range, since its commands were enqueued only once.

use super::presence::{NVTX, Search};
use crate::error::Error;
use std::ffi::{CStr, c_char, c_void};

/// Calls that open and close a range of this thread.
pub(super) struct Ranges {
    push: unsafe extern "C" fn(*const c_char) -> i32,
    pop: unsafe extern "C" fn() -> i32,
}

impl Ranges {
    /// Finds and loads the library for good.
    pub(super) fn start(search: &Search) -> Result<Ranges, Error> {
        let found = search.load(&NVTX)?;
        let address = |name| found.symbol(name, &NVTX);
        let (push, pop) = (address("nvtxRangePushA")?, address("nvtxRangePop")?);
        found.leak();
        // SAFETY: the functions of these names have these types in all versions of NVTX, by its documentation, and the
        // library is never unloaded.
        Ok(unsafe {
            Ranges {
                push: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> i32>(push),
                pop: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(pop),
            }
        })
    }

    /// Opens a range. The depth returned means nothing without a profiler.
    pub(super) fn open(&self, name: &CStr) {
        // SAFETY: the name ends with a zero, and is read during the call only.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Closes the range that was opened last.
    pub(super) fn close(&self) {
        // SAFETY: it takes no argument; the library refuses a call without an open range.
        unsafe { (self.pop)() };
    }
}
