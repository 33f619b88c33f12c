//! Rotary position embeddings, put together again: heads times a table of cosines, and the same heads with their halves
//! swapped and one of them negated times a table of sines, in a sum.
//!
//! The tables must hold what the layer computes, p * base^(-2 i / width) at position p: of a table that is scaled for long
//! texts, or of pairs that lie side by side, the layer would be another network.

use super::constant::Constant;
use super::error::{OnnxError, broken};
use super::graph::{int, label};
use super::import::{Import, unsupported};
use super::layout::axis;
use super::proto::NodeProto;
use super::value::{Flow, Stage, Value};
use super::view::{Atom, Axis, View, size, whole};
use plimsoll_ir::network::LayerKind;

/// The base where no number of a table depends on it: of heads of one pair, or of a single position.
const USUAL_BASE: f64 = 1e4;

/// How far a table may be off, and by how much more a position: exporters compute angles and their steps in 32 bits.
const TOLERANCE: f64 = 2e-6;
const TOLERANCE_OF_POSITION: f64 = 4e-7;

/// Channels of a head, and the dimension of its positions, where the last dimension is a head and another all positions.
fn head(view: &View) -> Option<(u64, usize)> {
    let (last, outer) = view.dims.split_last()?;
    let [Atom { axis: Axis::Channel, size: width, stride: 1 }] = last[..] else { return None };
    let rows = outer.iter().position(|dim| matches!(dim[..], [Atom { axis: Axis::Row, stride: 1, .. }]))?;
    Some((width, rows))
}

/// Whether a constant has a number for each position and each channel of a head, the same for all heads and samples.
fn is_table(view: &View, table: &Constant) -> bool {
    let Some((width, rows)) = head(view) else { return false };
    let Some(lead) = view.dims.len().checked_sub(table.dims.len()) else { return false };
    let wanted = |dim: usize| match dim {
        dim if dim + 1 == view.dims.len() => width,
        dim if dim == rows => size(&view.dims[rows]),
        _ => 1,
    };
    rows >= lead && table.dims.iter().enumerate().all(|(dim, size)| *size == wanted(lead + dim))
}

/// Heads times a table, which is half of a rotary embedding; none for anything else.
pub fn times_table(node: &NodeProto, x: &Flow, table: &Constant) -> Option<Flow> {
    if node.op_type != "Mul" || x.factor != 1.0 || !is_table(&x.view, table) {
        return None;
    }
    let stage = match x.stage {
        Stage::Output => Stage::Cosines(table.clone()),
        Stage::Swapped => Stage::Sines(table.clone()),
        _ => return None,
    };
    Some(Flow { stage, ..x.clone() })
}

/// The second half of heads, negated, and the first behind it; none for any other node.
pub fn swapped(node: &NodeProto, inputs: &[Option<Value>]) -> Result<Option<Flow>, OnnxError> {
    let [Some(Value::Flow(second)), Some(Value::Flow(first))] = inputs else { return Ok(None) };
    let outputs = [second, first].iter().all(|flow| matches!(flow.stage, Stage::Output));
    if node.op_type != "Concat" || !outputs || [second.factor, first.factor] != [-1.0, 1.0] {
        return Ok(None);
    }
    let rank = first.view.dims.len();
    let along = axis(node, int(node, "axis", 0)?, rank)?;
    let half = size(&first.view.dims[along]);
    let expected = View { channel: first.view.channel + half, ..first.view.clone() };
    if along + 1 != rank || second.view != expected || first.view.dims[along] != whole(Axis::Channel, half) {
        return Ok(None);
    }
    let mut view = first.view.clone();
    view.dims[along] = whole(Axis::Channel, 2 * half);
    Ok(Some(Flow { stage: Stage::Swapped, ..Flow::output(view) }))
}

impl Import<'_> {
    /// The sum of the two halves of a rotary embedding: the layer; none for any other sum.
    pub fn rotary(&mut self, node: &NodeProto, x: &Flow, y: &Flow) -> Result<Option<Flow>, OnnxError> {
        let (cosines, sines) = match (&x.stage, &y.stage) {
            (Stage::Cosines(cosines), Stage::Sines(sines)) => (cosines, sines),
            (Stage::Sines(sines), Stage::Cosines(cosines)) => (cosines, sines),
            _ => return Ok(None),
        };
        let Some((width, _)) = head(&x.view).filter(|_| x.view == y.view) else {
            return Err(unsupported(node, "rotary embeddings that add up different heads"));
        };
        let place = label(node);
        let tables = [cosines, sines].map(|table| self.numbers.of(&place, table));
        let [cosines, sines] = tables;
        let base = base(&cosines?, &sines?, width as usize).ok_or_else(|| {
            unsupported(
                node,
                "rotary embeddings of other angles than position * base^(-2 i / width); rotary embeddings that are \
                 scaled for longer texts are such",
            )
        })?;
        // Heads may be a part of what a product gives, which has queries, keys and values.
        let part = self.settled(node, &Flow::output(x.view.clone()))?;
        let view = self.whole(node, &part)?.clone();
        let Ok(width) = u32::try_from(width) else { return broken(place, "its heads are too wide") };
        let kind = LayerKind::Rotary { width, base };
        let layer = self.layer(&self.name(node, None), kind, &[view.layer], None)?;
        Ok(Some(Flow::output(view.with_layer(layer))))
    }
}

/// The base of tables of positions times channels; none where they are of other angles.
fn base(cosines: &[f64], sines: &[f64], width: usize) -> Option<f32> {
    let half = width / 2;
    if half == 0 || !width.is_multiple_of(2) || cosines.len() != sines.len() {
        return None;
    }
    // The last pair turns slowest: there a table in 32 bits has as many digits of its angle as of any number.
    let slowest = sines.get(width + half - 1).filter(|_| half > 1);
    let found = slowest.map_or(USUAL_BASE, |sine| sine.asin().powf(-(half as f64) / (half - 1) as f64));
    let nearest = found.round();
    let base = if (found - nearest).abs() <= 1e-5 * found { nearest } else { found } as f32;
    let of_table = |at: usize| {
        let (position, pair) = ((at / width) as f64, (at % width % half) as f64);
        let (sine, cosine) = (position * f64::from(base).powf(-pair / half as f64)).sin_cos();
        let tolerance = TOLERANCE + TOLERANCE_OF_POSITION * position;
        (cosines[at] - cosine).abs() <= tolerance && (sines[at] - sine).abs() <= tolerance
    };
    (base.is_finite() && base > 0.0 && (0..cosines.len()).all(of_table)).then_some(base)
}
