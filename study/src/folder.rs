//! A study's folder: the measurements, the choice and the training of one network, kept so that a second run continues.
//!
//! Nothing else is ever written to it, and `--fresh` removes nothing else.

use crate::checksums;
use crate::documents;
use crate::error::{Cause, Error, Kind};
use crate::files;
use plimsoll_ir::check::check;
use plimsoll_ir::config::Config;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document};
use plimsoll_profiler::Header;
use plimsoll_runtime::Checkpoint;
use std::fs::{self, TryLockError};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for a study that a killed run still holds: the system frees the run's memory first, and a launcher of
/// workers does not wait for that.
const DYING: Duration = Duration::from_secs(5);

/// Interval between attempts.
const LOOK: Duration = Duration::from_millis(50);

/// Maximum bytes of a journal's header.
const HEADER_BYTES_MAX: u64 = 1 << 16;

/// Bytes at the start of a file that identify its writer.
const START_BYTES: u64 = 1 << 14;

/// Directory that collects the files of a tuning, and its name once all are there, until each file is in its place.
const GATHERED: &str = ".tuned.part";
const WHOLE: &str = ".tuned";

/// Start of the names of a worker's files.
const WORKER: &str = "training.worker-";

/// End of the name of a worker's note.
const NOTE: &str = ".note.json";

/// Advice if a study is missing.
const NAME_ONE: &str = "name a study's folder, as `plimsoll auto` and `plimsoll tune` make it";

/// A study's folder.
#[derive(Clone, Debug)]
pub struct Study {
    folder: PathBuf,
}

impl Study {
    /// Returns the study in a folder, which need not exist.
    pub fn at(folder: &Path) -> Study {
        Study { folder: folder.to_owned() }
    }

    /// Creates the folder if it is missing, and checks that it can be written to; logs its path.
    pub fn make(&self) -> Result<(), Error> {
        let folder = &self.folder;
        fs::create_dir_all(folder).map_err(|error| Error::io(folder, "create the study's folder", &error))?;
        // Checked now, and not after measuring.
        tempfile::NamedTempFile::new_in(folder)
            .map_err(|error| Error::io(folder, "write to the study's folder", &error))?;
        tracing::info!("the study is {}", folder.display());
        Ok(())
    }

    /// Returns the budget that the study was begun with, from its measurements. An unreadable journal gives `None`;
    /// the job that continues it reports the error.
    pub fn budget(&self) -> Option<Bytes> {
        let mut line = String::new();
        let journal = fs::File::open(self.journal()).ok()?;
        BufReader::new(journal.take(HEADER_BYTES_MAX)).read_line(&mut line).ok()?;
        Header::of_line(&line).map(|header| header.budget_bytes)
    }

    /// Checks that none of these files is foreign, since they would be overwritten or removed.
    pub fn are_ours(&self, files: &[PathBuf]) -> Result<(), Error> {
        match files.iter().find(|file| !self.wrote(file)) {
            None => Ok(()),
            Some(foreign) => {
                let foreign = foreign.display();
                Err(Error::usage(format_args!("{foreign} was not written by Plimsoll, and would be lost"))
                    .help("move it elsewhere, or choose another folder with --study DIR"))
            }
        }
    }

    /// Returns `true` if a file is missing or empty, or begins like the file that Plimsoll writes under this name.
    fn wrote(&self, file: &Path) -> bool {
        let mut start = Vec::new();
        let Ok(open) = fs::File::open(file) else { return true };
        if checksums::is_listed(file) || open.take(START_BYTES).read_to_end(&mut start).is_err() {
            return true;
        }
        let marks: &[&str] = match () {
            () if *file == self.plans() => &["\"made_for\":"],
            () if *file == self.model() => &["\"layers\":", "\"curves\":"],
            () => &["plimsoll", "Plimsoll"],
        };
        let start = String::from_utf8_lossy(&start);
        start.is_empty() || marks.iter().any(|mark| start.contains(mark))
    }

