//! What nodes make of constants alone: shapes, indices and masks, which exporters leave in the graph as arithmetic.
//!
//! What this file does not do: products and convolutions of constants, which no exporter leaves behind.

use super::constant::{Constant, Kind, Numbers, Step, broadcast, kind_of, strides};
use super::error::{OnnxError, broken};
use super::graph::{attribute, float, int, label};
use super::layout::{Cut, Layout, axis, common, layout};
use super::proto::NodeProto;
use super::tensor;
use std::rc::Rc;

/// The outputs of a node whose inputs are all constants; none for an operator that is not done on constants.
pub fn fold(
    numbers: &Numbers<'_>,
    node: &NodeProto,
    inputs: &[Option<Constant>],
) -> Result<Option<Vec<Constant>>, OnnxError> {
    let place = label(node);
    let input = |at: usize| match inputs.get(at).and_then(Option::as_ref) {
        Some(constant) => Ok(constant),
        None => broken(&place, format!("its input {at} is missing; export the file again")),
    };
    let one = |constant: Constant| Ok(Some(vec![constant]));
    if let Some((function, kind)) = unary(node) {
        let from = input(0)?;
        let kind = kind.unwrap_or(from.kind);
        let (dims, step) = (from.dims.clone(), Step::Each(function));
        return one(Constant::made(&place, kind, dims, step, vec![from.clone()])?);
    }
    match node.op_type.as_str() {
        "Constant" => return one(given(node)?),
        "ConstantOfShape" => return one(filled(numbers, node, input(0)?)?),
        "Range" => return one(range(numbers, node, [input(0)?, input(1)?, input(2)?])?),
        "Gather" => return one(gather(numbers, node, input(0)?, input(1)?)?),
        "GatherND" => {
            return gather_by_places(numbers, node, input(0)?, input(1)?).map(|c| c.map(|c| vec![c]));
        }
        "CumSum" => return running_sums(numbers, node, input(0)?, input(1)?).map(|c| c.map(|c| vec![c])),
        "Concat" => return one(join(node, inputs)?),
        "Trilu" => return one(triangle(numbers, node, input(0)?, inputs.get(1))?),
        "Cast" => {
            let to = kind_of(i32::try_from(int(node, "to", 1)?).unwrap_or(0));
            return one(cast(node, input(0)?, to)?);
        }
        "CastLike" => return one(cast(node, input(0)?, input(1)?.kind)?),
        "Where" => {
            let (which, yes, no) = (input(0)?, input(1)?, input(2)?);
            let dims = common(&place, &common(&place, &which.dims, &yes.dims)?, &no.dims)?;
            let from = vec![which.clone(), yes.clone(), no.clone()];
            return one(Constant::made(&place, yes.kind, dims, Step::Choose, from)?);
        }
        _ => {}
    }
    if inputs.len() == 2
        && let Some((function, kind)) = binary(&node.op_type, input(0)?.kind, int(node, "fmod", 0)? != 0)
    {
        let (first, second) = (input(0)?, input(1)?);
        let dims = common(&place, &first.dims, &second.dims)?;
        let from = vec![first.clone(), second.clone()];
        return one(Constant::made(&place, kind, dims, Step::Both(function), from)?);
    }
    let Some(first) = inputs.first().and_then(Option::as_ref) else { return Ok(None) };
    let integers = |at: usize| integers(numbers, &place, inputs, at);
    match layout(node, &first.dims, &integers)? {
        Some(layout) => Ok(Some(laid_out(&place, first, layout)?)),
        None => Ok(None),
    }
}

/// The integers of an input.
pub fn integers(
    numbers: &Numbers<'_>,
    place: &str,
    inputs: &[Option<Constant>],
    at: usize,
) -> Result<Option<Vec<i64>>, OnnxError> {
    let Some(Some(constant)) = inputs.get(at) else { return Ok(None) };
    Ok(Some(numbers.of(place, constant)?.iter().map(|number| *number as i64).collect()))
}

