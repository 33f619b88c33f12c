//! `schedule/1`: a static program for the compute, swap-out and swap-in streams, with explicit waits and fixed addresses.
//!
//! The tuner makes it, [`crate::check`] proves it, [`crate::simulate`] times it and the runtime executes it. It leaves no
//! decision open. Only `check` determines if a schedule is *valid* for a trace; reading one only checks that its ids are
//! positions and its numbers are numbers.

use crate::document::{Document, Fault, define_kind};
use crate::ids::{BufferId, CommandId, OpId, TensorId};
use crate::program::STORAGE_ALIGNMENT;
use crate::trace::{BYTES_MAX, Op, Tensor, Trace};
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};
use std::ops::Range;

define_kind!(ScheduleKind, "schedule/1");

/// A static program for three streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: ScheduleKind,
    /// Name of its trace.
    pub trace: String,
    /// Batch size of that trace.
    pub batch: u64,
    /// Limit of resident bytes and pool together.
    pub budget_bytes: Bytes,
    /// Size of the one allocation that holds all buffers.
    pub pool_bytes: Bytes,
    /// Link that the times were predicted for.
    pub link: Link,
    /// Commands; each stream runs its own in this order.
    pub commands: Vec<Command>,
    /// Places and live intervals of tensors and workspaces.
    pub buffers: Vec<Buffer>,
}

/// The link between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Device to host.
    pub offload_bytes_per_second: BytesPerSecond,
    /// Host to device.
    pub prefetch_bytes_per_second: BytesPerSecond,
    /// Time of every transfer besides its bytes.
    #[serde(default)]
    pub latency_seconds: Seconds,
    /// Full duplex if both directions can be busy at once.
    #[serde(default)]
    pub duplex: Duplex,
}

/// Concurrency of the two transfer streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Duplex {
    /// Each direction has the link to itself.
    #[default]
    Full,
    /// Both directions share the link: a transfer starts no earlier than the end of the previous transfer in list order.
    Half,
}

impl Link {
    /// Returns a full-duplex link of one rate, without latency.
    pub fn symmetric(rate: BytesPerSecond) -> Link {
        let duplex = Duplex::Full;
        let latency_seconds = Seconds::ZERO;
        Link { offload_bytes_per_second: rate, prefetch_bytes_per_second: rate, latency_seconds, duplex }
    }

    /// Checks that rates are above zero and finite, and the latency 0 or more; `place` is the link's path.
    pub(crate) fn validate(&self, place: &str) -> Result<(), Fault> {
        let fault = |key: &str, why: String| Err(Fault::Meaning { place: format!("{place}.{key}"), why });
        let rates = [
            ("offload_bytes_per_second", self.offload_bytes_per_second.0),
            ("prefetch_bytes_per_second", self.prefetch_bytes_per_second.0),
        ];
        for (key, rate) in rates {
            if !BytesPerSecond(rate).is_sound() {
                let least = BytesPerSecond::LEAST.0;
                return fault(key, format!("a rate is at least {least:e} bytes per second, not {rate:?}"));
            }
        }
        let latency = self.latency_seconds.0;
        if !(latency.is_finite() && latency >= 0.0) {
            return fault("latency_seconds", format!("a latency is 0 or more, not {latency}"));
        }
        Ok(())
    }

    /// Returns the duration of a transfer of this many bytes on a stream; 0 on the compute stream.
    pub fn seconds(&self, stream: Stream, bytes: Bytes) -> Seconds {
        match stream {
            Stream::Compute => Seconds::ZERO,
            Stream::Offload => self.latency_seconds + bytes / self.offload_bytes_per_second,
            Stream::Prefetch => self.latency_seconds + bytes / self.prefetch_bytes_per_second,
        }
    }
}

/// The three streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Kernels.
    Compute,
    /// Swap-out: device to host.
    Offload,
    /// Swap-in: host to device.
    Prefetch,
}

impl Stream {
    /// All streams, in the order of [`Stream::index`].
    pub const ALL: [Stream; 3] = [Stream::Compute, Stream::Offload, Stream::Prefetch];

