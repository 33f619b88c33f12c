//! The launches of networks of tokens other than attention: tables of tokens, biases, and steps of a long short-term
//! memory.
//!
//! Deliberately does not hold a formula; `embedding.cu`, `lstm.cu` and `elementwise.cu` do.

use super::Argument::{U32, U64};
use super::{Argument, PARALLEL, Plan, elements, flag, narrow, norm};
use plimsoll_ir::program::{EmbeddingShape, RowShape};

/// x, bias -> y.
pub(super) fn bias(p: &mut Plan, shape: &RowShape) {
    let n = elements(shape);
    let arguments = p.all_operands_and(&[U64(n), U32(narrow(shape.channels))]);
    p.launch("add_bias", n.div_ceil(4), arguments);
}

/// dy -> dbias.
pub(super) fn bias_backward(p: &mut Plan, shape: &RowShape, accumulate: bool) {
    let [dy, dbias] = p.operands(["dy", "dbias"]);
    norm::channel_sums(p, shape, dy, dbias, accumulate);
}

/// Common arguments of both kernels of a table: the places of the tokens, and the table's sides.
fn table(s: &EmbeddingShape) -> [Argument; 5] {
    let [count, vocabulary, width] = [s.count, s.vocabulary, s.width].map(|n| U32(narrow(n)));
    [U64(s.length), U64(s.first), count, vocabulary, width]
}

/// tokens, weight -> y.
pub(super) fn embedding(p: &mut Plan, s: &EmbeddingShape) {
    let n = s.batch.saturating_mul(s.count).saturating_mul(s.width);
    let arguments = p.all_operands_and(&[&[U64(n)], &table(s)[..]].concat());
    p.launch("embedding_forward", n, arguments);
}

/// tokens, dy -> dweight. Rows are cut into enough pieces to fill a device.
pub(super) fn embedding_backward(p: &mut Plan, s: &EmbeddingShape, accumulate: bool) {
    let most = (PARALLEL / s.width.max(1)).max(1);
    let pieces = s.vocabulary.checked_next_power_of_two().unwrap_or(most).min(1 << most.ilog2());
    let last = [U32(narrow(pieces)), flag(accumulate)];
    let arguments = p.all_operands_and(&[&[U64(s.batch)], &table(s)[..], &last].concat());
    p.launch("embedding_backward", pieces.saturating_mul(s.width), arguments);
}

/// gates, \[previous\] -> h, cell, activated.
pub(super) fn lstm(p: &mut Plan, shape: &RowShape, first: bool) {
    let n = elements(shape);
    let previous = p.operand_or("previous", "gates");
    let [gates, h, cell, activated] = p.operands(["gates", "h", "cell", "activated"]);
    let operands = [gates, previous, h, cell, activated];
    let numbers = [U64(n), U32(narrow(shape.channels)), flag(first)];
    p.launch("lstm_forward", n, [&operands[..], &numbers].concat());
}

/// activated, \[previous\], cell, dh, \[dcell\] -> dgates, \[dprevious\].
pub(super) fn lstm_backward(p: &mut Plan, shape: &RowShape, first: bool, last: bool) {
    let n = elements(shape);
    let [activated, cell, dh, dgates] = p.operands(["activated", "cell", "dh", "dgates"]);
    let (previous, dprevious) = (p.operand_or("previous", "activated"), p.operand_or("dprevious", "dgates"));
    let operands = [activated, previous, cell, dh, p.operand_or("dcell", "dh"), dgates, dprevious];
    let numbers = [U64(n), U32(narrow(shape.channels)), flag(first), flag(last)];
    p.launch("lstm_backward", n, [&operands[..], &numbers].concat());
}
