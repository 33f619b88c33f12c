//! `exchange/1`: the exchange of gradients between the workers of one training in an update, next to an unchanged schedule.
//!
//! All bytes that are summed over all workers (the gradients, and the running statistics, of which every worker takes the
//! mean) form one range, cut into pieces. A piece is summed once the op that completes it has run, and one op waits for the
//! sum: an update of the same iteration, or an op of the next forward pass. No command of the schedule moves a gradient, so
//! `trace/1` and `schedule/1` do not change.
//!
//! A piece passes five stages: it is pushed over the link to the host, reduced and gathered over the interconnect; the bytes
//! that its update overwrites are kept on the host, and the sum is pulled back over the link. [`update::simulate_update`]
//! computes the duration of such an update, and [`update::bound`] a lower bound.
//!
//! The module deliberately does not model the additions of a sum, or workers that differ. Every worker has this schedule; if
//! workers differ, the slowest determines the update.

mod pieces;
pub mod tree;
pub mod update;

pub use pieces::{NCCL_PIECE_BYTES, Overlap, PIECE_BYTES, pieces, summed, writes};

use crate::document::{Document, Fault, define_kind};
use crate::ids::{CommandId, OpId};
use crate::schedule::{Command, Schedule};
use crate::trace::{BYTES_MAX, Phase, Trace};
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

define_kind!(ExchangeKind, "exchange/1");

/// Maximum workers of a training, so that sums over them cannot overflow.
const WORKERS_MAX: u64 = 1 << 20;

/// Maximum seconds of a message, so that times can be added and compared.
const LATENCY_MAX: f64 = 1e6;

/// The exchange between the workers of one training in an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: ExchangeKind,
    /// Name of its trace.
    pub trace: String,
    /// Batch size of that trace.
    pub batch: u64,
    /// Number of workers, at least 2.
    pub workers: u64,
    /// Algorithm of the sums.
    pub form: Form,
    /// Network between the workers.
    pub interconnect: Interconnect,
    /// `true` if a gradient is copied over the device's link to the host and back, which a network without direct access to
    /// device memory needs.
    pub staged: bool,
    /// Passes, each forward and backward, that a worker makes for one update, at least 1. The exchange carries their sum,
    /// which the last of them completes; the first pass of the next iteration waits for the pieces that the iteration needs.
    pub passes: u64,
    /// Nodes of the tree of sums (`tree.rs`) that the passes of a worker make, at least 1: it sends its share of each.
    #[serde(default = "one")]
    pub nodes: u64,
    /// Bytes of everything that is summed: the gradients, and running statistics, whose mean all workers take.
    pub bytes: Bytes,
    /// Pieces, which cover these bytes in order, without a gap.
    pub pieces: Vec<Piece>,
}

fn one() -> u64 {
    1
}

/// Algorithm by which a sum over all workers reaches all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Each worker sums an equal part of the piece for all: it sends every other worker that worker's part, and then its own
    /// sum. This is a sharded parameter server, also called reduce-scatter and all-gather; a ring sends as many messages of
    /// the same bytes, each to a neighbour.
    #[default]
    Sharded,
    /// A binary tree with the whole piece in each message: fewer messages, and more bytes.
    Tree,
}

/// The network between the workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interconnect {
    /// Bytes per second that a worker can send, and receive at the same time.
    pub bytes_per_second: BytesPerSecond,
    /// Seconds of every message besides its bytes.
    #[serde(default)]
    pub latency_seconds: Seconds,
}

/// A part of the summed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    pub first_byte: Bytes,
    /// Length, at least 1 byte.
    pub bytes: Bytes,
    /// Op that completes the piece.
    pub ready: OpId,
    /// Op that waits for the sum: one after `ready` in the same iteration, or one before it in the next.
    pub needed: OpId,
    /// Bytes copied to the host before the update by the sum overwrites them, so that they can be restored; if the device has
    /// separate memory.
    #[serde(default)]
    pub kept: Bytes,
}

impl Piece {
    /// Returns `true` if the waiting op belongs to the next iteration.
    pub fn carried(&self) -> bool {
        self.needed <= self.ready
    }
}

/// Messages that a worker sends one after the other, and their bytes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of all messages.
    pub bytes: Bytes,
}

impl Round {
    /// Returns the round of a piece that is summed in one share per worker, at least 2: a worker sends the shares of all
    /// others.
    pub fn sharded(bytes: Bytes, workers: u64) -> Round {
        let others = workers - 1;
        let sent = (u128::from(bytes.0) * u128::from(others)).div_ceil(u128::from(workers));
        Round { messages: others, bytes: Bytes(sent as u64) }
    }
}

