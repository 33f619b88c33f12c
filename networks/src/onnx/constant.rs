//! Tensors that do not depend on the input: weights, of which only the shape is asked, and the numbers from which exporters
//! compute shapes and masks.
//!
//! What is made of other constants is computed when somebody asks for its numbers, and only then: weights go through
//! transpositions and casts as shapes alone, and a file without their data can be read.

use super::error::{OnnxError, broken, shown};
use super::graph::Graph;
use super::tensor::{self, External};
use crate::order::{Order, place_each};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Numbers that are computed or read for one file, all together.
const NUMBERS_MAX: u64 = 1 << 24;

/// Constants that are made of constants, one of the other.
const DEPTH_MAX: u32 = 200;

/// What the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Floating-point numbers.
    Float,
    /// Integers.
    Integer,
    /// 0 or 1.
    Truth,
}

/// A tensor that does not depend on the input.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Its dimensions, checked to make no more than [`tensor::ELEMENTS_MAX`] elements.
    pub dims: Vec<u64>,
    /// What its elements are.
    pub kind: Kind,
    /// The initialiser that it is, as it is or transposed.
    pub initialiser: Option<usize>,
    /// Whether it is that transposed.
    pub turned: bool,
    /// The initialiser that it repeats along dimensions of one step.
    pub repeats: Option<usize>,
    data: Data,
}

/// Where its numbers come from.
#[derive(Clone, Debug)]
enum Data {
    Known(Rc<[f64]>),
    File(usize),
    Made(Rc<Made>),
}

/// A computation that is done when it is asked for.
#[derive(Debug)]
struct Made {
    step: Step,
    inputs: Vec<Constant>,
    dims: Vec<u64>,
    depth: u32,
    result: OnceCell<Rc<[f64]>>,
}

/// How numbers are made of others.
#[derive(Clone, Debug)]
pub enum Step {
    /// Element `i` is element `first + sum(i[d] * strides[d])` of the first input.
    Strided {
        /// Where the element with all indices 0 lies.
        first: i64,
        /// By dimension of the result.
        strides: Vec<i64>,
    },
    /// Positions of one dimension.
    Take {
        /// The dimension.
        axis: usize,
        /// Which positions.
        positions: Rc<[usize]>,
    },
    /// All inputs one behind the other along a dimension.
    Join {
        /// The dimension.
        axis: usize,
    },
    /// The upper or lower triangle of the last two dimensions, 0 elsewhere.
    Triangle {
        /// Which.
        upper: bool,
        /// Diagonals to the right of the main one at which it begins or ends.
        diagonal: i64,
    },
    /// A function of each element.
    Each(fn(f64) -> f64),
    /// A function of the elements of two inputs, each repeated where it has one.
    Both(fn(f64, f64) -> f64),
    /// The second input where the first is not 0, else the third.
    Choose,
}

/// Reads the bytes of a tensor that lie in another file.
pub type ReadExternal<'a> = &'a dyn Fn(&External) -> Result<Vec<u8>, String>;

/// A file's numbers, and how many more may be asked for.
pub struct Numbers<'g> {
    graph: &'g Graph,
    external: ReadExternal<'g>,
    left: Cell<u64>,
    read: RefCell<BTreeMap<usize, Option<Vec<u8>>>>,
}

impl Constant {
    /// Numbers that are known.
    pub fn known(kind: Kind, dims: Vec<u64>, numbers: Vec<f64>) -> Constant {
        Constant {
            dims,
            kind,
            initialiser: None,
            turned: false,
            repeats: None,
            data: Data::Known(numbers.into()),
        }
    }

    /// A tensor of the file.
    pub fn initialiser(graph: &Graph, at: usize) -> Constant {
        let tensor = &graph.initialisers[at];
        Constant {
            dims: tensor::dims(tensor),
            kind: kind_of(tensor.data_type),
            initialiser: Some(at),
            turned: false,
            repeats: None,
            data: Data::File(at),
        }
    }

    /// What comes of a step, computed once somebody asks for it.
    pub fn made(
        place: &str,
        kind: Kind,
        dims: Vec<u64>,
        step: Step,
        inputs: Vec<Constant>,
    ) -> Result<Constant, OnnxError> {
        let depth_of = |c: &Constant| if let Data::Made(made) = &c.data { made.depth } else { 0 };
        let depth = 1 + inputs.iter().map(depth_of).max().unwrap_or(0);
        if depth > DEPTH_MAX {
            let what = format!("{place}: it is made of more than {DEPTH_MAX} constants one of the other");
            return Err(OnnxError::TooLarge { what });
        }
        if tensor::elements(&dims).is_none() {
            let what = format!("{place}: {}", tensor::too_many(&dims));
            return Err(OnnxError::TooLarge { what });
        }
        let made = Made { step, inputs, dims: dims.clone(), depth, result: OnceCell::new() };
        Ok(Constant {
            dims,
            kind,
            initialiser: None,
            turned: false,
            repeats: None,
            data: Data::Made(Rc::new(made)),
        })
    }

