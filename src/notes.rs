//! Notes in a study's folder that let the next start name the workers that ended without an error message.
//!
//! If a worker's process dies, most launchers end all processes, and none is left to report which one died. So each
//! process keeps a note while it trains (its machine, its process, the iterations done), and removes it if it ends
//! with a message. The next start reports the remaining notes, and removes them.
//!
//! Open MPI's launcher ends the others by a signal that they can catch, and they mark their notes: the one without a
//! mark died first. MPICH's launcher kills all at once, so the first is unknown; its own message names a process, and
//! so does the next start.
//!
//! A note is created once and then overwritten in place, so that a removed note stays removed. It only helps people:
//! if it cannot be written, training goes on without it.
//!
//! This file does not save any state, or look for notes in another machine's folder.

use crate::interrupt;
use plimsoll_runtime::group::GroupFacts;
use plimsoll_runtime::group::mpi::{World, host};
use plimsoll_study::{Error, Study};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between writes of a note.
const PERIOD: Duration = Duration::from_secs(1);

/// Interval between checks for a signal: a launcher kills soon after it.
const LOOK: Duration = Duration::from_millis(50);

/// Size of the note's file: more than a note takes, so that each write covers the previous one.
const NOTE_BYTES: usize = 512;

/// Most workers named in a line.
const NAMED: usize = 8;

/// Study in which this process keeps a note.
static STUDY: OnceLock<Study> = OnceLock::new();

/// State of a worker while it trains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    worker: usize,
    workers: usize,
    host: String,
    process: u32,
    /// Lower bound of the iterations done.
    iterations: u64,
    /// `true` if a signal asked the worker to end, and it has not ended by itself.
    signalled: bool,
}

