//! The launches of layer normalisation and RMS normalisation: statistics of each row in pieces, their join, and one pass
//! over the elements.
//!
//! Deliberately does not hold a formula; `row_norm.cu` does.

use super::Argument::{F32, U32, U64};
use super::{Plan, elements, flag, narrow, norm};
use plimsoll_ir::program::RowShape;

/// Most pieces of a row: the threads of a warp.
const MOST_PIECES: u64 = 32;

/// Fewest channels of a piece.
const LEAST_CHANNELS: u64 = 8;

/// Number of pieces of a row.
fn pieces(shape: &RowShape) -> u64 {
    (shape.channels / LEAST_CHANNELS).clamp(1, MOST_PIECES)
}

/// x, gamma, \[beta\] -> y, stats. Layer normalisation is `centred`, RMS normalisation is not.
pub(super) fn forward(p: &mut Plan, shape: &RowShape, epsilon: f32, centred: bool) {
    let ([x, gamma, y, stats], beta) =
        (p.operands(["x", "gamma", "y", "stats"]), p.operand_or("beta", "gamma"));
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let (threads, pieces) = (shape.rows.saturating_mul(pieces(shape)), U32(pieces(shape) as u32));
    let (moments, of_rows, numbers) = if centred {
        ("layer_norm_moments", "layer_norm_stats", 2)
    } else {
        ("rms_norm_squares", "rms_norm_stats", 1)
    };
    let parts = p.floats(threads.saturating_mul(numbers));
    p.launch(moments, threads, vec![x, parts, U64(threads), channels, pieces]);
    p.launch(of_rows, shape.rows, vec![parts, stats, rows, channels, pieces, F32(epsilon)]);
    let n = elements(shape);
    let arguments = vec![x, stats, gamma, beta, y, U64(n), rows, channels, flag(centred)];
    p.launch("row_norm_apply", n.div_ceil(4), arguments);
}

/// x, dy, gamma, stats -> dx, dgamma, \[dbeta\]. dx is last, as it may be in place of dy.
pub(super) fn backward(p: &mut Plan, shape: &RowShape, accumulate: bool, centred: bool) {
    let [x, dy, gamma, stats, dx, dgamma] = p.operands(["x", "dy", "gamma", "stats", "dx", "dgamma"]);
    let (rows, channels, centres) = (U64(shape.rows), U32(narrow(shape.channels)), flag(centred));
    let (threads, pieces) = (shape.rows.saturating_mul(pieces(shape)), U32(pieces(shape) as u32));
    let numbers = if centred { 2 } else { 1 };
    let [products, slopes] = [threads, shape.rows].map(|n| p.floats(n.saturating_mul(numbers)));
    let arguments = vec![x, dy, gamma, stats, products, U64(threads), channels, pieces, centres];
    p.launch("row_norm_products", threads, arguments);
    let arguments = vec![products, stats, slopes, rows, channels, pieces, centres];
    p.launch("row_norm_slopes", shape.rows, arguments);

    let count = norm::parts(shape);
    let of_parts = count.saturating_mul(shape.channels);
    let gammas = p.floats(of_parts);
    let betas = if centred { p.floats(of_parts) } else { gammas };
    let arguments = vec![x, dy, stats, gammas, betas, rows, channels, U32(narrow(count)), centres];
    p.launch("row_norm_gradients", of_parts, arguments);
    p.sum(gammas, count, shape.channels, dgamma, false);
    if centred {
        let dbeta = p.operand("dbeta");
        p.sum(betas, count, shape.channels, dbeta, false);
    }

    let n = elements(shape);
    let arguments = vec![x, dy, gamma, stats, slopes, dx, U64(n), rows, channels, flag(accumulate), centres];
    p.launch("row_norm_backward", n.div_ceil(4), arguments);
}