    /// Returns 0, 1 or 2.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One command of one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// Runs an op.
    Compute {
        /// Op to run.
        op: OpId,
        /// `true` for a recompute.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
        /// Alternative of the op; `None` for the default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alternative: Option<u32>,
        /// Earlier commands that must have ended.
        waits: Vec<CommandId>,
    },
    /// Copies a tensor, or a piece of it, to the host.
    Offload {
        /// Tensor to copy.
        tensor: TensorId,
        /// Start of the piece; 0 if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_byte: Option<Bytes>,
        /// Length of the piece; to the tensor's end if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<Bytes>,
        /// Earlier commands that must have ended.
        waits: Vec<CommandId>,
    },
    /// Copies a tensor, or a piece of it, back from the host.
    Prefetch {
        /// Tensor to copy.
        tensor: TensorId,
        /// Start of the piece; 0 if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_byte: Option<Bytes>,
        /// Length of the piece; to the tensor's end if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<Bytes>,
        /// Earlier commands that must have ended.
        waits: Vec<CommandId>,
    },
}

impl Command {
    /// Returns the stream that runs the command.
    pub fn stream(&self) -> Stream {
        match self {
            Command::Compute { .. } => Stream::Compute,
            Command::Offload { .. } => Stream::Offload,
            Command::Prefetch { .. } => Stream::Prefetch,
        }
    }

    /// Returns the earlier commands that must have ended.
    pub fn waits(&self) -> &[CommandId] {
        match self {
            Command::Compute { waits, .. }
            | Command::Offload { waits, .. }
            | Command::Prefetch { waits, .. } => waits,
        }
    }

    /// Returns the waits for modification.
    pub fn waits_mut(&mut self) -> &mut Vec<CommandId> {
        match self {
            Command::Compute { waits, .. }
            | Command::Offload { waits, .. }
            | Command::Prefetch { waits, .. } => waits,
        }
    }

    /// Returns the tensor that a transfer moves, and its piece as written; `None` for a compute command.
    pub fn transfer(&self) -> Option<(TensorId, Option<Bytes>, Option<Bytes>)> {
        match *self {
            Command::Compute { .. } => None,
            Command::Offload { tensor, first_byte, bytes, .. }
            | Command::Prefetch { tensor, first_byte, bytes, .. } => Some((tensor, first_byte, bytes)),
        }
    }
}

/// Returns the bytes of a tensor that a piece names, half-open; `None` if they leave the tensor.
pub fn piece_of(tensor: &Tensor, first_byte: Option<Bytes>, bytes: Option<Bytes>) -> Option<Range<u64>> {
    let first = first_byte.unwrap_or_default().0;
    let rest = tensor.bytes.0.checked_sub(first)?;
    let length = bytes.map_or(rest, |b| b.0);
    (length <= rest).then(|| first..first + length)
}

/// Returns the tensor and its bytes that a transfer moves; `None` for a compute command, and if the bytes leave the tensor.
pub fn moved(trace: &Trace, command: &Command) -> Option<(TensorId, Range<u64>)> {
    let (tensor, first_byte, bytes) = command.transfer()?;
    Some((tensor, piece_of(trace.tensors.get(tensor.index())?, first_byte, bytes)?))
}

/// Returns the seconds and the workspace of an op in the given alternative; `None` if the op does not have it.
pub fn alternative_of(op: &Op, alternative: Option<u32>) -> Option<(Seconds, Bytes)> {
    match alternative {
        None => Some((op.seconds, op.workspace_bytes)),
        Some(k) => op.alternatives.get(k as usize).map(|a| (a.seconds, a.workspace_bytes)),
    }
}

/// Bytes of the pool that hold one thing, from the start of a command until the end of all of `closes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BufferText", into = "BufferText")]
pub struct Buffer {
    /// Contents.
    pub holds: Holds,
    /// First byte in the pool.
    pub offset: Bytes,
    /// Command at whose start the buffer opens; `None` if the tensor is on the device from the start.
    pub opens: Option<CommandId>,
    /// Commands; the buffer closes when all have ended.
    pub closes: Vec<CommandId>,
}

/// The contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A tensor, or one piece of it.
    Tensor {
        /// Tensor held.
        tensor: TensorId,
        /// Start of the piece; 0 if absent.
        first_byte: Option<Bytes>,
        /// Length of the piece; to the tensor's end if absent.
        bytes: Option<Bytes>,
    },
    /// The workspace of a compute command.
    Workspace {
        /// Compute command.
        command: CommandId,
    },
}

