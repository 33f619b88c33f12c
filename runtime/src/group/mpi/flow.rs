//! Flow control: the amount of data under way to a worker.
//!
//! Data given to the library wait in its own buffers, the kernel's and the network's, in which nothing overtakes: at 200
//! Mbit/s they were seen to hold a sixth of a second. So a worker acknowledges arrived words, with its time, and the library
//! is given a mebibyte beyond that. It is given more if words then arrive at most [`QUEUE`] later than the fastest ones did,
//! as LEDBAT does (RFC 6817): a fast network needs more to be busy. The message needed first waits for no more data than
//! that.
//!
//! The two clocks need not agree: only differences between their differences count. Delay in the other direction does not
//! count.

use std::collections::VecDeque;

/// Words after which a worker acknowledges: 64 KiB; earlier if no more are announced.
pub(super) const ACKNOWLEDGED: usize = 1 << 14;

/// Limits of the window, in words: initial and smallest 1 MiB, largest 8 MiB. If processors are scarce, a thread waits for
/// some milliseconds until it runs, and a smaller window leaves the link idle meanwhile: two workers on two cores took 3 %
/// longer at 200 Mbit/s, and 7 % at 400, with a window that shrank to 128 KiB.
const LEAST: usize = 1 << 18;
const MOST: usize = 1 << 21;

/// Microseconds in queues that a window above the minimum may cause.
const QUEUE: f64 = 10e3;

/// Largest drift between clocks: microseconds in a second.
const DRIFT: u32 = 100;
const SECOND: u32 = 1_000_000;

/// Data under way to a worker. Times are microseconds of a clock that wraps.
pub(super) struct Flow {
    /// Words of each part, and the time at which it was given to the library, in order.
    parts: VecDeque<(usize, u32)>,
    /// Words of all parts.
    words: usize,
    window: usize,
    /// Smallest difference of the other clock from this worker's, and the time at which it was last raised by the drift.
    least: Option<(u32, u32)>,
}

impl Flow {
    pub(super) fn new() -> Flow {
        Flow { parts: VecDeque::new(), words: 0, window: LEAST, least: None }
    }

    /// Returns `true` if more may be under way.
    pub(super) fn has_room(&self) -> bool {
        self.words < self.window
    }

    /// Returns `true` if nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.words == 0
    }

    pub(super) fn sent(&mut self, words: usize, now: u32) {
        self.parts.push_back((words, now));
        self.words += words;
    }

    /// Notes that this many more words have come to the other worker, at this time of its clock.
    pub(super) fn acknowledged(&mut self, words: usize, theirs: u32) {
        let was_full = !self.has_room();
        let mut left = words.min(self.words);
        self.words -= left;
        let mut newest = None;
        while let Some((part, given)) = self.parts.front_mut()
            && left > 0
        {
            newest = Some(*given);
            let taken = left.min(*part);
            (*part, left) = (*part - taken, left - taken);
            if *part == 0 {
                self.parts.pop_front();
            }
        }
        let Some(given) = newest else { return };
        let queue = f64::from(self.queued(theirs.wrapping_sub(given), given));
        if queue > QUEUE || was_full {
            // A change takes effect only later: larger steps would oscillate.
            let step = words as f64 * (1.0 - queue / QUEUE).max(-1.0) / 2.0;
            self.window = ((self.window as f64 + step) as usize).clamp(LEAST, MOST);
        }
    }

    /// Delay of a message beyond the shortest one.
    fn queued(&mut self, way: u32, now: u32) -> u32 {
        let (mut least, mut raised) = self.least.unwrap_or((way, now));
        if now.wrapping_sub(raised) >= SECOND {
            (least, raised) = (least.wrapping_add(DRIFT), now);
        }
        let is_less = way.wrapping_sub(least) > u32::MAX / 2;
        least = if is_less { way } else { least };
        self.least = Some((least, raised));
        way.wrapping_sub(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest and smallest window over a link of this rate, with latencies of words and of acknowledgements, and the link's
    /// utilisation; after a second.
    fn at_rate(words_per_second: f64, latency: f64, back: f64) -> ([usize; 2], f64) {
        // Arbitrary clocks, of which one wraps.
        let clock = |seconds: f64, zero: u32| zero.wrapping_add((seconds * 1e6) as u32);
        let (mine, theirs) = (|now| clock(now, u32::MAX - 1_500_000), |now| clock(now, 77));
        let (mut flow, part) = (Flow::new(), 1 << 12);
        let (mut now, mut free, mut carried) = (0.0f64, 0.0f64, 0);
        let mut coming: VecDeque<f64> = VecDeque::new();
        let mut windows = [usize::MAX, 0];
        while now < 4.0 {
            while flow.has_room() {
                flow.sent(part, mine(now));
                free = free.max(now) + part as f64 / words_per_second;
                coming.push_back(free + latency);
            }
            let came = coming.pop_front().expect("some are under way");
            now = came + back;
            flow.acknowledged(part, theirs(came));
            if now > 1.0 {
                carried += part;
                windows = [windows[0].min(flow.window), windows[1].max(flow.window)];
            }
        }
        (windows, carried as f64 / (now - 1.0) / words_per_second)
    }

    #[test]
    fn a_window_holds_what_the_way_and_a_short_queue_carry_and_keeps_the_link_busy() {
        // 200 Mbit/s to 10 Gbit/s; latency of a network, and of a thread that waits for a processor; no return delay, or
        // that of a queue.
        for rate in [6.25e6, 12.5e6, 31.25e6, 312.5e6] {
            for (latency, back) in [(50e-6, 50e-6), (5e-3, 50e-6), (50e-6, 20e-3)] {
                let ([least, most], used) = at_rate(rate, latency, back);
                let carried = rate * (latency + back + QUEUE * 1e-6);
                let at =
                    format!("{least} to {most} at {rate}, {latency}, {back}: {used} used, {carried} carried");
                assert!(most as f64 <= (1.3 * carried).max(LEAST as f64), "{at}");
                assert!(used > 0.97 || carried > MOST as f64, "{at}");
            }
        }
    }

    #[test]
    fn nothing_is_under_way_once_all_is_acknowledged() {
        let mut flow = Flow::new();
        assert!(flow.is_empty());
        flow.sent(10, 3);
        flow.sent(7, 4);
        flow.acknowledged(12, 5);
        assert!(!flow.is_empty());
        flow.acknowledged(5, 6);
        assert!(flow.is_empty() && flow.has_room());
    }
}
