//! Facts that benches report with their measurements: size, machine, median of times.

use plimsoll::ir::Seconds;
use plimsoll::profiler::centre;
use plimsoll::study::NetworkWorkload;

/// Returns `true` for `cargo bench`, which measures in full; `cargo test` only makes sure that the bench still runs.
pub fn in_full() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Returns the median, and the median absolute deviation as a share of it.
pub fn middle(seconds: &[Seconds]) -> (Seconds, f64) {
    let centre = centre(seconds).expect("there are samples");
    (centre.median, centre.deviation / centre.median)
}

/// Returns processor, threads and commit, for the head of a table.
pub fn machine(task: &NetworkWorkload) -> String {
    let facts = task.setup.device().expect("the processor is always there").facts();
    format!("{}, {} compute thread(s), plimsoll {}", facts.system, facts.threads, plimsoll::study::version())
}
