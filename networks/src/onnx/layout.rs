//! The operators that only move elements about: what each asks for, in numbers, whatever it is applied to.
//!
//! They are applied to constants (`fold.rs`) and to outputs of layers (`view.rs`) alike.

use super::error::{OnnxError, broken};
use super::graph::{int, ints, label};
use super::proto::NodeProto;
use super::tensor;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same elements in order, with other dimensions.
    Reshape(Vec<u64>),
    /// Dimensions in another order.
    Transpose(Vec<usize>),
    /// Parts of dimensions, then other dimensions of one step.
    Cut(Vec<Cut>, Option<Vec<u64>>),
    /// Dimensions of one step repeated.
    Expand(Vec<u64>),
    /// Parts of one dimension, one behind the other.
    Split(usize, Vec<u64>),
}

/// Part of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The dimension.
    pub axis: usize,
    /// The first position.
    pub start: u64,
    /// From one position to the next.
    pub step: i64,
    /// Positions.
    pub length: u64,
}

/// The integers of an input of the node, none where it has no such input.
pub type Integers<'a> = &'a dyn Fn(usize) -> Result<Option<Vec<i64>>, OnnxError>;

/// A dimension by its number, counted from the end where that is negative.
pub fn axis(node: &NodeProto, axis: i64, rank: usize) -> Result<usize, OnnxError> {
    let from_start = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    match usize::try_from(from_start) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => broken(
            label(node),
            format!("axis {axis} of a tensor with {rank} dimensions; export the file again"),
        ),
    }
}

/// The axes of a node: an input since opset 13, an attribute before.
pub fn axes(node: &NodeProto, integers: Integers<'_>) -> Result<Option<Vec<i64>>, OnnxError> {
    match ints(node, "axes")? {
        Some(axes) => Ok(Some(axes.to_vec())),
        None => integers(1),
    }
}

/// What a node asks for of an input of these dimensions; none where it is none of these operators.
pub fn layout(node: &NodeProto, dims: &[u64], integers: Integers<'_>) -> Result<Option<Layout>, OnnxError> {
    let needs = |what: &str| broken(label(node), format!("it has no {what}; export the file again"));
    Ok(Some(match node.op_type.as_str() {
        "Identity" => Layout::Reshape(dims.to_vec()),
        "Transpose" => transpose(node, dims)?,
        "Reshape" => match integers(1)? {
            Some(wanted) => Layout::Reshape(reshaped(node, dims, &wanted)?),
            None => return needs("shape"),
        },
        "Flatten" => {
            let at = int(node, "axis", 1)?;
            let at = if at == dims.len() as i64 { dims.len() } else { axis(node, at, dims.len())? };
            Layout::Reshape(vec![product(node, &dims[..at])?, product(node, &dims[at..])?])
        }
        "Squeeze" => Layout::Reshape(squeezed(node, dims, axes(node, integers)?)?),
        "Unsqueeze" => match axes(node, integers)? {
            Some(axes) => Layout::Reshape(unsqueezed(node, dims, &axes)?),
            None => return needs("axes"),
        },
        "Slice" => slice(node, dims, integers)?,
        "Expand" => match integers(1)? {
            Some(wanted) => Layout::Expand(expanded(node, dims, &wanted)?),
            None => return needs("shape"),
        },
        "Split" => split(node, dims, integers)?,
        _ => return Ok(None),
    }))
}

/// The product of some dimensions.
fn product(node: &NodeProto, dims: &[u64]) -> Result<u64, OnnxError> {
    match tensor::elements(dims) {
        Some(product) => Ok(product),
        None => Err(OnnxError::TooLarge { what: format!("{}: {}", label(node), tensor::too_many(dims)) }),
    }
}