/// The elements of a constant moved about.
fn laid_out(place: &str, from: &Constant, layout: Layout) -> Result<Vec<Constant>, OnnxError> {
    let own = strides(&from.dims);
    let strided = |dims: Vec<u64>, first: i64, strides: Vec<i64>| {
        Constant::made(place, from.kind, dims, Step::Strided { first, strides }, vec![from.clone()])
    };
    let cut = |cuts: &[Cut]| {
        let (mut dims, mut steps, mut first) = (from.dims.clone(), own.clone(), 0_i64);
        for Cut { axis, start, step, length } in cuts {
            dims[*axis] = *length;
            first = first.saturating_add(own[*axis].saturating_mul(*start as i64));
            steps[*axis] = own[*axis].saturating_mul(*step);
        }
        strided(dims, first, steps)
    };
    Ok(match layout {
        Layout::Reshape(dims) if dims == from.dims => vec![from.clone()],
        Layout::Reshape(dims) => {
            vec![strided(dims.clone(), 0, strides(&dims))?.still(from, false)]
        }
        Layout::Transpose(order) => {
            let dims = order.iter().map(|d| from.dims[*d]).collect();
            // Dimensions of one position stand anywhere.
            let moved = order.iter().filter(|d| from.dims[**d] != 1);
            let turned = !moved.is_sorted();
            vec![strided(dims, 0, order.iter().map(|d| own[*d]).collect())?.still(from, turned)]
        }
        Layout::Cut(cuts, dims) => {
            let part = cut(&cuts)?;
            match dims {
                None => vec![part],
                Some(dims) => laid_out(place, &part, Layout::Reshape(dims))?,
            }
        }
        Layout::Expand(dims) => {
            let steps = broadcast(&from.dims, &dims);
            vec![strided(dims, 0, steps)?.repeating(from)]
        }
        Layout::Split(axis, sizes) => {
            let mut start = 0;
            let mut parts = Vec::new();
            for length in sizes {
                parts.push(cut(&[Cut { axis, start, step: 1, length }])?);
                start += length;
            }
            parts
        }
    })
}

/// A function of one number.
type OfOne = fn(f64) -> f64;

/// A function of two numbers.
type OfTwo = fn(f64, f64) -> f64;

/// Functions of one number, and what they give if not what they take.
fn unary(node: &NodeProto) -> Option<(OfOne, Option<Kind>)> {
    Some(match node.op_type.as_str() {
        "Sqrt" => (f64::sqrt, None),
        "Cos" => (f64::cos, None),
        "Sin" => (f64::sin, None),
        "Neg" => (|x| -x, None),
        "Floor" => (f64::floor, None),
        "Ceil" => (f64::ceil, None),
        "Reciprocal" => (f64::recip, None),
        "Not" => (|x| f64::from(x == 0.0), Some(Kind::Truth)),
        "IsNaN" => (|x| f64::from(x.is_nan()), Some(Kind::Truth)),
        _ => return None,
    })
}

/// Functions of two numbers, and what they give.
fn binary(op: &str, kind: Kind, as_in_c: bool) -> Option<(OfTwo, Kind)> {
    let whole = kind == Kind::Integer;
    let (function, truth): (OfTwo, bool) = match op {
        "Add" => (|a, b| a + b, false),
        "Sub" => (|a, b| a - b, false),
        "Mul" => (|a, b| a * b, false),
        "Div" if whole => (|a, b| (a / b).trunc(), false),
        "Div" => (|a, b| a / b, false),
        "Mod" if as_in_c => (|a, b| a % b, false),
        "Mod" => (|a, b| a - b * (a / b).floor(), false),
        "Pow" if whole => (|a, b| a.powf(b).trunc(), false),
        "Pow" => (f64::powf, false),
        "Min" => (f64::min, false),
        "Max" => (f64::max, false),
        "Equal" => (|a, b| f64::from(a == b), true),
        "Less" => (|a, b| f64::from(a < b), true),
        "LessOrEqual" => (|a, b| f64::from(a <= b), true),
        "Greater" => (|a, b| f64::from(a > b), true),
        "GreaterOrEqual" => (|a, b| f64::from(a >= b), true),
        "And" => (|a, b| f64::from(a != 0.0 && b != 0.0), true),
        "Or" => (|a, b| f64::from(a != 0.0 || b != 0.0), true),
        _ => return None,
    };
    Some((function, if truth { Kind::Truth } else { kind }))
}

