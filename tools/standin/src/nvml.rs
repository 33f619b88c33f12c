//! NVML: state of the only device, as set by the test in the environment.
//!
//! `PLIMSOLL_STANDIN_HEALTH` is words with blanks between: `slow=0x20` (the bits of the reasons), `other=PID:BYTES:COMMAND`
//! (a process; may be repeated), `own=PID` (this process's number on the machine, if a container gives it a different one),
//! `free=BYTES`. If CUDA_VISIBLE_DEVICES names a slice of it (`MIG-...`), it is cut into slices, and reports its whole
//! memory and all processes. This process is on the device while it holds the context, like any other.
#![allow(non_snake_case, reason = "the names are the library's")]

use crate::driver::is_held;
use crate::memory::{self, is_slice};
use crate::{Outcome, Place, copy_out};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong};

const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;

/// The only device.
const DEVICE: usize = 1;

/// Bus address of the device.
const BUS: &CStr = c"0000:00:00.0";

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

/// Refuses any device but the only one.
fn here(device: usize) -> Outcome {
    if device == DEVICE { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

fn put<T>(place: Place<T>, value: T) -> Outcome {
    crate::put(place, value, INVALID_ARGUMENT)
}

/// Defines calls that return one fixed number about the device, or about a part of it.
macro_rules! fixed {
    ($($name:ident($($part:ident)?) = $number:expr;)*) => {
        calls! {$(
            fn $name(device: usize, $($part: c_int,)? number: Place<'_, c_uint>) {
                here(device)?;
                put(number, $number)
            }
        )*}
    };
}

fixed! {
    nvmlDeviceGetCurrPcieLinkGeneration() = 1;
    nvmlDeviceGetCurrPcieLinkWidth() = 16;
    nvmlDeviceGetMaxPcieLinkGeneration() = 5;
    nvmlDeviceGetMaxPcieLinkWidth() = 16;
    nvmlDeviceGetEnforcedPowerLimit() = 350_000;
    nvmlDeviceGetClockInfo(_clock) = 345;
    nvmlDeviceGetMaxClockInfo(_clock) = 1980;
    nvmlDeviceGetTemperature(_sensor) = 41;
}

calls! {
    fn nvmlInit_v2() {
        Ok(())
    }

    fn nvmlShutdown() {
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(room: *mut c_char, length: c_uint) {
        copy_out(c"580.0", room, length as usize, INSUFFICIENT_SIZE)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, room: *mut c_char, length: c_uint) {
        let command = others().into_iter().find(|(of, ..)| *of == pid).map(|(.., command)| command);
        let command = command.filter(|command| !command.is_empty()).and_then(|text| CString::new(text).ok());
        copy_out(&command.ok_or(NOT_FOUND)?, room, length as usize, INSUFFICIENT_SIZE)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: Place<'_, usize>) {
        if bus.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller gives a text that ends with a zero, as the interface requires.
        if unsafe { CStr::from_ptr(bus) } == BUS { put(device, DEVICE) } else { Err(NOT_FOUND) }
    }

    fn nvmlDeviceGetMigMode(device: usize, current: Place<'_, c_uint>, pending: Place<'_, c_uint>) {
        here(device)?;
        put(current, is_slice().into())?;
        put(pending, is_slice().into())
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: usize, room: Option<&mut Memory>) {
        here(device)?;
        let room = room.ok_or(INVALID_ARGUMENT)?;
        let (free, total) = if is_slice() { (memory::TOTAL, memory::TOTAL) } else { memory::info() };
        let free = said("free").first().and_then(|bytes| bytes.parse().ok()).unwrap_or(free);
        (room.total, room.free, room.used, room.reserved) = (total, free, total - free.min(total), 0);
        Ok(())
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(
        device: usize, least: Place<'_, c_uint>, most: Place<'_, c_uint>,
    ) {
        here(device)?;
        put(least, 100_000)?;
        put(most, 700_000)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: usize, reasons: Place<'_, c_ulonglong>) {
        here(device)?;
        let slow = said("slow");
        let bits = slow.first().and_then(|bits| u64::from_str_radix(bits.trim_start_matches("0x"), 16).ok());
        // The default is an idle device.
        put(reasons, bits.unwrap_or(1))
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: usize, count: Option<&mut c_uint>, room: *mut Process,
    ) {
        here(device)?;
        let count = count.ok_or(INVALID_ARGUMENT)?;
        let mut all: Vec<(u32, u64)> = others().into_iter().map(|(pid, bytes, _)| (pid, bytes)).collect();
        if is_held() {
            let own = said("own").first().and_then(|pid| pid.parse().ok()).unwrap_or(std::process::id());
            all.push((own, 1 << 20));
        }
        let fits = all.len() <= *count as usize;
        *count = all.len() as c_uint;
        if !all.is_empty() && (!fits || room.is_null()) {
            return Err(INSUFFICIENT_SIZE);
        }
        for (at, (pid, used)) in all.into_iter().enumerate() {
            let process = Process { pid, used, gpu_instance: u32::MAX, compute_instance: u32::MAX };
            // SAFETY: the caller gives room for `count` entries, which was just found to be enough.
            unsafe { room.add(at).write(process) };
        }
        Ok(())
    }
}
