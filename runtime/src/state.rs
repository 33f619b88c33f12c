//! Where the state of a training lies on the host, out of reach of a device that fails.
//!
//! The state is all that the next iteration depends on: parameters, the optimizer's states, running statistics. It is copied
//! out beside that iteration, on the swap-out stream, where the tuner found room for it: most of it changes only in the update.
//! What changes sooner (running statistics, a few kilobytes) is copied first. A copy that a failing iteration cuts off is no
//! loss of the one before: there is room for two, written in turn.
//!
//! Behind a copy follows its stamp, the iteration's own [`Hyper`] with its number. It is the last transfer of the copy on one
//! stream, so where it has arrived the copy is whole, whatever became of the device after that.
//!
//! What it deliberately does not do: write files ([`crate::Checkpoint`] does), or keep more than the newest whole copy.

use crate::device::{MemoryLayout, Transfer};
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{Hyper, Kernel, Operand, Program, Region, Role, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::trace::Phase;

/// One of the two places for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Right after the host slab.
    First,
    /// After that.
    Second,
}

impl Half {
    /// Both.
    pub(crate) const BOTH: [Half; 2] = [Half::First, Half::Second];

    /// The one that is written after it.
    pub(crate) fn next(self) -> Half {
        match self {
            Half::First => Half::Second,
            Half::Second => Half::First,
        }
    }
}

/// Regions side by side, and where their copy starts within a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    device: u64,
    end: u64,
    host: u64,
}

/// The name under which a region is saved; none where it is made anew in every iteration.
pub(crate) fn saved_name(region: &Region) -> Option<String> {
    let role = match region.role {
        Role::Parameter(_) => "parameter",
        Role::Momentum => "momentum",
        Role::FirstMoment => "first-moment",
        Role::SecondMoment => "second-moment",
        Role::State(_) => "state",
        Role::Gradient | Role::Hyper | Role::Metrics => return None,
    };
    Some(format!("{role}/{}", region.name))
}

/// What a copy of the state that a program trains takes on the host.
pub fn state_bytes(program: &Program) -> Bytes {
    Bytes(Pieces::of(program).bytes + STAMP)
}

impl MemoryLayout {
    /// The same with host memory for two copies of the state that this program trains, for
    /// [`crate::Executor::load_keeping_state`].
    pub fn keeping_state(self, program: &Program) -> MemoryLayout {
        MemoryLayout { state: Bytes(2 * state_bytes(program).0), ..self }
    }
}

/// What a stamp takes of a half.
const STAMP: u64 = STORAGE_ALIGNMENT;

/// What is copied of a program's resident part.
#[derive(Clone, Debug)]
struct Pieces {
    /// Those that change before the update come first.
    all: Vec<Piece>,
    /// How many do.
    early: usize,
    /// What a copy takes.
    bytes: u64,
}

impl Pieces {
    fn of(program: &Program) -> Pieces {
        let changed = changed_early(program);
        let is_early = |region: &Region| {
            let span = region.offset.0..region.offset.0 + region.bytes().0;
            changed.iter().any(|offset| span.contains(offset))
        };
        let mut pieces = Pieces { all: Vec::new(), early: 0, bytes: 0 };
        for early in [true, false] {
            // Where the region before it is copied at another time, or not at all.
            let mut apart = true;
            for region in &program.resident {
                let taken = saved_name(region).is_some() && is_early(region) == early;
                if taken {
                    pieces.add(region, apart);
                }
                apart = !taken;
            }
            if early {
                pieces.early = pieces.all.len();
            }
        }
        for piece in &mut pieces.all {
            piece.host = pieces.bytes;
            pieces.bytes += (piece.end - piece.device).next_multiple_of(STORAGE_ALIGNMENT);
        }
        pieces
    }

    fn add(&mut self, region: &Region, apart: bool) {
        let (device, end) = (region.offset.0, region.offset.0 + region.bytes().0);
        match self.all.last_mut().filter(|piece| !apart && piece.end <= device) {
            Some(piece) => piece.end = end,
            None => self.all.push(Piece { device, end, host: 0 }),
        }
    }
}

/// The first bytes of the resident regions that a kernel changes.
fn changed(kernel: &Kernel) -> impl Iterator<Item = u64> {
    kernel.specified().filter_map(|(operand, spec)| match operand {
        Operand::Resident(offset) if spec.access.writes() => Some(offset.0),
        _ => None,
    })
}

/// The first bytes of the regions that a program changes elsewhere than in its update.
fn changed_early(program: &Program) -> Vec<u64> {
    let ops = program.trace.ops.iter().zip(&program.kernels);
    ops.filter(|(op, _)| op.phase != Phase::Update).flat_map(|(_, kernel)| changed(kernel)).collect()
}

/// The copies of the state that a program trains.
#[derive(Clone, Debug)]
pub(crate) struct StateCopies {
    pieces: Pieces,
    /// Where each half starts in the host memory.
    starts: [u64; 2],
    /// Where [`Hyper`] lies on the device.
    hyper: Bytes,
}

impl StateCopies {
    /// Of a program that trains, in memory with room for them.
    pub(crate) fn of(program: &Program, layout: MemoryLayout) -> StateCopies {
        let pieces = Pieces::of(program);
        let (first, half) = (layout.host.0, pieces.bytes + STAMP);
        StateCopies { pieces, starts: [first, first + half], hyper: program.hyper().offset }
    }

    /// What is copied to a half first, because it changes before the update.
    pub(crate) fn first(&self, half: Half) -> impl Iterator<Item = Transfer> {
        let first = &self.pieces.all[..self.pieces.early];
        first.iter().map(move |piece| self.transfer(half, piece))
    }

    /// What is copied to it before the update, and its stamp.
    pub(crate) fn rest(&self, half: Half) -> impl Iterator<Item = Transfer> {
        let rest = &self.pieces.all[self.pieces.early..];
        let hyper =
            Piece { device: self.hyper.0, end: self.hyper.0 + self.stamp(half).1.0, host: self.pieces.bytes };
        rest.iter().copied().chain([hyper]).map(move |piece| self.transfer(half, &piece))
    }

    fn transfer(&self, half: Half, piece: &Piece) -> Transfer {
        Transfer {
            stream: Stream::Offload,
            device: Bytes(piece.device),
            host: Bytes(self.starts[half as usize] + piece.host),
            bytes: Bytes(piece.end - piece.device),
        }
    }

    /// Whether a kernel changes what is copied first.
    pub(crate) fn changes_first(&self, kernel: &Kernel) -> bool {
        let first = &self.pieces.all[..self.pieces.early];
        changed(kernel).any(|offset| first.iter().any(|piece| (piece.device..piece.end).contains(&offset)))
    }

    /// Where the stamp of a half lies, and its length.
    pub(crate) fn stamp(&self, half: Half) -> (Bytes, Bytes) {
        (Bytes(self.starts[half as usize] + self.pieces.bytes), Bytes(Hyper::BYTES as u64))
    }

    /// Where a region of the state lies in a half.
    pub(crate) fn place(&self, half: Half, region: &Region) -> Option<Bytes> {
        let (device, end) = (region.offset.0, region.offset.0 + region.bytes().0);
        let piece = self.pieces.all.iter().find(|piece| piece.device <= device && end <= piece.end)?;
        Some(Bytes(self.starts[half as usize] + piece.host + device - piece.device))
    }
}
