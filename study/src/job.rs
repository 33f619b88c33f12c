//! The jobs on a study's folder, each one call: measure, tune, choose, train.
//!
//! Each job locks the folder, refuses to overwrite files that Plimsoll did not write, works, and keeps its results there. The
//! next job continues from the results of an interrupted one.

use crate::error::Error;
use crate::folder::{Held, Study};
use crate::measure::{largest, measure};
use crate::network_workload::NetworkWorkload;
use crate::request::{TrainRequest, TuneRequest};
use crate::training::{Trained, Training};
use crate::tuning::{Tuned, earlier, keep, tune};
use crate::watch::Watch;
use crate::workload::Workload;
use plimsoll_ir::Bytes;
use plimsoll_ir::config::Config;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::Schedule;
use plimsoll_runtime::Group;
use std::path::PathBuf;

/// Request to measure a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureRequest {
    /// Memory budget of the device.
    pub budget: Bytes,
    /// Largest batch to consider.
    pub max_batch: u64,
    /// `true` to discard the study's earlier measurements.
    pub fresh: bool,
}

/// A study's choice.
#[allow(clippy::large_enum_variant, reason = "there is one of them in a program")]
pub enum Chosen {
    /// Made by this call.
    Now(Tuned),
    /// Found in the study, made for the same workload.
    Earlier(Config, Schedule),
}

impl Chosen {
    /// Returns the config and its schedule.
    pub fn parts(&self) -> (&Config, &Schedule) {
        match self {
            Chosen::Now(tuned) => (&tuned.config, &tuned.schedule),
            Chosen::Earlier(config, schedule) => (config, schedule),
        }
    }
}

impl Study {
    /// Measures a workload's ops and the link at fractions of the largest trainable batch, or continues an interrupted
    /// measurement.
    ///
    /// # Errors
    ///
    /// No batch fits, the folder cannot be used or holds measurements of a different workload, the device fails, measurements
    /// are too noisy, or the watch stops the job; the same call then continues it.
    pub fn measure(
        &self,
        workload: &dyn Workload,
        request: &MeasureRequest,
        watch: &Watch<'_>,
    ) -> Result<Profile, Error> {
        let MeasureRequest { budget, max_batch, fresh } = *request;
        let largest = largest(workload, budget, &(1..=max_batch), watch)?;
        self.make()?;
        let _held = self.lock()?;
        let made = vec![self.journal(), self.profile()];
        self.are_ours(&made)?;
        measure(workload, budget, largest, self, fresh.then_some(made).as_deref(), watch)
    }

