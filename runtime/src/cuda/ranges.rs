//! Names for what a profiler such as Nsight Systems shows: NVTX ranges around an iteration and around each command while
//! it is enqueued.
//!
//! NVTX is looked for like every library of CUDA; where it is missing there are no names, and nothing else changes. A
//! replayed graph is one range: its commands were enqueued once and for all.

use super::error::CudaError;
use super::presence::{NVTX, Search};
use std::ffi::{CStr, c_char, c_void};

/// The calls that open and close a range of this thread.
pub(super) struct Ranges {
    push: unsafe extern "C" fn(*const c_char) -> i32,
    pop: unsafe extern "C" fn() -> i32,
}

impl Ranges {
    /// Finds the library, which stays loaded.
    pub(super) fn start(search: &Search) -> Result<Ranges, CudaError> {
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

    /// Opens a range; what it returns, the depth, means nothing without a profiler.
    pub(super) fn open(&self, name: &CStr) {
        // SAFETY: the name ends with a zero, and is read during the call only.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Closes the range that was opened last.
    pub(super) fn close(&self) {
        // SAFETY: it takes nothing; one too many is refused by the library.
        unsafe { (self.pop)() };
    }
}
