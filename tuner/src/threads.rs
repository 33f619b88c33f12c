//! Independent pieces of work on two threads.
//!
//! What comes of each piece depends on its position alone, and results are in order: a plan is the same bytes on one core
//! and on many. A caller's clock need not be shared: it is asked on the caller's thread, and the other one is told.
//!
//! What this file does not do: use more than two threads, as what a plan can do at once is mostly two things.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, scope};
use std::time::Duration;

/// How often the clock is looked at while the other thread is waited for.
const LOOK: Duration = Duration::from_millis(1);

/// Says that time is up.
pub(crate) type Expired<'a> = Option<&'a dyn Fn() -> bool>;

/// Does pieces of work 0 to `count`, each on whichever of two threads is free; on the caller's alone where they are not
/// `worth` another. A piece is told its position, and how to learn that time is up.
pub(crate) fn each<T: Send>(
    count: usize,
    worth: bool,
    expired: Expired<'_>,
    piece: impl Fn(usize, Expired<'_>) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let share = |expired: Expired<'_>| {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < count);
        std::iter::from_fn(take).map(|at| (at, piece(at, expired))).collect::<Vec<_>>()
    };
    let (mut done, more) = beside(worth && count > 1, expired, || (share(expired), true), share);
    done.extend(more.into_iter().flatten());
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, done)| done).collect()
}

/// Does one thing here and another on a second thread, if that is `worth` it. The first says whether the other is wanted; if
/// not, the other learns that time is up. None of what was not done, or is not wanted.
pub(crate) fn beside<A, B: Send>(
    worth: bool,
    expired: Expired<'_>,
    here: impl FnOnce() -> (A, bool),
    there: impl FnOnce(Expired<'_>) -> B + Send,
) -> (A, Option<B>) {
    if !worth {
        return (here().0, None);
    }
    let late = &AtomicBool::new(false);
    scope(|scope| {
        let (ended, end) = channel::<()>();
        let other = move || {
            let done = there(Some(&|| late.load(Ordering::Relaxed)));
            drop(ended);
            done
        };
        // There may be no thread to be had.
        let other = Builder::new().spawn_scoped(scope, other).ok();
        let (done, wanted) = here();
        let Some(other) = other else { return (done, None) };
        late.store(!wanted, Ordering::Relaxed);
        while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            late.fetch_or(expired.is_some_and(|expired| expired()), Ordering::Relaxed);
        }
        match other.join() {
            Ok(answer) => (done, wanted.then_some(answer)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::thread::sleep;

    #[test]
    fn results_come_in_order_whoever_is_faster() {
        for worth in [false, true] {
            for count in [0, 1, 2, 7] {
                let slow = |at: usize, _: Expired<'_>| {
                    sleep(Duration::from_millis(7 * at as u64 % 5));
                    at * at
                };
                assert_eq!(each(count, worth, None, slow), (0..count).map(|at| at * at).collect::<Vec<_>>());
            }
        }
    }

    /// Waits until it is told that time is up.
    fn wait(expired: Expired<'_>) -> u32 {
        while !expired.is_some_and(|expired| expired()) {
            sleep(LOOK);
        }
        3
    }

    #[test]
    fn the_other_thread_is_told_when_time_is_up_or_it_is_not_wanted() {
        let left = Cell::new(5u32);
        let expired = || left.replace(left.get().saturating_sub(1)) == 0;
        assert_eq!(beside(true, Some(&expired), || (2, true), wait), (2, Some(3)));
        assert_eq!(beside(true, None, || (2, false), wait), (2, None));
        assert_eq!(beside(false, None, || (2, true), wait), (2, None));
    }
}
