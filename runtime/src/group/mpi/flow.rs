//! How much is under way to a worker at one time.
//!
//! Whatever is given to the library waits in buffers of its own, the kernel's and the network's, in which nothing overtakes:
//! at 200 Mbit/s they were seen to hold a sixth of a second. So a worker acknowledges what has come, with its time, and the
//! library is given a mebibyte ahead of that. It is given more where words then come at most [`QUEUE`] later than those that
//! came fastest, as LEDBAT does (RFC 6817): a fast network needs more to be busy. What is needed first waits behind no more.
//!
//! The two clocks need not agree: only differences between their differences count. What goes the other way does not count.

use std::collections::VecDeque;

/// A worker acknowledges once so many words have come, or nothing more is announced: 64 KiB.
pub(super) const ACKNOWLEDGED: usize = 1 << 14;

/// The window, in words: at first and at least 1 MiB, at most 8 MiB. Where processors are short, a thread waits for some
/// milliseconds until it runs, and a smaller window leaves the link idle meanwhile: two workers on two cores took 3 %
/// longer at 200 Mbit/s, and 7 % at 400, with one that shrank to 128 KiB.
const LEAST: usize = 1 << 18;
const MOST: usize = 1 << 21;

/// Microseconds in queues that a window beyond the least may fill.
const QUEUE: f64 = 10e3;

/// Clocks drift apart by at most so much: microseconds in a second.
const DRIFT: u32 = 100;
const SECOND: u32 = 1_000_000;

/// What is under way to a worker. Times are microseconds of a clock that wraps.
pub(super) struct Flow {
    /// Each part with when it was given to the library, in order.
    parts: VecDeque<(usize, u32)>,
    /// Their words together.
    words: usize,
    window: usize,
    /// The least of the other's time less this worker's, and when it was last raised by what clocks drift.
    least: Option<(u32, u32)>,
}

impl Flow {
    pub(super) fn new() -> Flow {
        Flow { parts: VecDeque::new(), words: 0, window: LEAST, least: None }
    }

    /// Whether more may be under way.
    pub(super) fn has_room(&self) -> bool {
        self.words < self.window
    }

    /// Whether nothing is.
    pub(super) fn is_empty(&self) -> bool {
        self.words == 0
    }

    pub(super) fn sent(&mut self, words: usize, now: u32) {
        self.parts.push_back((words, now));
        self.words += words;
    }

    /// So many more words have come to the other worker, by its clock at this time.
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
            // A change is felt only later: larger steps would swing.
            let step = words as f64 * (1.0 - queue / QUEUE).max(-1.0) / 2.0;
            self.window = ((self.window as f64 + step) as usize).clamp(LEAST, MOST);
        }
    }

    /// How much longer than the least a way took.
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

    /// The most and the least of a window over a link of a rate, on which each word is a time longer on its way and each
    /// acknowledgement another time back, and how much of the link is used; after a second.
    fn at_rate(words_per_second: f64, latency: f64, back: f64) -> ([usize; 2], f64) {
        // Any clocks, of which one wraps.
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
        // 200 Mbit/s to 10 Gbit/s; a network's time, and that of a thread that waits for a processor; nothing back, or what
        // stands in a queue.
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