/// The value that a `Constant` node holds.
fn given(node: &NodeProto) -> Result<Constant, OnnxError> {
    if let Some(tensor) = attribute(node, "value").and_then(|a| a.t.as_ref()) {
        tensor::check(tensor)?;
        let dims = tensor::dims(tensor);
        let numbers = tensor::numbers(tensor, None);
        if tensor.data_location == 1 || tensor::elements(&dims) != Some(numbers.len() as u64) {
            return broken(label(node), "its value is not in the file; export the file again");
        }
        return Ok(Constant::known(kind_of(tensor.data_type), dims, numbers));
    }
    let listed = |kind, numbers: Vec<f64>| Constant::known(kind, vec![numbers.len() as u64], numbers);
    let known = [
        attribute(node, "value_int").map(|a| Constant::known(Kind::Integer, vec![], vec![a.i as f64])),
        attribute(node, "value_float").map(|a| Constant::known(Kind::Float, vec![], vec![f64::from(a.f)])),
        attribute(node, "value_ints")
            .map(|a| listed(Kind::Integer, a.ints.iter().map(|i| *i as f64).collect())),
        attribute(node, "value_floats")
            .map(|a| listed(Kind::Float, a.floats.iter().map(|f| f64::from(*f)).collect())),
    ];
    match known.into_iter().flatten().next() {
        Some(constant) => Ok(constant),
        None => broken(label(node), "it holds no number that can be read; export the file again"),
    }
}

fn filled(numbers: &Numbers<'_>, node: &NodeProto, shape: &Constant) -> Result<Constant, OnnxError> {
    let place = label(node);
    let sizes = numbers.of(&place, shape)?;
    if let Some(bad) = sizes.iter().find(|size| !(0.0..9e15).contains(*size)) {
        return broken(place, format!("a dimension is {bad}; export the file again"));
    }
    let dims: Vec<u64> = sizes.iter().map(|size| *size as u64).collect();
    let (kind, value) = match attribute(node, "value").and_then(|a| a.t.as_ref()) {
        None => (Kind::Float, 0.0),
        Some(tensor) => {
            tensor::check(tensor)?;
            let value = tensor::numbers(tensor, None).first().copied();
            let Some(value) = value else {
                return broken(place, "its value is empty; export the file again");
            };
            (kind_of(tensor.data_type), value)
        }
    };
    let single = Constant::known(kind, vec![1; dims.len()], vec![value]);
    let strides = vec![0; dims.len()];
    Constant::made(&place, kind, dims, Step::Strided { first: 0, strides }, vec![single])
}

fn range(numbers: &Numbers<'_>, node: &NodeProto, ends: [&Constant; 3]) -> Result<Constant, OnnxError> {
    let place = label(node);
    let mut values = [0.0; 3];
    for (value, constant) in values.iter_mut().zip(ends) {
        let all = numbers.of(&place, constant)?;
        let [number] = all[..] else {
            return broken(place, "a bound is no single number; export the file again");
        };
        *value = number;
    }
    let [start, limit, step] = values;
    let length = ((limit - start) / step).ceil().max(0.0);
    if !(length.is_finite() && length <= 16_777_216.0) {
        return Err(OnnxError::TooLarge {
            what: format!("{place}: it counts from {start} to {limit} by {step}"),
        });
    }
    let counted: Vec<f64> = (0..length as u64).map(|i| start + i as f64 * step).collect();
    // It is counted like every other number that is made.
    let known = Constant::known(ends[0].kind, vec![counted.len() as u64], counted);
    Constant::made(&place, known.kind, known.dims.clone(), Step::Each(|x| x), vec![known])
}

