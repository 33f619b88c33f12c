//! Pacing: a transfer takes as long as a link of a given rate and latency would take.
//!
//! A transfer copies chunk by chunk and sleeps whenever it is ahead of its link; it never spins, which would take the
//! computing thread's core. A sleep ends some microseconds late; so the next transfer of a busy link starts where the last
//! one should have ended, and the error does not accumulate.
//!
//! On a slow link a transfer may take hours. [`Hurry`] ends the waiting but not the transfer: the rest is copied at once, so
//! that the iteration ends soon, with correct results. Its duration is then not a measurement.

use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Duplex, Link, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes copied between two reads of the clock.
const CHUNK: usize = 256 << 10;
/// A transfer that ends this much late was delayed by the machine, and its link has been idle meanwhile.
const LATE_NANOS: u64 = 300_000;
/// Shorter sleeps than this are not worth the system call.
const SHORTEST_SLEEP_NANOS: u64 = 20_000;
/// Longer sleeps are split, to check for a hurry.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// A switch that can be turned once: from then on paced links no longer wait. Clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct Hurry(Arc<AtomicBool>);

impl Hurry {
    /// Makes all paced links that use it stop waiting.
    pub fn up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for Hurry {
    /// Returns `true` if both are the same switch.
    fn eq(&self, other: &Hurry) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// One direction of a paced link.
pub(super) struct Pace {
    link: Link,
    stream: Stream,
    /// Earliest start of the next transfer, in nanoseconds of the device's clock.
    ready: u64,
    hurry: Hurry,
}

/// End of the last transfer of a half-duplex link, which carries one transfer at a time.
pub(super) type Shared = Mutex<u64>;

impl Pace {
    pub(super) fn new(link: Link, stream: Stream, hurry: Hurry) -> Pace {
        Pace { link, stream, ready: 0, hurry }
    }

    /// Delays the stream's next transfer to this time or later.
    pub(super) fn not_before(&mut self, nanos: u64) {
        self.ready = self.ready.max(nanos);
    }

    /// Time of the stream if every sleep had ended in time.
    pub(super) fn due(&self, now: u64) -> u64 {
        if now > self.ready.saturating_add(LATE_NANOS) { now } else { self.ready }
    }

    /// Runs a transfer: `copy(from, to)` copies these bytes of it.
    pub(super) fn transfer(
        &mut self,
        bytes: Bytes,
        clock: Instant,
        shared: &Shared,
        copy: impl Fn(usize, usize),
    ) {
        if self.link.duplex == Duplex::Half {
            let mut last = shared.lock().unwrap_or_else(PoisonError::into_inner);
            self.not_before(*last);
            self.move_bytes(bytes, clock, copy);
            *last = self.ready;
        } else {
            self.move_bytes(bytes, clock, copy);
        }
    }

    fn move_bytes(&mut self, bytes: Bytes, clock: Instant, copy: impl Fn(usize, usize)) {
        let due = |bytes: usize| {
            let seconds = self.link.seconds(self.stream, Bytes(bytes as u64)).0;
            self.ready.saturating_add((seconds * 1e9) as u64)
        };
        let total = bytes.0 as usize;
        let mut done = 0;
        while done < total {
            let next = (done + CHUNK).min(total);
            copy(done, next);
            done = next;
            sleep_until(due(done), clock, &self.hurry);
        }
        let end = due(total);
        let now = sleep_until(end, clock, &self.hurry);
        let late = now > end.saturating_add(LATE_NANOS);
        self.ready = if late || self.hurry.is_up() { now } else { end };
    }
}

/// Makes the system wake this thread on time; by default it may be 50 us late.
pub(super) fn wake_in_time() {
    // SAFETY: the call takes plain numbers and changes a property of this thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

/// Sleeps until a time of the clock, or a hurry; returns the time then.
fn sleep_until(nanos: u64, clock: Instant, hurry: &Hurry) -> u64 {
    loop {
        let now = clock.elapsed().as_nanos() as u64;
        if now + SHORTEST_SLEEP_NANOS > nanos || hurry.is_up() {
            return now;
        }
        std::thread::sleep(Duration::from_nanos(nanos - now).min(LONGEST_SLEEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::{BytesPerSecond, Seconds};

    /// The fastest of some transfers of one size, each after an idle link, relative to the link's time.
    fn ratio(link: Link, bytes: u64) -> f64 {
        wake_in_time();
        let mut pace = Pace::new(link, Stream::Offload, Hurry::default());
        let (clock, shared) = (Instant::now(), Shared::default());
        let told = link.seconds(Stream::Offload, Bytes(bytes)).0;
        let one = |pace: &mut Pace| {
            let start = clock.elapsed();
            pace.not_before(start.as_nanos() as u64);
            pace.transfer(Bytes(bytes), clock, &shared, |_, _| {});
            (clock.elapsed() - start).as_secs_f64() / told
        };
        (0..20).map(|_| one(&mut pace)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_transfer_takes_its_latency_and_its_bytes_over_the_rate() {
        for (rate, bytes) in [(1e9, 8 << 20), (12e9, 64 << 20), (100e6, 300_000), (100e6, 1)] {
            let latency_seconds = Seconds(2e-3);
            let link = Link { latency_seconds, ..Link::symmetric(BytesPerSecond(rate)) };
            let ratio = ratio(link, bytes);
            println!("{bytes} bytes at {rate}: {ratio:.5}");
            // The upper bound leaves room for a busy machine; the ratio on a quiet one is printed.
            assert!((0.985..2.0).contains(&ratio), "{bytes} bytes at {rate} took {ratio} of their time");
        }
    }

    /// 30 MB at a byte a second take a year.
    #[test]
    fn a_hurry_ends_the_wait_and_copies_the_rest() {
        const BYTES: usize = 30_000_000;
        for duplex in [Duplex::Full, Duplex::Half] {
            let link = Link { duplex, ..Link::symmetric(BytesPerSecond(1.0)) };
            let (hurry, clock, shared) = (Hurry::default(), Instant::now(), Shared::default());
            let copied = Mutex::new(vec![0u8; BYTES]);
            let copy = |from: usize, to: usize| {
                copied.lock().expect("no copy panics")[from..to].iter_mut().for_each(|byte| *byte += 1);
            };
            let mut paces = [Stream::Offload, Stream::Prefetch]
                .map(|direction| Pace::new(link, direction, hurry.clone()));
            std::thread::scope(|threads| {
                let [out, back] = &mut paces;
                threads.spawn(|| out.transfer(Bytes(BYTES as u64), clock, &shared, copy));
                threads.spawn(|| back.transfer(Bytes(1 << 20), clock, &shared, |_, _| {}));
                std::thread::sleep(Duration::from_millis(100));
                assert!(copied.lock().expect("no copy panics").ends_with(&[0]), "it waits");
                hurry.up();
            });
            assert!(clock.elapsed() < Duration::from_secs(1), "{:?}", clock.elapsed());
            assert!(copied.into_inner().expect("no copy panics").iter().all(|byte| *byte == 1));
            assert!(paces[0].due(0) < 1_000_000_000, "the next one does not wait either");
        }
    }

    #[test]
    fn a_busy_link_adds_up_to_its_rate() {
        wake_in_time();
        let link = Link::symmetric(BytesPerSecond(1e9));
        let mut pace = Pace::new(link, Stream::Prefetch, Hurry::default());
        let (clock, shared) = (Instant::now(), Shared::default());
        for _ in 0..100 {
            pace.transfer(Bytes(100_000), clock, &shared, |_, _| {});
        }
        let taken = clock.elapsed().as_secs_f64();
        println!("100 transfers of 100 us took {:.3} ms", taken * 1e3);
        assert!(taken > 10e-3 - 30e-6, "10 MB at 1 GB/s took {taken} s");
    }
}