impl Exchange {
    /// Returns the messages that a worker sends to gather a piece, and for each of its nodes to reduce it.
    pub fn round(&self, piece: &Piece) -> Round {
        let (bytes, workers) = (piece.bytes.0, self.workers);
        match self.form {
            Form::Sharded => Round::sharded(piece.bytes, workers),
            Form::Tree => {
                let levels = u64::from(workers.next_power_of_two().trailing_zeros());
                Round { messages: levels, bytes: Bytes(bytes.saturating_mul(levels)) }
            }
        }
    }

    /// Returns the same exchange between this many workers. A single worker exchanges nothing.
    pub fn among(&self, workers: u64) -> Exchange {
        let mut other = Exchange { workers, nodes: tree::most_nodes(workers, self.passes), ..self.clone() };
        if workers < 2 {
            (other.bytes, other.pieces) = (Bytes::ZERO, Vec::new());
        }
        other
    }

    /// Returns the same exchange in one piece, between the last pass over a trace and the update.
    pub fn without_overlap(&self, trace: &Trace) -> Exchange {
        let whole = |(ready, needed)| {
            let (first_byte, bytes) = (Bytes::ZERO, self.bytes);
            Piece { first_byte, bytes, ready, needed, kept: Bytes::ZERO }
        };
        let pieces = pieces::between(trace).filter(|_| self.bytes > Bytes::ZERO).map(whole);
        Exchange { pieces: pieces.into_iter().collect(), ..self.clone() }
    }

    /// Returns the interconnect's seconds to reduce a piece, and to gather it.
    pub fn round_seconds(&self, piece: &Piece) -> [Seconds; 2] {
        let round = self.round(piece);
        let reduced = Round { bytes: Bytes(round.bytes.0.saturating_mul(self.nodes)), ..round };
        [reduced, round].map(|round| self.interconnect.seconds(round))
    }

    /// Checks that a schedule that passed [`crate::check`] can run with this exchange: it is for this trace, the summed bytes
    /// lie within the resident bytes, and each piece is complete before an op waits for it.
    ///
    /// # Errors
    ///
    /// [`Unfit`]: the first mismatch, with its piece.
    pub fn check(&self, trace: &Trace, schedule: &Schedule) -> Result<(), Unfit> {
        if (&self.trace, self.batch) != (&trace.name, trace.batch) {
            return Err(Unfit(format!(
                "the exchange is for {} at batch {}, the trace is {} at batch {}",
                self.trace, self.batch, trace.name, trace.batch
            )));
        }
        self.validate().map_err(|fault| Unfit(format!("the exchange: {fault}")))?;
        crate::check::check(trace, schedule).map_err(|violation| Unfit(violation.to_string()))?;
        if self.bytes > trace.resident_bytes {
            let (summed, resident) = (self.bytes, trace.resident_bytes);
            return Err(Unfit(format!(
                "the {summed} that are summed do not lie within the {resident} that are resident"
            )));
        }
        for (number, piece) in self.pieces.iter().enumerate() {
            for op in [piece.ready, piece.needed] {
                if op.index() >= trace.ops.len() {
                    let op = op.0;
                    return Err(Unfit(format!("piece {number} names op {op}, and the trace has no such op")));
                }
            }
            let (ready, needed) = (piece.ready.0, piece.needed.0);
            if trace.ops[piece.ready.index()].phase == Phase::Update {
                return Err(Unfit(format!(
                    "piece {number} is ready after op {ready}, an update: gradients are complete before"
                )));
            }
            // Forward and backward ops of an iteration read no gradient's sum of the same iteration.
            if !piece.carried() && trace.ops[piece.needed.index()].phase != Phase::Update {
                return Err(Unfit(format!(
                    "op {needed} of the pass waits for piece {number}, which the same pass makes: only an update can"
                )));
            }
            // Recomputing the op would add again to a piece that was already sent.
            if let Some(command) = computed_again(schedule, piece.ready) {
                return Err(Unfit(format!(
                    "command {} computes op {ready} again, which completes piece {number}: what was sent would change",
                    command.0
                )));
            }
        }
        Ok(())
    }
}

/// Returns the command that recomputes an op, if any.
fn computed_again(schedule: &Schedule, wanted: OpId) -> Option<CommandId> {
    let is_it =
        |command: &Command| matches!(*command, Command::Compute { op, again: true, .. } if op == wanted);
    schedule.numbered_commands().find(|(_, command)| is_it(command)).map(|(id, _)| id)
}

