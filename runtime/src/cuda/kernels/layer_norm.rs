//! The launches of layer normalisation and RMS normalisation: statistics of each row in pieces, their join, and one pass
//! over the elements.
//!
//! Deliberately does not hold a formula; `layer_norm.cu` and `rms_norm.cu` do.

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

/// x, gamma, beta -> y, stats.
pub(super) fn forward(p: &mut Plan, shape: &RowShape, epsilon: f32) {
    let [x, gamma, beta, y, stats] = p.operands(["x", "gamma", "beta", "y", "stats"]);
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let (threads, pieces) = (shape.rows.saturating_mul(pieces(shape)), U32(pieces(shape) as u32));
    let parts = p.floats(threads.saturating_mul(2));
    p.launch("layer_norm_moments", threads, vec![x, parts, U64(threads), channels, pieces]);
    p.launch("layer_norm_stats", shape.rows, vec![parts, stats, rows, channels, pieces, F32(epsilon)]);
    let n = elements(shape);
    p.launch("layer_norm_apply", n.div_ceil(4), vec![x, stats, gamma, beta, y, U64(n), rows, channels]);
}

/// x, dy, gamma, stats -> dx, dgamma, dbeta. dx is last, as it may be in place of dy.
pub(super) fn backward(p: &mut Plan, shape: &RowShape, accumulate: bool) {
    let [x, dy, gamma, stats, dx, dgamma, dbeta] =
        p.operands(["x", "dy", "gamma", "stats", "dx", "dgamma", "dbeta"]);
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let (threads, pieces) = (shape.rows.saturating_mul(pieces(shape)), U32(pieces(shape) as u32));
    let [products, slopes] = [threads, shape.rows].map(|n| p.floats(n.saturating_mul(2)));
    let arguments = vec![x, dy, gamma, stats, products, U64(threads), channels, pieces];
    p.launch("layer_norm_products", threads, arguments);
    p.launch("layer_norm_slopes", shape.rows, vec![products, stats, slopes, rows, channels, pieces]);

    let count = norm::parts(shape);
    let of_parts = count.saturating_mul(shape.channels);
    let [gammas, betas] = [0, 1].map(|_| p.floats(of_parts));
    let arguments = vec![x, dy, stats, gammas, betas, rows, channels, U32(narrow(count))];
    p.launch("layer_norm_gradients", of_parts, arguments);
    p.sum(gammas, count, shape.channels, dgamma, false);
    p.sum(betas, count, shape.channels, dbeta, false);

    let n = elements(shape);
    let arguments = vec![x, dy, gamma, stats, slopes, dx, U64(n), rows, channels, flag(accumulate)];
    p.launch("layer_norm_backward", n.div_ceil(4), arguments);
}

/// x, gamma -> y, stats.
pub(super) fn rms_forward(p: &mut Plan, shape: &RowShape, epsilon: f32) {
    let [x, gamma, y, stats] = p.operands(["x", "gamma", "y", "stats"]);
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let (threads, pieces) = (shape.rows.saturating_mul(pieces(shape)), U32(pieces(shape) as u32));
    let parts = p.floats(threads);
    p.launch("rms_norm_squares", threads, vec![x, parts, U64(threads), channels, pieces]);
    p.launch("rms_norm_stats", shape.rows, vec![parts, stats, rows, channels, pieces, F32(epsilon)]);
    let n = elements(shape);
    p.launch("rms_norm_apply", n.div_ceil(4), vec![x, stats, gamma, y, U64(n), channels]);
}

/// x, dy, gamma, stats -> dx, dgamma. dx is last, as it may be in place of dy.
pub(super) fn rms_backward(p: &mut Plan, shape: &RowShape, accumulate: bool) {
    let [x, dy, gamma, stats, dx, dgamma] = p.operands(["x", "dy", "gamma", "stats", "dx", "dgamma"]);
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let (threads, pieces) = (shape.rows.saturating_mul(pieces(shape)), U32(pieces(shape) as u32));
    let [products, slopes] = [threads, shape.rows].map(|n| p.floats(n));
    p.launch("rms_norm_products", threads, vec![x, dy, gamma, products, U64(threads), channels, pieces]);
    p.launch("rms_norm_slopes", shape.rows, vec![products, stats, slopes, rows, channels, pieces]);

    let count = norm::parts(shape);
    let of_parts = count.saturating_mul(shape.channels);
    let gammas = p.floats(of_parts);
    p.launch("rms_norm_gradients", of_parts, vec![x, dy, stats, gammas, rows, channels, U32(narrow(count))]);
    p.sum(gammas, count, shape.channels, dgamma, false);

    let n = elements(shape);
    let arguments = vec![x, dy, gamma, stats, slopes, dx, U64(n), channels, flag(accumulate)];
    p.launch("rms_norm_backward", n.div_ceil(4), arguments);
}