    /// Removes these files of the study, if they exist.
    pub fn forget(&self, files: &[PathBuf]) -> Result<(), Error> {
        for path in files {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::io(path, "remove", &error));
                }
                _ => {}
            }
        }
        checksums::forget(&self.folder, files)
    }

    /// Writes files of the study, each in one step and in this order, with their checksums.
    pub fn put(&self, files: &[(PathBuf, Vec<u8>)]) -> Result<(), Error> {
        checksums::write(&self.folder, files)
    }

    /// Puts the files of a tuning in place together: wherever a run is killed, the study holds either all the old files or all
    /// the new ones. Removes the page of an earlier choice, which would be out of date.
    ///
    /// The files are collected in a directory. Renaming it marks them as complete; the next job in the study then
    /// puts them in place.
    pub fn put_together(&self, _alone: &Held, files: &[(PathBuf, Vec<u8>)]) -> Result<(), Error> {
        let [gathered, whole] = [GATHERED, WHOLE].map(|name| self.folder.join(name));
        remove_folder(&gathered)?;
        fs::create_dir(&gathered).map_err(|error| Error::io(&gathered, "create", &error))?;
        for (path, bytes) in files {
            files::write_bytes(&gathered.join(name(path)), bytes)?;
        }
        fs::rename(&gathered, &whole).map_err(|error| Error::io(&whole, "create", &error))?;
        self.settle()
    }

    /// Puts a complete set of files from a killed run in place, and removes an incomplete one.
    fn settle(&self) -> Result<(), Error> {
        let [gathered, whole] = [GATHERED, WHOLE].map(|name| self.folder.join(name));
        remove_folder(&gathered)?;
        if !whole.exists() {
            return Ok(());
        }
        let mut files = Vec::new();
        for path in self.files() {
            let from = whole.join(name(&path));
            match fs::read(&from) {
                Ok(bytes) => files.push((path, bytes)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io(&from, "read", &error)),
            }
        }
        self.put(&files)?;
        self.forget(&[self.report()])?;
        // So that no part of it is ever taken for complete.
        fs::rename(&whole, &gathered).map_err(|error| Error::io(&whole, "remove", &error))?;
        remove_folder(&gathered)
    }

    /// Finishes a replacement that a killed run has left incomplete.
    fn settled(self) -> Result<Study, Error> {
        if self.folder.join(WHOLE).exists() {
            drop(self.lock()?);
        }
        Ok(self)
    }

    /// Checks that no training uses the choice that is about to be replaced.
    pub fn without_training(&self) -> Result<(), Error> {
        if !self.holds_training() {
            return Ok(());
        }
        let folder = self.folder.display();
        Err(Error::usage(format_args!("{folder} holds a training made with the choice there"))
            .help("choose another folder with --study DIR, or remove its training.safetensors"))
    }

    /// Returns the study and the config's path, given a config file or its study's folder.
    pub fn of_config(path: &Path) -> (Study, PathBuf) {
        if path.is_dir() {
            let study = Study::at(path);
            return (study.clone(), study.config());
        }
        (Study::at(files::folder_of(path)), path.to_owned())
    }

    /// Returns an existing study, given its folder or the config in it.
    pub fn existing(path: &Path) -> Result<Study, Error> {
        if !path.exists() {
            return Err(Error::usage(format_args!("there is no folder {}", path.display())).help(NAME_ONE));
        }
        Study::of_config(path).0.settled()
    }

    /// Reads the choice that a config file or its study's folder names: the study, the config's path, the config and its
    /// schedule.
    pub fn choice_of(path: &Path) -> Result<(Study, PathBuf, Config, Schedule), Error> {
        let (study, config_path) = Study::of_config(path);
        let study = study.settled()?;
        let (config, schedule) = if path.is_dir() {
            study.chosen()?
        } else {
            let config: Config = documents::read(&config_path)?;
            let schedule = documents::read(&study.folder.join(&config.schedule))?;
            (config, schedule)
        };
        Ok((study, config_path, config, schedule))
    }

    /// Returns the choice. Fails with advice if the folder holds no study, or half of one.
    pub fn chosen(&self) -> Result<(Config, Schedule), Error> {
        if !self.config().exists() {
            let (folder, missing) = (self.folder.display(), name(&self.config()));
            let error = Error::usage(format_args!("{folder} holds no choice: {missing} is missing"));
            return Err(if self.journal().exists() || self.profile().exists() {
                error.help(format_args!("it was measured and not tuned yet: {}", self.tune_again()))
            } else {
                error.help(NAME_ONE)
            });
        }
        let config: Config = self.document(&self.config())?;
        let schedule = self.folder.join(&config.schedule);
        self.holds(&schedule)?;
        Ok((config, self.document(&schedule)?))
    }

    /// Checks that a file of a tuning exists.
    pub fn holds(&self, file: &Path) -> Result<(), Error> {
        if file.exists() {
            return Ok(());
        }
        let (folder, missing) = (self.folder.display(), name(file));
        let message =
            format!("{folder} was not tuned to the end, or by an older version: {missing} is missing");
        Err(Error::usage(message).help(self.tune_again()))
    }

    /// Reads a document of the study's tuning.
    pub fn document<D: Document>(&self, path: &Path) -> Result<D, Error> {
        documents::read(path).map_err(|error| {
            let Some(Cause::Document { of_other_version }) = error.cause.as_deref() else { return error };
            let again = self.tune_again();
            let help = match &error.help {
                Some(help) => format!("{help}; or {again}"),
                None if *of_other_version => {
                    format!("it was written by another version of Plimsoll; read it with that, or {again}")
                }
                None => again,
            };
            error.help(help)
        })
    }

    /// Checks that the study's contents (such as `the choice for`) match the request: the error names the first
    /// difference, with both values.
    pub fn is_of(&self, holds: &str, compared: &[(&str, String, String)]) -> Result<(), Error> {
        let Some((what, kept, asked)) = compared.iter().find(|(_, kept, asked)| kept != asked) else {
            return Ok(());
        };
        let folder = self.folder.display();
        let other = "choose another folder with --study DIR, or leave --study out, which takes the one of just these \
                     options";
        let fresh = match self.holds_training() {
            true => "; --fresh would forget the training there, too",
            false => "; or start anew with --fresh",
        };
        Err(Error::usage(format_args!("{folder} holds {holds} another {what}: {kept} there, {asked} now"))
            .help(format_args!("{other}{fresh}")))
    }

    /// Returns advice that leads to a complete choice.
    pub(crate) fn tune_again(&self) -> String {
        let folder = self.folder.display();
        if self.holds_training() {
            return format!(
                "{folder} holds a training: tune into another folder with `plimsoll tune --study DIR`"
            );
        }
        format!(
            "run `plimsoll tune --study {folder}` with its other options; what was measured is used again"
        )
    }

    /// Path of the journal of measurements.
    pub fn journal(&self) -> PathBuf {
        self.folder.join("profile.journal.jsonl")
    }

    /// Path of the complete profile.
    pub fn profile(&self) -> PathBuf {
        self.folder.join("network.profile.json")
    }

    /// Path of the model fitted to the profile.
    pub fn model(&self) -> PathBuf {
        self.folder.join("network.model.json")
    }

    /// Path of the chosen config.
    pub fn config(&self) -> PathBuf {
        self.folder.join("chosen.config.json")
    }

    /// Path of the chosen schedule.
    pub fn schedule(&self) -> PathBuf {
        self.folder.join("chosen.schedule.json")
    }

    /// Path of the iteration that the chosen schedule is for, with the seconds that it was planned for.
    pub fn trace(&self) -> PathBuf {
        self.folder.join("chosen.trace.json")
    }

    /// Path of the tuning: everything that was tried for the choice and measured.
    pub fn tuning(&self) -> PathBuf {
        self.folder.join("tuning.json")
    }

    /// Path of the plans of an unfinished search.
    pub fn plans(&self) -> PathBuf {
        self.folder.join("tuning.journal.jsonl")
    }

    /// Path of the HTML report.
    pub fn report(&self) -> PathBuf {
        self.folder.join("report.html")
    }

    /// Paths of all files that a tuning leaves besides the profile.
    pub fn choice(&self) -> Vec<PathBuf> {
        vec![
            self.model(),
            self.config(),
            self.schedule(),
            self.trace(),
            self.tuning(),
            self.plans(),
            self.report(),
        ]
    }

    /// Path of the parameters and optimizer state of the last run.
    pub fn checkpoint(&self) -> PathBuf {
        self.folder.join("training.safetensors")
    }

    /// Path of the training's state that worker `rank` keeps if worker 0 is lost.
    pub fn kept_by(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("{WORKER}{rank}.safetensors"))
    }

    /// Paths of the workers' states that exist.
    pub fn kept_by_workers(&self) -> Vec<PathBuf> {
        self.of_workers(".safetensors")
    }

    /// Paths of the workers' files with this suffix.
    fn of_workers(&self, end: &str) -> Vec<PathBuf> {
        let is_one = |name: &str| {
            let rank = name.strip_prefix(WORKER).and_then(|rest| rest.strip_suffix(end));
            rank.is_some_and(|rank| rank.parse::<usize>().is_ok())
        };
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = files
            .filter(|file| is_one(&file.file_name().to_string_lossy()))
            .map(|file| file.path())
            .collect();
        found.sort();
        found
    }

    /// Path of the note that a worker process keeps while it trains.
    pub fn note(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("{WORKER}{rank}{NOTE}"))
    }

    /// Paths of the notes that exist.
    pub fn notes(&self) -> Vec<PathBuf> {
        self.of_workers(NOTE)
    }

    /// Paths of a training's files: its checkpoint, and the states that workers have kept.
    pub fn training(&self) -> Vec<PathBuf> {
        [vec![self.checkpoint()], self.kept_by_workers()].concat()
    }

    /// Paths of half-written files that ended runs have left.
    fn unfinished(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let of_worker = |name: String| {
            let (rank, _) = name.strip_prefix('.')?.strip_prefix(WORKER)?.split_once('.')?;
            rank.parse().ok().map(|rank| self.kept_by(rank))
        };
        let mut whole: Vec<PathBuf> = names.filter_map(of_worker).collect();
        whole.push(self.checkpoint());
        whole.sort();
        whole.dedup();
        whole.iter().flat_map(|file| Checkpoint::unfinished(file)).collect()
    }

    fn holds_training(&self) -> bool {
        self.training().iter().any(|file| file.exists())
    }

    /// Paths of all files that the study may hold.
    pub fn files(&self) -> Vec<PathBuf> {
        let others = vec![self.journal(), self.profile()];
        [others, self.training(), self.notes(), self.choice()].concat()
    }

    /// Checks that an output would overwrite none of the study's files.
    pub fn is_not(&self, output: &Path) -> Result<(), Error> {
        self.files().iter().try_for_each(|file| files::not_the_same(file, output))
    }

    /// Keeps other runs from measuring, tuning and training in the study until the returned value is dropped.
    /// Incomplete files of a killed run are removed, complete ones put in place. Waits a few seconds for a run that
    /// ends.
    pub fn lock(&self) -> Result<Held, Error> {
        let Ok(folder) = fs::File::open(&self.folder) else { return Ok(Held(None)) };
        let asked = Instant::now();
        let locked = loop {
            match folder.try_lock() {
                Err(TryLockError::WouldBlock) if asked.elapsed() < DYING => thread::sleep(LOOK),
                locked => break locked,
            }
        };
        match locked {
            Err(TryLockError::WouldBlock) => {
                let folder = self.folder.display();
                Err(Error::usage(format_args!("another run measures, tunes or trains in {folder}"))
                    .help("wait for its end, or take another folder"))
            }
            // Not every file system supports locks.
            Err(TryLockError::Error(error)) => {
                tracing::debug!("{} cannot be locked: {error}", self.folder.display());
                self.settle()?;
                Ok(Held(None))
            }
            Ok(()) => {
                self.settle()?;
                for part in self.unfinished() {
                    tracing::debug!("removing {}, which was never finished", part.display());
                    self.forget(&[part])?;
                }
                Ok(Held(Some(folder)))
            }
        }
    }

    /// Returns the folder's path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// A study that no other run works in; with `None` inside, the file system has no locks, and nothing is protected.
