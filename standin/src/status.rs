//! The driver's result codes, as many of them as the stand-in gives.
//!
//! Names and numbers are those of `cuda.h`; the sentences are our own. What went wrong asynchronously is *sticky*, as in
//! the driver: every later call that has to do with the device returns it ([`fail`], [`sticky`]).

use crate::lock;
use std::ffi::CStr;
use std::sync::Mutex;

/// A result code that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

/// What a call gives: a value, or the code of what is wrong.
pub type Outcome<T = ()> = Result<T, Status>;

/// All codes with their names and what they mean; the constants are made from the same lines.
macro_rules! codes {
    ($($constant:ident = $code:literal, $name:literal, $text:literal;)*) => {
        $(#[doc = $text] pub const $constant: Status = Status($code);)*
        const WORDS: &[(u32, &CStr, &CStr)] = &[(0, c"CUDA_SUCCESS", c"no error"), $(
            ($code, match CStr::from_bytes_with_nul(concat!("CUDA_ERROR_", $name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }, match CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => c"",
            }),
        )*];
    };
}

codes! {
    INVALID_VALUE = 1, "INVALID_VALUE", "an argument is not valid";
    OUT_OF_MEMORY = 2, "OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "NOT_INITIALIZED", "cuInit was not called";
    NO_DEVICE = 100, "NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "INVALID_DEVICE", "invalid device ordinal";
    INVALID_CONTEXT = 201, "INVALID_CONTEXT", "no context is current on this thread";
    INVALID_PTX = 218, "INVALID_PTX", "the text of the module does not compile";
    INVALID_HANDLE = 400, "INVALID_HANDLE", "an invalid or destroyed handle";
    ILLEGAL_STATE = 401, "ILLEGAL_STATE", "what the call needs is not in the state for it";
    NOT_FOUND = 500, "NOT_FOUND", "the named symbol is not found";
    NOT_READY = 600, "NOT_READY", "the device is not ready";
    ILLEGAL_ADDRESS = 700, "ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    ALREADY_REGISTERED = 712, "HOST_MEMORY_ALREADY_REGISTERED", "the memory is already page-locked";
    NOT_REGISTERED = 713, "HOST_MEMORY_NOT_REGISTERED", "the memory is not page-locked by registration";
    CAPTURE_UNSUPPORTED = 900, "STREAM_CAPTURE_UNSUPPORTED", "not permitted when a stream is capturing";
    CAPTURE_INVALIDATED = 901, "STREAM_CAPTURE_INVALIDATED", "the capture failed because of an earlier error";
    CAPTURE_MERGE = 902, "STREAM_CAPTURE_MERGE", "the call would merge two captures";
    CAPTURE_UNMATCHED = 903, "STREAM_CAPTURE_UNMATCHED", "the capture did not begin on this stream";
    CAPTURE_UNJOINED = 904, "STREAM_CAPTURE_UNJOINED", "a stream of the capture has work that was not joined";
    CAPTURE_ISOLATION = 905, "STREAM_CAPTURE_ISOLATION", "the capture would depend on work outside of it";
    CAPTURE_IMPLICIT = 906, "STREAM_CAPTURE_IMPLICIT", "the capture would depend on the default stream";
    CAPTURED_EVENT = 907, "CAPTURED_EVENT", "the event was last recorded in a capturing stream";
    CAPTURE_WRONG_THREAD = 908, "STREAM_CAPTURE_WRONG_THREAD", "the capture began on another thread";
}

/// The name of a code and what it means; none for one that the stand-in never gives.
pub fn words(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    WORDS.iter().find(|(known, ..)| *known == code).map(|(_, name, text)| (*name, *text))
}

static STICKY: Mutex<Option<Status>> = Mutex::new(None);

/// Something that a stream ran failed; the first failure stays. The reason goes to stderr, because no code can tell it.
pub fn fail(status: Status, why: &str) {
    let mut sticky = lock(&STICKY);
    if sticky.is_none() {
        eprintln!("stand-in: {why}");
        *sticky = Some(status);
    }
}

/// Whether something failed before.
pub fn sticky() -> Outcome {
    lock(&STICKY).map_or(Ok(()), Err)
}

/// Forgets what failed: a new context begins.
pub fn forgive() {
    *lock(&STICKY) = None;
}
