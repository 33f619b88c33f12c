//! Independent pieces of work on two threads.
//!
//! The result of each piece depends on its position alone, and results are in order: a plan is the same bytes on one core and on
//! many. A caller's clock need not be shared: it is read on the caller's thread, which notifies the other one.
//!
//! This file deliberately uses no more than two threads, as a plan mostly can do two things at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, scope};
use std::time::Duration;

/// Interval between looks at the clock while waiting for the other thread.
const LOOK: Duration = Duration::from_millis(1);

/// Returns `true` once time is up.
pub(crate) type Expired<'a> = Option<&'a dyn Fn() -> bool>;

/// Does pieces of work 0 to `count`, each on whichever of two threads is free; on the caller's alone if they are not `worth` a
/// second one. A piece gets its position, and a function that returns `true` once time is up.
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

/// Does one thing here and the other on a second thread, if that is `worth` it. The first returns `true` if the other is wanted;
/// if not, the other is notified that time is up. `None` for work that was not done, or is not wanted.
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
        // The system may refuse a thread.
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

    /// Waits until time is up.
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
