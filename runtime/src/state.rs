//! Where the state of a training lies on the host after every iteration, out of reach of a device that fails.
//!
//! The state is all that the next iteration depends on: parameters, momenta, running statistics. It is copied out beside that
//! iteration, which changes most of it only in its update; what changes sooner (running statistics, a few kilobytes) is
//! copied before it begins. A copy that the failing iteration cuts off is no loss of the one before: there is room for two,
//! written in turn.
//!
//! What it deliberately does not do: write files ([`crate::Checkpoint`] does), or keep more than the newest whole copy.

use crate::device::{MemoryLayout, Transfer};
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{Operand, Program, Region, Role, STORAGE_ALIGNMENT};
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
        Role::State(_) => "state",
        Role::Gradient | Role::Hyper | Role::Metrics => return None,
    };
    Some(format!("{role}/{}", region.name))
}

impl MemoryLayout {
    /// The same with host memory for two copies of the state that this program trains; a [`crate::Trainer`] in it keeps the
    /// state of the last finished iteration there.
    pub fn keeping_state(self, program: &Program) -> MemoryLayout {
        MemoryLayout { state: Bytes(2 * Pieces::of(program).bytes), ..self }
    }
}

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

/// The first bytes of the regions that a program changes before its update.
fn changed_early(program: &Program) -> Vec<u64> {
    let ops = program.trace.ops.iter().zip(&program.kernels);
    let before_update = ops.take_while(|(op, _)| op.phase != Phase::Update);
    let operands = before_update.flat_map(|(_, kernel)| kernel.operands.iter().zip(kernel.call.accesses()));
    let changed = operands.filter_map(|(operand, access)| match operand {
        Operand::Resident(offset) if access.writes() => Some(offset.0),
        _ => None,
    });
    changed.collect()
}

/// The copies of the state that a program trains.
#[derive(Clone, Debug)]
pub(crate) struct StateCopies {
    pieces: Vec<Piece>,
    /// Where each half starts in the host memory.
    starts: [u64; 2],
    /// For each half: what is copied before the next iteration begins, and what beside it.
    transfers: [[Vec<Transfer>; 2]; 2],
}

impl StateCopies {
    /// Of a program in this memory; none where it trains nothing, or where there is no room for them.
    pub(crate) fn of(program: &Program, layout: MemoryLayout) -> Option<StateCopies> {
        let Pieces { all, early, bytes } = Pieces::of(program);
        let trains = program.trace.ops.iter().any(|op| op.phase == Phase::Update);
        if !trains || bytes == 0 || layout.state.0 < 2 * bytes {
            return None;
        }
        let starts = [layout.host.0, layout.host.0 + bytes];
        let transfers = starts.map(|start| {
            let transfer = |piece: &Piece| Transfer {
                stream: Stream::Offload,
                device: Bytes(piece.device),
                host: Bytes(start + piece.host),
                bytes: Bytes(piece.end - piece.device),
            };
            let (first, rest) = all.split_at(early);
            [first, rest].map(|pieces| pieces.iter().map(transfer).collect())
        });
        Some(StateCopies { pieces: all, starts, transfers })
    }

    /// What is copied to a half before the next iteration begins, and what beside it.
    pub(crate) fn transfers(&self, half: Half) -> [&[Transfer]; 2] {
        self.transfers[half as usize].each_ref().map(Vec::as_slice)
    }

    /// How many commands a copy takes of the swap-out stream beside an iteration: its transfers and the mark behind them.
    pub(crate) fn commands(&self) -> usize {
        self.transfers[0][1].len() + 1
    }

    /// Where a region of the state lies in a half.
    pub(crate) fn place(&self, half: Half, region: &Region) -> Option<Bytes> {
        let (device, end) = (region.offset.0, region.offset.0 + region.bytes().0);
        let piece = self.pieces.iter().find(|piece| piece.device <= device && end <= piece.end)?;
        Some(Bytes(self.starts[half as usize] + piece.host + device - piece.device))
    }
}
