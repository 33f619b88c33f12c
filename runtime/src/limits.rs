//! Limits that the system sets on a process (heap memory, size of files, address space), reported as readable messages.
//!
//! By default a heap allocation that fails aborts, and a file that grows beyond `ulimit -f` ends the process by a signal.
//! Here both become a message that a user can read.
//!
//! Deliberately does not continue without memory. Saved state is safe; nothing that is being computed can be saved.

use plimsoll_ir::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::read_to_string;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a process that gets no memory: that of a failing device.
const EXIT: libc::c_int = 4;

/// Bytes of a page, the unit of `/proc/self/statm`.
const PAGE: u64 = 4096;

/// The system's heap; an allocation that fails ends the process with a message and exit code 4.
pub struct Heap;

// SAFETY: every call is the system allocator's with the same arguments, and its result is returned, unless it is null: then
// nothing is returned.
unsafe impl GlobalAlloc for Heap {
    /// # Safety
    ///
    /// As for the system's allocator.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller vouches.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    /// # Safety
    ///
    /// As for the system's allocator.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller vouches.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    /// # Safety
    ///
    /// As for the system's allocator.
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller vouches.
        given(unsafe { System.realloc(old, layout, bytes) }, bytes)
    }

    /// # Safety
    ///
    /// As for the system's allocator.
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Returns allocated memory; ends the process if it is null.
fn given(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() { end(bytes) } else { memory }
}

/// Ends the process with a message that needs no memory. Threads that fail meanwhile wait for the end.
#[cold]
fn end(bytes: usize) -> ! {
    static SPEAKING: AtomicBool = AtomicBool::new(false);
    while SPEAKING.swap(true, Ordering::Relaxed) {
        // SAFETY: it takes no arguments and returns when a signal comes.
        unsafe { libc::pause() };
    }
    const BEFORE: &[u8] = b"error: the system gives this process no more memory: ";
    const BEHIND: &[u8] =
        b" bytes more were asked for\n  help: end other programs, lower the budget or the batch, or raise \
        `ulimit -v`; what was saved is saved\n";
    let (mut digits, mut first, mut rest) = ([0; 20], 20, bytes);
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for words in [BEFORE, &digits[first..], BEHIND] {
        // SAFETY: the bytes live for the whole call. Nobody is left to handle a failure.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len()) };
    }
    // SAFETY: it ends the process without running anything more of it, which could ask for memory.
    unsafe { libc::_exit(EXIT) }
}

/// Makes a write beyond `ulimit -f` fail as on a full disk. Called once, by `main`.
pub fn fail_where_files_are_too_large() {
    // SAFETY: ignoring a signal installs no code; it holds for the process from here on.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Address space that this process may have in all (`ulimit -v`); `None` means unlimited.
pub(crate) fn address_space() -> Option<Bytes> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct lives for the whole call, and the call only writes it.
    let answered = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    Some(Bytes(limit.rlim_cur)).filter(|_| answered && limit.rlim_cur != libc::RLIM_INFINITY)
}

/// Address space that the process uses.
pub(crate) fn address_space_taken() -> Bytes {
    let pages = read_to_string("/proc/self/statm").ok().and_then(|text| text.split(' ').next()?.parse().ok());
    Bytes(pages.unwrap_or(0u64).saturating_mul(PAGE))
}
