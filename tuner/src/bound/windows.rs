//! A lower bound for schedules that only offload: the bytes that the link must carry between two ops, along the trace.
//!
//! # The windows
//!
//! A *window* (i, j) lasts from the end of op i, or the start of the iteration, to the start of a later op j. A *gap* of a value
//! (a tensor in one version) is the time between two consecutive touches of it, the later one a read. M is the budget without the
//! resident bytes, own(i) the bytes of i's operands and its leanest workspace. Within a window the link carries
//!
//! - *in*: the bytes of all gaps around the end of i that end at one of i+1..j, less M - own(i); nothing from the start.
//! - *out*: own(j) and the bytes of all gaps around j, less M, less the bytes of those gaps whose value was written
//!   before i.
//!
//! ```text
//! end(j) - end(i) >= max(seconds of i+1..j-1, time of in, time of out) + seconds of j
//! ```
//!
//! and with a half-duplex link the time of in and that of out add up. The time of b bytes is b / rate, and a latency for
//! every piece of at most the largest tensor that b has. Windows that do not overlap add up too: the bound is the longest
//! path over the ops, from the start of the iteration to the end of the last one.
//!
//! # Why it holds
//!
//! Take a valid schedule that runs nothing again, and its timeline. (Let every command take some time. Where commands
//! take none, give each an e more, as in [`super::joint`].) A byte of a value is *there* at an instant if a buffer is
//! open then that holds it, or that a prefetch under way is filling with it.
//!
//! - *In.* At the end of i all of i's operands, and its workspace, lie in open buffers. Values with a gap around that instant
//!   are no part of that: they are of tensors that i does not touch. Buffers that are open at one time share no byte of the
//!   pool (rule 4), so that at most M - own(i) bytes of such values are there. Each of the others that an op of i+1..j reads
//!   is in a buffer when that op starts, and a command filled it since the end of i. This was no compute, as the only one
//!   that makes the value ran before i. So it was a prefetch, which started after the end of i and ended before the start of
//!   that op, and so of j. Prefetches follow each other.
//! - *Out.* At the start of j, likewise, at most M - own(j) bytes of the values with a gap around j are there. Each of the
//!   others is read later, so that a prefetch brings it after the start of j; take the first that starts then. It reads a
//!   host copy that an offload left there from a buffer that held the byte. That offload ended by the start of j: had it not,
//!   its buffer would be open at the start of j, so that the byte were there, or would have been filled later, by a prefetch
//!   before the first. And it started after the value's writer ended: after the end of i, unless the value was written before
//!   i. The bytes of *out* are these without all that were written before i. Offloads follow each other.
//! - *Latency.* A transfer has bytes of one tensor.
//! - *Half duplex.* All these transfers lie within the window, and none overlaps a different one.
//! - Between the end of i and the start of j the compute stream runs the ops between them, and then j.
//!
//! Pieces may be of any size and prefetches arbitrarily early: the argument restricts neither. A tensor that is on the device
//! from the start is a value written before everything: from the start on it may be offloaded, and has to be before it may leave.
//!
//! # How it is found
//!
//! From each i, the longest path to which is known by then, all j in order, with the two sums kept up to date. That is quadratic
//! in the ops, so it stops at the j from which computing takes longer than the link could at most: no window from i carries in
//! more than is missing at i, nor out more than is missing at any op that follows. On long traces some i are left out; a path
//! over fewer windows is a bound as well.
//!
//! This file deliberately does not choose values so that both directions fit together, which [`super::joint`] does at one
//! instant.

use super::values::Values;
use crate::levels::Levels;
use crate::request::Limits;
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};

/// Maximum number of pairs of ops; on longer traces, windows begin at fewer ops.
const PAIRS: usize = 4_000_000;

/// Read of a value. Instants are numbered as slots: 0 is the start of the iteration, i + 1 the end of op i.
struct Read {
    /// Instant of the previous touch.
    since: usize,
    /// Instant at which the value was made.
    made: usize,
    bytes: u64,
    /// `true` if nothing reads it later.
    last: bool,
}

/// Trace at a budget.
struct Windows<'a> {
    all: &'a Values,
    link: &'a Link,
    /// Bytes of the budget that are not resident.
    room: u64,
    reads: Vec<Vec<Read>>,
    /// By op: bytes alive during it that have no room, with nothing swapped.
    excess: Vec<u64>,
    /// By op: largest excess from it on.
    ahead: Vec<u64>,
    /// By instant: bytes of the values that were made before it and are read after it.
    alive: Vec<u64>,
    /// Largest tensor.
    largest: u64,
}

