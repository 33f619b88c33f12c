//! The journal: every measurement on disk as soon as it is made, one JSON value per line.
//!
//! The first line is the [`Header`]: the network, the machine and the limits of the measurement. A second run with the same
//! header continues; one with a different header is refused, because samples of two machines or two networks must not be
//! mixed in one fit. A last line that was cut short (by a crash or a full disk) is dropped. Any other unreadable line is an
//! error, since something else wrote it, and so is one that does not match its checksum. The file is locked while a run has
//! it open.
//!
//! The journal is deliberately not compressed, and its lines are never rewritten.

use crate::ProfileRequest;
use crate::error::ProfileError;
use plimsoll_ir::checksum::{entry_of, line_of};
use plimsoll_ir::health::Health;
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::{BatchSamples, LinkSamples};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::{Bytes, Optimizer, Precision, Seconds};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The identity of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// `profile-journal/1`.
    pub plimsoll: String,
    /// Measured network.
    pub network: NetworkSpec,
    /// Optimizer of the parameters; SGD if absent.
    #[serde(default, skip_serializing_if = "Optimizer::is_usual")]
    pub optimizer: Optimizer,
    /// Name of the device.
    pub device: String,
    /// Compute threads.
    pub threads: u32,
    /// Pace that the link was set to.
    pub paced: Option<Link>,
    /// Processor and operating system.
    pub system: String,
    /// Input precision, and storage of activations; `None` in journals of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Version and commit of Plimsoll.
    pub version: String,
    /// Device memory budget.
    pub budget_bytes: Bytes,
    /// Batch sizes.
    pub batches: Vec<u64>,
    /// Start of the measurement; not part of its identity.
    pub unix_seconds: u64,
}

/// The kind in the journal's first line, which no other file has.
const KIND: &str = "profile-journal/1";

/// One line after the header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Entry {
    /// Cost of timing one op.
    Overhead(Seconds),
    /// All four rates.
    Link(LinkSamples),
    /// Health of the device just after a round.
    Health(Health),
    /// A few iterations of one batch size.
    Round(BatchSamples),
    /// A few iterations of one batch size with the ops in their alternatives of this number; it contains only these ops.
    Alternative(u32, BatchSamples),
    /// Everything was measured well enough to decide.
    Done,
}

impl Header {
    /// Returns the header of a request's measurement.
    pub(crate) fn of(request: &ProfileRequest) -> Header {
        let machine = &request.machine;
        Header {
            plimsoll: KIND.to_owned(),
            network: request.network.clone(),
            optimizer: request.optimizer,
            device: machine.device.clone(),
            threads: machine.threads,
            paced: machine.paced,
            system: machine.system.clone(),
            precision: machine.precision,
            version: machine.plimsoll.clone(),
            budget_bytes: request.budget,
            batches: request.batches.clone(),
            unix_seconds: machine.unix_seconds,
        }
    }

    /// Reads a journal's first line; `None` if it is not a header, or damaged.
    pub fn of_line(line: &str) -> Option<Header> {
        serde_json::from_slice(entry_of(line.as_bytes()).ok()?).ok()
    }

