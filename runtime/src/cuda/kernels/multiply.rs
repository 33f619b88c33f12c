//! The launches of products with a scale, and of the scale's gradient: sums over the rows of each group, in parts that are then
//! put together.
//!
//! What it deliberately does not do: hold a formula; those are in `multiply.cu`.

use super::Argument::{U32, U64};
use super::{PARALLEL, Plan, flag, narrow};
use plimsoll_ir::Float;
use plimsoll_ir::program::ScaleShape;

/// Rows that a part of a sum has at least.
const LEAST_ROWS: u64 = 16;

/// x, scale -> y.
pub(super) fn multiply(p: &mut Plan, shape: &ScaleShape, accumulate: bool) {
    let n = shape.elements();
    let sides = [U64(n), U64(shape.rows), U32(narrow(shape.channels)), flag(accumulate)];
    let ([x, y], scale) = (p.operands(["x", "y"]), p.wide("scale"));
    p.launch("multiply", n.div_ceil(4), [&[x, scale, y], &sides[..]].concat());
}

/// x, dy -> dscale.
pub(super) fn sums(p: &mut Plan, shape: &ScaleShape, accumulate: bool) {
    let width = shape.scales();
    let most = u64::from(narrow(shape.rows.div_ceil(LEAST_ROWS))).max(1);
    let count = (PARALLEL / width.max(1)).clamp(1, most);
    let threads = count.saturating_mul(width);
    let parts = p.floats(threads);
    let sides = [U64(threads), U64(width), U64(shape.rows), U32(narrow(shape.channels)), U32(narrow(count))];
    let [x, dy, dscale] = p.operands(["x", "dy", "dscale"]);
    p.launch("multiply_parts", threads, [&[x, dy, parts], &sides[..]].concat());
    if shape.learned || p.float == Float::F32 {
        p.sum(parts, count, width, dscale, accumulate);
    } else {
        let sums = p.floats(width);
        p.sum(parts, count, width, sums, false);
        p.round(sums, dscale, width, accumulate);
    }
}
