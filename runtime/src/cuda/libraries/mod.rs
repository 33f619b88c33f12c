//! NVIDIA's libraries as alternatives of a call: cuDNN's algorithms for convolutions, cuBLAS for those that are matrix
//! products.
//!
//! A convolution has, in this order: cuDNN's algorithms for its shape, in an order that is fixed for each pass; of a
//! grouped one, cuDNN's first algorithm for a single group, called for each group (`groups_...`); cuBLAS, where the windows
//! are single pixels; cuBLAS on windows that are laid out as rows of a matrix (`cublas_windows`, see `columns.rs`); for the
//! filter gradient cuDNN's deterministic algorithms on planes (`planes_...`), to which the tensors are transposed; our own
//! kernel, which multiplies in f32 and is called `own_f32` where the others multiply in TF32. A fully connected layer has
//! cuBLAS and our own kernel. The order depends on no measurement and no rank, so profile, plan and run speak of the same
//! alternatives; an algorithm that asks for more than [`MOST_SCRATCH`] is left out unless it is the first. With
//! `deterministic` a call has one alternative alone: the first that is deterministic.
//!
//! What a call has is asked once for each shape and kept with its descriptors. The executor asks for every launch that it
//! loads, so nothing is made in an iteration.
//!
//! What it deliberately does not do: add a bias or sum its gradient, which stay with our own kernels; fall back silently: a
//! query that fails otherwise than with "not supported" fails the next iteration.

mod columns;
mod cublas;
mod cudnn;

use super::driver::{Context, CudaStream};
use super::error::{Capability, CudaError, Refusal};
use super::kernels::{self, Grid, layout};
use super::presence::Search;
use crate::device::DeviceError;
use columns::{Columns, Step};
use cublas::{Cublas, Product};
use cudnn::{Algorithm, Cudnn, Layout};
use plimsoll_ir::program::{Access, Call, ConvShape, KernelAlternative, STORAGE_ALIGNMENT};
use plimsoll_ir::{Bytes, Float, Precision};
use std::collections::HashMap;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Algorithms that ask for more scratch than this are offered only where they come first.
const MOST_SCRATCH: Bytes = Bytes(1 << 30);

/// More groups than this are not called one by one.
const MOST_GROUPS: u32 = 64;

/// Which kernels a device `cuda` runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernels {
    /// Our own for everything: no library is needed.
    Own,
    /// cuDNN and cuBLAS, and our own besides.
    #[default]
    Libraries,
}

/// The three passes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    Forward,
    BackwardData,
    BackwardFilter,
}

/// The addresses of a convolution's tensors, whichever the pass writes.
#[derive(Clone, Copy, Debug)]
struct Operands {
    /// x or dx.
    x: u64,
    /// The weights or their gradient.
    w: u64,
    /// y or dy.
    y: u64,
    /// Whether what is written is added to what is there.
    accumulate: bool,
}

impl Operands {
    /// Of a call whose operands have these addresses; none where the call is no convolution.
    fn of(call: &Call, addresses: &[u64]) -> Option<(Pass, Operands)> {
        let (pass, _) = convolution(call)?;
        let operands = call.operands();
        let [x, w, y] = [("x", "dx"), ("weight", "dweight"), ("y", "dy")].map(|(value, gradient)| {
            addresses[operands.position(value).unwrap_or_else(|| operands.index(gradient))]
        });
        let accumulate = operands.iter().any(|operand| operand.access == Access::Update);
        Some((pass, Operands { x, w, y, accumulate }))
    }
}

impl Operands {
    /// Those of a group: channels that lie side by side of x and y, and weights of its own.
    fn of_group(self, shape: &ConvShape, group: u32) -> Operands {
        let groups = u64::from(shape.groups.max(1));
        let [depth, filters] =
            [shape.in_channels, shape.out_channels].map(|channels| u64::from(channels) / groups);
        let weights = shape.window.size.iter().fold(depth * filters, |n, side| n * u64::from(*side));
        let at = |start: u64, floats: u64| start + 4 * floats * u64::from(group);
        Operands { x: at(self.x, depth), w: at(self.w, weights), y: at(self.y, filters), ..self }
    }
}