    /// The same initialiser as another constant, in another layout, `turned` once more or not.
    pub fn still(self, other: &Constant, turned: bool) -> Constant {
        Constant { initialiser: other.initialiser, turned: other.turned != turned, ..self }
    }

    /// What repeats another constant along dimensions of one step.
    pub fn repeating(self, other: &Constant) -> Constant {
        Constant { repeats: other.initialiser, ..self }
    }

    /// The same numbers as another kind.
    pub fn of_kind(self, kind: Kind) -> Constant {
        Constant { kind, ..self }
    }

    /// Something that it has in common with its copies alone, as long as one of them is there.
    pub fn identity(&self) -> usize {
        match &self.data {
            Data::Known(numbers) => Rc::as_ptr(numbers).addr(),
            Data::File(at) => *at,
            Data::Made(made) => Rc::as_ptr(made).addr(),
        }
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        tensor::elements(&self.dims).unwrap_or(0)
    }
}

/// What the elements of a type are.
pub fn kind_of(data_type: i32) -> Kind {
    match data_type {
        tensor::BOOL => Kind::Truth,
        other if tensor::is_float(other) => Kind::Float,
        _ => Kind::Integer,
    }
}

impl<'g> Numbers<'g> {
    /// Nothing read yet.
    pub fn new(graph: &'g Graph, external: ReadExternal<'g>) -> Numbers<'g> {
        Numbers { graph, external, left: Cell::new(NUMBERS_MAX), read: RefCell::default() }
    }

    /// The initialisers that were read, with their bytes where these lay in another file.
    pub fn read(self) -> BTreeMap<usize, Option<Vec<u8>>> {
        self.read.into_inner()
    }

    /// The numbers of a constant, for the node that asks.
    pub fn of(&self, place: &str, constant: &Constant) -> Result<Rc<[f64]>, OnnxError> {
        match &constant.data {
            Data::Known(numbers) => Ok(Rc::clone(numbers)),
            Data::File(at) => self.tensor(place, *at),
            Data::Made(made) => {
                if let Some(result) = made.result.get() {
                    return Ok(Rc::clone(result));
                }
                let inputs =
                    made.inputs.iter().map(|input| Ok((input.dims.as_slice(), self.of(place, input)?)));
                let inputs = inputs.collect::<Result<Vec<_>, OnnxError>>()?;
                self.spend(place, constant.elements())?;
                let result: Rc<[f64]> = compute(&made.step, &made.dims, &inputs).into();
                Ok(Rc::clone(made.result.get_or_init(|| result)))
            }
        }
    }

    /// Counts numbers; one is counted for each call, so that calls are bounded, too.
    fn spend(&self, place: &str, elements: u64) -> Result<(), OnnxError> {
        match self.left.get().checked_sub(elements.max(1)) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                let what =
                    format!("{place}: more than {NUMBERS_MAX} constant numbers would have to be computed");
                Err(OnnxError::TooLarge { what })
            }
        }
    }

    fn tensor(&self, place: &str, at: usize) -> Result<Rc<[f64]>, OnnxError> {
        let tensor = &self.graph.initialisers[at];
        if !tensor::has_data(tensor) {
            let why = format!(
                "it needs the numbers of `{}`, which the file does not hold; export it again",
                shown(&tensor.name)
            );
            return broken(place, why);
        }
        self.spend(place, tensor::elements(&tensor::dims(tensor)).unwrap_or(u64::MAX))?;
        let bytes = self.bytes(at)?;
        let numbers = tensor::numbers(tensor, bytes.as_deref()).into();
        self.read.borrow_mut().insert(at, bytes);
        Ok(numbers)
    }

    /// The bytes of an initialiser that lie in another file.
    fn bytes(&self, at: usize) -> Result<Option<Vec<u8>>, OnnxError> {
        let tensor = &self.graph.initialisers[at];
        if tensor.data_location != 1 {
            return Ok(None);
        }
        let wanted = tensor::external(tensor)?;
        let found = (self.external)(&wanted).or_else(|why| {
            broken(tensor::initialiser(tensor), format!("cannot read `{}`: {why}", shown(&wanted.location)))
        })?;
        if found.len() as u64 != wanted.length {
            let why =
                format!("`{}` gave {} bytes of {}", shown(&wanted.location), found.len(), wanted.length);
            return broken(tensor::initialiser(tensor), why);
        }
        Ok(Some(found))
    }

    /// The numbers of a weight in 32 bits. Where it is a part of one initialiser, or that in another layout, they have the
    /// bits of the file; else they are computed.
    pub fn floats(&self, place: &str, weight: &Constant) -> Result<Vec<f32>, OnnxError> {
        let Some((at, first, strides)) = strided(weight) else {
            return Ok(self.of(place, weight)?.iter().map(|number| *number as f32).collect());
        };
        let tensor = &self.graph.initialisers[at];
        if !tensor::has_data(tensor) {
            let why =
                "the file does not hold its numbers; take the file as it was exported, with its weights";
            return broken(tensor::initialiser(tensor), why);
        }
        if !tensor::is_float(tensor.data_type) {
            let kind = tensor::type_name(i64::from(tensor.data_type));
            let why = format!("its elements are {kind}, and weights are floats; export in float32");
            return broken(tensor::initialiser(tensor), why);
        }
        let held = tensor::floats(tensor, self.bytes(at)?.as_deref());
        let mut all = Vec::with_capacity(held.len());
        place_each(&weight.dims, first, &strides, |at| all.push(held.get(at).copied().unwrap_or(f32::NAN)));
        Ok(all)
    }
}

