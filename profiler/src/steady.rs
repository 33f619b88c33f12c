//! Detection of steady iterations, in place of a fixed number of warm-ups.
//!
//! First iterations are slow: caches and branch predictors are cold, the system maps memory at its first touch, clocks rise,
//! a library tries its kernels. So times fall, and then stay. They are steady once some successive iterations are no faster
//! than the fastest before them. That rule does not depend on the length of the fall, and a disturbed iteration, which is
//! only slower, neither ends nor prolongs it by much.
//!
//! The detection deliberately does not wait for a machine that slows down. A rising time is a drift, which rounds spread
//! evenly.

use plimsoll_ir::Seconds;

/// Share below which an iteration is no faster than the fastest before.
const STILL: f64 = 0.01;

/// Limit of iterations for a machine that still becomes faster.
const AT_MOST: usize = 40;

/// A detector of steady iterations.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    in_a_row: usize,
    no_faster: usize,
    least: f64,
    seen: usize,
}

impl Settling {
    /// Returns a detector that is steady once this many successive iterations (at least 1) are no faster than the fastest
    /// before them.
    pub fn after(in_a_row: usize) -> Settling {
        Settling { in_a_row: in_a_row.max(1), no_faster: 0, least: f64::INFINITY, seen: 0 }
    }

    /// Takes the next iteration's duration; returns `true` once iterations are steady, or the limit is reached.
    pub fn is_steady_with(&mut self, iteration: Seconds) -> bool {
        self.no_faster = if iteration.0 < self.least * (1.0 - STILL) { 0 } else { self.no_faster + 1 };
        self.least = self.least.min(iteration.0);
        self.seen += 1;
        self.no_faster >= self.in_a_row || self.seen >= AT_MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the number of iterations after which these times are steady.
    #[track_caller]
    fn check(in_a_row: usize, seconds: impl Fn(usize) -> f64, expected: usize) {
        let mut settling = Settling::after(in_a_row);
        let found = (0..).find(|n| settling.is_steady_with(Seconds(seconds(*n))));
        assert_eq!(found.map(|n| n + 1), Some(expected));
    }

    #[test]
    fn slow_first_iterations_are_waited_for_however_many_they_are() {
        check(2, |_| 1.0, 3);
        check(1, |_| 1.0, 2);
        for slow in 0..20 {
            // Falling by a tenth each time, down to a constant.
            check(2, |n| 1.0 + 0.1 * slow.max(n) as f64 - 0.1 * n as f64, slow + 3);
        }
        // Half as fast for three, then steady at once: a pair of equal times is no steady state yet.
        check(3, |n| if n < 3 { 2.0 } else { 1.0 }, 7);
    }

    #[test]
    fn a_disturbance_neither_ends_the_fall_nor_hides_it() {
        let falling = [3.0, 2.5, 9.0, 2.0, 1.5, 1.2, 1.0, 1.0, 1.0];
        check(2, |n| falling[n.min(8)], 9);
        // A scatter of less than a hundredth is not a fall.
        check(2, |n| 1.0 - 0.004 * (n % 2) as f64, 3);
        // Times that fall for ever end at the limit.
        check(2, |n| 0.9f64.powi(n as i32), AT_MOST);
    }
}
