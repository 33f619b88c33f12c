//! Pacing: a transfer takes as long as a link of a given rate and latency would take.
//!
//! A transfer copies chunk by chunk and sleeps whenever it is ahead of its link; it never spins, which would take
//! the computing thread's core. A sleep ends some microseconds late; so the next transfer of a busy link starts
//! where the last one should have ended, and the error does not add up.

use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Duplex, Link, Stream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Copied between two looks at the clock.
const CHUNK: usize = 256 << 10;
/// A transfer that ends this much late was held up by the machine, and its link has been idle meanwhile.
const LATE_NANOS: u64 = 300_000;
/// Shorter sleeps than this are not worth the system call.
const SHORTEST_SLEEP_NANOS: u64 = 20_000;

/// One direction of a paced link.
pub(super) struct Pace {
    link: Link,
    stream: Stream,
    /// When the next transfer can start at the earliest, in nanoseconds of the device's clock.
    ready: u64,
}

/// A half-duplex link carries one transfer at a time; this holds when the last one ended.
pub(super) type Shared = Mutex<u64>;

impl Pace {
    pub(super) fn new(link: Link, stream: Stream) -> Pace {
        Pace { link, stream, ready: 0 }
    }

    /// The stream could not have gone on before this time.
    pub(super) fn not_before(&mut self, nanos: u64) {
        self.ready = self.ready.max(nanos);
    }

    /// When the stream is, or would be if every sleep had ended in time.
    pub(super) fn due(&self, now: u64) -> u64 {
        if now > self.ready + LATE_NANOS { now } else { self.ready }
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
            sleep_until(due(done), clock);
        }
        let end = due(total);
        let now = sleep_until(end, clock);
        self.ready = if now > end + LATE_NANOS { now } else { end };
    }
}

/// Has the system wake this thread when it asked to be woken; by default it may be 50 us late.
pub(super) fn wake_in_time() {
    // SAFETY: the call takes plain numbers and changes a property of this thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

/// Sleeps until a time of the clock has come; gives the time then.
fn sleep_until(nanos: u64, clock: Instant) -> u64 {
    loop {
        let now = clock.elapsed().as_nanos() as u64;
        if now + SHORTEST_SLEEP_NANOS > nanos {
            return now;
        }
        std::thread::sleep(Duration::from_nanos(nanos - now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::{BytesPerSecond, Seconds};

    /// The quickest of some transfers of one size, each after an idle link, over what the link says.
    fn ratio(link: Link, bytes: u64) -> f64 {
        wake_in_time();
        let mut pace = Pace::new(link, Stream::Offload);
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
            // The upper end leaves room for a busy machine; how close it comes on a quiet one is printed.
            assert!((0.985..2.0).contains(&ratio), "{bytes} bytes at {rate} took {ratio} of their time");
        }
    }

    #[test]
    fn a_busy_link_adds_up_to_its_rate() {
        wake_in_time();
        let link = Link::symmetric(BytesPerSecond(1e9));
        let mut pace = Pace::new(link, Stream::Prefetch);
        let (clock, shared) = (Instant::now(), Shared::default());
        for _ in 0..100 {
            pace.transfer(Bytes(100_000), clock, &shared, |_, _| {});
        }
        let taken = clock.elapsed().as_secs_f64();
        println!("100 transfers of 100 us took {:.3} ms", taken * 1e3);
        assert!(taken > 10e-3 - 30e-6, "10 MB at 1 GB/s took {taken} s");
    }
}
