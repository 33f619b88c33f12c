//! Saving a training's state outside of a device that can be lost.
//!
//! A failing device loses its memory. So on such a device the trainer copies the state to host memory during the next
//! iteration, and an iteration counts as finished when its state has been copied: after a device failure, the saved state is
//! always that of the last finished iteration. A thread also writes the state to the file during training, as often as costs
//! [`SHARE`] of the time, in case more than the device fails (the machine goes down).
//!
//! With an explicit interval the file is written that often, without copies in between. If that is after every iteration, the
//! file has the last finished iteration's state.
//!
//! This file deliberately keeps only one state in the file.

use crate::error::{Cause, Error};
use crate::request::TrainRequest;
use crate::training::workers::of_worker;
use crate::watch::Watch;
use plimsoll_ir::Seconds;
use plimsoll_runtime::{Checkpoint, Error as RuntimeError, GroupError, Kind as Fault, Trainer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Share of the training's time, and of the writing thread's time, that saving may take if no interval is given.
const SHARE: f64 = 0.01;

/// Least cost that a failed write counts as.
const FAILED: Duration = Duration::from_millis(100);

/// Keeps the state of a training out of its device's reach.
pub(crate) struct Saving<'a> {
    path: &'a Path,
    total: u64,
    /// `true` if the request is to begin anew.
    fresh: bool,
    /// Base rate and the study's folder, for the error of a diverged training.
    rate: (f64, &'a Path),
    /// Interval between writes, if given.
    every: Option<Seconds>,
    /// Iterations that the file holds; `None` if there is no file yet.
    in_file: Option<u64>,
    /// State that was written last; its memory is reused.
    older: Option<Checkpoint>,
    saves: Pace,
    writes: Pace,
    writer: Option<(JoinHandle<Written>, Arc<OnceLock<Pace>>)>,
    watch: Watch<'a>,
}

/// File of a training's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub path: PathBuf,
    /// Number of iterations that the state has completed; `None` if there is no file yet.
    pub step: Option<u64>,
    /// Machine whose folder has the file, if that may not be worker 0's folder.
    pub host: Option<String>,
    /// Requested iterations.
    pub total: u64,
    /// `true` if the request begins anew: repeated unchanged, it would not continue from the file.
    pub fresh: bool,
}

impl Saved {
    /// Describes the file's contents, and how to continue from it.
    fn in_words(&self) -> String {
        let Saved { path, step, host, total, .. } = self;
        let Some(step) = step else {
            return "nothing was saved yet; the same command begins anew".to_owned();
        };
        let place = host.as_ref().map_or_else(String::new, |host| {
            format!(" on {host}, and worker 0 needs this file in its own study's folder")
        });
        let (path, again) = (path.display(), self.again());
        format!("the state after {step} of {total} iterations is kept in {path}{place}; {again}")
    }

    /// Describes the same, and why the file lacks the newest state, if that was lost.
    pub(super) fn with(&self, lost: Option<&impl fmt::Display>) -> String {
        let why = lost.map_or_else(String::new, |why| format!("; the newest state was lost: {why}"));
        self.in_words() + &why
    }

    /// Returns advice for continuing.
    pub(super) fn again(&self) -> &'static str {
        match self.fresh {
            true => "the same command without --fresh goes on from there",
            false => "the same command goes on from there",
        }
    }
}

/// Returns the error of a training that cannot keep its state.
pub(super) fn cannot_keep(source: RuntimeError) -> Error {
    Error::from(source).help("nothing was trained: the training's state could not be kept")
}

/// Result of the writing thread.
struct Written {
    state: Checkpoint,
    result: Result<(), RuntimeError>,
}

/// Pace of recurring work.
#[derive(Clone, Copy)]
struct Pace {
    /// End of the last run; initially the start.
    ended: Instant,
    /// Cost of the last run; initially zero.
    cost: Duration,
}

impl Pace {
    fn new() -> Pace {
        Pace { ended: Instant::now(), cost: Duration::ZERO }
    }

    /// Returns `true` if the work, done again now, would take at most [`SHARE`] of the time.
    fn is_due(&self) -> bool {
        self.ended.elapsed().as_secs_f64() >= self.cost.as_secs_f64() / SHARE
    }

