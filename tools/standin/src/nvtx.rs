//! NVTX, as far as the device calls it: ranges of the calling thread, which are recorded by name when they are closed.
//!
//! A range that is opened but not closed, or closed but not opened, appears to a test as a missing range, or one with a
//! different name.

use crate::control::words;
use crate::lock;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::Mutex;

/// Number of times that a range of each path, such as `iteration/conv1`, was closed.
static CLOSED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

thread_local! {
    static OPEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn nvtxRangePushA(name: *const c_char) -> i32 {
    // SAFETY: like NVTX this relies on a name that ends with a zero.
    let name = unsafe { words(name) };
    OPEN.with_borrow_mut(|open| {
        open.push(name);
        open.len() as i32 - 1
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvtxRangePop() -> i32 {
    OPEN.with_borrow_mut(|open| {
        let path = open.join("/");
        if open.pop().is_none() {
            return -1;
        }
        *lock(&CLOSED).entry(path).or_default() += 1;
        open.len() as i32
    })
}

/// For tests: number of times that a range of this path was closed.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_ranges(path: *const c_char) -> u64 {
    // SAFETY: the test's path ends with a zero.
    let path = unsafe { words(path) };
    lock(&CLOSED).get(&path).copied().unwrap_or_default()
}