/// Steps from one element to the next, by dimension.
pub fn strides(dims: &[u64]) -> Vec<i64> {
    let mut step = 1_i64;
    let mut all: Vec<i64> = (dims.iter().rev())
        .map(|dim| {
            let stride = step;
            step = step.saturating_mul(i64::try_from(*dim).unwrap_or(i64::MAX));
            stride
        })
        .collect();
    all.reverse();
    all
}

/// The initialiser of which a constant has elements at even distances in each dimension, the first of them, and the distances;
/// none where it is computed.
fn strided(constant: &Constant) -> Option<(usize, i64, Vec<i64>)> {
    match &constant.data {
        Data::Known(_) => None,
        Data::File(at) => Some((*at, 0, strides(&constant.dims))),
        Data::Made(made) => {
            let Step::Strided { first, strides: steps } = &made.step else { return None };
            let input = made.inputs.first()?;
            let (at, start, own) = strided(input)?;
            (start == 0 && own == strides(&input.dims)).then(|| (at, *first, steps.clone()))
        }
    }
}

/// An element of an initialiser: which, and its place there.
type Element = (usize, usize);

/// Elements that a constant has of an initialiser.
pub struct Traced {
    /// Which initialiser.
    pub initialiser: usize,
    /// Where they lie there.
    pub in_file: Order,
    /// Where they lie in the constant.
    pub in_constant: Order,
}

/// Where in the file each element of a constant lies; none where one of them is computed, or in no initialiser.
pub fn traced(constant: &Constant) -> Option<Vec<Traced>> {
    if let Some((initialiser, first, strides)) = strided(constant) {
        let in_file = Order::Strided { first, dims: constant.dims.clone(), strides };
        return Some(vec![Traced { initialiser, in_file, in_constant: Order::same(constant.elements()) }]);
    }
    let mut all: BTreeMap<usize, [Vec<usize>; 2]> = BTreeMap::new();
    for (at, element) in elements_of(constant, &mut { NUMBERS_MAX })?.into_iter().enumerate() {
        let (initialiser, place) = element?;
        let [in_file, in_constant] = all.entry(initialiser).or_default();
        in_file.push(place);
        in_constant.push(at);
    }
    let of_one = |(initialiser, [in_file, in_constant]): (usize, [Vec<usize>; 2])| Traced {
        initialiser,
        in_file: Order::Listed(in_file),
        in_constant: Order::Listed(in_constant),
    };
    Some(all.into_iter().map(of_one).collect())
}

/// The elements of a constant, those in no initialiser as none; none at all where they are computed, or more than are `left`.
fn elements_of(constant: &Constant, left: &mut u64) -> Option<Vec<Option<Element>>> {
    *left = left.checked_sub(constant.elements().max(1))?;
    match &constant.data {
        Data::Known(numbers) => Some(vec![None; numbers.len()]),
        Data::File(at) => Some((0..constant.elements() as usize).map(|place| Some((*at, place))).collect()),
        Data::Made(made) => {
            let inputs = made.inputs.iter().map(|input| elements_of(input, left));
            let inputs = inputs.collect::<Option<Vec<_>>>()?;
            let of_dims = made.inputs.iter().map(|input| &input.dims[..]);
            let views: Vec<_> = of_dims.zip(inputs.iter().map(|elements| &elements[..])).collect();
            moved(&made.step, &made.dims, &views, None)
        }
    }
}

