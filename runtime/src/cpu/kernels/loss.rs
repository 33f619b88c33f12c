//! Softmax with cross entropy, its gradient, and the metrics of an iteration.
//!
//! Sums over a batch run over its samples in order, in f64.
//!
//! Deliberately does not smooth labels, or weight classes.

use super::Run;
use super::threads::Threads;
use plimsoll_ir::program::RowShape;

/// Rows of a task.
const ROWS: usize = 16;

/// Floats of workspace: loss, and 1 or 0 for a right or wrong answer, of each sample.
pub(super) fn forward_scratch(shape: &RowShape) -> usize {
    2 * shape.rows as usize
}

/// Calls `work(row)` for each row.
fn rows(shape: &RowShape, threads: &Threads, work: impl Fn(usize) + Sync) {
    let rows = shape.rows as usize;
    threads.each(rows.div_ceil(ROWS), |task, _| (task * ROWS..rows.min((task + 1) * ROWS)).for_each(&work));
}

/// Class of a sample; `None` if it does not count.
fn class(label: i32) -> Option<usize> {
    usize::try_from(label).ok()
}

/// differences = softmax(logits) by rows - one-hot, 0 for samples that do not count; metrics = mean of -ln(probability of
/// the label), right answers (ties go to the first class), samples that count.
///
/// The label's difference is computed before it is stored: after a probability close to 1 is rounded to bf16, it would be 0.
///
/// # Safety
/// Live operands of the shape; differences may be the logits; labels are below the number of channels.
pub(super) unsafe fn forward(shape: &RowShape, run: &Run) {
    let [logits, differences, metrics] = run.all(["logits", "differences", "metrics"]);
    let (labels, scratch) = (run.at::<i32>("labels"), run.scratch);
    let channels = shape.channels as usize;
    // SAFETY: the caller's promise.
    let labels = unsafe { labels.slice(shape.rows as usize) };
    rows(shape, run.threads, |row| {
        // SAFETY: rows do not overlap. The one slice is read and written where logits lie, as they may be the same.
        unsafe {
            let out = differences.at(row * channels);
            if logits.0 != differences.0 {
                logits.at(row * channels).0.copy_to_nonoverlapping(out.0, channels);
            }
            let [loss, right] = match class(labels[row]) {
                Some(label) => softmax(out.slice_mut(channels), label),
                None => {
                    out.slice_mut(channels).fill(0.0);
                    [0.0; 2]
                }
            };
            scratch.at(2 * row).set(loss);
            scratch.at(2 * row + 1).set(right);
        }
    });
    let (mut loss, mut right, mut counted) = (0.0, 0.0, 0.0f64);
    for (row, label) in labels.iter().enumerate() {
        if class(*label).is_some() {
            // SAFETY: this row's two floats, which its task has written.
            let [l, r] = unsafe { [scratch.at(2 * row).get(), scratch.at(2 * row + 1).get()] };
            (loss, right, counted) = (loss + f64::from(l), right + f64::from(r), counted + 1.0);
        }
    }
    // SAFETY: three floats that only this thread touches.
    unsafe {
        metrics.set((loss / counted.max(1.0)) as f32);
        metrics.at(1).set(right as f32);
        metrics.at(2).set(counted as f32);
    }
}

/// Turns logits into probabilities - one-hot; returns the loss and 1 if the label is the first of the largest, else 0.
fn softmax(row: &mut [f32], label: usize) -> [f32; 2] {
    let mut best = 0;
    for (c, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = c;
        }
    }
    let largest = row[best];
    let of_label = row[label];
    let mut sum = 0.0f64;
    for v in row.iter_mut() {
        *v = (*v - largest).exp();
        sum += f64::from(*v);
    }
    let scale = (1.0 / sum) as f32;
    row.iter_mut().for_each(|v| *v *= scale);
    row[label] -= 1.0;
    [(sum.ln() - f64::from(of_label - largest)) as f32, f32::from(u8::from(label == best))]
}

/// dlogits = differences / counted.
///
/// # Safety
/// Live operands of the shape; dlogits may be the differences.
pub(super) unsafe fn backward(shape: &RowShape, run: &Run) {
    let ([differences, dlogits], labels) = (run.all(["differences", "dlogits"]), run.at::<i32>("labels"));
    let channels = shape.channels as usize;
    // SAFETY: the caller's promise.
    let labels = unsafe { labels.slice(shape.rows as usize) };
    let counted = labels.iter().filter(|l| class(**l).is_some()).count();
    let scale = 1.0 / counted.max(1) as f32;
    rows(shape, run.threads, |row| {
        for i in row * channels..(row + 1) * channels {
            // SAFETY: i is in this row, and rows do not overlap.
            unsafe { dlogits.at(i).set(differences.at(i).get() * scale) };
        }
    });
}
