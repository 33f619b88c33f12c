//! Device memory, page-locked memory of the host, and the lookup of addresses.
//!
//! A device address is the address of its storage plus [`DEVICE`], which no host address reaches: a host that follows one
//! faults, and the addresses alone show a copy in the wrong direction. Storage starts as bits that are NaN in f32, and ends
//! at a page that faults. Freed memory is unmapped and its address refused.

use crate::lock;
use crate::status::{self, Outcome};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{LazyLock, Mutex};

/// Offset of device addresses; host addresses of user space are below 2^47.
const DEVICE: u64 = 1 << 50;

const PAGE: u64 = 4096;

/// Alignment of device allocations.
const ALIGNMENT: u64 = 256;

/// Total memory of the device, including that of the context.
pub const TOTAL: u64 = 4 << 30;

/// Name of a slice of the device (MIG), and its memory.
pub const SLICE: &str = "MIG-5ca1ab1e-0000-4000-8000-000000000002";
const OF_SLICE: u64 = 1 << 30;

/// Memory of the context.
const CONTEXT: u64 = 256 << 20;

/// Live memory by first address.
struct Live {
    /// Length by device address.
    device: BTreeMap<u64, u64>,
    /// Length by address of page-locked host memory.
    host: BTreeMap<u64, u64>,
}

/// Most memory that may be page-locked at once, as limited by a system: `PLIMSOLL_STANDIN_PINNED` bytes, or unlimited.
static MOST_PAGE_LOCKED: LazyLock<u64> = LazyLock::new(|| {
    std::env::var("PLIMSOLL_STANDIN_PINNED").ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(u64::MAX)
});

static LIVE: Mutex<Live> = Mutex::new(Live { device: BTreeMap::new(), host: BTreeMap::new() });

/// Kind of a range of host memory for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Copies to and from it run on their stream.
    PageLocked,
    /// Copies to and from it block the caller.
    Pageable,
}

/// Free bytes, and all bytes.
pub fn info() -> (u64, u64) {
    let taken: u64 = lock(&LIVE).device.values().sum();
    let total = if is_slice() { OF_SLICE } else { TOTAL };
    (total - CONTEXT - taken, total)
}

/// Returns `true` if the process computes on a slice: it named one when it began.
pub fn is_slice() -> bool {
    static NAMED: LazyLock<bool> =
        LazyLock::new(|| std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|names| names.trim() == SLICE));
    *NAMED
}

/// Maps this many bytes, a multiple of the page.
fn map(bytes: u64) -> Outcome<u64> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new private mapping at an address chosen by the system touches no existing memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(status::OUT_OF_MEMORY) } else { Ok(at as u64) }
}

/// Pages of an allocation: those of its bytes, followed by one that faults.
fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE) + PAGE
}

/// Allocates device memory.
pub fn allocate(bytes: u64) -> Outcome<u64> {
    if bytes == 0 {
        return Err(status::INVALID_VALUE);
    }
    if bytes > info().0 {
        return Err(status::OUT_OF_MEMORY);
    }
    let mapped = map(pages(bytes))?;
    let guard = mapped + bytes.next_multiple_of(PAGE);
    // It ends at the guard, as closely as its alignment allows.
    let start = guard - bytes.next_multiple_of(ALIGNMENT);
    // SAFETY: the guard is the last page of the mapping, and the bytes before it are mapped for writing.
    unsafe {
        libc::mprotect(guard as *mut _, PAGE as usize, libc::PROT_NONE);
        std::ptr::write_bytes(start as *mut u8, 0xff, (guard - start) as usize);
    }
    lock(&LIVE).device.insert(start + DEVICE, bytes);
    Ok(start + DEVICE)
}

/// Frees device memory; the device is idle.
pub fn free(address: u64) -> Outcome {
    let bytes = lock(&LIVE).device.remove(&address).ok_or(status::INVALID_VALUE)?;
    unmap(address, bytes);
    Ok(())
}

/// Frees everything, and unlocks page-locked memory; the device is idle.
pub fn free_all() {
    let mut live = lock(&LIVE);
    live.host.clear();
    std::mem::take(&mut live.device).into_iter().for_each(|(address, bytes)| unmap(address, bytes));
}

