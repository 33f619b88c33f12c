//! The pieces of an exchange, from the program of an iteration: the op that completes each gradient bucket, and the op that
//! waits for its sum.
//!
//! A gradient is complete after the last op of the backward pass that writes it. The update that reads it needs its sum or,
//! if the update overlaps the next forward pass, the first op there that reads the parameter.

use super::Piece;
use crate::ids::OpId;
use crate::program::{Access, Operand, Program, Region, Role};
use crate::trace::{Phase, Trace};
use crate::units::Bytes;

/// Approximate bytes of the pieces that workers exchange during the backward pass: at 10 Gbit/s a message of a piece takes
/// many times its latency, and the last piece, which nothing hides, is small compared with all of them.
pub const PIECE_BYTES: Bytes = Bytes(1 << 20);

/// Approximate bytes of pieces that NCCL sums on the GPUs, whose links carry a mebibyte in less time than a sum takes to
/// start. Near PyTorch DDP's buckets of 25 MiB; no measurement chose it.
pub const NCCL_PIECE_BYTES: Bytes = Bytes(16 << 20);

/// The overlap of the exchange with computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Everything in one piece between the pass and the update.
    Nothing,
    /// Pieces of about this many bytes, during the backward pass; the updates wait.
    Backward(Bytes),
    /// The same pieces; each op of the next forward pass waits for the parameters that it reads.
    Forward(Bytes),
}

/// Returns the pieces that a program exchanges, in the order of [`summed`]; `None` if it does not train.
pub fn pieces(program: &Program, overlap: Overlap) -> Option<Vec<Piece>> {
    let (last, first_update) = between(&program.trace)?;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut bytes = 0;
    let most = match overlap {
        Overlap::Nothing => u64::MAX,
        Overlap::Backward(bytes) | Overlap::Forward(bytes) => bytes.0,
    };
    for region in summed(program) {
        let one = Piece {
            first_byte: Bytes(bytes),
            bytes: region.bytes(),
            ready: writes(program, region).last().unwrap_or(OpId(0)),
            needed: needed(program, region, overlap).unwrap_or(first_update),
            kept: Bytes::ZERO,
        };
        let one =
            Piece { kept: if one.carried() { overwritten(program, region) } else { Bytes::ZERO }, ..one };
        bytes += one.bytes.0;
        match pieces.last_mut() {
            // One op waits for the whole of a piece: sums that the next forward pass needs share no piece with others.
            Some(last) if last.bytes.0 + one.bytes.0 <= most && last.carried() == one.carried() => {
                last.bytes += one.bytes;
                last.kept += one.kept;
                last.ready = last.ready.max(one.ready);
                last.needed = last.needed.min(one.needed);
            }
            _ => pieces.push(one),
        }
    }
    if overlap == Overlap::Nothing {
        for piece in &mut pieces {
            piece.ready = last;
            piece.needed = first_update;
        }
    }
    Some(pieces)
}

/// Returns the last op of the backward pass, and the first update after it; `None` without training.
pub(super) fn between(trace: &Trace) -> Option<(OpId, OpId)> {
    let last = trace.ops.iter().rposition(|op| op.phase == Phase::Backward)?;
    let first_update = trace.ops.iter().position(|op| op.phase == Phase::Update)?;
    Some((OpId::new(last), OpId::new(first_update)))
}

/// Returns the regions summed over all workers, in this order: the gradients, and the running statistics.
pub fn summed(program: &Program) -> impl Iterator<Item = &Region> {
    let gradients = program.resident.iter().filter(|region| region.role == Role::Gradient);
    let statistics = program.resident.iter().filter(|region| matches!(region.role, Role::State(_)));
    gradients.chain(statistics).filter(|region| region.bytes() > Bytes::ZERO)
}

/// Returns the op that waits for a region's sum; `None` if any parameter's update may, as for running statistics.
fn needed(program: &Program, region: &Region, overlap: Overlap) -> Option<OpId> {
    if region.role != Role::Gradient {
        return None;
    }
    match overlap {
        Overlap::Nothing | Overlap::Backward(_) => reads(program, region, Phase::Update).next(),
        Overlap::Forward(_) => reads(program, parameter_of(program, region)?, Phase::Forward).next(),
    }
}

/// Returns the parameter of a gradient.
fn parameter_of<'p>(program: &'p Program, gradient: &Region) -> Option<&'p Region> {
    let is_its = |r: &&Region| r.name == gradient.name && matches!(r.role, Role::Parameter(_));
    program.resident.iter().find(is_its)
}

/// Returns the bytes that the updates by a gradient overwrite: parameters, and their optimizer state on the device.
fn overwritten(program: &Program, gradient: &Region) -> Bytes {
    let updates = reads(program, gradient, Phase::Update);
    let operands = updates.flat_map(|op| program.kernels[op.index()].specified());
    let written = operands.filter(|(_, spec)| spec.access.writes());
    let regions = program.resident.iter().filter(|region| region.bytes() > Bytes::ZERO);
    let region = |operand| regions.clone().find(|region| operand == Operand::Resident(region.offset));
    written.filter_map(|(operand, _)| region(operand)).map(Region::bytes).sum()
}

/// Returns the ops before the updates that write a region.
pub fn writes<'p>(program: &'p Program, region: &'p Region) -> impl Iterator<Item = OpId> + 'p {
    let written = touching(region, |access| access != Access::Read);
    (0..program.trace.ops.len())
        .filter(move |op| program.trace.ops[*op].phase != Phase::Update && written(program, *op))
        .map(OpId::new)
}

/// Returns the ops of a phase that read a region.
fn reads<'p>(program: &'p Program, region: &'p Region, phase: Phase) -> impl Iterator<Item = OpId> + 'p {
    let read = touching(region, Access::reads);
    (0..program.trace.ops.len())
        .filter(move |op| program.trace.ops[*op].phase == phase && read(program, *op))
        .map(OpId::new)
}

/// Returns a test of an op: `true` if it touches the region in this way.
fn touching(region: &Region, how: impl Fn(Access) -> bool) -> impl Fn(&Program, usize) -> bool {
    let at = Operand::Resident(region.offset);
    move |program, op| {
        program.kernels[op].specified().any(|(operand, spec)| operand == at && how(spec.access))
    }
}
