//! The threads that a kernel runs on, and the one way in which kernels share work among them.
//!
//! A kernel is cut into numbered tasks, by its shape alone; threads take tasks as they come. Each task writes to its own
//! places, and sums over tasks are made afterwards in the order of their numbers, so that the number of threads never
//! changes a result.
//!
//! Deliberately does not cut tasks by the number of threads, or use rayon's global pool, which belongs to the program that
//! links this crate.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The threads of one device's compute stream.
pub struct Threads {
    /// `None` if the calling thread does everything.
    pool: Option<rayon::ThreadPool>,
    count: u32,
}

impl Threads {
    /// Starts `count` threads, which must be at least 1; 1 starts none and computes on the calling thread. Fails if the
    /// system does not start that many.
    pub fn new(count: u32) -> Result<Threads, rayon::ThreadPoolBuildError> {
        assert!(count > 0, "kernels need at least one thread");
        let builder = || rayon::ThreadPoolBuilder::new().num_threads(count as usize);
        let build = || builder().thread_name(|i| format!("compute-{i}")).build();
        let pool = (count > 1).then(build).transpose()?;
        Ok(Threads { pool, count })
    }

    /// Number of threads.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Calls the function on each thread, and returns the results.
    pub(in crate::cpu) fn on_each<T: Send>(&self, call: impl Fn() -> T + Sync) -> Vec<T> {
        match &self.pool {
            Some(pool) => pool.broadcast(|_| call()),
            None => vec![call()],
        }
    }

    /// Calls `work(task, lane)` once for each task in `0..tasks`, and returns when all are done. Calls that run at the
    /// same time have different lanes, all below [`Threads::count`]: a lane owns a part of the workspace.
    pub(super) fn each(&self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        match &self.pool {
            Some(pool) if tasks > 1 => {
                let next = AtomicUsize::new(0);
                pool.broadcast(|lane| {
                    loop {
                        let task = next.fetch_add(1, Ordering::Relaxed);
                        if task >= tasks {
                            break;
                        }
                        work(task, lane.index());
                    }
                });
            }
            _ => (0..tasks).for_each(|task| work(task, 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_runs_once_on_any_number_of_threads() {
        for count in [1, 2, 5] {
            let threads = Threads::new(count).expect("a few threads start");
            for tasks in [0, 1, 2, 100] {
                let seen: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.each(tasks, |task, lane| {
                    assert!(lane < count as usize);
                    seen[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
            }
        }
    }
}
