//! When iterations have become steady: found, and not assumed after a fixed number.
//!
//! First iterations are slow: caches and branch predictors know nothing yet, the system maps memory at its first touch,
//! clocks rise, a library tries its kernels. So times fall, and then stay. They are steady once some iterations in a row are
//! no faster than the fastest before them; that asks nothing of how long the fall takes, and a disturbed iteration, which is
//! only slower, neither ends nor prolongs it by much.
//!
//! What it deliberately does not do: wait for a machine that slows down. A time that rises is a drift, which rounds spread
//! evenly.

use plimsoll_ir::Seconds;

/// Faster than the fastest before by less than this share is no faster.
const STILL: f64 = 0.01;

/// Iterations after which a machine that still becomes faster is taken as it is.
const AT_MOST: usize = 40;

/// Looks at iterations until they are steady.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    in_a_row: usize,
    no_faster: usize,
    least: f64,
    seen: usize,
}

impl Settling {
    /// Steady once so many iterations in a row (at least 1) are no faster than the fastest before them.
    pub fn after(in_a_row: usize) -> Settling {
        Settling { in_a_row: in_a_row.max(1), no_faster: 0, least: f64::INFINITY, seen: 0 }
    }

    /// Takes what the next iteration took; true once they are steady, or as many as are worth waiting for have run.
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

    /// After how many iterations these times are found steady.
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
            // Falling by a tenth each time, down to what stays.
            check(2, |n| 1.0 + 0.1 * slow.max(n) as f64 - 0.1 * n as f64, slow + 3);
        }
        // Half as fast for three, then steady at once: a pair of equal times is no steady state yet.
        check(3, |n| if n < 3 { 2.0 } else { 1.0 }, 7);
    }

    #[test]
    fn a_disturbance_neither_ends_the_fall_nor_hides_it() {
        let falling = [3.0, 2.5, 9.0, 2.0, 1.5, 1.2, 1.0, 1.0, 1.0];
        check(2, |n| falling[n.min(8)], 9);
        // A scatter of less than a hundredth is no fall.
        check(2, |n| 1.0 - 0.004 * (n % 2) as f64, 3);
        // What becomes faster for ever is not waited for.
        check(2, |n| 0.9f64.powi(n as i32), AT_MOST);
    }
}