/// The pass and the shape of a convolution; none for other calls.
fn convolution(call: &Call) -> Option<(Pass, ConvShape)> {
    match *call {
        Call::ConvForward { shape } => Some((Pass::Forward, shape)),
        Call::ConvBackwardFilter { shape, .. } => Some((Pass::BackwardFilter, shape)),
        Call::ConvBackwardData { shape, .. } => Some((Pass::BackwardData, shape)),
        _ => None,
    }
}

/// How an alternative runs.
enum Method {
    Algorithm(Algorithm),
    /// An algorithm for one group, for each.
    EachGroup(Algorithm, ConvShape),
    Product(Product),
    Columns(Columns),
    /// An algorithm for the filter gradient on planes, which start at these bytes of the scratch.
    Planes(Algorithm, ConvShape, [u64; 4]),
    Own,
}

impl Method {
    /// Its name; our own kernels have the arithmetic in it where the others compute in another.
    fn name(&self, tf32: bool) -> String {
        match self {
            Method::Algorithm(algorithm) => algorithm.name.to_owned(),
            Method::EachGroup(algorithm, _) => format!("groups_{}", algorithm.name),
            Method::Product(_) => "cublas".to_owned(),
            Method::Columns(_) => "cublas_windows".to_owned(),
            Method::Planes(algorithm, ..) => format!("planes_{}", algorithm.name),
            Method::Own if tf32 => "own_f32".to_owned(),
            Method::Own => "own".to_owned(),
        }
    }

    /// All the scratch that a call needs with it. What follows a library's part has no use for that part's scratch.
    fn workspace(&self, call: &Call, float: Float) -> Bytes {
        let of_library = match self {
            Method::Algorithm(algorithm) | Method::EachGroup(algorithm, _) => algorithm.workspace,
            Method::Product(product) => product.workspace,
            Method::Columns(columns) => columns.workspace,
            Method::Planes(.., places) => Bytes(places[3]),
            Method::Own => return kernels::workspace_bytes(call, float),
        };
        of_library.max(kernels::after_library(call, float).1)
    }
}

/// The alternatives of one pass at one shape.
type Methods = Arc<Vec<Method>>;

/// What a machine has of the libraries.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// cuBLAS's file, or why there is none.
    pub cublas: Result<PathBuf, CudaError>,
    /// cuDNN's file and version, or why there is none.
    pub cudnn: Result<(PathBuf, (u32, u32, u32)), CudaError>,
}

/// Looks for them, and uses no device.
pub(super) fn look(search: &Search, driver: (u32, u32)) -> Found {
    Found { cublas: cublas::look(search, driver), cudnn: cudnn::look(search) }
}

/// The libraries of one context.
pub(super) struct Libraries {
    state: Mutex<LibraryState>,
    cudnn: Arc<Cudnn>,
    cublas: Cublas,
    precision: Precision,
    deterministic: bool,
    context: Arc<Context>,
}

/// What changes. Whoever holds it is alone with the libraries, as their handles ask.
#[derive(Default)]
struct LibraryState {
    known: HashMap<(Pass, ConvShape), Methods>,
    /// The stream that both enqueue on.
    stream: Option<usize>,
    /// A query that went wrong.
    failure: Option<Refusal>,
}

impl Libraries {
    /// Finds and starts them in a context, which is this thread's.
    pub(super) fn start(
        search: &Search,
        context: &Arc<Context>,
        driver: (u32, u32),
        capability: Capability,
        precision: Precision,
        deterministic: bool,
    ) -> Result<Libraries, CudaError> {
        // cuDNN uses cuBLAS, and finds the one that is loaded.
        let cublas = Cublas::start(search, context, driver, capability)?;
        let cudnn = Arc::new(Cudnn::start(search, context)?);
        let (major, minor, patch) = cudnn.version();
        tracing::debug!("cuBLAS `{}`", cublas.path().display());
        tracing::debug!("cuDNN {major}.{minor}.{patch} `{}`", cudnn.path().display());
        let (state, context) = (Mutex::default(), Arc::clone(context));
        Ok(Libraries { state, cudnn, cublas, precision, deterministic, context })
    }