/// Reason why a schedule cannot run with an exchange.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

impl Document for Exchange {
    const KIND: &'static str = "exchange/1";

    fn validate(&self) -> Result<(), Fault> {
        let fault = |place: &str, why: String| Err(Fault::Meaning { place: place.to_owned(), why });
        if self.batch == 0 {
            return fault("batch", "a batch has at least 1 sample".into());
        }
        if !(2..=WORKERS_MAX).contains(&self.workers) {
            return fault(
                "workers",
                format!("from 2 to {WORKERS_MAX} workers exchange, not {}", self.workers),
            );
        }
        if !(1..=BYTES_MAX).contains(&self.passes) {
            return fault("passes", "a worker makes at least 1 pass in an update".into());
        }
        if !(1..=u64::from(u64::BITS)).contains(&self.nodes) {
            return fault("nodes", "the passes of a worker come to 1 to 64 nodes of the tree".into());
        }
        self.interconnect.validate("interconnect")?;
        if self.bytes.0 > BYTES_MAX {
            return fault("bytes", "at most 2^62 bytes make sense".into());
        }
        let mut covered = 0;
        for (number, piece) in self.pieces.iter().enumerate() {
            if piece.first_byte.0 != covered {
                let why =
                    format!("it begins at byte {}, the one before ends at {covered}", piece.first_byte.0);
                return fault(&format!("pieces[{number}].first_byte"), why);
            }
            if piece.bytes.0 == 0 || piece.bytes.0 > self.bytes.0 - covered {
                let left = self.bytes.0 - covered;
                let why =
                    format!("a piece has from 1 byte to the {left} that are left, not {}", piece.bytes.0);
                return fault(&format!("pieces[{number}].bytes"), why);
            }
            covered += piece.bytes.0;
            if piece.kept.0 > BYTES_MAX {
                return fault(&format!("pieces[{number}].kept"), "at most 2^62 bytes make sense".into());
            }
        }
        if covered != self.bytes.0 {
            let why = format!("they end at byte {covered} of {}", self.bytes.0);
            return fault("pieces", why);
        }
        Ok(())
    }
}

impl Interconnect {
    /// Returns the duration of a round.
    pub fn seconds(&self, round: Round) -> Seconds {
        self.latency_seconds * round.messages as f64 + round.bytes / self.bytes_per_second
    }

    /// Checks that the rate is above zero and finite, and the latency 0 or more; `place` is the interconnect's path.
    pub(crate) fn validate(&self, place: &str) -> Result<(), Fault> {
        let fault = |key: &str, why: String| Err(Fault::Meaning { place: format!("{place}.{key}"), why });
        if !self.bytes_per_second.is_sound() {
            let least = BytesPerSecond::LEAST.0;
            return fault("bytes_per_second", format!("a rate is at least {least:e} bytes per second"));
        }
        let latency = self.latency_seconds.0;
        if !(0.0..=LATENCY_MAX).contains(&latency) {
            return fault(
                "latency_seconds",
                format!("a latency is from 0 to {LATENCY_MAX} s, not {latency}"),
            );
        }
        Ok(())
    }
}

/// Parses `10Gbit/s` or `10Gbit/s,30us`: a rate, and the latency of a message.
impl FromStr for Interconnect {
    type Err = String;

    fn from_str(text: &str) -> Result<Interconnect, String> {
        let (rate, latency) =
            text.split_once(',').map_or((text, None), |(rate, latency)| (rate, Some(latency)));
        let rate = rate.parse::<BytesPerSecond>().map_err(|error| error.to_string())?;
        let latency = latency.map(str::parse::<Seconds>).transpose().map_err(|error| error.to_string())?;
        let interconnect =
            Interconnect { bytes_per_second: rate, latency_seconds: latency.unwrap_or_default() };
        interconnect.validate("interconnect").map_err(|fault| fault.to_string())?;
        Ok(interconnect)
    }
}

/// Displays the parsed form: the rate in bits, as networks are sold.
impl fmt::Display for Interconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bytes_per_second.0 * 8.0;
        let (number, unit) = match bits {
            _ if bits >= 1e9 => (bits / 1e9, "Gbit/s"),
            _ if bits >= 1e6 => (bits / 1e6, "Mbit/s"),
            _ => (bits, "bit/s"),
        };
        write!(f, "{}{unit}", (number * 1e3).round() / 1e3)?;
        if self.latency_seconds > Seconds::ZERO {
            write!(f, ",{}us", (self.latency_seconds.0 * 1e9).round() / 1e3)?;
        }
        Ok(())
    }
}
