//! Test controls in addition to the driver's calls: delays of streams, counts of calls, answers to calls that are not made,
//! and the number of busy streams.
//!
//! A call that is answered with success without being made looks like one that the device forgot; any other answer looks
//! like a driver that refuses the call.
//!
//! A program that is tested from outside reads its fault from the environment: `PLIMSOLL_STANDIN_ANSWER=name:after:code` is
//! such an answer; followed by `:lost`, the context is lost with it, as after a kernel that failed.

use crate::state::{choose_order, state};
use crate::status::{self, Status};
use crate::{delays, link, lock};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, Once};

static COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// A call that is answered without being made.
struct Answer {
    name: String,
    /// Number of calls of that name that are still made before it.
    after: u64,
    code: u32,
    /// `true` if every later call also returns it.
    lost: bool,
}

static ANSWER: Mutex<Option<Answer>> = Mutex::new(None);

/// Counts a call; returns its answer if it is not to be made.
pub fn enter(name: &'static str) -> Option<u32> {
    note(name);
    from_environment();
    let mut planted = lock(&ANSWER);
    let answer = planted.as_mut().filter(|answer| answer.name == name)?;
    if answer.after > 0 {
        answer.after -= 1;
        return None;
    }
    let answer = planted.take()?;
    drop(planted);
    if answer.lost {
        status::fail(Status(answer.code), "lost, as the test asked");
    }
    Some(answer.code)
}

/// Plants the fault that the environment names, once.
fn from_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(text) = std::env::var("PLIMSOLL_STANDIN_ANSWER") else { return };
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default().to_owned();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        match (number(), number()) {
            (Some(after), Some(code)) => {
                let lost = words.next() == Some("lost");
                *lock(&ANSWER) = Some(Answer { name, after, code: code as u32, lost });
            }
            _ => eprintln!(
                "stand-in: PLIMSOLL_STANDIN_ANSWER is name:after:code or name:after:code:lost, not `{text}`"
            ),
        }
    });
}

/// Counts an occurrence.
pub fn note(name: &'static str) {
    *lock(&COUNTS).entry(name).or_default() += 1;
}

/// Text given by a test.
///
/// # Safety
/// `text` is null or ends with a zero.
pub unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Sets the seed of stream delays from now on; 0 for no delays.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_delays(seed: u64) {
    delays::seed(seed);
}

/// Makes streams take turns from now on: in one of the fixed orders 1 to 6, or in those drawn with a larger number as the
/// seed; 0 for streams that run independently.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_order(order: u64) {
    choose_order(order);
}

/// Sets the rate of copies between host and device from now on, both ways at once or one at a time; 0 for no limit.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_link(bytes_per_second: u64, is_shared: bool) {
    link::pace(bytes_per_second, is_shared);
}

/// Writes a line `name count` for each call made so far, as far as there is room; returns the length of all lines.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_counts(text: *mut u8, room: usize) -> usize {
    let lines: String = lock(&COUNTS).iter().map(|(name, count)| format!("{name} {count}\n")).collect();
    if !text.is_null() {
        // SAFETY: the test gives this much room.
        unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr(), text, lines.len().min(room)) };
    }
    lines.len()
}

/// Answers the call of this name that follows `after` others with this code instead of making it; an empty name cancels it.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_answer(name: *const c_char, after: u64, code: u32) {
    // SAFETY: the test gives a text that ends with a zero, or null.
    let name = unsafe { words(name) };
    *lock(&ANSWER) = (!name.is_empty()).then_some(Answer { name, after, code, lost: false });
}

/// Number of streams with pending work.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_busy() -> usize {
    let streams = state().all_streams();
    streams.iter().filter(|stream| !stream.is_idle()).count()
}