impl<'a> Windows<'a> {
    fn new(all: &'a Values, room: u64, link: &'a Link) -> Windows<'a> {
        let count = all.seconds.len();
        let mut reads: Vec<Vec<Read>> = (0..count).map(|_| Vec::new()).collect();
        let mut alive: Levels<usize> = Levels::new(count + 1);
        for value in &all.values {
            let (mut since, made) = (value.slot, value.slot);
            for (at, &reader) in value.readers.iter().enumerate() {
                let last = at + 1 == value.readers.len();
                reads[reader].push(Read { since, made, bytes: value.bytes, last });
                since = reader + 1;
            }
            if let Some(&last) = value.readers.last() {
                alive.hold(value.slot + 1..last + 1, value.bytes);
            }
        }
        let alive = alive.sums().collect();
        let excess: Vec<u64> = all.in_use().iter().map(|bytes| bytes.saturating_sub(room)).collect();
        let mut ahead = excess.clone();
        (1..count).rev().for_each(|j| ahead[j - 1] = ahead[j - 1].max(ahead[j]));
        let largest = all.values.iter().map(|v| v.bytes).max().unwrap_or(1);
        Windows { all, link, room, reads, excess, ahead, alive, largest }
    }

    /// Returns the link's seconds for this many bytes in and out.
    fn seconds(&self, back: u64, out: u64) -> f64 {
        if back == 0 && out == 0 {
            return 0.0;
        }
        let latency = self.link.latency_seconds.0;
        let time = |bytes: u64, rate: f64| {
            Bytes(bytes).to_f64() / rate + latency * bytes.div_ceil(self.largest) as f64
        };
        let back = time(back, self.link.prefetch_bytes_per_second.0);
        let out = time(out, self.link.offload_bytes_per_second.0);
        if self.link.duplex == Duplex::Half { back + out } else { back.max(out) }
    }

    /// Returns the maximum link time in a window from an instant.
    fn most(&self, from: usize) -> f64 {
        let back = from.checked_sub(1).map_or(0, |i| self.excess[i]);
        self.seconds(back, self.ahead[from])
    }

    /// Returns the number of ops that may follow an instant until computing takes longer than the link could.
    fn reach(&self, from: usize) -> usize {
        let (until, most) = (&self.all.until, self.most(from));
        until[from..].partition_point(|s| s - until[from] < most)
    }

    /// Returns the instants at which windows begin: all, or of each stretch the one after the op that has least room.
    fn starts(&self) -> Vec<bool> {
        let count = self.excess.len();
        let pairs: usize = (0..count).map(|from| self.reach(from)).sum();
        let stretch = pairs.div_ceil(PAIRS).max(1);
        let mut starts = vec![stretch == 1; count];
        starts[0] = true;
        for first in (1..count).step_by(stretch) {
            let stretch = first..count.min(first + stretch);
            stretch.max_by_key(|from| self.excess[from - 1]).into_iter().for_each(|from| starts[from] = true);
        }
        starts
    }

    /// Lengthens the paths to the ends of ops by the windows from an instant.
    fn go(&self, from: usize, longest: &mut [f64]) {
        let Values { until, seconds, .. } = self.all;
        let (begun, most, old) = (longest[from], self.most(from), from);
        let free = from.checked_sub(1).map_or(u64::MAX, |i| self.room.saturating_sub(self.all.touched[i]));
        let (mut need, mut alive) = (0, self.alive[from]);
        for j in from..seconds.len() {
            let computing = until[j] - until[from];
            if computing >= most {
                break;
            }
            let mut dead = 0;
            let mut away = alive;
            for read in self.reads[j].iter().filter(|read| read.made < old) {
                need += if read.since < old { read.bytes } else { 0 };
                away -= read.bytes;
                dead += if read.last { read.bytes } else { 0 };
            }
            alive -= dead;
            let linked = self.seconds(need.saturating_sub(free), self.excess[j].saturating_sub(away));
            if linked > computing {
                longest[j + 1] = longest[j + 1].max(begun + linked + seconds[j]);
            }
        }
    }
}

/// Returns the bound for a valid trace, a budget that is not below its floor, and a link, of schedules that run nothing again.
///
/// When time is up it is the bound proved so far.
pub(crate) fn bound(trace: &Trace, budget: Bytes, link: &Link, limits: &Limits<'_>) -> Seconds {
    let all = Values::of(trace, false);
    let windows = Windows::new(&all, budget.saturating_sub(trace.resident_bytes).0, link);
    let starts = windows.starts();
    let mut longest = vec![0.0f64; starts.len() + 1];
    let mut late = false;
    for (from, start) in starts.iter().enumerate() {
        late = late || limits.is_expired();
        if *start && !late {
            windows.go(from, &mut longest);
        }
        longest[from + 1] = longest[from + 1].max(longest[from] + all.seconds[from]);
    }
    Seconds(longest[starts.len()])
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
