//! What of a training is kept where its device cannot take it along.
//!
//! A device that fails takes its memory with it, and with that all that was trained since the state was last copied away. So the
//! state is copied to host memory between iterations as often as costs [`SHARE`] of the time, and a thread writes copies to
//! the file while training goes on, as often as costs [`SHARE`] of the thread's. Where the device fails, the newest copy is written.
//! A copy beside an iteration would cost less, but the iteration that fails would cut it off; so every iteration is copied only
//! where that is asked for, or where it costs no more than that.
//!
//! What it deliberately does not do: keep more than one state in the file, or survive the machine's memory with more than what
//! the file has.

use crate::failure::{Exit, Failure};
use plimsoll_ir::Seconds;
use plimsoll_runtime::{Checkpoint, RuntimeError, Trainer};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The share of the time that copies may take, and of its own that writing may, where nobody says how often.
const SHARE: f64 = 0.01;

/// The state of a training, out of its device's reach.
pub(crate) struct Kept<'a> {
    path: &'a Path,
    total: u64,
    /// Whether the command was told to begin anew.
    fresh: bool,
    /// How often it is to be copied and written, where somebody said so.
    every: Option<Seconds>,
    /// The iterations that the file holds; none where there is no file yet.
    in_file: Option<u64>,
    newest: Option<Arc<Checkpoint>>,
    /// The one before, for its memory.
    older: Option<Arc<Checkpoint>>,
    copies: Pace,
    writes: Pace,
    writer: Option<JoinHandle<Written>>,
}

/// What the thread that writes leaves.
struct Written {
    step: u64,
    begun: Instant,
    ended: Instant,
    result: Result<(), RuntimeError>,
}

/// Work that is done now and then.
struct Pace {
    /// When it was last done; at first, the start.
    ended: Instant,
    /// What it took; at first nothing.
    cost: Duration,
}

impl Pace {
    fn new() -> Pace {
        Pace { ended: Instant::now(), cost: Duration::ZERO }
    }

    /// Whether it would take no more than [`SHARE`] of the time, were it done again now.
    fn is_due(&self) -> bool {
        self.ended.elapsed().as_secs_f64() >= self.cost.as_secs_f64() / SHARE
    }

    fn done(&mut self, begun: Instant, ended: Instant) {
        (self.ended, self.cost) = (ended, ended - begun);
    }
}