    /// Chooses batch size, placement and learning rate for a workload, and keeps the choice; measures first if needed.
    ///
    /// # Errors
    ///
    /// Those of [`Study::measure`]; the request contradicts itself; or the study holds a training, which a new choice would
    /// invalidate.
    ///
    /// ```
    /// use plimsoll_ir::config::LearningRateRule;
    /// use plimsoll_study::data::DataSource;
    /// use plimsoll_study::request::{NetworkRequest, Objective, RateRequest, Searcher, TuneRequest};
    /// use plimsoll_study::{NetworkWorkload, Setup, Study, Watch};
    /// use plimsoll_tuner::model::devices;
    ///
    /// // A GPU that is modelled from its data sheet, so that nothing needs to be measured.
    /// let setup = Setup::modelled(devices::sheet("k40").ok_or("there is a data sheet of it")?, None)?;
    /// let task = NetworkWorkload::new(&NetworkRequest::zoo("mlp"), &DataSource::Digits, setup)?;
    /// let request = TuneRequest {
    ///     budget: task.budget(None)?,
    ///     search: Searcher::Plimsoll,
    ///     objective: Objective::Frugal,
    ///     min_batch: 32,
    ///     max_batch: Some(64),
    ///     cluster: None,
    ///     rate: RateRequest { base_batch: 32, base_rate: 0.05, rule: LearningRateRule::Linear },
    ///     epochs: 20,
    ///     command: "an example".to_owned(),
    ///     fresh: false,
    /// };
    /// let folder = tempfile::tempdir()?;
    /// let tuned = Study::at(folder.path()).tune(&task, &request, &Watch::silent())?;
    /// assert!((32..=64).contains(&tuned.config.batch));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tune(
        &self,
        workload: &dyn Workload,
        request: &TuneRequest,
        watch: &Watch<'_>,
    ) -> Result<Tuned, Error> {
        let largest = request.largest(workload, watch)?;
        self.make()?;
        let held = self.lock()?;
        self.without_training()?;
        let made = [vec![self.journal(), self.profile()], self.choice()].concat();
        self.are_ours(&made)?;
        self.tune_anew(workload, request, largest, (&held, request.fresh.then_some(made)), watch)
    }

    /// Returns the choice for a workload: the study's choice, if it was made for the same workload and the request is not
    /// `fresh`; else a new one, which the study keeps. No other run works in the study until the returned [`Held`] is dropped.
    ///
    /// # Errors
    ///
    /// Those of [`Study::measure`]; the request contradicts itself; or the study holds a choice for a different workload.
    pub fn choose(
        &self,
        workload: &dyn Workload,
        request: &TuneRequest,
        watch: &Watch<'_>,
    ) -> Result<(Chosen, Held), Error> {
        let largest = request.largest(workload, watch)?;
        self.make()?;
        let held = self.lock()?;
        self.are_ours(&self.files())?;
        let known = if request.fresh { None } else { earlier(self, workload, request)? };
        if let Some((config, schedule)) = known {
            let file = self.config();
            watch.notice(format_args!("using the choice in {}; --fresh makes a new one", file.display()));
            return Ok((Chosen::Earlier(config, schedule), held));
        }
        let made = [vec![self.journal(), self.profile()], self.training(), self.choice()].concat();
        let forgotten = request.fresh.then_some(made);
        let tuned = self.tune_anew(workload, request, largest, (&held, forgotten), watch)?;
        Ok((Chosen::Now(tuned), held))
    }

    fn tune_anew(
        &self,
        workload: &dyn Workload,
        request: &TuneRequest,
        largest: u64,
        (held, forgotten): (&Held, Option<Vec<PathBuf>>),
        watch: &Watch<'_>,
    ) -> Result<Tuned, Error> {
        let mut profile = measure(workload, request.budget, largest, self, forgotten.as_deref(), watch)?;
        let tuned = tune(workload, &mut profile, request, largest, self, watch)?;
        keep(self, held, &tuned, &profile)?;
        Ok(tuned)
    }

    /// Trains a choice, or continues from the study's checkpoint if there is one, and tests at the end. The groups are those of
    /// the workers of this process, by rank: of all of them, or of worker 0 of `request.workers.count` processes.
    ///
    /// # Errors
    ///
    /// The schedule exceeds its budget, a worker's device fails, training diverges, the state cannot be kept, or the watch stops
    /// the job; the same call then continues it.
    pub fn train(
        &self,
        task: &NetworkWorkload,
        choice: (&Config, &Schedule),
        request: &TrainRequest,
        groups: Vec<Box<dyn Group>>,
        _held: &Held,
        watch: &Watch<'_>,
    ) -> Result<Trained, Error> {
        if request.fresh {
            self.are_ours(&self.training())?;
        }
        Training { task, choice, request, study: self, watch }.train(groups)
    }

    /// Trains a choice as one of the other processes, while worker 0 runs [`Study::train`]. Reads the study's choice,
    /// and writes only the state that it keeps if worker 0 is lost. If `stop` returns `true`, all workers pause, and worker 0
    /// saves the state.
    ///
    /// # Errors
    ///
    /// The schedule exceeds its budget, the device fails, training diverges, or a different worker fails.
    pub fn work(
        &self,
        task: &NetworkWorkload,
        choice: (&Config, &Schedule),
        request: &TrainRequest,
        group: Box<dyn Group>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        // Worker 0 reports on the training.
        let watch = &Watch { stop, ..Watch::silent() };
        Training { task, choice, request, study: self, watch }.work(group)
    }
}
