//! What a test asks of the stand-in besides the driver's calls: how late streams are, how often each call was made, which
//! call is left out, and whether all is done.
//!
//! A call that is left out does nothing and says that all is well: what a device that forgot to make it would see.

use crate::delays;
use crate::lock;
use crate::state::state;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::Mutex;

static COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// The name of a call and how many of it still go through before the one that is left out.
static LEFT_OUT: Mutex<Option<(String, u64)>> = Mutex::new(None);

/// Notes a call; whether it is to be made.
pub fn enter(name: &'static str) -> bool {
    note(name);
    let mut left_out = lock(&LEFT_OUT);
    match &mut *left_out {
        Some((forgotten, 0)) if forgotten == name => {
            *left_out = None;
            false
        }
        Some((forgotten, remaining)) if forgotten == name => {
            *remaining -= 1;
            true
        }
        _ => true,
    }
}

/// Counts something that happened.
pub fn note(name: &'static str) {
    *lock(&COUNTS).entry(name).or_default() += 1;
}

/// The text that a test gives.
///
/// # Safety
/// `text` is null or ends with a zero.
unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// From now on streams are as late as this seed makes them; 0 for prompt.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_delays(seed: u64) {
    delays::seed(seed);
}

/// Writes a line `name count` for each call made so far, or as much of it as there is room for; gives the length of all.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_counts(text: *mut u8, room: usize) -> usize {
    let lines: String = lock(&COUNTS).iter().map(|(name, count)| format!("{name} {count}\n")).collect();
    if !text.is_null() {
        // SAFETY: the test gives so much room.
        unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr(), text, lines.len().min(room)) };
    }
    lines.len()
}

/// Leaves out the call of this name that comes after so many others of it; null takes it back.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_leave_out(name: *const c_char, after: u64) {
    // SAFETY: the test gives a text that ends with a zero, or null.
    let name = unsafe { words(name) };
    *lock(&LEFT_OUT) = (!name.is_empty()).then_some((name, after));
}

/// How many streams have something left to do.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_busy() -> usize {
    let streams = state().all_streams();
    streams.iter().filter(|stream| !stream.is_idle()).count()
}
