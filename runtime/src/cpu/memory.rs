//! Device memory and host memory of the device `cpu`: mappings of exact size.
//!
//! Both are mapped and touched when they are allocated, after a check of the memory that the system reports as available, so
//! that too little memory is an error then. (Memory that another process takes meanwhile can still end the process at that
//! moment, but not in the middle of training.) A host file gets all its blocks at once for the same reason: writing through
//! a mapping to a disk that has become full would end the process.
//!
//! The streams' threads get pointers into the mappings. `ir::check` has proved of the schedule that no two of them touch the
//! same bytes at once.

use super::system::{allocate_blocks, available_bytes, machine_bytes};
use crate::device::{MemoryKind, MemoryLayout};
use crate::error::Error;
use memmap2::{Advice, MmapMut, MmapOptions};
use plimsoll_ir::Bytes;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Location of the host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostMemory {
    #[default]
    Anonymous,
    /// A file of this name, which must not exist yet. Its name is removed as soon as it is mapped, its blocks when the
    /// device is dropped, in any way.
    File(PathBuf),
}

/// A mapping, or nothing for 0 bytes.
struct Region {
    /// Keeps the mapping alive; only `base` is used.
    _map: Option<MmapMut>,
    base: *mut u8,
}

/// The device memory, and the host slab followed by the copies of the state.
pub(super) struct Memory {
    layout: MemoryLayout,
    device: Region,
    host: Region,
}

// SAFETY: the pointers lead into mappings that live as long as the value; access to their bytes is ordered by the events of
// a checked schedule while the streams run, and by `&mut Cpu` while they are idle.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access hands out raw pointers only.
unsafe impl Sync for Memory {}

impl Region {
    fn empty() -> Region {
        Region { _map: None, base: std::ptr::null_mut() }
    }

    fn of(mut map: MmapMut) -> Region {
        let base = map.as_mut_ptr();
        Region { _map: Some(map), base }
    }
}

impl Memory {
    /// Memory of 0 bytes.
    pub(super) fn empty() -> Memory {
        Memory { layout: MemoryLayout::default(), device: Region::empty(), host: Region::empty() }
    }

    /// Zeroed memory of exactly these sizes, 4096-aligned.
    pub(super) fn new(layout: MemoryLayout, host: &HostMemory) -> Result<Memory, Error> {
        let on_host = if *host == HostMemory::Anonymous { layout.on_host() } else { Bytes::ZERO };
        if let Some(available) = available_bytes() {
            let needed = Bytes(layout.device().0.saturating_add(on_host.0));
            if needed > available {
                return Err(Error::out_of_memory(MemoryKind::DeviceAndHost, needed, available, &[]));
            }
        }
        let device = anonymous(layout.device(), MemoryKind::Device)?;
        let host = match host {
            HostMemory::Anonymous => anonymous(layout.on_host(), MemoryKind::Host)?,
            HostMemory::File(path) => file(path, layout.on_host())?,
        };
        Ok(Memory { layout, device, host })
    }

    /// Sizes allocated.
    pub(super) fn layout(&self) -> MemoryLayout {
        self.layout
    }

    /// Address of a byte of the device memory; the offset is at most its length.
    pub(super) fn device(&self, offset: Bytes) -> *mut u8 {
        assert!(offset <= self.layout.device());
        self.device.base.wrapping_add(offset.0 as usize)
    }

    /// Address of a byte of the host memory; the offset is at most its length.
    pub(super) fn host(&self, offset: Bytes) -> *mut u8 {
        assert!(offset <= self.layout.on_host());
        self.host.base.wrapping_add(offset.0 as usize)
    }

    /// Fills pool and host slab with bytes that are NaN as f32 and no class as a label. The streams are idle.
    pub(super) fn poison(&self) {
        let pool = (self.device(self.layout.resident), self.layout.pool);
        for (start, bytes) in [pool, (self.host.base, self.layout.host)] {
            if bytes > Bytes::ZERO {
                // SAFETY: the range is one of the mappings' own, and nothing else touches it while the streams are idle.
                unsafe { start.write_bytes(0xff, bytes.0 as usize) };
            }
        }
    }
}