/// What `Gather` takes of a constant: for a single index a slice, else positions.
fn gather(
    numbers: &Numbers<'_>,
    node: &NodeProto,
    from: &Constant,
    indices: &Constant,
) -> Result<Constant, OnnxError> {
    let place = label(node);
    let axis = axis(node, int(node, "axis", 0)?, from.dims.len())?;
    let size = from.dims[axis] as i64;
    let indexed = numbers.of(&place, indices)?;
    let positions = indexed.iter().map(|index| {
        let index = *index as i64;
        let position = if index < 0 { index.saturating_add(size) } else { index };
        if (0..size).contains(&position) {
            Ok(position as usize)
        } else {
            broken(&place, format!("index {index} of {size}"))
        }
    });
    let mut positions = positions.collect::<Result<Vec<usize>, _>>()?;
    let mut taken = indices.dims.clone();
    // Positions that are the same for each sample are those of one: what is added to all of them is one weight.
    if let [samples, length] = taken[..]
        && samples > 1
        && from.initialiser.is_some()
        && positions.chunks(length.max(1) as usize).all(|row| positions.starts_with(row))
        && positions.len() as u64 == samples * length
    {
        positions.truncate(length as usize);
        taken[0] = 1;
    }
    let positions: Rc<[usize]> = positions.into();
    let mut dims = from.dims.clone();
    dims.splice(axis..=axis, taken);
    Constant::made(&place, from.kind, dims, Step::Take { axis, positions }, vec![from.clone()])
}

/// What `GatherND` takes of a constant, single elements by their places; none where it takes more than that.
fn gather_by_places(
    numbers: &Numbers<'_>,
    node: &NodeProto,
    from: &Constant,
    places: &Constant,
) -> Result<Option<Constant>, OnnxError> {
    let place = label(node);
    let rank = from.dims.len();
    let Some((last, dims)) = places.dims.split_last() else {
        return broken(place, "its indices are a single number; export the file again");
    };
    if int(node, "batch_dims", 0)? != 0 || *last != rank as u64 || rank == 0 {
        return Ok(None);
    }
    let indexed = numbers.of(&place, places)?;
    let positions = indexed.chunks_exact(rank).map(|indices| {
        indices.iter().zip(&from.dims).try_fold(0_usize, |at, (index, size)| {
            let (index, size) = (*index as i64, *size as i64);
            let position = if index < 0 { index.saturating_add(size) } else { index };
            match (0..size).contains(&position) {
                true => Ok(at * size as usize + position as usize),
                false => broken(&place, format!("index {index} of {size}")),
            }
        })
    });
    let positions: Rc<[usize]> = positions.collect::<Result<Vec<usize>, _>>()?.into();
    let all = tensor::elements(&from.dims).unwrap_or(0);
    let flat = laid_out(&place, from, Layout::Reshape(vec![all]))?.swap_remove(0);
    Constant::made(&place, from.kind, dims.to_vec(), Step::Take { axis: 0, positions }, vec![flat]).map(Some)
}

