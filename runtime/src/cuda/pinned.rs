//! Pinned host buffers: a mapping of exactly its size, registered with the driver. Memory allocated by the driver would be
//! rounded up to a power of two.
//!
//! Pinning faults pages in one after the other, which takes seconds for gigabytes. So huge pages are requested, and several
//! threads touch the mapping before it is pinned. A size that can never be available is refused beforehand: above a control
//! group's limit, or above the machine's memory less [`LEFT_TO_THE_SYSTEM`]. A size that is merely unavailable now only
//! causes a warning: the system gives caches back, and a virtual machine may start small and grow.
//!
//! Deliberately does not reserve huge pages, which only an administrator can.

use super::driver::{Context, PinnedMemory};
use super::numa;
use crate::cpu::{available_bytes, pinnable_bytes};
use crate::error::{Error, Kind, MemoryKind};
use cudarc::driver::sys::cudaError_enum as Of;
use memmap2::{Advice, MmapMut, MmapOptions};
use plimsoll_ir::Bytes;
use std::sync::Arc;
use std::thread;

/// Machine memory left to the system and all other processes.
pub(crate) const LEFT_TO_THE_SYSTEM: Bytes = Bytes(2 << 30);

/// Page size of most machines; larger pages are touched several times each.
const PAGE: usize = 4096;

/// Least bytes that a thread touches: starting a thread takes longer than touching less.
const LEAST_SHARE: usize = 32 << 20;

/// Most threads; more would only wait for the memory.
const THREADS_MOST: usize = 16;

/// Pinned memory of exactly these bytes, zeros, on the given NUMA node, if any; `None` for 0 bytes.
pub(super) fn pinned_memory(
    context: &Arc<Context>,
    bytes: Bytes,
    node: Option<u32>,
) -> Result<Option<PinnedMemory>, Error> {
    if bytes == Bytes::ZERO {
        return Ok(None);
    }
    let short = |available| Error::out_of_memory(MemoryKind::PinnedHost, bytes, available, &[]);
    let most = pinnable_bytes(LEFT_TO_THE_SYSTEM).unwrap_or(Bytes(u64::MAX));
    if bytes > most {
        return Err(short(most));
    }
    let available = available_bytes();
    doubt(bytes, available).inspect(|words| tracing::warn!("{words}"));
    let short = short(available.map_or(most, |available| available.min(most)));
    let length = usize::try_from(bytes.0).map_err(|_| short.clone())?;
    let mut map = MmapOptions::new().len(length).map_anon().map_err(|_| short.clone())?;
    // Before the first page exists.
    if let Some(node) = node {
        numa::prefer(&mut map, node);
    }
    if let Err(error) = map.advise(Advice::HugePage) {
        tracing::debug!("the host slab has no huge pages: {error}");
    }
    fault_in(&mut map, thread::available_parallelism().map_or(1, std::num::NonZero::get));
    PinnedMemory::pin(context, map).map(Some).map_err(|refusal| {
        if refusal.is(Of::CUDA_ERROR_OUT_OF_MEMORY) {
            return short;
        }
        let message = format!(
            "the driver refused {refusal}, of {bytes}; this much host memory cannot be page-locked here: lower the budget or \
             the batch so that less is swapped, or see what a container or `ulimit -l` allows"
        );
        Error::new(Kind::NotPinned, message)
    })
}

/// Warning before this many bytes are pinned, if fewer are available.
fn doubt(bytes: Bytes, available: Option<Bytes>) -> Option<String> {
    let available = available.filter(|available| bytes > *available)?;
    Some(format!(
        "{bytes} of host memory are to be pinned, and the system says that {available} are available now: it has to take the \
         rest from caches, or ends a process; with less swapped (a smaller batch, a larger budget) less is pinned"
    ))
}

/// Faults all pages of a mapping in now, on at most this many threads.
fn fault_in(map: &mut MmapMut, threads: usize) {
    let threads = threads.clamp(1, THREADS_MOST);
    let share = map.len().div_ceil(threads).max(LEAST_SHARE).next_multiple_of(PAGE);
    thread::scope(|scope| {
        for part in map.chunks_mut(share) {
            let touch = move || part.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
            // If the system refuses a thread, pinning faults its part in.
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, touch) {
                tracing::debug!("a part of the host slab is faulted in as it is pinned: {error}");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of a mapping's pages that are in memory.
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
