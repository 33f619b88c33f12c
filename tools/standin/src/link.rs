//! The link between host and device, at a rate: each way independently, or one copy at a time. Without a rate, copies take
//! as long as the machine's memory needs.

use crate::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

static BYTES_PER_SECOND: AtomicU64 = AtomicU64::new(0);
static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Copies that have arrived and copies that are done, if both ways share the link: they run in order of arrival.
static TURNS: Mutex<(u64, u64)> = Mutex::new((0, 0));
static GONE: Condvar = Condvar::new();

/// Sets the rate from now on; 0 means no limit.
pub fn pace(bytes_per_second: u64, is_shared: bool) {
    BYTES_PER_SECOND.store(bytes_per_second, Ordering::SeqCst);
    IS_SHARED.store(is_shared, Ordering::SeqCst);
}

/// Runs a copy, and takes as long as the link needs for this many bytes.
pub fn carry(bytes: u64, copy: impl FnOnce()) {
    let rate = BYTES_PER_SECOND.load(Ordering::SeqCst);
    if rate == 0 {
        return copy();
    }
    let is_shared = IS_SHARED.load(Ordering::SeqCst);
    if is_shared {
        let mut turns = lock(&TURNS);
        let own = turns.0;
        turns.0 += 1;
        drop(GONE.wait_while(turns, |turns| turns.1 < own).unwrap_or_else(PoisonError::into_inner));
    }
    let start = Instant::now();
    copy();
    let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
    std::thread::sleep(takes.saturating_sub(start.elapsed()));
    if is_shared {
        lock(&TURNS).1 += 1;
        GONE.notify_all();
    }
}