/// The sums up to each position of a dimension; none where they leave the position out, or go backwards.
fn running_sums(
    numbers: &Numbers<'_>,
    node: &NodeProto,
    from: &Constant,
    along: &Constant,
) -> Result<Option<Constant>, OnnxError> {
    let place = label(node);
    let Some(along) = scalar(numbers, &place, along)? else {
        return broken(place, "its axis is no single number; export the file again");
    };
    let along = axis(node, along as i64, from.dims.len())?;
    if int(node, "exclusive", 0)? != 0 || int(node, "reverse", 0)? != 0 {
        return Ok(None);
    }
    let mut sums = numbers.of(&place, from)?.to_vec();
    let (steps, inner) = (from.dims[along] as usize, strides(&from.dims)[along] as usize);
    for at in inner..sums.len() {
        if at / inner % steps != 0 {
            sums[at] += sums[at - inner];
        }
    }
    // They are counted like every other number that is made.
    let known = Constant::known(from.kind, from.dims.clone(), sums);
    Constant::made(&place, known.kind, known.dims.clone(), Step::Each(|x| x), vec![known]).map(Some)
}

fn join(node: &NodeProto, inputs: &[Option<Constant>]) -> Result<Constant, OnnxError> {
    let place = label(node);
    let all: Vec<Constant> = inputs.iter().flatten().cloned().collect();
    let Some(first) = all.first() else { return broken(place, "it joins nothing; export the file again") };
    let axis = axis(node, int(node, "axis", 0)?, first.dims.len())?;
    let mut dims = first.dims.clone();
    for other in &all[1..] {
        let same =
            other.dims.len() == dims.len() && (0..dims.len()).all(|d| d == axis || other.dims[d] == dims[d]);
        let sum = dims[axis].checked_add(other.dims.get(axis).copied().unwrap_or(0));
        match sum {
            Some(sum) if same => dims[axis] = sum,
            _ => {
                let why =
                    format!("{:?} and {:?} cannot be joined; export the file again", first.dims, other.dims);
                return broken(place, why);
            }
        }
    }
    Constant::made(&place, first.kind, dims, Step::Join { axis }, all)
}

fn triangle(
    numbers: &Numbers<'_>,
    node: &NodeProto,
    from: &Constant,
    diagonal: Option<&Option<Constant>>,
) -> Result<Constant, OnnxError> {
    let place = label(node);
    if from.dims.len() < 2 {
        return broken(place, "it takes at least two dimensions; export the file again");
    }
    let diagonal = match diagonal {
        Some(Some(constant)) => numbers.of(&place, constant)?.first().map_or(0, |number| *number as i64),
        _ => 0,
    };
    let step = Step::Triangle { upper: int(node, "upper", 1)? != 0, diagonal };
    Constant::made(&place, from.kind, from.dims.clone(), step, vec![from.clone()])
}

/// A constant as another kind.
pub fn cast(node: &NodeProto, from: &Constant, to: Kind) -> Result<Constant, OnnxError> {
    let function: OfOne = match (from.kind, to) {
        (same, other) if same == other => return Ok(from.clone()),
        (_, Kind::Float) => return Ok(from.clone().of_kind(Kind::Float)),
        (_, Kind::Truth) => |x| f64::from(x != 0.0),
        (_, Kind::Integer) => f64::trunc,
    };
    Constant::made(&label(node), to, from.dims.clone(), Step::Each(function), vec![from.clone()])
}

/// A number that one constant alone holds; none where it holds several.
pub fn scalar(numbers: &Numbers<'_>, place: &str, constant: &Constant) -> Result<Option<f64>, OnnxError> {
    if constant.elements() != 1 {
        return Ok(None);
    }
    Ok(numbers.of(place, constant)?.first().copied())
}

/// A number that an attribute or, since later versions, an input holds.
pub fn attribute_or_input(
    numbers: &Numbers<'_>,
    node: &NodeProto,
    name: &str,
    input: Option<&Constant>,
) -> Result<Option<f64>, OnnxError> {
    if attribute(node, name).is_some() {
        return Ok(Some(f64::from(float(node, name, 0.0)?)));
    }
    let Some(constant) = input else { return Ok(None) };
    let place = label(node);
    match scalar(numbers, &place, constant)? {
        Some(number) => Ok(Some(number)),
        None => {
            broken(place, format!("its {name} holds {} numbers; export the file again", constant.elements()))
        }
    }
}
