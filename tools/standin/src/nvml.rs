//! NVML: state of the only device, as set by the test in the environment.
//!
//! `PLIMSOLL_STANDIN_HEALTH` is words with blanks between: `slow=0x20` (the bits of the reasons), `other=PID:BYTES:COMMAND`
//! (a process; may be repeated), `own=PID` (this process's number on the machine, if a container gives it a different one),
//! `free=BYTES`. If CUDA_VISIBLE_DEVICES names a slice of it (`MIG-...`), it is cut into slices, and reports its whole
//! memory and all processes. This process is on the device while it holds the context, like any other.
#![allow(non_snake_case, reason = "the names are the library's")]

use crate::driver::is_held;
use crate::memory::{self, is_slice};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong};
use std::mem::MaybeUninit;

const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;

/// The only device.
const DEVICE: usize = 1;

/// Bus address of the device.
const BUS: &CStr = c"0000:00:00.0";

/// Place for a result, if the caller gives one.
type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// As in `nvml.h`, version 2.
#[repr(C)]
struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// As in `nvml.h`, version 2.
#[repr(C)]
struct Process {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// All values that the test sets under a name.
fn said(name: &str) -> Vec<String> {
    let all = std::env::var("PLIMSOLL_STANDIN_HEALTH").unwrap_or_default();
    let words = all.split_whitespace().filter_map(|word| word.split_once('='));
    words.filter(|(of, _)| *of == name).map(|(_, value)| value.to_owned()).collect()
}

/// Other processes: number, bytes, command.
fn others() -> Vec<(u32, u64, String)> {
    let other = |text: String| {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().unwrap_or_default().to_owned();
        let (pid, bytes) = (part().parse().unwrap_or_default(), part().parse().unwrap_or_default());
        (pid, bytes, part())
    };
    said("other").into_iter().map(other).collect()
}

fn put<T>(place: Place<T>, value: T) -> u32 {
    match place {
        Some(place) => {
            place.write(value);
            0
        }
        None => INVALID_ARGUMENT,
    }
}

/// Copies a text, with a final zero, to a buffer of `length` bytes.
fn copy_out(words: &CStr, room: *mut c_char, length: c_uint) -> u32 {
    let bytes = words.to_bytes_with_nul();
    if room.is_null() || (length as usize) < bytes.len() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the caller gives this much room, which was just found to be enough.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), room, bytes.len()) };
    0
}

/// Defines calls that return one fixed number about the device.
macro_rules! fixed {
    ($($name:ident = $number:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: usize, number: Place<c_uint>) -> u32 {
            if device == DEVICE { put(number, $number) } else { INVALID_ARGUMENT }
        }
    )*};
}

fixed! {
    nvmlDeviceGetCurrPcieLinkGeneration = 1;
    nvmlDeviceGetCurrPcieLinkWidth = 16;
    nvmlDeviceGetMaxPcieLinkGeneration = 5;
    nvmlDeviceGetMaxPcieLinkWidth = 16;
    nvmlDeviceGetEnforcedPowerLimit = 350_000;
}

/// Defines calls that return one fixed number about a part of the device.
macro_rules! fixed_of {
    ($($name:ident = $number:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: usize, _part: c_int, number: Place<c_uint>) -> u32 {
            if device == DEVICE { put(number, $number) } else { INVALID_ARGUMENT }
        }
    )*};
}

fixed_of! {
    nvmlDeviceGetClockInfo = 345;
    nvmlDeviceGetMaxClockInfo = 1980;
    nvmlDeviceGetTemperature = 41;
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(room: *mut c_char, length: c_uint) -> u32 {
    copy_out(c"580.0", room, length)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetProcessName(pid: c_uint, room: *mut c_char, length: c_uint) -> u32 {
    match others().into_iter().find(|(of, ..)| *of == pid).map(|(.., command)| CString::new(command)) {
        Some(Ok(command)) if !command.is_empty() => copy_out(&command, room, length),
        _ => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: Place<usize>) -> u32 {
    if bus.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller gives a text that ends with a zero, as the interface requires.
    if unsafe { CStr::from_ptr(bus) } == BUS { put(device, DEVICE) } else { NOT_FOUND }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(device: usize, current: Place<c_uint>, pending: Place<c_uint>) -> u32 {
    let mode = c_uint::from(is_slice());
    if device == DEVICE { put(current, mode) | put(pending, mode) } else { INVALID_ARGUMENT }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: usize, room: Option<&mut Memory>) -> u32 {
    let Some(room) = room.filter(|_| device == DEVICE) else { return INVALID_ARGUMENT };
    let (free, total) = if is_slice() { (memory::TOTAL, memory::TOTAL) } else { memory::info() };
    let free = said("free").first().and_then(|bytes| bytes.parse().ok()).unwrap_or(free);
    (room.total, room.free, room.used, room.reserved) = (total, free, total - free.min(total), 0);
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: usize,
    least: Place<c_uint>,
    most: Place<c_uint>,
) -> u32 {
    if device == DEVICE { put(least, 100_000) | put(most, 700_000) } else { INVALID_ARGUMENT }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(device: usize, reasons: Place<c_ulonglong>) -> u32 {
    let bits =
        said("slow").first().and_then(|bits| u64::from_str_radix(bits.trim_start_matches("0x"), 16).ok());
    // The default is an idle device.
    if device == DEVICE { put(reasons, bits.unwrap_or(1)) } else { INVALID_ARGUMENT }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: usize,
    count: Option<&mut c_uint>,
    room: *mut Process,
) -> u32 {
    let Some(count) = count.filter(|_| device == DEVICE) else { return INVALID_ARGUMENT };
    let mut all: Vec<(u32, u64)> = others().into_iter().map(|(pid, bytes, _)| (pid, bytes)).collect();
    if is_held() {
        let own = said("own").first().and_then(|pid| pid.parse().ok()).unwrap_or(std::process::id());
        all.push((own, 1 << 20));
    }
    let fits = all.len() <= *count as usize;
    *count = all.len() as c_uint;
    if all.is_empty() {
        return 0;
    }
    if !fits || room.is_null() {
        return INSUFFICIENT_SIZE;
    }
    for (at, (pid, used)) in all.into_iter().enumerate() {
        let process = Process { pid, used, gpu_instance: u32::MAX, compute_instance: u32::MAX };
        // SAFETY: the caller gives room for `count` entries, which was just found to be enough.
        unsafe { room.add(at).write(process) };
    }
    0
}