impl<'a> Kept<'a> {
    /// Of a training that is at a step, which is the file's where there is a file.
    pub(crate) fn new(
        path: &'a Path,
        step: u64,
        total: u64,
        fresh: bool,
        every: Option<Seconds>,
    ) -> Kept<'a> {
        let in_file = path.exists().then_some(step);
        let (copies, writes) = (Pace::new(), Pace::new());
        Kept { path, total, fresh, every, in_file, newest: None, older: None, copies, writes, writer: None }
    }

    /// Whether it is time for a copy, at a step.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        let newest = self.newest.as_ref().map(|state| state.progress.step).or(self.in_file);
        let due = match self.every {
            Some(every) => self.copies.ended.elapsed().as_secs_f64() >= every.0,
            None => self.copies.is_due(),
        };
        step > newest.unwrap_or(0) && due
    }

    /// Copies the state, and has it written where it is time for that.
    pub(crate) fn copy(&mut self, trainer: &mut Trainer) -> Result<(), Failure> {
        let begun = Instant::now();
        // A copy is whole before it takes the place of another: this may be the moment at which the device is lost.
        let memory = self.older.take().and_then(Arc::into_inner);
        let state = trainer.checkpoint_in(memory).map_err(|error| self.failure(error))?;
        self.older = self.newest.replace(Arc::new(state));
        match self.every {
            Some(_) => self.write()?,
            None => self.begin_writing(),
        }
        self.copies.done(begun, Instant::now());
        Ok(())
    }

    /// Has the newest copy written by a thread, unless one still writes or wrote just now.
    fn begin_writing(&mut self) {
        if self.writer.as_ref().is_some_and(JoinHandle::is_finished)
            && let Err(error) = self.join()
        {
            // A disk that is full, or away, may be so for a while; training goes on, and so do attempts.
            tracing::warn!("{error}; it is tried again while training goes on");
        }
        let Some(state) = self.newest.as_ref().filter(|_| self.writer.is_none() && self.writes.is_due())
        else {
            return;
        };
        let (state, path) = (Arc::clone(state), self.path.to_owned());
        self.writer = Some(std::thread::spawn(move || {
            let begun = Instant::now();
            let result = state.save(&path);
            Written { step: state.progress.step, begun, ended: Instant::now(), result }
        }));
    }

    /// Waits for the thread that writes, where there is one.
    fn join(&mut self) -> Result<(), RuntimeError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.writes.done(written.begun, written.ended);
        written.result?;
        self.in_file = Some(written.step);
        Ok(())
    }

    /// Writes the newest copy, unless the file has it, and waits until it is there.
    pub(crate) fn write(&mut self) -> Result<(), RuntimeError> {
        // Whatever became of an older one, the newest is tried.
        let older = self.join();
        match self.newest.as_ref().filter(|state| Some(state.progress.step) != self.in_file) {
            Some(state) => {
                state.save(self.path)?;
                self.in_file = Some(state.progress.step);
                Ok(())
            }
            None => older,
        }
    }

    /// A failure in the middle of training. Where it is the device's, the newest copy is written.
    pub(crate) fn failure(&mut self, error: RuntimeError) -> Failure {
        let failure = Failure::from(error);
        if failure.exit != Exit::Device {
            return failure;
        }
        let lost = self.write().err().map(|why| format!("; the newest state was lost: {why}"));
        let (path, total, again) = (self.path.display(), self.total, self.again());
        let kept = match self.in_file {
            Some(step) => {
                format!("the state after {step} of {total} iterations is kept in {path}; {again}")
            }
            None => "nothing was saved yet; the same command begins anew".to_owned(),
        };
        failure.help(kept + &lost.unwrap_or_default())
    }

    /// How to go on from what is kept.
    pub(crate) fn again(&self) -> &'static str {
        if self.fresh {
            "the same command without --fresh goes on from there"
        } else {
            "the same command goes on from there"
        }
    }
}