#[derive(Debug)]
#[must_use = "the study is free again as soon as this is dropped"]
pub struct Held(#[allow(dead_code, reason = "an open file holds its lock")] Option<fs::File>);

/// Removes a folder with its contents, if it exists.
fn remove_folder(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(folder, "remove", &error)),
        _ => Ok(()),
    }
}

/// Checks that a schedule, read from this path, is valid for a trace.
///
/// # Errors
///
/// The schedule is invalid: the first violation.
pub fn check_valid(path: &Path, trace: &Trace, schedule: &Schedule) -> Result<(), Error> {
    check(trace, schedule).map_err(|violation| {
        Error::new(Kind::Verification, format_args!("{} is not valid: {violation}", path.display()))
    })
}

pub(crate) fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_half_written_goes_when_another_trains() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (study, _) = Study::of_config(folder.path());
        // No process id exceeds 2^22.
        let ours = format!(".training.safetensors.{}.part", std::process::id());
        let others =
            [&ours, "training.safetensors", ".training.safetensors.part", ".other.safetensors.9999999.part"];
        let dead = ".training.safetensors.9999999.part";
        let dead_worker = folder.path().join(".training.worker-3.safetensors.9999999.part");
        fs::write(&dead_worker, "half").expect("a file");
        for name in others.into_iter().chain([dead]) {
            fs::write(folder.path().join(name), "half").expect("a file");
        }
        let held = study.lock().expect("nobody trains there");
        if held.0.is_none() {
            return println!("skipped: this file system knows no locks");
        }
        assert!(!folder.path().join(dead).exists() && !dead_worker.exists());
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
        fs::write(folder.path().join(dead), "half").expect("a file");
        assert!(study.lock().is_err(), "one trains at a time");
        assert!(folder.path().join(dead).exists(), "only who trains removes anything");
    }

    /// A failure before the first save leaves a worker's state alone.
    #[test]
    fn what_a_worker_keeps_is_a_training_that_nothing_writes_over() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (study, _) = Study::of_config(folder.path());
        for other in
            ["training.worker-.safetensors", "training.worker-1.txt", "training.worker-a.safetensors"]
        {
            fs::write(folder.path().join(other), "").expect("a file");
        }
        assert_eq!(study.kept_by_workers(), [""; 0].map(PathBuf::from));
        study.without_training().expect("none of them is a worker's state");
        let kept = [1, 12].map(|rank| study.kept_by(rank));
        kept.iter().for_each(|state| fs::write(state, "").expect("a file"));
        assert_eq!(study.kept_by_workers(), kept);
        assert!(study.without_training().is_err() && study.holds_training());
        assert!(kept.iter().all(|state| study.is_not(state).is_err()), "an output is no worker's state");
        study.forget(&study.training()).expect("they can be removed");
        study.without_training().expect("it is gone");
    }

    #[test]
    fn a_run_that_ends_is_waited_for() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (study, _) = Study::of_config(folder.path());
        let ending = study.lock().expect("nobody trains there");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(4 * LOOK);
                drop(ending);
            });
            let held = study.lock();
            assert!(held.is_ok(), "{held:?}");
        });
    }
}
