//! Pinned host memory: a mapping of exactly its size that is registered with the driver, rather than memory of the driver's,
//! which would be rounded up to a power of two.
//!
//! Pinning faults pages in one after the other, which takes seconds where gigabytes are swapped. So huge pages are asked
//! for, and several threads touch the mapping before it is pinned. What can never be there is refused beforehand: more than a
//! control group allows, or than the machine has less [`LEFT_TO_THE_SYSTEM`]. What is not available just now is only warned
//! of: the system gives caches back, and a virtual machine may start small and grow.
//!
//! What it deliberately does not do: reserve huge pages, which only an administrator can.

use super::driver::{Context, PinnedMemory};
use super::error::code;
use super::numa;
use crate::cpu::{available_bytes, pinnable_bytes};
use crate::device::{DeviceError, MemoryKind};
use memmap2::{Advice, MmapMut, MmapOptions};
use plimsoll_ir::Bytes;
use std::sync::Arc;
use std::thread;

/// What the system keeps of the machine's memory for itself and for all other processes.
pub(crate) const LEFT_TO_THE_SYSTEM: Bytes = Bytes(2 << 30);

/// The size of most machines' pages; where they are larger, each is touched several times.
const PAGE: usize = 4096;

/// Each thread has at least so much to touch: starting it takes longer than less than this.
const LEAST_SHARE: usize = 32 << 20;

/// More threads only wait for the memory.
const THREADS_MOST: usize = 16;

/// Exactly these bytes of pinned memory, zeros, on a memory node of the host where one is named; none for 0 bytes.
pub(super) fn pinned_memory(
    context: &Arc<Context>,
    bytes: Bytes,
    node: Option<u32>,
) -> Result<Option<PinnedMemory>, DeviceError> {
    if bytes == Bytes::ZERO {
        return Ok(None);
    }
    let short = |available| {
        let what = MemoryKind::PinnedHost;
        DeviceError::OutOfMemory { what, needed: bytes, available, held_by: Vec::new() }
    };
    let most = pinnable_bytes(LEFT_TO_THE_SYSTEM).unwrap_or(Bytes(u64::MAX));
    if bytes > most {
        return Err(short(most));
    }
    let available = available_bytes();
    doubt(bytes, available).inspect(|words| tracing::warn!("{words}"));
    let short = short(available.map_or(most, |available| available.min(most)));
    let length = usize::try_from(bytes.0).map_err(|_| short.clone())?;
    let mut map = MmapOptions::new().len(length).map_anon().map_err(|_| short.clone())?;
    // Before the first page is there.
    if let Some(node) = node {
        numa::prefer(&mut map, node);
    }
    if let Err(error) = map.advise(Advice::HugePage) {
        tracing::debug!("the host slab has no huge pages: {error}");
    }
    fault_in(&mut map, thread::available_parallelism().map_or(1, std::num::NonZero::get));
    PinnedMemory::pin(context, map).map(Some).map_err(|refusal| match refusal.code {
        code::OUT_OF_MEMORY => short,
        _ => DeviceError::NotPinned { why: format!("{refusal}, of {bytes}") },
    })
}

/// What to warn of before so much is pinned, where less is available.
fn doubt(bytes: Bytes, available: Option<Bytes>) -> Option<String> {
    let available = available.filter(|available| bytes > *available)?;
    Some(format!(
        "{bytes} of host memory are to be pinned, and the system says that {available} are available now: it has to take the \
         rest from caches, or ends a process; with less swapped (a smaller batch, a larger budget) less is pinned"
    ))
}

/// Has the system give all pages of a mapping now, on at most so many threads.
fn fault_in(map: &mut MmapMut, threads: usize) {
    let threads = threads.clamp(1, THREADS_MOST);
    let share = map.len().div_ceil(threads).max(LEAST_SHARE).next_multiple_of(PAGE);
    thread::scope(|scope| {
        for part in map.chunks_mut(share) {
            let touch = move || part.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
            // Where the system gives no thread, pinning faults that part in.
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, touch) {
                tracing::debug!("a part of the host slab is faulted in as it is pinned: {error}");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many pages of a mapping are there.
    fn present(map: &mut MmapMut) -> usize {
        let mut pages = vec![0u8; map.len().div_ceil(PAGE)];
        // SAFETY: the range is the mapping's own, which starts at a page, and the vector has a byte for each of its pages.
        let status = unsafe { libc::mincore(map.as_mut_ptr().cast(), map.len(), pages.as_mut_ptr().cast()) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn every_page_is_there_whatever_the_number_of_threads() {
        for (length, threads) in
            [(1, 1), (PAGE + 1, 4), (2 * LEAST_SHARE + 3 * PAGE + 1, 2), (LEAST_SHARE, 99)]
        {
            let mut map = MmapMut::map_anon(length).expect("a mapping");
            assert_eq!(present(&mut map), 0);
            fault_in(&mut map, threads);
            assert_eq!(present(&mut map), length.div_ceil(PAGE), "{length} bytes on {threads} threads");
            assert!(map.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn only_what_is_not_available_is_warned_of() {
        assert_eq!(doubt(Bytes(5), Some(Bytes(5))), None);
        assert_eq!(doubt(Bytes(5), None), None);
        let words = doubt(Bytes(3 << 30), Some(Bytes(1 << 30))).expect("a warning");
        assert!(
            words.starts_with("3 GiB of host memory") && words.contains("1 GiB are available"),
            "{words}"
        );
    }
}
