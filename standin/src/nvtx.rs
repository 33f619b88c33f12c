//! NVTX, as far as the device calls it: ranges of the calling thread, which are noted by name when they are closed.
//!
//! What was opened and not closed, or closed and not opened, a test sees as a range that is missing, or of another name.

use crate::control::words;
use crate::lock;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::Mutex;

/// How often a range of each path, such as `iteration/conv1`, was closed.
static CLOSED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

thread_local! {
    static OPEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn nvtxRangePushA(name: *const c_char) -> i32 {
    // SAFETY: like NVTX this trusts that a name ends with a zero.
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

/// For tests: how often a range of this path was closed.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_ranges(path: *const c_char) -> u64 {
    // SAFETY: the test's path ends with a zero.
    let path = unsafe { words(path) };
    lock(&CLOSED).get(&path).copied().unwrap_or_default()
}
