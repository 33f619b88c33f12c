//! Events: a time stamp that one stream writes and others wait for.
//!
//! An event counts as recorded when its slot carries the number of the running iteration, so that nothing needs to
//! be cleared between iterations. Who waits spins shortly and then sleeps; all sleepers share one condition
//! variable, which is enough for three streams.

use crate::device::EventId;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Turns of the short spin: about a microsecond. Longer ones were measured on 2 shared cores: they take the core from
/// whoever would record the event.
const SPINS: u32 = 20;

#[derive(Default)]
struct Slot {
    iteration: AtomicU64,
    nanos: AtomicU64,
    /// When it would have happened on a link that ends its transfers in time; what paced streams go by.
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

    /// Marks an event as recorded in this iteration (from 1) at this time, and when it was due.
    pub(super) fn record(&self, event: EventId, iteration: u64, nanos: u64, due: u64) {
        let slot = &self.slots[event.0 as usize];
        slot.nanos.store(nanos, Ordering::Relaxed);
        slot.due.store(due, Ordering::Relaxed);
        // Both here and in `wait` the order is: announce, then look at the other's announcement. One of the two
        // sees the other's.
        slot.iteration.store(iteration, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.bell.notify_all();
        }
    }

    /// Waits until the event is recorded in this iteration; gives the time at which it was due.
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

    /// Whether it is recorded in this iteration; what was written before it is then seen.
    pub(super) fn has_happened(&self, event: EventId, iteration: u64) -> bool {
        self.slots[event.0 as usize].iteration.load(Ordering::SeqCst) == iteration
    }

    /// When it was last recorded.
    pub(super) fn nanos(&self, event: EventId) -> u64 {
        self.slots[event.0 as usize].nanos.load(Ordering::Relaxed)
    }
}
