//! A checkpoint: everything that the next iteration depends on, as a safetensors file.
//!
//! Parameters are saved as `parameter/<name>`, running statistics as `state/<name>`, and optimizer state as
//! `momentum/<name>` (SGD) or `first-moment/<name>` and `second-moment/<name>` (AdamW). The rest (step, position in the
//! epoch, training plan) is JSON under the metadata key `plimsoll`, after the checksum of everything and a space. A file is
//! written next to its final path and then moved there, so that an interruption leaves the old file or the new one, whole.
//!
//! A file of `checkpoint/1`, from before there were checksums, is also read. No file holds a number that is not finite: such
//! a state cannot be trained any further, and would replace one that can.

use crate::cpu::allocate_blocks;
use crate::error::{Error, Kind};
use crate::training_plan::TrainingPlan;
use plimsoll_ir::Bytes;
use plimsoll_ir::checksum::{Checksum, Summing};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The metadata key, and the kind that its value names.
const KEY: &str = "plimsoll";
const KIND: &str = "checkpoint/2";

/// Kind of a file without a checksum.
const UNSUMMED: &str = "checkpoint/1";

/// Upper bound on the bytes of a file besides its numbers: names, shapes and the training plan.
const OVERHEAD: Bytes = Bytes(1 << 20);

/// The state of a training run between two iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Position of the run.
    pub progress: Progress,
    /// Sorted by name, as in the file.
    pub(crate) regions: Vec<SavedRegion>,
}

/// Position of a training run, and its identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// `checkpoint/2`, or `checkpoint/1`.
    pub(crate) kind: String,
    /// Iterations done.
    pub step: u64,
    /// The epoch of the next iteration, from 0.
    pub epoch: u64,
    /// Samples of that epoch's order that were used.
    pub position: u64,
    /// The network and how it is trained.
    pub plan: TrainingPlan,
    /// Data set; `None` before the first iteration.
    pub data: Option<DataName>,
}

/// Identity of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataName {
    /// The set's name.
    pub name: String,
    /// Number of samples.
    pub samples: u64,
}

/// Contents of a resident region.
#[derive(Clone, PartialEq)]
pub(crate) struct SavedRegion {
    /// Includes the role, as in `momentum/conv1.weight`.
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// f32, little-endian.
    pub(crate) data: Vec<u8>,
}

impl fmt::Debug for SavedRegion {
    /// Omits the contents, which can be a gigabyte.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.shape)
    }
}

impl Progress {
    pub(crate) fn new(
        step: u64,
        iterations_per_epoch: u64,
        plan: TrainingPlan,
        data: Option<DataName>,
    ) -> Progress {
        let per_epoch = iterations_per_epoch.max(1);
        let position = step % per_epoch * plan.samples_of_update();
        Progress { kind: KIND.to_owned(), step, epoch: step / per_epoch, position, plan, data }
    }
}

impl SavedRegion {
    /// Returns `true` if every number is finite.
    fn is_finite(&self) -> bool {
        numbers(&self.data).all(f32::is_finite)
    }
}