fn transpose(node: &NodeProto, dims: &[u64]) -> Result<Layout, OnnxError> {
    let order: Vec<usize> = match ints(node, "perm")? {
        None => (0..dims.len()).rev().collect(),
        Some(order) => order.iter().map(|a| axis(node, *a, dims.len())).collect::<Result<_, _>>()?,
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.into_iter().ne(0..dims.len()) {
        let why = format!("{order:?} is no order of {} dimensions; export the file again", dims.len());
        return broken(label(node), why);
    }
    Ok(Layout::Transpose(order))
}

/// The dimensions that `Reshape` asks for: 0 takes over, -1 takes what is left.
fn reshaped(node: &NodeProto, dims: &[u64], wanted: &[i64]) -> Result<Vec<u64>, OnnxError> {
    let all = product(node, dims)?;
    let allow_zero = int(node, "allowzero", 0)? != 0;
    let bad = || {
        let why = format!("elements of {dims:?} cannot lie as {wanted:?}; export the file again");
        broken(label(node), why)
    };
    let mut open = None;
    let mut sizes = Vec::new();
    for (d, size) in wanted.iter().enumerate() {
        sizes.push(match *size {
            0 if !allow_zero && d < dims.len() => dims[d],
            -1 if open.is_none() => {
                open = Some(d);
                1
            }
            size => match u64::try_from(size) {
                Ok(size) => size,
                Err(_) => return bad(),
            },
        });
    }
    let Some(rest) = tensor::elements(&sizes) else { return bad() };
    if let Some(open) = open {
        if rest == 0 || !all.is_multiple_of(rest) {
            return bad();
        }
        sizes[open] = all / rest;
    } else if rest != all {
        return bad();
    }
    Ok(sizes)
}

fn squeezed(node: &NodeProto, dims: &[u64], axes: Option<Vec<i64>>) -> Result<Vec<u64>, OnnxError> {
    let gone: Vec<usize> = match axes {
        None => (0..dims.len()).filter(|d| dims[*d] == 1).collect(),
        Some(axes) => axes.iter().map(|a| axis(node, *a, dims.len())).collect::<Result<_, _>>()?,
    };
    if let Some(d) = gone.iter().find(|d| dims[**d] != 1) {
        return broken(label(node), format!("dimension {d} of {dims:?} is not 1; export the file again"));
    }
    Ok((0..dims.len()).filter(|d| !gone.contains(d)).map(|d| dims[d]).collect())
}

fn unsqueezed(node: &NodeProto, dims: &[u64], axes: &[i64]) -> Result<Vec<u64>, OnnxError> {
    let rank = dims.len() + axes.len();
    if rank > tensor::DIMENSIONS_MAX {
        return Err(OnnxError::TooLarge { what: format!("{}: it makes {rank} dimensions", label(node)) });
    }
    let new: Vec<usize> = axes.iter().map(|a| axis(node, *a, rank)).collect::<Result<_, _>>()?;
    if new.iter().enumerate().any(|(i, d)| new[..i].contains(d)) {
        return broken(label(node), format!("axes {axes:?} name a dimension twice; export the file again"));
    }
    let mut old = dims.iter();
    let sizes = (0..rank).map(|d| if new.contains(&d) { Some(1) } else { old.next().copied() });
    Ok(sizes.flatten().collect())
}

fn slice(node: &NodeProto, dims: &[u64], integers: Integers<'_>) -> Result<Layout, OnnxError> {
    let place = || label(node);
    let given = |name: &str, at: usize| match ints(node, name)? {
        Some(values) => Ok(Some(values.to_vec())),
        None => integers(at),
    };
    let (Some(starts), Some(ends)) = (given("starts", 1)?, given("ends", 2)?) else {
        return broken(place(), "it has no starts or no ends; export the file again");
    };
    let all = || (0..starts.len() as i64).collect();
    let axes = given("axes", 3)?.unwrap_or_else(all);
    let steps = integers(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|length| *length != starts.len()) {
        return broken(place(), "its starts, ends, axes and steps are not as many; export the file again");
    }
    let mut cuts: Vec<Cut> = Vec::new();
    for (((start, end), a), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = axis(node, *a, dims.len())?;
        if *step == 0 || cuts.iter().any(|cut| cut.axis == axis) {
            return broken(place(), "it has a step of 0, or names an axis twice; export the file again");
        }
        let size = i64::try_from(dims[axis]).unwrap_or(i64::MAX);
        let from_start = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (start, end) = (from_start(*start), from_start(*end));
        // Going back, a slice begins at the last position or before, and may end before the first.
        let (start, length) = match (size, *step > 0) {
            (0, _) => (0, 0),
            (_, true) => (start.clamp(0, size), end.clamp(0, size) - start.clamp(0, size)),
            (_, false) => (start.clamp(0, size - 1), start.clamp(0, size - 1) - end.clamp(-1, size - 1)),
        };
        let length = (length.max(0) as u64).div_ceil(step.unsigned_abs());
        cuts.push(Cut { axis, start: start as u64, step: *step, length });
    }
    Ok(Layout::Cut(cuts, None))
}

/// The dimensions of two tensors that are repeated to match each other.
pub fn common(place: &str, first: &[u64], second: &[u64]) -> Result<Vec<u64>, OnnxError> {
    let rank = first.len().max(second.len());
    let of = |dims: &[u64], d: usize| if d + dims.len() < rank { 1 } else { dims[d + dims.len() - rank] };
    let sizes = (0..rank).map(|d| match (of(first, d), of(second, d)) {
        (1, other) | (other, 1) => Ok(other),
        (a, b) if a == b => Ok(a),
        _ => broken(place, format!("{first:?} and {second:?} do not match; export the file again")),
    });
    sizes.collect()
}

fn expanded(node: &NodeProto, dims: &[u64], wanted: &[i64]) -> Result<Vec<u64>, OnnxError> {
    let wanted: Result<Vec<u64>, _> = wanted.iter().map(|size| u64::try_from(*size)).collect();
    match wanted {
        Ok(wanted) => common(&label(node), dims, &wanted),
        Err(_) => broken(label(node), "it expands to a negative dimension; export the file again"),
    }
}

fn split(node: &NodeProto, dims: &[u64], integers: Integers<'_>) -> Result<Layout, OnnxError> {
    let axis = axis(node, int(node, "axis", 0)?, dims.len())?;
    let given = match ints(node, "split")? {
        Some(sizes) => Some(sizes.to_vec()),
        None => integers(1)?,
    };
    let parts = node.output.len().max(1) as u64;
    let sizes: Vec<u64> = match given {
        Some(sizes) => sizes.iter().map(|size| u64::try_from(*size).unwrap_or(u64::MAX)).collect(),
        None => {
            let each = dims[axis].div_ceil(parts);
            (0..parts).map(|i| each.min(dims[axis].saturating_sub(i * each))).collect()
        }
    };
    let sum = sizes.iter().try_fold(0_u64, |sum, size| sum.checked_add(*size));
    if sum != Some(dims[axis]) || sizes.len() as u64 != parts {
        let why = format!("it splits dimension {axis} of {dims:?} into {sizes:?}; export the file again");
        return broken(label(node), why);
    }
    Ok(Layout::Split(axis, sizes))
}