    fn done(&mut self, begun: Instant, ended: Instant) {
        (self.ended, self.cost) = (ended, ended - begun);
    }
}

impl<'a> Saving<'a> {
    /// Saves a training in this folder that is at this step, which is the file's step if there is a file, with this base rate.
    pub(crate) fn new(
        path: &'a Path,
        (step, total): (u64, u64),
        request: &TrainRequest,
        rate: (f64, &'a Path),
        watch: &Watch<'a>,
    ) -> Saving<'a> {
        let in_file = path.exists().then_some(step);
        let (saves, writes, watch) = (Pace::new(), Pace::new(), *watch);
        let (every, fresh) = (request.save_every, request.fresh);
        Saving { path, total, fresh, rate, every, in_file, older: None, saves, writes, writer: None, watch }
    }

    /// Returns `true` if it is time to write, at a step.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        let due = match self.every {
            Some(every) => self.saves.ended.elapsed().as_secs_f64() >= every.0,
            None => {
                let written = match &self.writer {
                    // The cost of the thread's last write is known once the write has ended.
                    Some((_, times)) => times.get().is_some_and(Pace::is_due),
                    None => self.writes.is_due(),
                };
                written && self.saves.is_due()
            }
        };
        step > self.in_file.unwrap_or(0) && due
    }

    /// Saves the state: at once if an interval is given, else by a thread.
    pub(crate) fn save(&mut self, trainer: &mut Trainer) -> Result<(), Error> {
        let begun = Instant::now();
        match self.every {
            Some(_) => self.write(trainer)?,
            None => self.begin_writing(trainer)?,
        }
        self.saves.done(begun, Instant::now());
        Ok(())
    }

    /// Writes the state by a thread, unless one wrote just now.
    fn begin_writing(&mut self, trainer: &mut Trainer) -> Result<(), Error> {
        if let Err(error) = self.join() {
            // A full or missing disk may recover after a while; training continues, and so do attempts.
            self.watch.warn(format_args!("{error}; it is tried again while training goes on"));
        }
        if !self.writes.is_due() {
            return Ok(());
        }
        let state = self.state_of(trainer)?;
        let (path, times) = (self.path.to_owned(), Arc::new(OnceLock::new()));
        let told = Arc::clone(&times);
        let writer = move || {
            let begun = Instant::now();
            let result = state.save(&path);
            let took = begun.elapsed();
            // After a failure the next attempt waits a while, so that one warning comes at a time.
            let cost = if result.is_err() { took.max(FAILED) } else { took };
            told.get_or_init(|| Pace { ended: Instant::now(), cost });
            Written { state, result }
        };
        match std::thread::Builder::new().spawn(writer) {
            Ok(thread) => self.writer = Some((thread, times)),
            Err(error) => {
                self.watch.warn(format_args!(
                    "there is no thread to save with ({error}); it is tried again while training goes on"
                ));
                self.writes = Pace { ended: Instant::now(), cost: FAILED };
            }
        }
        Ok(())
    }

    /// Waits for the writing thread, if there is one.
    fn join(&mut self) -> Result<(), RuntimeError> {
        let Some((writer, times)) = self.writer.take() else { return Ok(()) };
        let Written { state, result } =
            writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.writes = *times.get().expect("the thread has ended");
        let step = state.progress.step;
        self.older = Some(state);
        result?;
        self.in_file = Some(step);
        Ok(())
    }

    /// Returns the state between two iterations: from the trainer's copy if there is one, which costs the device nothing.
    fn state_of(&mut self, trainer: &mut Trainer) -> Result<Checkpoint, Error> {
        if trainer.copied_step() == Some(trainer.step())
            && let Some(state) = trainer.last_finished(self.older.take())?
        {
            return Ok(state);
        }
        trainer.checkpoint().map_err(|error| self.failed(error, trainer))
    }

    /// Writes the state between two iterations, unless the file has it, and waits for the write to end.
    pub(crate) fn write(&mut self, trainer: &mut Trainer) -> Result<(), Error> {
        // The newest state is written, even if writing an older one failed.
        let older = self.join();
        if self.in_file == Some(trainer.step()) {
            return Ok(older?);
        }
        let state = self.state_of(trainer)?;
        self.write_this(&state).map_err(|error| {
            let (step, saved) = (state.progress.step, self.saved());
            match error.kind {
                Fault::Diverged => self.diverged(error),
                _ => Error::from(error).help(format_args!(
                    "the state after {step} iterations is not kept: {}",
                    saved.in_words()
                )),
            }
        })
    }

    fn write_this(&mut self, state: &Checkpoint) -> Result<(), RuntimeError> {
        state.save(self.path)?;
        self.in_file = Some(state.progress.step);
        Ok(())
    }

    /// Writes the state of the last finished iteration, if there is a copy of it and the file lacks it.
    fn write_copy(&mut self, trainer: &mut Trainer) -> Result<(), RuntimeError> {
        let older = self.join();
        let copy = trainer.last_finished(self.older.take())?;
        match copy.filter(|state| Some(state.progress.step) > self.in_file) {
            Some(state) => self.write_this(&state),
            None => older,
        }
    }

    /// Returns the error of a training that failed. If the device, the data or a different worker failed, writes the state of
    /// the last finished iteration.
    pub(crate) fn failed(&mut self, source: RuntimeError, trainer: &mut Trainer) -> Error {
        match source.kind {
            Fault::Diverged => self.diverged(source),
            _ if source.is_of_device() => {
                let lost = self.write_copy(trainer).err();
                Error::from(source).help(self.saved().with(lost.as_ref()))
            }
            // An unreadable sample fails before an iteration begins.
            Fault::Data => {
                let lost = self.write(trainer).err();
                Error::from(source).help(self.saved().with(lost.as_ref()))
            }
            // This worker's state is that of its last update, regardless of the other workers.
            Fault::Group(
                GroupError::Lost { rank }
                | GroupError::Failed { rank, .. }
                | GroupError::Silent { rank, .. }
                | GroupError::Died { rank, .. }
                | GroupError::OutOfStep { rank, .. }
                | GroupError::Engine { me: rank, .. },
            ) => {
                let lost = self.write(trainer).err();
                of_worker(rank, source).help(self.saved().with(lost.as_ref()))
            }
            _ => source.into(),
        }
    }

    /// Returns the error of a training that diverged. Continuing from the file is useless: the results would be the same.
    fn diverged(&self, source: RuntimeError) -> Error {
        let (base_rate, folder) = (self.rate.0, self.rate.1.display());
        let Saved { path, step, total, .. } = self.saved();
        let kept = step.map_or_else(String::new, |step| {
            format!("; the state after {step} of {total} iterations stays in {} until then", path.display())
        });
        // A tenth, to three digits.
        let tenth: f64 = format!("{:.2e}", base_rate / 10.0).parse().expect("it is a number");
        let lower = format!("--base-rate {tenth}, where it was {base_rate}");
        let help = format!(
            "start anew with a lower rate: tune into another folder with `plimsoll tune --study DIR`, its other options and \
             such as {lower}; or change learning_rate.rate in a config of your own beside that of {folder}, and run that \
             with --fresh{kept}"
        );
        Error::from(source).help(help).because(Cause::Diverged { lower: lower + &kept })
    }

    /// Describes the file's contents.
    pub(crate) fn saved(&self) -> Saved {
        let (path, step) = (self.path.to_owned(), self.in_file);
        Saved { path, step, host: None, total: self.total, fresh: self.fresh }
    }
}