/// Bytes of a page, or of a part of one; writing its first byte brings it into memory.
const PAGE: usize = 4096;

/// Anonymous memory with all its pages in memory.
fn anonymous(bytes: Bytes, what: MemoryKind) -> Result<Region, Error> {
    let short = || Error::out_of_memory(what, bytes, machine_bytes().unwrap_or_default(), &[]);
    if bytes == Bytes::ZERO {
        return Ok(Region::empty());
    }
    let length = usize::try_from(bytes.0).map_err(|_| short())?;
    let mut map = MmapOptions::new().len(length).map_anon().map_err(|_| short())?;
    // Large pages, if the system has them, so that ops wait less for address translation: an LSTM's iteration takes 5 %
    // less. The call is advice; its failure does no harm.
    let _ = map.advise(Advice::HugePage);
    map.chunks_mut(PAGE).for_each(|page| page[0] = 0);
    Ok(Region::of(map))
}

/// Message for a missing host file: the reason and the remedy.
fn what_to_do(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::AlreadyExists => {
            "there is such a file already; name another, or remove it if it is of no use".to_owned()
        }
        ErrorKind::NotFound => "its folder does not exist; make it, or name another file".to_owned(),
        ErrorKind::PermissionDenied => "no permission to write there; name another file".to_owned(),
        ErrorKind::ReadOnlyFilesystem => "the disk is read-only; name a file on another".to_owned(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            format!("the disk has no room for it ({error}); free some, or name a file on another disk")
        }
        _ => format!("{error}; name a regular file on a disk with room for it"),
    }
}

/// A file of exactly this length, all of its blocks allocated.
fn file(path: &Path, bytes: Bytes) -> Result<Region, Error> {
    let fault = |error: &std::io::Error| {
        let why = what_to_do(error);
        Error::device(format!("the host file `{}` cannot hold {bytes}: {why}", path.display()))
    };
    let options = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    let file = options.map_err(|e| fault(&e))?;
    let region = if bytes == Bytes::ZERO {
        Ok(Region::empty())
    } else {
        allocate_blocks(&file, bytes).and_then(|()| {
            // SAFETY: the file is the run's own, made just now; a process that shortens it meanwhile would end this one with
            // SIGBUS, as for any mapped file.
            unsafe { MmapOptions::new().len(bytes.0 as usize).populate().map_mut(&file) }.map(Region::of)
        })
    };
    // The name goes at once and the blocks with the mapping, so that a run leaves nothing behind however it ends.
    std::fs::remove_file(path).map_err(|e| fault(&e))?;
    region.map_err(|e| fault(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_host_file_says_what_to_do() {
        for (code, expected) in [
            (libc::EEXIST, "such a file already"),
            (libc::ENOENT, "make it"),
            (libc::EACCES, "no permission"),
            (libc::EROFS, "read-only"),
            (libc::ENOSPC, "no room"),
            (libc::EDQUOT, "no room"),
            (libc::EFBIG, "no room"),
            (libc::EIO, "name a regular file"),
        ] {
            let found = what_to_do(&std::io::Error::from_raw_os_error(code));
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn mappings_start_on_a_page_and_hold_zeros() {
        let layout = MemoryLayout {
            resident: Bytes(1000),
            pool: Bytes(24),
            host: Bytes(5),
            state: Bytes(2),
            input: Bytes(0),
        };
        let memory = Memory::new(layout, &HostMemory::Anonymous).expect("it is small");
        for (base, bytes) in [(memory.device(Bytes(0)), 1024), (memory.host(Bytes(0)), 7)] {
            assert_eq!(base as usize % 4096, 0);
            // SAFETY: the mapping has this many bytes, and nothing else uses it.
            let held = unsafe { std::slice::from_raw_parts(base, bytes) };
            assert!(held.iter().all(|b| *b == 0));
        }
    }
}
