//! Exchange of a training's workers, from the program of an iteration.

use plimsoll_ir::Bytes;
use plimsoll_ir::exchange::tree::most_nodes;
use plimsoll_ir::exchange::{Exchange, ExchangeKind, Form, Interconnect, Overlap, pieces};
use plimsoll_ir::program::Program;

/// Workers of a training, with the parameters of their exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workers {
    /// Number of workers, at least 2.
    pub count: u64,
    /// Network between them.
    pub interconnect: Interconnect,
    /// Way in which a sum reaches all of them.
    pub form: Form,
    /// `true` if gradients are copied over the device's link.
    pub staged: bool,
    /// Passes of a worker per update.
    pub passes: u64,
    /// Time at which a piece is exchanged.
    pub overlap: Overlap,
}

/// Returns the exchange of a program that trains, next to any schedule of it; `None` if it does not train.
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
