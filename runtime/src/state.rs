//! Place of a training's state in host memory, out of reach of a device that fails.
//!
//! The state is everything that the next iteration depends on: parameters, optimizer state, running statistics. It is copied
//! out alongside that iteration, on the swap-out stream, where the tuner found room for it: most of it changes only in the
//! update. Data that change sooner (running statistics, a few kilobytes) are copied first. A failing iteration that cuts off
//! a copy does not lose the previous one: there is room for two, written in turn.
//!
//! A copy is followed by its stamp, the iteration's own [`Hyper`] with its number. It is the last transfer of the copy on
//! one stream, so the copy is whole once the stamp has arrived, even if the device fails afterwards.
//!
//! Deliberately does not write files ([`crate::Checkpoint`] does), or keep more than the newest whole copy.

use crate::device::{MemoryLayout, Transfer};
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{Hyper, Kernel, Operand, Program, Region, Role, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::trace::Phase;

/// One of the two places for a copy of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Right after the host slab.
    First,
    /// Right after the first.
    Second,
}

impl Half {
    /// Both halves.
    pub(crate) const BOTH: [Half; 2] = [Half::First, Half::Second];

    /// Half that is written after this one.
    pub(crate) fn next(self) -> Half {
        match self {
            Half::First => Half::Second,
            Half::Second => Half::First,
        }
    }
}

/// Adjacent regions, and the offset of their copy within a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    device: u64,
    end: u64,
    host: u64,
}

/// Name under which a region is saved; `None` if it is made anew in every iteration.
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

/// Splits concatenated numbers or bytes of regions: each region with its own.
pub(crate) fn of_regions<'a, T>(
    regions: &'a [Region],
    mut rest: &'a [T],
) -> impl Iterator<Item = (&'a Region, &'a [T])> {
    regions.iter().map(move |region| {
        let own = rest.split_off(..region.bytes().0 as usize / size_of::<T>());
        (region, own.expect("they are those of the regions"))
    })
}

/// [`of_regions`], to be written.
pub(crate) fn of_regions_mut<'a, T>(
    regions: &'a [Region],
    mut rest: &'a mut [T],
) -> impl Iterator<Item = (&'a Region, &'a mut [T])> {
    regions.iter().map(move |region| {
        let own = rest.split_off_mut(..region.bytes().0 as usize / size_of::<T>());
        (region, own.expect("they are those of the regions"))
    })
}

/// Host bytes of a copy of a program's training state.
pub fn state_bytes(program: &Program) -> Bytes {
    Bytes(Pieces::of(program).bytes + STAMP)
}

impl MemoryLayout {
    /// Adds host memory for two copies of the program's training state, for [`crate::Executor::load_keeping_state`].
    pub fn keeping_state(self, program: &Program) -> MemoryLayout {
        MemoryLayout { state: Bytes(2 * state_bytes(program).0), ..self }
    }
}

/// Bytes of a stamp in a half.
const STAMP: u64 = STORAGE_ALIGNMENT;

/// Parts of a program's resident memory that are copied.
#[derive(Clone, Debug)]
struct Pieces {
    /// Pieces that change before the update come first.
    all: Vec<Piece>,
    /// Number of pieces that change before the update.
    early: usize,
    /// Bytes of a copy.
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
            // `true` if the region before it is copied at a different time, or not at all.
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

/// Offsets of the resident regions that a kernel changes.
fn changed(kernel: &Kernel) -> impl Iterator<Item = u64> {
    kernel.specified().filter_map(|(operand, spec)| match operand {
        Operand::Resident(offset) if spec.access.writes() => Some(offset.0),
        _ => None,
    })
}

/// Offsets of the regions that a program changes outside its update.
fn changed_early(program: &Program) -> Vec<u64> {
    let ops = program.trace.ops.iter().zip(&program.kernels);
    ops.filter(|(op, _)| op.phase != Phase::Update).flat_map(|(_, kernel)| changed(kernel)).collect()
}

/// Copies of a program's training state.
#[derive(Clone, Debug)]
pub(crate) struct StateCopies {
    pieces: Pieces,
    /// Start of each half in the host memory.
    starts: [u64; 2],
    /// Address of [`Hyper`] on the device.
    hyper: Bytes,
}

impl StateCopies {
    /// Copies of a training program, in memory with room for them.
    pub(crate) fn of(program: &Program, layout: MemoryLayout) -> StateCopies {
        let pieces = Pieces::of(program);
        let (first, half) = (layout.host.0, pieces.bytes + STAMP);
        StateCopies { pieces, starts: [first, first + half], hyper: program.hyper().offset }
    }

    /// Transfers to a half that come first, because they copy data that change before the update.
    pub(crate) fn first(&self, half: Half) -> impl Iterator<Item = Transfer> {
        let first = &self.pieces.all[..self.pieces.early];
        first.iter().map(move |piece| self.transfer(half, piece))
    }

    /// Transfers to a half that come before the update, and its stamp.
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

    /// Returns `true` if a kernel changes data that are copied first.
    pub(crate) fn changes_first(&self, kernel: &Kernel) -> bool {
        let first = &self.pieces.all[..self.pieces.early];
        changed(kernel).any(|offset| first.iter().any(|piece| (piece.device..piece.end).contains(&offset)))
    }

    /// Offset and length of the stamp of a half.
    pub(crate) fn stamp(&self, half: Half) -> (Bytes, Bytes) {
        (Bytes(self.starts[half as usize] + self.pieces.bytes), Bytes(Hyper::BYTES as u64))
    }

    /// Offset of a region's copy in a half.
    pub(crate) fn place(&self, half: Half, region: &Region) -> Option<Bytes> {
        let (device, end) = (region.offset.0, region.offset.0 + region.bytes().0);
        let piece = self.pieces.all.iter().find(|piece| piece.device <= device && end <= piece.end)?;
        Some(Bytes(self.starts[half as usize] + piece.host + device - piece.device))
    }
}