/// Keeps a note until dropped.
#[must_use = "the note is removed as soon as this is dropped"]
pub struct Keeping {
    /// Dropped to remove the note.
    until: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Keeps the note of this worker, from the time when the workers begin to train together.
pub fn keep(study: &Study, world: &World) -> Keeping {
    STUDY.get_or_init(|| study.clone());
    let (until, ends) = channel();
    let (file, world) = (study.note(world.facts().rank), world.clone());
    let keeper = move || {
        if let Err(error) = keep_file(&file, &world, &ends) {
            tracing::debug!("{} cannot be kept: {error}", file.display());
        }
    };
    let thread = thread::Builder::new().name("note".to_owned()).spawn(keeper);
    Keeping { until: Some(until), thread: thread.ok() }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        drop(self.until.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// Writes a worker's note at intervals, until it is to be removed.
fn keep_file(path: &Path, world: &World, ends: &Receiver<()>) -> io::Result<()> {
    let GroupFacts { rank: worker, workers, .. } = world.facts();
    let (host, process) = (host(), std::process::id());
    let mut kept: Option<(File, Note, Instant)> = None;
    while ends.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let Some(iterations) = world.iterations() else { continue };
        let signalled = interrupt::pressed();
        let note = Note { worker, workers, host: host.clone(), process, iterations, signalled };
        let is_due = |(_, last, at): &(File, Note, Instant)| {
            *last != note && (last.signalled != signalled || at.elapsed() >= PERIOD)
        };
        if kept.as_ref().is_none_or(is_due) {
            let file = match kept.take() {
                Some((file, ..)) => file,
                None => File::create(path)?,
            };
            file.write_all_at(&note.bytes(), 0)?;
            kept = Some((file, note, Instant::now()));
        }
    }
    if kept.is_some() { remove(path) } else { Ok(()) }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        // The process that reported for all has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes the notes of all workers: this process has reported why they end.
pub fn forget() {
    for path in STUDY.get().iter().flat_map(|study| study.notes()) {
        if let Err(error) = remove(&path) {
            tracing::debug!("{} cannot be removed: {error}", path.display());
        }
    }
}

/// Reports which workers' notes the last run of a study has left, if it ended without an error message, and removes
/// them. No other run may work in the study.
pub fn tell(study: &Study) -> Result<(), Error> {
    let files = study.notes();
    if let Some(words) = in_words(files.iter().filter_map(Note::read).collect()) {
        tracing::warn!("{words}");
    }
    study.forget(&files)
}

impl Note {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("names and numbers can be written");
        bytes.resize(NOTE_BYTES.max(bytes.len()), b' ');
        bytes
    }

    /// Reads a note; `None` if the machine went down before it was written.
    fn read(path: &PathBuf) -> Option<Note> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    fn in_words(&self) -> String {
        let Note { worker, host, process, iterations, .. } = self;
        format!("worker {worker} on {host} (process {process}) after at least {iterations} iterations")
    }
}

/// Message about the notes that a run has left.
fn in_words(mut notes: Vec<Note>) -> Option<String> {
    notes.sort_by_key(|note| note.worker);
    let unknown = notes.first().map_or(0, |note| note.workers.saturating_sub(notes.len()));
    let (signalled, silent): (Vec<Note>, Vec<Note>) = notes.into_iter().partition(|note| note.signalled);
    let named = |notes: &[Note]| {
        let mut names: Vec<String> = notes.iter().take(NAMED).map(Note::in_words).collect();
        names.extend((notes.len() > NAMED).then(|| format!("{} more", notes.len() - NAMED)));
        names.join(", ")
    };
    let (ended, notes, more) = match (silent.len(), signalled.len()) {
        (0, 0) => return None,
        (0, _) => {
            let elsewhere =
                "; another worker may have died before, whose note is in another machine's folder";
            let more = if unknown > 0 { elsewhere } else { "" };
            ("was ended by a signal before it had saved", &signalled, more)
        }
        (1, 0) => ("ended without an error message", &silent, ""),
        (_, 0) => (
            "ended without an error message, all workers at once",
            &silent,
            "; where one of them died first, the launcher has named its process",
        ),
        (..) => ("ended without an error message", &silent, "; then the launcher ended the others"),
    };
    Some(format!("the last run {ended}: {}{more}", named(notes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(worker: usize, signalled: bool) -> Note {
        let (process, iterations) = (100 + worker as u32, 7 + worker as u64);
        Note { worker, workers: 2, host: "first".to_owned(), process, iterations, signalled }
    }

    #[test]
    fn the_worker_that_died_is_the_one_that_saw_no_signal() {
        let says = |notes: &[Note]| in_words(notes.to_vec()).unwrap_or_default();
        let of = |worker: usize| {
            format!(
                "worker {worker} on first (process {}) after at least {} iterations",
                100 + worker,
                7 + worker
            )
        };
        assert_eq!(says(&[]), "");
        assert_eq!(
            says(&[note(1, false)]),
            format!("the last run ended without an error message: {}", of(1))
        );
        let one = says(&[note(2, true), note(1, false), note(0, true)]);
        let died = format!(
            "the last run ended without an error message: {}; then the launcher ended the others",
            of(1)
        );
        assert_eq!(one, died);
        let all = says(&[note(1, false), note(0, false)]);
        assert!(all.contains(&format!("all workers at once: {}, {}; where one", of(0), of(1))), "{all}");
        let ended = says(&[note(1, true), note(0, true)]);
        assert!(
            ended.ends_with(&format!("by a signal before it had saved: {}, {}", of(0), of(1))),
            "{ended}"
        );
        let of_one = says(&[note(0, true)]);
        assert!(of_one.contains("; another worker may have died before"), "{of_one}");
        let many: Vec<Note> = (0..11).map(|worker| note(worker, false)).collect();
        assert!(says(&many).contains(", 3 more;"), "{}", says(&many));
    }

    #[test]
    fn a_note_is_read_as_it_was_written_over_a_longer_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("note");
        let file = File::create(&path).expect("a file");
        for iterations in [u64::MAX, 3] {
            let note = Note { iterations, ..note(1, true) };
            file.write_all_at(&note.bytes(), 0).expect("it can be written");
            assert_eq!(Note::read(&path), Some(note));
        }
        fs::write(&path, "").expect("a file");
        assert_eq!(Note::read(&path), None);
    }

    #[test]
    fn notes_are_told_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let study = Study::at(folder.path());
        fs::write(study.note(3), note(3, false).bytes()).expect("a file");
        assert_eq!(study.notes(), [study.note(3)]);
        tell(&study).expect("it can be removed");
        assert!(study.notes().is_empty());
    }
}