    /// Returns a key of the measurement, unique except for a chance of one in 2^64.
    pub(crate) fn key(&self) -> String {
        let timeless = Header { unix_seconds: 0, ..self.clone() };
        let mut hasher = DefaultHasher::new();
        serde_json::to_string(&timeless).expect("a header can be written").hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Returns the first difference, in words; `None` if both are of one measurement.
    fn differs(&self, wanted: &Header) -> Option<String> {
        let (has, wants) = (self, wanted);
        let spec = |n: &NetworkSpec| {
            format!("{} at {}x{}x{}, {} classes", n.name, n.image[0], n.image[1], n.channels, n.classes)
        };
        let pace = |link: &Option<Link>| {
            link.map_or("as fast as it can".to_owned(), |l| {
                format!("{} out, {} in", l.offload_bytes_per_second, l.prefetch_bytes_per_second)
            })
        };
        let precision = |one: Option<Precision>| one.map_or("none".to_owned(), |one| one.to_string());
        let bytes = |budget: Bytes| format!("{budget} ({} B)", budget.0);
        let fields = [
            ("the kind", has.plimsoll.clone(), wants.plimsoll.clone()),
            ("the network", spec(&has.network), spec(&wants.network)),
            ("the optimizer", has.optimizer.to_string(), wants.optimizer.to_string()),
            ("the device", has.device.clone(), wants.device.clone()),
            ("the number of threads", has.threads.to_string(), wants.threads.to_string()),
            ("the link's pace", pace(&has.paced), pace(&wants.paced)),
            ("the system", has.system.clone(), wants.system.clone()),
            ("the precision", precision(has.precision), precision(wants.precision)),
            ("the version", has.version.clone(), wants.version.clone()),
            ("the budget", bytes(has.budget_bytes), bytes(wants.budget_bytes)),
            ("the batch sizes", format!("{:?}", has.batches), format!("{:?}", wants.batches)),
        ];
        let named = fields.into_iter().find(|(_, has, wants)| has != wants);
        let named = named.map(|(what, has, wants)| format!("{what} is {has} there, and {wants} now"));
        // Two paces may print alike and differ in latency or duplex.
        named.or_else(|| (has.paced != wants.paced).then(|| "the link's pace is another".to_owned()))
    }
}

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or starts the journal of a measurement; returns it with its header and its entries so far.
    pub fn open(
        path: &Path,
        header: Header,
        fresh: bool,
    ) -> Result<(Journal, Header, Vec<Entry>), ProfileError> {
        let place = path.display();
        let fault = |what: &str, error: std::io::Error| {
            ProfileError::Unusable(format!(
                "the journal `{place}`: cannot {what} it ({error}); choose a folder for the study that you can write to"
            ))
        };
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| fault("make the folder of", e))?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| fault("open", e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ProfileError::Unusable(format!(
                    "the journal `{place}` is in use by another run; wait for its end, or choose another folder for the study"
                )));
            }
            // A file system without locks is no reason not to measure.
            Err(TryLockError::Error(error)) => tracing::debug!(%error, "the journal cannot be locked"),
        }
        let mut bytes = Vec::new();
        if !fresh {
            file.read_to_end(&mut bytes).map_err(|e| fault("read", e))?;
        }
        let mut journal = Journal { path: path.to_owned(), file };
        let (found, entries, good) = journal.parse(&bytes)?;
        journal.file.set_len(good).map_err(|e| fault("write", e))?;
        journal.file.seek(SeekFrom::Start(good)).map_err(|e| fault("write", e))?;
        let Some(found) = found else {
            journal.write_line(&header)?;
            return Ok((journal, header, Vec::new()));
        };
        match found.differs(&header) {
            Some(differs) => Err(journal.other_study(&differs)),
            None => Ok((journal, found, entries)),
        }
    }

    /// The error that its contents are of something else, `differs` saying how.
    pub fn other_study(&self, differs: &str) -> ProfileError {
        ProfileError::OtherJournal(format!(
            "the journal `{}` holds another measurement: {differs}; choose another folder for the study, or start afresh",
            self.path.display()
        ))
    }

    /// Returns the header, the entries, and the readable length: everything up to the last whole line.
    fn parse(&self, bytes: &[u8]) -> Result<(Option<Header>, Vec<Entry>, u64), ProfileError> {
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        let mut header = None;
        let mut entries = Vec::new();
        for (number, line) in (1..).zip(bytes[..whole].split_inclusive(|b| *b == b'\n')) {
            let place = self.path.display();
            let foreign = |error: serde_json::Error| {
                ProfileError::OtherJournal(format!(
                    "the journal `{place}`: line {number} is no line of a profile's journal ({error}); choose another folder \
                     for the study, or start afresh"
                ))
            };
            let entry = entry_of(line).map_err(|mismatch| {
                ProfileError::OtherJournal(format!(
                    "the journal `{place}`: line {number} is damaged: {mismatch}; put the file back as it was, or measure \
                     anew"
                ))
            })?;
            if header.is_none() {
                header = Some(serde_json::from_slice(entry).map_err(foreign)?);
            } else {
                entries.push(serde_json::from_slice(entry).map_err(foreign)?);
            }
        }
        Ok((header, entries, whole as u64))
    }

    /// Appends an entry, and returns when it is on the disk.
    pub fn append(&mut self, entry: &Entry) -> Result<(), ProfileError> {
        self.write_line(entry)
    }

    fn write_line(&mut self, value: &impl Serialize) -> Result<(), ProfileError> {
        let place = self.path.display();
        let fault = |error: std::io::Error| {
            ProfileError::Unusable(format!(
                "the journal `{place}`: cannot write to it ({error}); make room or choose another folder, then run again: it \
                 goes on from there"
            ))
        };
        let entry =
            serde_json::to_string(value).expect("what is measured has string keys and finite numbers");
        self.file.write_all(line_of(&entry).as_bytes()).map_err(fault)?;
        self.file.sync_data().map_err(fault)
    }
}
