//! The driver's result codes: those that the stand-in returns, and those that a test may choose as an answer.
//!
//! Names and numbers are those of `cuda.h`; the sentences are our own. An asynchronous failure is *sticky*, as in the
//! driver: every later call that concerns the device returns it ([`fail`], [`sticky`]).

use crate::lock;
use std::ffi::CStr;
use std::sync::Mutex;

/// A result code that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

/// Result of a call: a value, or the code of the error.
pub type Outcome<T = ()> = Result<T, Status>;

/// Defines the codes that the stand-in returns as constants.
macro_rules! codes {
    (given { $($constant:ident = $code:literal, $name:literal, $text:literal;)* }
     only_said { $($other:literal = $other_name:literal, $other_text:literal;)* }) => {
        $(#[doc = $text] pub const $constant: Status = Status($code);)*
        /// Every code with the driver's name for it and its meaning, each with a zero at its end.
        const WORDS: &[(u32, &str, &str)] = &[
            (0, "CUDA_SUCCESS\0", "no error\0"),
            $(($code, concat!("CUDA_ERROR_", $name, "\0"), concat!($text, "\0")),)*
            $(($other, concat!("CUDA_ERROR_", $other_name, "\0"), concat!($other_text, "\0")),)*
        ];
    };
}

codes! {
    given {
        INVALID_VALUE = 1, "INVALID_VALUE", "an argument is not valid";
        OUT_OF_MEMORY = 2, "OUT_OF_MEMORY", "out of memory";
        NOT_INITIALIZED = 3, "NOT_INITIALIZED", "cuInit was not called";
        NO_DEVICE = 100, "NO_DEVICE", "no CUDA-capable device is detected";
        INVALID_DEVICE = 101, "INVALID_DEVICE", "invalid device ordinal";
        INVALID_CONTEXT = 201, "INVALID_CONTEXT", "no context is current on this thread";
        NO_BINARY_FOR_GPU = 209, "NO_BINARY_FOR_GPU", "no kernel image is there for this device";
        INVALID_PTX = 218, "INVALID_PTX", "the text of the module does not compile";
        UNSUPPORTED_PTX_VERSION = 222, "UNSUPPORTED_PTX_VERSION", "the PTX is newer than the driver";
        INVALID_HANDLE = 400, "INVALID_HANDLE", "an invalid or destroyed handle";
        ILLEGAL_STATE = 401, "ILLEGAL_STATE", "what the call needs is not in the state for it";
        NOT_FOUND = 500, "NOT_FOUND", "the named symbol is not found";
        NOT_READY = 600, "NOT_READY", "the device is not ready";
        ILLEGAL_ADDRESS = 700, "ILLEGAL_ADDRESS", "an illegal memory access was encountered";
        LAUNCH_TIMEOUT = 702, "LAUNCH_TIMEOUT", "the launch timed out";
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
    only_said {
        34 = "STUB_LIBRARY", "the library is a stub";
        46 = "DEVICE_UNAVAILABLE", "the device is busy or unavailable";
        214 = "ECC_UNCORRECTABLE", "an error of the memory that cannot be corrected";
        221 = "JIT_COMPILER_NOT_FOUND", "the PTX compiler is not found";
        304 = "OPERATING_SYSTEM", "a call to the operating system failed";
        719 = "LAUNCH_FAILED", "a kernel failed";
        801 = "NOT_SUPPORTED", "not supported on this system";
        802 = "SYSTEM_NOT_READY", "the system is not ready";
        803 = "SYSTEM_DRIVER_MISMATCH", "driver and kernel module do not match";
        804 = "COMPAT_NOT_SUPPORTED_ON_DEVICE", "compatibility mode on a device without it";
        999 = "UNKNOWN", "unknown error";
    }
}

/// Name of a code and its meaning; `None` for an unknown one.
pub fn words(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    let (_, name, text) = WORDS.iter().find(|(known, ..)| *known == code)?;
    let ended =
        |words: &'static str| CStr::from_bytes_with_nul(words.as_bytes()).expect("it ends with a zero");
    Some((ended(name), ended(text)))
}

static STICKY: Mutex<Option<Status>> = Mutex::new(None);

/// Records the failure of work on a stream; the first failure stays. The reason goes to stderr, because no code can express
/// it.
pub fn fail(status: Status, why: &str) {
    let mut sticky = lock(&STICKY);
    if sticky.is_none() {
        eprintln!("stand-in: {why}");
        *sticky = Some(status);
    }
}

/// Returns the earlier failure, if there is one.
pub fn sticky() -> Outcome {
    lock(&STICKY).map_or(Ok(()), Err)
}

/// Forgets the failure: a new context begins.
pub fn forgive() {
    *lock(&STICKY) = None;
}
