//! A training that fails at a known iteration, after that iteration has changed all of its state.

use super::Altered;
use plimsoll_runtime::data::{Dataset, Input, digits};
use plimsoll_runtime::{Checkpoint, Error, Trainer};
use std::sync::atomic::{AtomicU64, Ordering};

/// Trains until iteration `finished`, counted from 0, spoils the state: its loss is NaN, and its update makes every
/// parameter NaN. Returns the trainer's copy of the earlier state; if training ends in a different way, its result.
pub fn last_finished(trainer: &mut Trainer, finished: u64) -> Result<Option<Checkpoint>, Result<(), Error>> {
    let from = (finished - trainer.step()) * trainer.plan().batch;
    // The digits, but from sample `from` on, in the order of reading, no pixel is a number.
    let samples = AtomicU64::new(0);
    let read = |digits: &dyn Dataset, index, pixels: &mut [f32], labels: &mut [i32]| {
        digits.read(index, Input::Pixels(&mut *pixels), labels)?;
        if samples.fetch_add(1, Ordering::Relaxed) >= from {
            pixels.fill(f32::NAN);
        }
        Ok(())
    };
    let data = Altered { data: digits().train, read };
    let mut told = Vec::new();
    let outcome = trainer.train(&data, finished + 10, &mut |o| told.push(o.step), &|| false);
    match outcome {
        Err(error) if error.message.contains(&format!(" at step {finished};")) => {}
        other => return Err(other.map(drop)),
    }
    let kept = trainer.last_finished(None).expect("host memory can be read");
    // The finished iterations were reported, all of them and no others.
    assert_eq!(told.last().map(|step| step + 1), kept.as_ref().map(|state| state.progress.step));
    Ok(kept)
}
