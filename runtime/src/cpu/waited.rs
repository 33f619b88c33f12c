//! Time in which the computing threads were ready to run while others had the processors.
//!
//! On a shared machine the clock time of an iteration depends as much on other processes as on the iteration. Linux counts
//! for every thread how long it waited for a processor without needing anything else (`schedstat`). Intended waits of a
//! stream, for an event or its next command, are sleep and not counted; nor are a neighbour's use of caches and memory, or
//! processor time taken by another virtual machine.
//!
//! Deliberately does not judge. The code that measures subtracts the time, or measures again.

use plimsoll_ir::Seconds;
use std::fs::{File, read_link};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Counters of some threads, kept open so that reading one takes about a microsecond.
pub(super) struct Waited {
    counters: Vec<File>,
}

/// Counter of the calling thread; `None` if the system has none.
pub(super) fn own_counter() -> Option<File> {
    let thread = read_link("/proc/thread-self").ok()?;
    File::open(Path::new("/proc").join(thread).join("schedstat")).ok()
}

impl Waited {
    /// Waiting time of these threads.
    pub(super) fn of(counters: Vec<File>) -> Waited {
        Waited { counters }
    }

    /// Mean over the threads, since each began: tasks of a kernel go to any free thread, so a wait of one thread is shared
    /// by the others. `None` if a thread has no counter.
    pub(super) fn so_far(&self) -> Option<Seconds> {
        let sum = self.counters.iter().map(nanos).sum::<Option<u64>>()?;
        (!self.counters.is_empty()).then(|| Seconds(sum as f64 * 1e-9 / self.counters.len() as f64))
    }
}

/// Second number: nanoseconds in which the thread was ready and did not run.
fn nanos(counter: &File) -> Option<u64> {
    let mut text = [0; 96];
    let length = counter.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length]).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn two_threads_on_one_processor_wait_for_each_other_and_a_sleeper_waits_for_nobody() {
        let Some(counter) = own_counter() else {
            println!("skipped: this system does not count what threads wait");
            return;
        };
        let waited = Waited::of(vec![counter]);
        let before = waited.so_far().expect("it was there just now");
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let slept = waited.so_far().expect("it is there still") - before;
        assert!(slept.0 < 0.9 * begun.elapsed().as_secs_f64(), "{slept} of sleep count as waiting");
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // Twice as many threads as processors, each busy for 300 ms: each has half of the time.
        let busy = || {
            let own = Waited::of(own_counter().into_iter().collect());
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(300) {
                std::hint::spin_loop();
            }
            own.so_far().map_or(0.0, |waited| waited.0)
        };
        let in_all: f64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2 * processors).map(|_| scope.spawn(busy)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it only spins")).sum()
        });
        assert!(in_all > 0.05 * processors as f64, "{in_all} s were waited by {processors} x 2 busy threads");
    }
}