impl Drop for Kept<'_> {
    /// What is being written is written to its end.
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::network::NetworkSpec;
    use plimsoll_ir::program::Way;
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::{Bytes, BytesPerSecond};
    use plimsoll_networks::{LowerOptions, build, lower};
    use plimsoll_runtime::cpu::kernels::workspace_bytes;
    use plimsoll_runtime::data::digits;
    use plimsoll_runtime::{
        Cpu, CpuOptions, DeviceError, Executor, LearningRateSchedule, MemoryLayout, TrainingPlan,
    };
    use plimsoll_tuner::{Outcome, PlanRequest, Policy, plan};

    const BATCH: u64 = 4;

    fn trainer() -> Trainer {
        let network = NetworkSpec { name: "mlp".into(), image: [8; 2], channels: 1, classes: 10 };
        let built = build(&network).expect("the zoo has it");
        let ways = |call: &_| Way::sole(workspace_bytes(call, 1));
        let options = LowerOptions { ways: &ways, ..LowerOptions::default() };
        let program = lower(&built, BATCH, &options).expect("it lowers");
        let link = Link::symmetric(BytesPerSecond(1e9));
        let request = PlanRequest::new(Bytes(1 << 30), link, Policy::Keep);
        let Outcome::Planned(plan) = plan(&program.trace, &request).expect("a sound trace") else {
            panic!("a gibibyte is enough")
        };
        let layout = MemoryLayout::of(&program, &plan.schedule);
        let mut executor =
            Executor::new(Box::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() })), layout)
                .expect("memory");
        let loaded = executor.load(&program, &plan.schedule).expect("it loads");
        let rate = LearningRateSchedule::constant(0.01);
        let how = TrainingPlan { network, batch: BATCH, seed: 1, rate, momentum: 0.9, weight_decay: 0.0 };
        Trainer::new(executor, loaded, None, how).expect("the plan fits the program")
    }

    fn train(trainer: &mut Trainer, until: u64) {
        trainer.train(&*digits().train, until, &mut |_| {}, &|| false).expect("it trains");
    }

    fn lost() -> RuntimeError {
        let (why, what_to_do) = ("cuStreamSynchronize: lost".to_owned(), "see to the device");
        RuntimeError::Device(DeviceError::Driver { why, what_to_do })
    }

    /// The iterations that a file holds.
    fn in_file(path: &Path) -> u64 {
        Checkpoint::load(path).expect("it is whole").progress.step
    }

    #[test]
    fn a_device_that_fails_leaves_the_newest_copy_and_not_what_was_written_last() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("training.safetensors");
        let mut trainer = trainer();
        let mut kept = Kept::new(&path, 0, 10, false, None);
        assert!(!kept.is_due(0), "nothing was trained");
        train(&mut trainer, 1);
        assert!(kept.is_due(1), "the first copy is taken at once");
        kept.copy(&mut trainer).expect("the device works");
        kept.write().expect("the folder can be written");
        assert_eq!(in_file(&path), 1);
        // From here on neither is due, as where both take long.
        (kept.copies.cost, kept.writes.cost) = (Duration::from_secs(1_000), Duration::from_secs(1_000));
        train(&mut trainer, 2);
        assert!(!kept.is_due(2));
        kept.copy(&mut trainer).expect("the device works");
        train(&mut trainer, 3);
        assert_eq!(in_file(&path), 1);
        let failure = kept.failure(lost());
        assert_eq!(failure.exit, Exit::Device);
        let help = failure.help.expect("it says what to do");
        assert!(help.contains("the state after 2 of 10 iterations is kept"), "{help}");
        assert_eq!(in_file(&path), 2);
    }

    #[test]
    fn what_was_asked_for_is_in_the_file_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("training.safetensors");
        let mut trainer = trainer();
        let mut kept = Kept::new(&path, 0, 10, false, Some(Seconds::ZERO));
        for step in 1..4 {
            train(&mut trainer, step);
            assert!(kept.is_due(step));
            kept.copy(&mut trainer).expect("the device works");
            assert_eq!(in_file(&path), step);
        }
        let help = kept.failure(lost()).help.expect("it says what to do");
        assert!(help.contains("the state after 3 of 10 iterations is kept"), "{help}");
    }

    #[test]
    fn a_copy_that_could_not_be_written_stands_in_no_newer_ones_way() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("away").join("training.safetensors");
        let mut trainer = trainer();
        let mut kept = Kept::new(&path, 0, 10, true, None);
        train(&mut trainer, 1);
        kept.copy(&mut trainer).expect("a disk that is away does not end a training");
        while !kept.writer.as_ref().expect("it was begun").is_finished() {
            std::thread::yield_now();
        }
        train(&mut trainer, 2);
        kept.writes.cost = Duration::from_secs(1_000);
        kept.copy(&mut trainer).expect("nor does one that was found to be");
        std::fs::create_dir(path.parent().expect("a folder")).expect("it can be made");
        let help = kept.failure(lost()).help.expect("it says what to do");
        assert!(help.contains("the state after 2 of 10 iterations is kept"), "{help}");
        assert!(help.ends_with("the same command without --fresh goes on from there"), "{help}");
        assert_eq!(in_file(&path), 2);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_with_the_failure() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("gone").join("training.safetensors");
        let mut trainer = trainer();
        train(&mut trainer, 1);
        let mut kept = Kept::new(&path, 0, 10, false, None);
        kept.writes.cost = Duration::from_secs(1_000);
        kept.copy(&mut trainer).expect("the device works");
        let help = kept.failure(lost()).help.expect("it says what to do");
        assert!(help.contains("nothing was saved yet") && help.contains("cannot be written"), "{help}");
    }
}
