//! What the workers of a training exchange, from the program of an iteration.

use plimsoll_ir::Bytes;
use plimsoll_ir::exchange::tree::most_nodes;
use plimsoll_ir::exchange::{Exchange, ExchangeKind, Form, Interconnect, Overlap, pieces};
use plimsoll_ir::program::Program;

/// The workers of a training, and how they exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workers {
    /// How many, at least 2.
    pub count: u64,
    /// The network between them.
    pub interconnect: Interconnect,
    /// How a sum reaches all of them.
    pub form: Form,
    /// Whether gradients are copied over the device's link.
    pub staged: bool,
    /// Passes that a worker makes for one update.
    pub passes: u64,
    /// When a piece is exchanged.
    pub overlap: Overlap,
}

/// The exchange of a program that trains, next to any schedule of it; `None` where it does not train.
pub fn exchange(program: &Program, workers: &Workers) -> Option<Exchange> {
    let Workers { count, interconnect, form, staged, passes, overlap } = *workers;
    let pieces = pieces(program, overlap)?;
    Some(Exchange {
        kind: ExchangeKind,
        trace: program.trace.name.clone(),
        batch: program.trace.batch,
        workers: count,
        form,
        interconnect,
        staged,
        passes,
        nodes: most_nodes(count, passes),
        bytes: Bytes(pieces.iter().map(|piece| piece.bytes.0).sum()),
        pieces,
    })
}