    /// Their files: cuBLAS, cuDNN.
    pub(super) fn paths(&self) -> [PathBuf; 2] {
        [self.cublas.path().to_owned(), self.cudnn.path().to_owned()]
    }

    /// cuDNN's version, such as (9, 19, 0).
    pub(super) fn cudnn_version(&self) -> (u32, u32, u32) {
        self.cudnn.version()
    }

    /// What sets measurements of them apart from others.
    pub(super) fn words(&self) -> String {
        let (major, minor, patch) = self.cudnn.version();
        let precision = match self.precision {
            Precision::F32 => "",
            Precision::Tf32Convolutions => ", convolutions in TF32",
            Precision::Tf32 => ", TF32",
            Precision::Bf16 => ", bf16",
        };
        let deterministic = if self.deterministic { ", deterministic" } else { "" };
        format!("cuDNN {major}.{minor}.{patch}{precision}{deterministic}")
    }

    /// In what feature maps are stored.
    fn float(&self) -> Float {
        self.precision.feature_maps()
    }

    /// How a call can be run.
    pub(super) fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        let Some((pass, shape)) = convolution(call) else {
            return KernelAlternative::sole(kernels::workspace_bytes(call, self.float()));
        };
        let tf32 = self.precision.is_tf32(&shape);
        let alternative = |method: &Method| KernelAlternative {
            name: method.name(tf32),
            workspace: method.workspace(call, self.float()),
        };
        self.methods(&mut self.state(), pass, shape).iter().map(alternative).collect()
    }

    /// Enqueues an alternative of a call, with our own kernels that lay out its tensors by `launch`; whether that was a
    /// library's, so that only [`kernels::after_library`] is left to do.
    ///
    /// # Safety
    /// `addresses` are those of the call's operands, `workspace` of the scratch that the alternative asks for; all of it is
    /// live until the stream has come past it, and only what is ordered by events touches it.
    pub(super) unsafe fn enqueue(
        &self,
        stream: &CudaStream,
        call: &Call,
        alternative: u32,
        addresses: &[u64],
        workspace: u64,
        launch: &mut dyn FnMut(&[Grid]) -> Result<(), DeviceError>,
    ) -> Result<bool, DeviceError> {
        let Some((pass, shape)) = convolution(call) else { return Ok(false) };
        let Some((_, operands)) = Operands::of(call, addresses) else { return Ok(false) };
        let mut state = self.state();
        let methods = self.methods(&mut state, pass, shape);
        if matches!(methods.get(alternative as usize), None | Some(Method::Own)) {
            return Ok(false);
        }
        let failed = |refusal: Refusal| super::failed(call.name(), &refusal);
        self.turn_to(&mut state, stream).map_err(failed)?;
        let run = |algorithm: &Algorithm, operands: Operands| {
            // SAFETY: passed on to the caller: operands of a call have the shape that it says, and so have their groups, and
            // what our own kernels lay out of them in the scratch that was asked for.
            unsafe { self.cudnn.enqueue(algorithm, operands, workspace) }.map_err(failed)
        };
        let multiply = |product: &Product, operands: Operands| {
            let tf32 = self.precision.is_tf32(&shape);
            // SAFETY: as above.
            unsafe { self.cublas.enqueue(pass, product, tf32, operands, workspace) }.map_err(failed)
        };
        match &methods[alternative as usize] {
            Method::Algorithm(algorithm) => run(algorithm, operands)?,
            Method::EachGroup(algorithm, shape) => {
                (0..shape.groups).try_for_each(|group| run(algorithm, operands.of_group(shape, group)))?;
            }
            Method::Product(product) => multiply(product, operands)?,
            Method::Columns(columns) => {
                columns.steps(pass, call, self.float(), operands, workspace, |step| match step {
                    Step::Own(grids) => launch(&grids),
                    Step::Product(product, operands) => multiply(product, operands),
                })?;
            }
            Method::Planes(algorithm, shape, places) => {
                launch(&layout::to_planes(call, self.float(), shape, places))?;
                let [x, y, w] = [0, 1, 2].map(|tensor| workspace + places[tensor]);
                run(algorithm, Operands { x, w, y, accumulate: false })?;
                launch(&layout::from_planes(call, self.float(), shape, places, operands.accumulate))?;
            }
            Method::Own => {}
        }
        Ok(true)
    }

    /// What a query went wrong with, told once.
    pub(super) fn failure(&self) -> Option<Refusal> {
        self.state().failure.take()
    }

    /// A stream that they enqueued on, and that is idle, will be no more.
    pub(super) fn forget(&self, stream: &CudaStream) {
        let mut state = self.state();
        if state.stream == Some(stream.raw() as usize) {
            state.stream = None;
            if let Err(refusal) = self.cublas.set_stream(None).and_then(|()| self.cudnn.set_stream(None)) {
                tracing::debug!("while giving back: {refusal}");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, LibraryState> {
        // What it guards is whole at every moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn_to(&self, state: &mut LibraryState, stream: &CudaStream) -> Result<(), Refusal> {
        let handle = stream.raw() as usize;
        if state.stream != Some(handle) {
            state.stream = None;
            self.cublas.set_stream(Some(stream))?;
            self.cudnn.set_stream(Some(stream))?;
            state.stream = Some(handle);
        }
        Ok(())
    }

    fn methods(&self, state: &mut LibraryState, pass: Pass, shape: ConvShape) -> Methods {
        if let Some(known) = state.known.get(&(pass, shape)) {
            return Arc::clone(known);
        }
        let asked = self.context.enter().and_then(|()| self.ask(pass, &shape));
        let methods = Arc::new(asked.unwrap_or_else(|refusal| {
            tracing::warn!("{pass:?} of {shape:?}: {refusal}");
            state.failure.get_or_insert(refusal);
            vec![Method::Own]
        }));
        state.known.insert((pass, shape), Arc::clone(&methods));
        methods
    }

    /// Asks what there is for a pass at a shape.
    fn ask(&self, pass: Pass, shape: &ConvShape) -> Result<Vec<Method>, Refusal> {
        let product = Product::of(pass, shape, self.cublas.most());
        let mut methods = Vec::new();
        if shape.input != [1, 1] || product.is_none() {
            methods.extend(self.algorithms(pass, shape, Layout::Rows)?.into_iter().map(Method::Algorithm));
            methods.extend(also(pass, shape, self.each_group(pass, shape))?);
        }
        match product {
            Some(product) => methods.push(Method::Product(product)),
            None => methods.extend(Columns::of(pass, shape, self.cublas.most()).map(Method::Columns)),
        }
        if shape.input != [1, 1] {
            methods.extend(also(pass, shape, self.planes(pass, shape))?);
        }
        if methods.is_empty() {
            let kind = if self.deterministic { "deterministic " } else { "" };
            let precision = if self.precision.is_tf32(shape) { ", in f32" } else { "" };
            tracing::warn!(
                "cuDNN has no {kind}algorithm for {pass:?} of {shape:?}, which our own, slower kernel computes{precision}"
            );
        }
        methods.push(Method::Own);
        if self.deterministic {
            methods.truncate(1);
        }
        Ok(methods)
    }

    /// cuDNN's algorithms that may be offered.
    fn algorithms(&self, pass: Pass, shape: &ConvShape, layout: Layout) -> Result<Vec<Algorithm>, Refusal> {
        let mut found = self.cudnn.algorithms(pass, shape, layout, self.precision.is_tf32(shape))?;
        let mut first = layout == Layout::Rows;
        found.retain(|algorithm| {
            let is_first = std::mem::take(&mut first);
            if self.deterministic {
                algorithm.deterministic
            } else {
                is_first || algorithm.workspace <= MOST_SCRATCH
            }
        });
        Ok(found)
    }

    /// The first algorithm for one group of a grouped convolution, for each of them; none where a group's channels do not start
    /// where four numbers are loaded at once, and where groups are so many that each is small.
    fn each_group(&self, pass: Pass, shape: &ConvShape) -> Result<Option<Method>, Refusal> {
        let in_fours = |channels: u32| (channels / shape.groups.max(1)).is_multiple_of(4);
        let sound = (2..=MOST_GROUPS).contains(&shape.groups)
            && in_fours(shape.in_channels)
            && in_fours(shape.out_channels);
        if !sound {
            return Ok(None);
        }
        let found = self.algorithms(pass, shape, Layout::OneGroup)?;
        Ok(found.into_iter().next().map(|algorithm| Method::EachGroup(algorithm, *shape)))
    }

    /// The filter gradient by cuDNN's deterministic algorithms on planes.
    fn planes(&self, pass: Pass, shape: &ConvShape) -> Result<Vec<Method>, Refusal> {
        if pass != Pass::BackwardFilter || shape.groups > 1 {
            return Ok(Vec::new());
        }
        let found = self.algorithms(pass, shape, Layout::Planes)?;
        let ways = found.into_iter().filter(|algorithm| algorithm.deterministic).map(|algorithm| {
            let of_algorithm = algorithm.workspace.0.next_multiple_of(STORAGE_ALIGNMENT);
            let places = layout::planes(shape, self.float(), of_algorithm);
            Method::Planes(algorithm, *shape, places)
        });
        Ok(ways
            .filter(|way| matches!(way, Method::Planes(.., places) if places[3] <= MOST_SCRATCH.0))
            .collect())
    }
}

/// Ways that are there beside the usual ones: what is refused of these is left out, with a warning, unless the installation is
/// at fault.
fn also(
    pass: Pass,
    shape: &ConvShape,
    found: Result<impl IntoIterator<Item = Method>, Refusal>,
) -> Result<Vec<Method>, Refusal> {
    match found {
        Ok(found) => Ok(found.into_iter().collect()),
        Err(refusal) if cudnn::broken_installation(refusal.code).is_some() => Err(refusal),
        Err(refusal) => {
            tracing::warn!("one more way for {pass:?} of {shape:?} is left out: {refusal}");
            Ok(Vec::new())
        }
    }
}

/// The largest batch of these calls' network at which cuDNN takes all of its convolutions: it counts the elements of a tensor
/// in 31 bits, and a larger batch has other alternatives than those that smaller ones were measured in.
pub fn countable_batch<'a>(calls: impl IntoIterator<Item = &'a Call>) -> u64 {
    const ELEMENTS: u64 = (1 << 31) - 1;
    let elements = |channels: u32, [height, width]: [u32; 2]| {
        [channels, height, width].into_iter().fold(1u64, |all, n| all.saturating_mul(n.into()))
    };
    let of_sample = |shape: ConvShape| match shape.input {
        // Fully connected layers are cuBLAS's.
        [1, 1] => 1,
        input => elements(shape.in_channels, input).max(elements(shape.out_channels, shape.output)),
    };
    let shapes = calls.into_iter().filter_map(convolution);
    ELEMENTS / shapes.map(|(_, shape)| of_sample(shape)).max().unwrap_or(1).max(1)
}

/// A length as the libraries take it. The largest stands for those that no memory holds.
fn int(n: u32) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

/// Lengths as the libraries take them; none where one is more than they count.
fn ints<const N: usize>(lengths: [u64; N]) -> Option<[c_int; N]> {
    let mut found = [0; N];
    for (found, length) in found.iter_mut().zip(lengths) {
        *found = c_int::try_from(length).ok()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::network::Window;

    #[test]
    fn batches_are_counted_by_the_largest_feature_map() {
        let conv = |in_channels, out_channels, side| ConvShape {
            batch: 3,
            input: [side; 2],
            in_channels,
            output: [side; 2],
            out_channels,
            window: Window::square(3, 1, 1),
            groups: 1,
            bias: false,
        };
        let check = |shapes: &[ConvShape], expected: u64| {
            let calls: Vec<Call> = shapes.iter().map(|shape| Call::ConvForward { shape: *shape }).collect();
            assert_eq!(countable_batch(&calls), expected, "{shapes:?}");
        };
        // The first block of VGG-16.
        check(&[conv(3, 64, 224), conv(64, 64, 224), conv(64, 128, 112)], 668);
        check(&[conv(4096, 1000, 1)], (1 << 31) - 1);
        check(&[conv(64, 1, 224)], 668);
        check(&[], (1 << 31) - 1);
    }
}