/// Unmaps an allocation that is no longer live.
fn unmap(address: u64, bytes: u64) {
    let mapped = (address - DEVICE) / PAGE * PAGE;
    // SAFETY: the mapping was made by `allocate` with this length, starts at this page because an allocation lies in
    // its first page, and is forgotten now.
    unsafe { libc::munmap(mapped as *mut _, pages(bytes) as usize) };
}

/// Page-locks the caller's memory.
pub fn register(address: u64, bytes: u64) -> Outcome {
    if bytes == 0 || address == 0 || address >= DEVICE {
        return Err(status::INVALID_VALUE);
    }
    let mut live = lock(&LIVE);
    let end = address + bytes;
    let before = live.host.range((Unbounded, Excluded(end))).next_back();
    if before.is_some_and(|(start, length)| start + length > address) {
        return Err(status::ALREADY_REGISTERED);
    }
    if live.host.values().sum::<u64>() + bytes > *MOST_PAGE_LOCKED {
        return Err(status::OUT_OF_MEMORY);
    }
    live.host.insert(address, bytes);
    Ok(())
}

/// Unlocks the caller's memory.
pub fn unregister(address: u64) -> Outcome {
    lock(&LIVE).host.remove(&address).map(|_| ()).ok_or(status::NOT_REGISTERED)
}

/// Storage of a range of device memory that lies in one live allocation. The end of an allocation is valid as an empty
/// range.
pub fn device(address: u64, bytes: u64) -> Outcome<*mut u8> {
    let live = lock(&LIVE);
    let around = live.device.range(..=address).next_back();
    match around {
        Some((start, length)) if address - start <= *length && bytes <= length - (address - start) => {
            Ok((address - DEVICE) as *mut u8)
        }
        _ => Err(status::INVALID_VALUE),
    }
}

/// Kind of a range of host memory. A device address, or a range that leaves the page-locked memory in which it starts, is
/// refused.
pub fn host(address: u64, bytes: u64) -> Outcome<Host> {
    let end = address.checked_add(bytes).ok_or(status::INVALID_VALUE)?;
    if address == 0 || end >= DEVICE {
        return Err(status::INVALID_VALUE);
    }
    let live = lock(&LIVE);
    match live.host.range(..=address).next_back() {
        Some((start, length)) if address < start + length => {
            if end <= start + length {
                Ok(Host::PageLocked)
            } else {
                Err(status::INVALID_VALUE)
            }
        }
        _ => Ok(Host::Pageable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_good_within_its_live_allocation_only() {
        let address = allocate(1000).expect("there is room");
        assert_eq!(address % ALIGNMENT, 0);
        let bad = Err(status::INVALID_VALUE);
        assert!(device(address, 1000).is_ok() && device(address + 1000, 0).is_ok());
        assert_eq!(device(address, 1001), bad);
        assert_eq!(device(address - 1, 1), bad);
        assert_eq!(device(address + 1001, 0), bad);
        assert_eq!(device(address - DEVICE, 4), bad, "a host address is none of the device");
        assert_eq!(host(address, 4), Err(status::INVALID_VALUE), "a device address is none of the host");
        assert_eq!(free(address + 256), Err(status::INVALID_VALUE));
        assert_eq!(free(address), Ok(()));
        assert_eq!(device(address, 4), bad);
        assert_eq!(free(address), Err(status::INVALID_VALUE));
    }

    #[test]
    fn host_memory_is_page_locked_once_and_as_a_whole() {
        let bytes = vec![0u8; 4096];
        let at = bytes.as_ptr() as u64;
        assert_eq!(host(at, 4096), Ok(Host::Pageable));
        assert_eq!(register(at, 2048), Ok(()));
        assert_eq!(register(at + 1024, 2048), Err(status::ALREADY_REGISTERED));
        assert_eq!(host(at, 2048), Ok(Host::PageLocked));
        assert_eq!(host(at + 1024, 2048), Err(status::INVALID_VALUE));
        assert_eq!(unregister(at), Ok(()));
        assert_eq!(unregister(at), Err(status::NOT_REGISTERED));
    }
}
