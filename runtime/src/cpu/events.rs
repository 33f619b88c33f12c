//! Events: time stamps that one stream writes and others wait for.
//!
//! An event counts as recorded when its slot holds the number of the running iteration, so that nothing needs to be cleared
//! between iterations. A waiting thread spins briefly and then sleeps; all sleepers share one condition variable, which is
//! enough for three streams.

use crate::device::EventId;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Turns of the short spin: about a microsecond. Longer spins, measured on 2 shared cores, take the core from the thread
/// that would record the event.
const SPINS: u32 = 20;

#[derive(Default)]
struct Slot {
    iteration: AtomicU64,
    nanos: AtomicU64,
    /// Time at which it would have happened on a link without late transfers; paced streams use it.
    due: AtomicU64,
}

/// The events of a device.
pub(super) struct Events {
    slots: Box<[Slot]>,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Events {
    pub(super) fn new(count: u32) -> Events {
        let slots = (0..count).map(|_| Slot::default()).collect();
        Events { slots, sleepers: AtomicUsize::new(0), lock: Mutex::new(()), bell: Condvar::new() }
    }

    /// Records an event in this iteration (from 1) at this time, with the time at which it was due.
    pub(super) fn record(&self, event: EventId, iteration: u64, nanos: u64, due: u64) {
        let slot = &self.slots[event.0 as usize];
        slot.nanos.store(nanos, Ordering::Relaxed);
        slot.due.store(due, Ordering::Relaxed);
        // Both here and in `wait` the order is: announce, then look at the other's announcement. One of the two sees the
        // other's.
        slot.iteration.store(iteration, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.bell.notify_all();
        }
    }

    /// Waits until the event is recorded in this iteration; returns the time at which it was due.
    pub(super) fn wait(&self, event: EventId, iteration: u64) -> u64 {
        let slot = &self.slots[event.0 as usize];
        let recorded = || self.has_happened(event, iteration);
        let mut spins = 0;
        while !recorded() && spins < SPINS {
            spin_loop();
            spins += 1;
        }
        if !recorded() {
            let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while !recorded() {
                guard = self.bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        slot.due.load(Ordering::Relaxed)
    }

    /// Returns `true` if it is recorded in this iteration; earlier writes are then visible.
    pub(super) fn has_happened(&self, event: EventId, iteration: u64) -> bool {
        self.slots[event.0 as usize].iteration.load(Ordering::SeqCst) == iteration
    }

    /// Time of the last recording.
    pub(super) fn nanos(&self, event: EventId) -> u64 {
        self.slots[event.0 as usize].nanos.load(Ordering::Relaxed)
    }
}