/// A buffer as `schedule/1` writes it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BufferText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tensor: Option<TensorId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_byte: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace_of: Option<CommandId>,
    offset: Bytes,
    // Named so that the key is required: a missing `opens` is a mistake, `null` means "from the start".
    #[serde(deserialize_with = "Option::deserialize")]
    opens: Option<CommandId>,
    closes: Vec<CommandId>,
}

impl TryFrom<BufferText> for Buffer {
    type Error = &'static str;
    fn try_from(text: BufferText) -> Result<Buffer, &'static str> {
        let BufferText { tensor, first_byte, bytes, workspace_of, offset, opens, closes } = text;
        let holds = match (tensor, workspace_of) {
            (Some(tensor), None) => Holds::Tensor { tensor, first_byte, bytes },
            (None, Some(command)) if first_byte.is_none() && bytes.is_none() => Holds::Workspace { command },
            _ => {
                return Err(
                    "a buffer holds either a `tensor` (or a piece of it) or a workspace (`workspace_of`)",
                );
            }
        };
        Ok(Buffer { holds, offset, opens, closes })
    }
}

impl From<Buffer> for BufferText {
    fn from(buffer: Buffer) -> BufferText {
        let Buffer { holds, offset, opens, closes } = buffer;
        let (tensor, first_byte, bytes, workspace_of) = match holds {
            Holds::Tensor { tensor, first_byte, bytes } => (Some(tensor), first_byte, bytes, None),
            Holds::Workspace { command } => (None, None, None, Some(command)),
        };
        BufferText { tensor, first_byte, bytes, workspace_of, offset, opens, closes }
    }
}

/// Returns the host memory for this many bytes of one tensor: a multiple of [`STORAGE_ALIGNMENT`].
pub fn place_on_host(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(STORAGE_ALIGNMENT).unwrap_or(u64::MAX)
}

impl Schedule {
    /// Returns, by tensor, the range of bytes that are ever offloaded, from the first to the last. A piece that leaves its
    /// tensor (no valid schedule has one) counts for nothing.
    pub fn host_spans(&self, trace: &Trace) -> Vec<Option<Range<u64>>> {
        let mut spans: Vec<Option<Range<u64>>> = vec![None; trace.tensors.len()];
        for command in self.commands.iter().filter(|command| command.stream() == Stream::Offload) {
            if let Some((tensor, piece)) = moved(trace, command) {
                let span = spans[tensor.index()].get_or_insert(piece.clone());
                *span = span.start.min(piece.start)..span.end.max(piece.end);
            }
        }
        spans
    }

    /// Returns the host memory of a schedule: each offloaded tensor has a separate place for the bytes of it that are ever
    /// offloaded ([`place_on_host`]).
    pub fn host_bytes(&self, trace: &Trace) -> Bytes {
        let spans = self.host_spans(trace).into_iter().flatten();
        Bytes(spans.map(|span| place_on_host(span.end - span.start)).fold(0, u64::saturating_add))
    }

    /// Returns every buffer with its id.
    pub fn numbered_buffers(&self) -> impl Iterator<Item = (BufferId, &Buffer)> {
        self.buffers.iter().enumerate().map(|(i, b)| (BufferId::new(i), b))
    }

    /// Returns every command with its id.
    pub fn numbered_commands(&self) -> impl Iterator<Item = (CommandId, &Command)> {
        self.commands.iter().enumerate().map(|(i, c)| (CommandId::new(i), c))
    }
}

impl Document for Schedule {
    const KIND: &'static str = "schedule/1";

    fn validate(&self) -> Result<(), Fault> {
        let fault = |place: String, why: String| Err(Fault::Meaning { place, why });
        if self.batch == 0 {
            return fault("batch".into(), "a batch has at least 1 sample".into());
        }
        self.link.validate("link")?;
        for (place, bytes) in [("budget_bytes", self.budget_bytes), ("pool_bytes", self.pool_bytes)] {
            if bytes.0 > BYTES_MAX {
                return fault(place.into(), "at most 2^62 bytes make sense".into());
            }
        }
        if let Some(i) = self.buffers.iter().position(|b| b.offset.0 > BYTES_MAX) {
            return fault(format!("buffers[{i}].offset"), "at most 2^62 bytes make sense".into());
        }
        Ok(())
    }
}