impl Drop for Saving<'_> {
    /// Waits until the current write is complete.
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            self.watch.warn(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::defaults;
    use plimsoll_ir::network::NetworkSpec;
    use plimsoll_ir::program::KernelAlternative;
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::{Bytes, BytesPerSecond, UpdateRule};
    use plimsoll_networks::{LowerOptions, build, lower};
    use plimsoll_runtime::cpu::kernels::workspace_bytes;
    use plimsoll_runtime::data::digits;
    use plimsoll_runtime::{Cpu, CpuOptions, Executor, LearningRateSchedule, MemoryLayout, TrainingPlan};
    use plimsoll_tuner::{Outcome, PlanRequest, Policy, plan};

    const BATCH: u64 = 4;

    /// Returns a trainer whose device can be lost, or one that keeps no copies.
    fn trainer_with(copies: bool) -> Trainer {
        let network = NetworkSpec { name: "mlp".into(), image: [8; 2], channels: 1, classes: 10 };
        let built = build(&network).expect("the zoo has it");
        let alternatives = |call: &_| KernelAlternative::sole(workspace_bytes(call, 1));
        let options = LowerOptions { alternatives: &alternatives, ..LowerOptions::default() };
        let program = lower(&built, BATCH, &options).expect("it lowers");
        let link = Link::symmetric(BytesPerSecond(1e9));
        let request = PlanRequest::new(Bytes(1 << 30), link, Policy::Keep);
        let Outcome::Planned(plan) = plan(&program.trace, &request).expect("a sound trace") else {
            panic!("a gibibyte is enough")
        };
        let layout = MemoryLayout::of(&program, &plan.schedule).keeping_state(&program);
        let mut executor =
            Executor::new(Box::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() })), layout)
                .expect("memory");
        let loaded = match copies {
            true => executor.load_keeping_state(&program, &plan.schedule, None),
            false => executor.load(&program, &plan.schedule),
        };
        let loaded = loaded.expect("it loads");
        let rate = LearningRateSchedule::constant(0.01);
        let how = TrainingPlan {
            network,
            batch: BATCH,
            virtual_workers: 1,
            seed: 1,
            rate,
            update: UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.0 },
            weights: None,
        };
        Trainer::new(executor, loaded, None, how).expect("the plan fits the program")
    }

    fn trainer() -> Trainer {
        trainer_with(true)
    }

    fn train(trainer: &mut Trainer, until: u64) {
        trainer.train(&*digits().train, until, &mut |_| {}, &|| false).expect("it trains");
    }

    fn lost() -> RuntimeError {
        RuntimeError::device("the driver refused cuStreamSynchronize: lost; see to the device")
    }

    /// Returns the iterations that a file holds.
    fn in_file(path: &Path) -> u64 {
        Checkpoint::load(path).expect("it is whole").progress.step
    }

    /// Returns the saving of a training of 10 iterations that begins.
    fn begun(path: &Path, fresh: bool, save_every: Option<Seconds>) -> Saving<'_> {
        let request = TrainRequest { save_every, fresh, ..defaults() };
        Saving::new(path, (0, 10), &request, (0.05, Path::new("study")), &Watch::silent())
    }

    /// An error says that the newest state is kept, and after how many iterations.
    #[track_caller]
    fn keeps(error: &Error, step: u64) {
        let kept = format!("the state after {step} of 10 iterations is kept in ");
        let help = error.help.as_deref().expect("it says what is kept");
        assert!(help.starts_with(&kept) && !help.contains("lost"), "{help}");
    }

    #[test]
    fn workers_that_cannot_reach_each_other_leave_their_last_update() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("training.safetensors");
        let mut trainer = trainer();
        let mut saving = begun(&path, false, None);
        slow(&mut saving);
        train(&mut trainer, 3);
        let why = "MPI_Test gave 17".to_owned();
        let error = saving.failed(GroupError::Engine { me: 2, why }.into(), &mut trainer);
        assert!(error.message.starts_with("worker 2 "), "{error}");
        keeps(&error, 3);
        assert_eq!(in_file(&path), 3);
    }

    /// Sets paces at which nothing is written for a while.
    fn slow(saving: &mut Saving<'_>) {
        (saving.saves.cost, saving.writes.cost) = (Duration::from_secs(1_000), Duration::from_secs(1_000));
    }

    #[test]
    fn a_device_that_fails_leaves_its_last_finished_iteration_and_not_what_was_written_last() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("training.safetensors");
        let mut trainer = trainer();
        let mut saving = begun(&path, false, None);
        assert!(!saving.is_due(0), "nothing was trained");
        train(&mut trainer, 1);
        assert!(saving.is_due(1), "the first state is written at once");
        saving.save(&mut trainer).expect("the device works");
        saving.write(&mut trainer).expect("the folder can be written");
        assert_eq!(in_file(&path), 1);
        slow(&mut saving);
        for step in 2..5 {
            train(&mut trainer, step);
            assert!(!saving.is_due(step));
        }
        assert_eq!(in_file(&path), 1);
        keeps(&saving.failed(lost(), &mut trainer), 4);
        assert_eq!(Checkpoint::load(&path).expect("it is whole"), trainer.checkpoint().expect("it works"));
    }

    #[test]
    fn without_copies_the_file_has_what_was_written_last() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("training.safetensors");
        let mut trainer = trainer_with(false);
        let mut saving = begun(&path, false, None);
        train(&mut trainer, 2);
        saving.save(&mut trainer).expect("the device works");
        train(&mut trainer, 3);
        keeps(&saving.failed(lost(), &mut trainer), 2);
        assert_eq!(in_file(&path), 2);
        saving.write(&mut trainer).expect("the folder can be written");
        assert_eq!(in_file(&path), 3);
    }

    #[test]
    fn what_was_asked_for_is_in_the_file_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("training.safetensors");
        let mut trainer = trainer_with(false);
        let mut saving = begun(&path, false, Some(Seconds::ZERO));
        for step in 1..4 {
            train(&mut trainer, step);
            assert!(saving.is_due(step));
            saving.save(&mut trainer).expect("the device works");
            assert_eq!(in_file(&path), step);
        }
        keeps(&saving.failed(lost(), &mut trainer), 3);
    }

    #[test]
    fn a_state_that_could_not_be_written_stands_in_no_newer_ones_way() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("away").join("training.safetensors");
        let mut trainer = trainer();
        let mut saving = begun(&path, true, None);
        train(&mut trainer, 1);
        saving.save(&mut trainer).expect("a disk that is away does not end a training");
        while !saving.writer.as_ref().expect("it was begun").0.is_finished() {
            std::thread::yield_now();
        }
        train(&mut trainer, 2);
        saving.save(&mut trainer).expect("nor does one that was found to be");
        assert!(saving.writer.is_none() && saving.writes.cost >= FAILED, "it is not tried again at once");
        std::fs::create_dir(path.parent().expect("a folder")).expect("it can be made");
        keeps(&saving.failed(lost(), &mut trainer), 2);
        assert_eq!(in_file(&path), 2);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_with_the_failure() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("gone").join("training.safetensors");
        let mut trainer = trainer();
        train(&mut trainer, 1);
        let mut saving = begun(&path, false, None);
        slow(&mut saving);
        let help = saving.failed(lost(), &mut trainer).help.expect("it says what is kept");
        assert!(help.starts_with("nothing was saved yet") && help.contains("cannot be written"), "{help}");
    }

    /// Each machine may have a separate folder.
    #[test]
    fn a_state_that_another_machine_keeps_is_said_with_its_name() {
        let path = "digits/training.worker-1.safetensors".into();
        let (step, host) = (Some(7), Some("second".to_owned()));
        let mut saved = Saved { path, step, host, total: 10, fresh: true };
        let kept = "the state after 7 of 10 iterations is kept in digits/training.worker-1.safetensors";
        let of_second = format!(
            "{kept} on second, and worker 0 needs this file in its own study's folder; \
             the same command without --fresh goes on from there"
        );
        assert_eq!(saved.in_words(), of_second);
        saved.host = None;
        assert_eq!(saved.in_words(), format!("{kept}; the same command without --fresh goes on from there"));
    }

    #[test]
    fn what_diverged_begins_anew_with_a_lower_rate() {
        let mut saving = begun(Path::new("digits/training.safetensors"), false, None);
        saving.in_file = Some(7);
        let error = saving.diverged(RuntimeError::new(Fault::Diverged, "the loss is NaN at step 8"));
        let kept = "; the state after 7 of 10 iterations stays in digits/training.safetensors until then";
        let lower = format!("--base-rate 0.005, where it was 0.05{kept}");
        assert_eq!(error.cause.as_deref(), Some(&Cause::Diverged { lower }));
        let help = error.help.expect("it says what to do");
        for part in [
            "`plimsoll tune --study DIR`",
            "--base-rate 0.005, where it was 0.05",
            "beside that of study",
            kept,
        ] {
            assert!(help.contains(part), "{part} in: {help}");
        }
    }
}