/// The strides with which an input of these dimensions is read for a result of those: 0 where it is repeated.
pub fn broadcast(from: &[u64], to: &[u64]) -> Vec<i64> {
    let lead = to.len() - from.len();
    let own = strides(from);
    (0..to.len()).map(|d| if d < lead || from[d - lead] == 1 { 0 } else { own[d - lead] }).collect()
}

/// Elements of the inputs moved about; none for a step that computes. What lies outside is `outside`.
fn moved<T: Copy>(step: &Step, dims: &[u64], inputs: &[(&[u64], &[T])], outside: T) -> Option<Vec<T>> {
    let mut result = Vec::new();
    // What follows divides by dimensions and multiplies them.
    let none = tensor::elements(dims) == Some(0);
    match step {
        _ if none => {}
        Step::Strided { first, strides } => {
            let from = inputs.first()?.1;
            place_each(dims, *first, strides, |at| result.push(from.get(at).copied().unwrap_or(outside)));
        }
        Step::Take { axis, positions } => {
            let (from, elements) = inputs.first()?;
            let inner: usize = from[axis + 1..].iter().product::<u64>() as usize;
            let outer: usize = from[..*axis].iter().product::<u64>() as usize;
            for o in 0..outer {
                for position in positions.iter() {
                    let start = (o * from[*axis] as usize + position) * inner;
                    let all = start..start + inner;
                    result.extend(all.map(|at| elements.get(at).copied().unwrap_or(outside)));
                }
            }
        }
        Step::Join { axis } => {
            let outer: u64 = dims[..*axis].iter().product();
            for o in 0..outer as usize {
                for (from, elements) in inputs {
                    let run: usize = from[*axis..].iter().product::<u64>() as usize;
                    let all = o * run..(o + 1) * run;
                    result.extend(all.map(|at| elements.get(at).copied().unwrap_or(outside)));
                }
            }
        }
        Step::Triangle { .. } | Step::Each(_) | Step::Both(_) | Step::Choose => return None,
    }
    Some(result)
}

/// The numbers of a result.
fn compute(step: &Step, dims: &[u64], inputs: &[(&[u64], Rc<[f64]>)]) -> Vec<f64> {
    let mut result = Vec::new();
    if tensor::elements(dims) == Some(0) {
        return result;
    }
    let get = |numbers: &Rc<[f64]>, at: usize| numbers.get(at).copied().unwrap_or(f64::NAN);
    match step {
        Step::Strided { .. } | Step::Take { .. } | Step::Join { .. } => {
            let views: Vec<_> = inputs.iter().map(|(dims, numbers)| (*dims, &numbers[..])).collect();
            result.extend(moved(step, dims, &views, f64::NAN).into_iter().flatten());
        }
        Step::Triangle { upper, diagonal } => {
            let [rows, columns] = [dims[dims.len() - 2] as usize, dims[dims.len() - 1] as usize];
            result.extend(inputs[0].1.iter().enumerate().map(|(at, number)| {
                let (row, column) = ((at / columns % rows) as i64, (at % columns) as i64);
                let right = column.saturating_sub(row);
                let kept = if *upper { right >= *diagonal } else { right <= *diagonal };
                if kept { *number } else { 0.0 }
            }));
        }
        Step::Each(function) => result.extend(inputs[0].1.iter().map(|number| function(*number))),
        Step::Both(function) => {
            let [first, second] = [0, 1].map(|i| {
                let mut all = Vec::new();
                place_each(dims, 0, &broadcast(inputs[i].0, dims), |at| all.push(get(&inputs[i].1, at)));
                all
            });
            result.extend(first.iter().zip(&second).map(|(a, b)| function(*a, *b)));
        }
        Step::Choose => {
            let [which, yes, no] = [0, 1, 2].map(|i| {
                let mut all = Vec::new();
                place_each(dims, 0, &broadcast(inputs[i].0, dims), |at| all.push(get(&inputs[i].1, at)));
                all
            });
            let chosen = which.iter().zip(yes.iter().zip(&no));
            result.extend(chosen.map(|(which, (yes, no))| if *which != 0.0 { *yes } else { *no }));
        }
    }
    result
}