/// Reads bytes as f32 numbers.
pub(crate) fn numbers(data: &[u8]) -> impl Iterator<Item = f32> {
    data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

impl Checkpoint {
    /// Writes it to a file, whole or not at all; refuses a state with a number that is not finite.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let fault = |why: String| Error::checkpoint(path, why);
        if let Some(region) = self.regions.iter().find(|region| !region.is_finite()) {
            let message = format!(
                "after {} iterations `{}` holds a number that is not finite; lower the learning rate or lengthen the warm-up",
                self.progress.step, region.name
            );
            return Err(Error::new(Kind::Diverged, message));
        }
        let views = self.regions.iter().map(|r| {
            let view = TensorView::new(Dtype::F32, r.shape.clone(), &r.data);
            (&r.name, view.expect("a region has the bytes of its shape"))
        });
        let progress = Progress { kind: KIND.to_owned(), ..self.progress.clone() };
        let progress = serde_json::to_string(&progress).expect("progress has string keys and finite numbers");
        let summed = format!("{} {progress}", self.checksum(&progress));
        let metadata = HashMap::from([(KEY.to_owned(), summed)]);
        let bytes = serialize(views, Some(metadata)).map_err(|e| fault(format!("cannot be written: {e}")))?;
        write_whole(path, &bytes).map_err(|e| fault(unwritable(&e)))
    }

    /// Checksum of the file's contents, with `progress` as its text.
    fn checksum(&self, progress: &str) -> Checksum {
        let mut sum = Summing::default();
        sum.add(progress.as_bytes());
        for SavedRegion { name, shape, data } in &self.regions {
            sum.add(format!("{name} {shape:?}").as_bytes());
            sum.add(data);
        }
        sum.sum()
    }

    /// Returns `true` if the file that it was read from had a checksum; files of older versions have none.
    pub fn has_checksum(&self) -> bool {
        self.progress.kind != UNSUMMED
    }

    /// Checks that a file of this size can be written to a path in addition to the file that is there. Leaves no file
    /// behind.
    ///
    /// # Errors
    ///
    /// The folder cannot be written to, the disk has no room, or files may not be as large.
    pub fn make_sure(path: &Path, state: Bytes) -> Result<(), Error> {
        let fault = |e: io::Error| Error::checkpoint(path, unwritable(&e));
        let beside = beside(path).map_err(fault)?;
        let bytes = Bytes(state.0.saturating_add(OVERHEAD.0));
        let made = File::create(&beside).and_then(|file| allocate_blocks(&file, bytes));
        // If the file could not be made there is nothing to remove.
        let removed = fs::remove_file(&beside);
        made.and(removed).map_err(fault)
    }

    /// Reads a file that [`Checkpoint::save`] wrote.
    ///
    /// # Errors
    ///
    /// It is not such a file, does not match its checksum, or holds a number that is not finite.
    pub fn load(path: &Path) -> Result<Checkpoint, Error> {
        let fault = |why: String| Error::checkpoint(path, why);
        let bytes = fs::read(path).map_err(|e| fault(format!("cannot be read: {e}")))?;
        let foreign =
            |e| fault(format!("is no whole safetensors file ({e}); it is cut short or of another kind"));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(foreign)?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(foreign)?;
        let text = metadata.metadata().as_ref().and_then(|m| m.get(KEY));
        let text = text.ok_or_else(|| {
            fault(format!("is a safetensors file without the metadata `{KEY}`; it was not made by Plimsoll"))
        })?;
        // In a file without a checksum the text is JSON from the start.
        let (sum, text) = text.split_once(' ').filter(|(sum, _)| !sum.starts_with('{')).unwrap_or(("", text));
        let progress: Progress = serde_json::from_str(text).map_err(|e| {
            fault(format!("has metadata that this version cannot read ({e}); expected `{KIND}`"))
        })?;
        if ![KIND, UNSUMMED].contains(&progress.kind.as_str()) {
            return Err(fault(format!("is a `{}`; expected `{KIND}`", progress.kind)));
        }
        let mut regions = Vec::new();
        for name in metadata.offset_keys() {
            let view = tensors.tensor(&name).map_err(foreign)?;
            if view.dtype() != Dtype::F32 {
                return Err(fault(format!("holds `{name}` as {:?}; expected F32", view.dtype())));
            }
            regions.push(SavedRegion { name, shape: view.shape().to_vec(), data: view.data().to_vec() });
        }
        let loaded = Checkpoint::new(progress, regions);
        if loaded.has_checksum() && sum.parse() != Ok(loaded.checksum(text)) {
            return Err(fault("is damaged: it does not match its checksum".to_owned()));
        }
        if let Some(region) = loaded.regions.iter().find(|region| !region.is_finite()) {
            let name = &region.name;
            return Err(fault(format!("holds a number in `{name}` that is not finite: it is damaged")));
        }
        Ok(loaded)
    }

    /// Files next to this one that a process which has ended left unfinished.
    pub fn unfinished(path: &Path) -> Vec<PathBuf> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_dead = |file: &str| {
            let process = file.strip_prefix(&format!(".{name}."))?.strip_suffix(".part")?;
            let process: u32 = process.parse().ok()?;
            Some(!Path::new(&format!("/proc/{process}")).exists())
        };
        let files = fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
        let dead = files.filter(|file| is_dead(&file.file_name().to_string_lossy()) == Some(true));
        dead.map(|file| file.path()).collect()
    }

    pub(crate) fn new(progress: Progress, mut regions: Vec<SavedRegion>) -> Checkpoint {
        regions.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Checkpoint { progress, regions }
    }

    /// Numbers of a saved region, such as `parameter/conv1.weight`; `None` if there is no such region.
    pub fn region(&self, name: &str) -> Option<Vec<f32>> {
        Some(numbers(self.region_bytes(name)?).collect())
    }

    /// Bytes of a saved region: f32, little-endian.
    pub fn region_bytes(&self, name: &str) -> Option<&[u8]> {
        self.regions.iter().find(|r| r.name == name).map(|region| &region.data[..])
    }

    /// Names of all saved regions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.regions.iter().map(|r| r.name.as_str())
    }
}

/// Folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Message for a file that cannot be written: the reason and the remedy.
fn unwritable(error: &io::Error) -> String {
    let todo = match error.kind() {
        ErrorKind::FileTooLarge => "raise the size that files may have (`ulimit -f`)",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space on its disk",
        _ => "see to its folder, or name another place",
    };
    format!("cannot be written: {error}; {todo}")
}

/// Path at which this process writes a file before moving it to its final path.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let part = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
    Ok(folder_of(path).join(part))
}

/// Writes the file next to its final path, syncs it, and moves it there.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (folder, beside) = (folder_of(path), beside(path)?);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&beside, path)) {
        // The unfinished file is useless; the first error is the one to report.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    match File::open(folder)?.sync_all() {
        // The file is in its place; some file systems cannot sync folders.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}
