//! NVIDIA's libraries as alternatives of a call: cuDNN's algorithms for convolutions, cuBLAS for those that are matrix
//! products.
//!
//! A convolution has, in this order: cuDNN's algorithms for its shape, in a fixed order for each pass; if grouped, cuDNN's
//! first algorithm for a single group, called for each group (`groups_...`); cuBLAS, if the windows are single pixels;
//! cuBLAS on windows written to scratch as rows of a matrix (`cublas_windows`, see `columns.rs`); for the filter gradient,
//! cuDNN's deterministic algorithms on planes (`planes_...`), to which the tensors are transposed; if depthwise, our own
//! kernel, which multiplies in f32 and is called `own_f32` if the others multiply in TF32. A fully connected layer has
//! cuBLAS. Attention has cuBLAS, by batches of products (`attention.rs`), and our own kernels. The order depends on no
//! measurement and no rank, so profile, plan and run name the same alternatives. An algorithm that needs more than
//! [`MOST_SCRATCH`] is left out unless it is the first. With `deterministic` a call has only one alternative: the first
//! deterministic one.
//!
//! The alternatives of a convolution are queried once for each shape and kept with its descriptors; algorithms that refuse
//! to run for a single sample are left out (`trials.rs`). The executor queries every launch when it loads a schedule, so no
//! descriptor is made in an iteration. Attention's launches follow from its shape, without a query.
//!
//! If activations are bf16, the libraries multiply bf16 numbers and sum in f32. Weights are first rounded to scratch. cuDNN
//! gives their gradient only in bf16, to scratch, from which it is widened; cuBLAS gives it in f32.
//!
//! Deliberately does not add a bias or sum its gradient, which our own kernels do, or fall back silently: if no alternative
//! is left, or a query fails with a status other than "not supported", the call fails when it is enqueued.

mod attention;
mod columns;
pub(super) mod cublas;
pub(super) mod cudnn;
mod trials;

use super::driver::{Context, CudaStream, given_back};
use super::error::{Capability, Refusal};
use super::kernels::attention::Step as AttentionStep;
use super::kernels::{self, Grid, layout};
use super::presence::Search;
use crate::error::Error;
use attention::Attention;
use columns::{Columns, Step};
use cublas::{Cublas, Product};
pub(super) use cudnn::broken_installation;
use cudnn::{Algorithm, Cudnn, Layout};
use plimsoll_ir::program::{Access, Call, ConvShape, KernelAlternative, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, Float, Precision};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trials::Trials;

/// Algorithms that need more scratch are offered only if they come first.
const MOST_SCRATCH: Bytes = Bytes(1 << 30);

/// Most groups that are called one by one.
const MOST_GROUPS: u32 = 64;

/// cuDNN's status for an unsupported request (cudnn_graph.h).
const NOT_SUPPORTED: u32 = 3000;

/// Bytes of one load by a kernel, at addresses that are multiples of it.
const LOADED: u64 = 16;

/// The three passes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    Forward,
    BackwardData,
    BackwardFilter,
}

/// Addresses of a convolution's tensors, including the one that the pass writes.
#[derive(Clone, Copy, Debug)]
struct Operands {
    /// x or dx.
    x: u64,
    /// The weights or their gradient.
    w: u64,
    /// y or dy.
    y: u64,
    /// `true` if the result is added to the tensor.
    accumulate: bool,
}

impl Operands {
    /// Operands of a convolution with these addresses.
    fn of(call: &Call, addresses: &[u64]) -> Operands {
        let operands = call.operands();
        let [x, w, y] = [("x", "dx"), ("weight", "dweight"), ("y", "dy")].map(|(value, gradient)| {
            addresses[operands.position(value).unwrap_or_else(|| operands.index(gradient))]
        });
        let accumulate = operands.iter().any(|operand| operand.access == Access::Update);
        Operands { x, w, y, accumulate }
    }

    /// Operands of one group: adjacent channels of x and y, and the group's weights, all in this format.
    fn of_group(self, shape: &ConvShape, float: Float, group: u32) -> Operands {
        let groups = u64::from(shape.groups.max(1));
        let [depth, filters] =
            [shape.in_channels, shape.out_channels].map(|channels| u64::from(channels) / groups);
        let weights = shape.window.size.iter().fold(depth * filters, |n, side| n * u64::from(*side));
        let at = |start: u64, numbers: u64| start + float.bytes() * numbers * u64::from(group);
        Operands { x: at(self.x, depth), w: at(self.w, weights), y: at(self.y, filters), ..self }
    }
}

/// Input precision of convolutions and matrix products; accumulation is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    F32,
    /// f32 numbers, of which tensor cores use 10 bits after the point.
    Tf32,
    /// Numbers stored in bf16.
    Bf16,
}

impl Arithmetic {
    fn of(precision: Precision, shape: &ConvShape) -> Arithmetic {
        match precision {
            Precision::Bf16 => Arithmetic::Bf16,
            _ if precision.is_tf32(shape) => Arithmetic::Tf32,
            _ => Arithmetic::F32,
        }
    }

    /// Storage format of the factors.
    fn factors(self) -> Float {
        if self == Arithmetic::Bf16 { Float::Bf16 } else { Float::F32 }
    }
}

/// Pass and shape of a convolution; `None` for other calls.
fn convolution(call: &Call) -> Option<(Pass, ConvShape)> {
    match *call {
        Call::ConvForward { shape } => Some((Pass::Forward, shape)),
        Call::ConvBackwardFilter { shape, .. } => Some((Pass::BackwardFilter, shape)),
        Call::ConvBackwardData { shape, .. } => Some((Pass::BackwardData, shape)),
        _ => None,
    }
}

/// Implementation of an alternative.
enum Method {
    Algorithm(Algorithm),
    /// An algorithm for one group, called for each.
    EachGroup(Algorithm),
    Product(Product),
    Columns(Columns),
    /// An algorithm for the filter gradient on planes, which start at these bytes of the scratch.
    Planes(Algorithm, [u64; 4]),
    Own,
}

impl Method {
    /// Its name; our own kernels' name includes the arithmetic if the others use a different one.
    fn name(&self, tf32: bool) -> String {
        match self {
            Method::Algorithm(algorithm) => algorithm.name.to_owned(),
            Method::EachGroup(algorithm) => format!("groups_{}", algorithm.name),
            Method::Product(_) => "cublas".to_owned(),
            Method::Columns(_) => "cublas_windows".to_owned(),
            Method::Planes(algorithm, _) => format!("planes_{}", algorithm.name),
            Method::Own if tf32 => "own_f32".to_owned(),
            Method::Own => "own".to_owned(),
        }
    }

    /// Scratch of the library's part; `None` if there is no such part.
    fn of_library(&self) -> Option<Bytes> {
        match self {
            Method::Algorithm(algorithm) | Method::EachGroup(algorithm) => Some(algorithm.workspace),
            Method::Product(product) => Some(product.workspace),
            Method::Columns(columns) => Some(columns.workspace),
            Method::Planes(_, places) => Some(Bytes(places[3])),
            Method::Own => None,
        }
    }

    /// Offset in scratch, after the library's scratch, of the weights or their gradient in the activations' format; `None`
    /// if the library uses them in place, or has them by planes.
    fn weights(&self, pass: Pass, float: Float) -> Option<u64> {
        let rounded = match self {
            Method::Algorithm(_) | Method::EachGroup(_) => true,
            Method::Product(_) | Method::Columns(_) => pass != Pass::BackwardFilter,
            Method::Planes(..) | Method::Own => false,
        };
        let behind = self.of_library()?.round_up(STORAGE_ALIGNMENT).0;
        (float != Float::F32 && rounded).then_some(behind)
    }

    /// Total scratch of a call with this method. Kernels after the library's part may reuse its scratch.
    fn workspace(&self, call: &Call, float: Float) -> Bytes {
        let (Some(of_library), Some((pass, shape))) = (self.of_library(), convolution(call)) else {
            return kernels::workspace_bytes(call, float);
        };
        let end = self.weights(pass, float).map(|at| Bytes(at) + layout::weights(&shape, float));
        end.unwrap_or(of_library).max(kernels::after_library(call, float).1)
    }
}

/// The alternatives of one pass at one shape, at least one; or why there is none.
type Methods = Result<Arc<Vec<Method>>, Refusal>;

/// The libraries of one context.
pub(super) struct Libraries {
    state: Mutex<LibraryState>,
    cudnn: Arc<Cudnn>,
    trials: Trials,
    cublas: Cublas,
    precision: Precision,
    deterministic: bool,
    context: Arc<Context>,
}

/// Mutable state. Its lock also serialises calls of the libraries, as their handles require.
#[derive(Default)]
struct LibraryState {
    known: HashMap<(Pass, ConvShape), Methods>,
    /// Stream of both libraries.
    stream: Option<usize>,
}

impl Libraries {
    /// Finds and starts the libraries in a context, which is this thread's.
    pub(super) fn start(
        search: &Search,
        context: &Arc<Context>,
        driver: (u32, u32),
        capability: Capability,
        precision: Precision,
        deterministic: bool,
    ) -> Result<Libraries, Error> {
        // cuDNN uses cuBLAS, and finds the loaded one.
        let cublas = Cublas::start(search, context, driver, capability)?;
        let cudnn = Arc::new(Cudnn::start(search, context)?);
        let (major, minor, patch) = cudnn.version();
        tracing::debug!("cuBLAS `{}`", cublas.path().display());
        tracing::debug!("cuDNN {major}.{minor}.{patch} `{}`", cudnn.path().display());
        let (state, trials, context) = (Mutex::default(), Trials::new(context)?, Arc::clone(context));
        Ok(Libraries { state, cudnn, trials, cublas, precision, deterministic, context })
    }

    /// Properties on which measurements of the libraries depend.
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

    /// Storage format of activations.
    fn float(&self) -> Float {
        self.precision.feature_maps()
    }

    /// Alternatives of a call. A call that nothing computes has one alternative, which fails.
    pub(super) fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        let Some((pass, shape)) = convolution(call) else {
            return self.other_alternatives(call);
        };
        let tf32 = self.precision.is_tf32(&shape);
        let alternative = |method: &Method| KernelAlternative {
            name: method.name(tf32),
            workspace: method.workspace(call, self.float()),
        };
        match self.methods(&mut self.state(), pass, shape) {
            Ok(methods) => methods.iter().map(alternative).collect(),
            Err(_) => KernelAlternative::sole(Bytes::ZERO),
        }
    }

    /// Returns `true` if cuBLAS multiplies attention's f32 numbers in TF32, which represents widened bf16 exactly.
    fn attends_in_tf32(&self) -> bool {
        matches!(self.precision, Precision::Tf32 | Precision::Bf16)
    }

    /// Alternatives of a call that is not a convolution.
    fn other_alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        let own = kernels::workspace_bytes(call, self.float());
        let Some(products) = Attention::of(call, self.float(), self.cublas.most()) else {
            return KernelAlternative::sole(own);
        };
        let name = if self.attends_in_tf32() { "own_f32" } else { "own" };
        let cublas = KernelAlternative { name: "cublas".to_owned(), workspace: products.workspace() };
        let own = KernelAlternative { name: name.to_owned(), workspace: own };
        if self.deterministic { vec![cublas] } else { vec![cublas, own] }
    }

    /// Enqueues cuBLAS's alternative of a call that is not a convolution, as [`Libraries::enqueue`] does.
    ///
    /// # Safety
    /// As for [`Libraries::enqueue`].
    unsafe fn enqueue_other(
        &self,
        stream: &CudaStream,
        call: &Call,
        alternative: u32,
        addresses: &[u64],
        workspace: u64,
        launch: &mut dyn FnMut(&[Grid]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        if alternative > 0 {
            return Ok(false);
        }
        let Some(attention) = Attention::of(call, self.float(), self.cublas.most()) else { return Ok(false) };
        let failed = |refusal: Refusal| super::failed(call.name(), &refusal);
        let mut state = self.state();
        self.turn_to(&mut state, stream).map_err(failed)?;
        let tf32 = self.attends_in_tf32();
        let (at, bytes) = attention.of_cublas;
        for step in &attention.steps {
            match step {
                AttentionStep::Own(grids) => launch(grids)?,
                AttentionStep::Product(product) => {
                    attention::batches(product, addresses, workspace, |batch, addresses| {
                        // SAFETY: passed on to the caller: the products' matrices lie in operands of the call's shape, and
                        // in the scratch that was requested.
                        unsafe { self.cublas.enqueue_batch(batch, tf32, addresses, (workspace + at, bytes)) }
                    })
                    .map_err(failed)?;
                }
            }
        }
        Ok(true)
    }

    /// Enqueues an alternative of a call, with our own layout kernels by `launch`. Returns `true` if a library computed it,
    /// so that only [`kernels::after_library`] is left to do.
    ///
    /// # Safety
    /// `addresses` are those of the call's operands, `workspace` of the alternative's scratch. All of it is live until the
    /// stream has passed the call, and only accesses ordered by events touch it.
    pub(super) unsafe fn enqueue(
        &self,
        stream: &CudaStream,
        call: &Call,
        alternative: u32,
        addresses: &[u64],
        workspace: u64,
        launch: &mut dyn FnMut(&[Grid]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let Some((pass, shape)) = convolution(call) else {
            // SAFETY: passed on to the caller.
            return unsafe { self.enqueue_other(stream, call, alternative, addresses, workspace, launch) };
        };
        let failed = |refusal: Refusal| super::failed(call.name(), &refusal);
        let mut state = self.state();
        let methods = self.methods(&mut state, pass, shape);
        let methods = methods.map_err(|why| Error::failed(Stream::Compute, call.name(), why))?;
        let (method, float) = (&methods[alternative as usize], self.float());
        if matches!(method, Method::Own) {
            return Ok(false);
        }
        self.turn_to(&mut state, stream).map_err(failed)?;
        let arithmetic = Arithmetic::of(self.precision, &shape);
        let weights = method.weights(pass, float);
        let mut operands = Operands::of(call, addresses);
        let accumulate = operands.accumulate;
        if let Some(at) = weights {
            operands.w = workspace + at;
            // The gradient is accumulated when it is widened.
            operands.accumulate &= pass != Pass::BackwardFilter;
            if pass != Pass::BackwardFilter {
                launch(&layout::round_weights(call, float, at))?;
            }
        }
        let run = |algorithm: &Algorithm, operands: Operands| {
            // SAFETY: passed on to the caller: operands of a call have its shape, and so have their groups and the layouts
            // that our own kernels write to the requested scratch.
            unsafe { self.cudnn.enqueue(algorithm, operands, workspace) }
                .map_err(|refusal| failed(self.cudnn.explained(refusal)))
        };
        let multiply = |product: &Product, operands: Operands| {
            let is_map = match pass {
                Pass::Forward => true,
                // From laid-out windows: f32 numbers that the input gradient is then summed from.
                Pass::BackwardData => matches!(method, Method::Product(_)),
                Pass::BackwardFilter => false,
            };
            let results = if is_map { float } else { Float::F32 };
            // SAFETY: as above.
            unsafe { self.cublas.enqueue(pass, product, arithmetic, results, operands, workspace) }
                .map_err(failed)
        };
        match method {
            Method::Algorithm(algorithm) => run(algorithm, operands)?,
            Method::EachGroup(algorithm) => {
                (0..shape.groups)
                    .try_for_each(|group| run(algorithm, operands.of_group(&shape, float, group)))?;
            }
            Method::Product(product) => multiply(product, operands)?,
            Method::Columns(columns) => {
                columns.steps(pass, call, float, operands, workspace, |step| match step {
                    Step::Own(grids) => launch(&grids),
                    Step::Product(product, operands) => multiply(product, operands),
                })?;
            }
            Method::Planes(algorithm, places) => {
                launch(&layout::to_planes(call, float, &shape, places))?;
                let [x, y, w] = [0, 1, 2].map(|tensor| workspace + places[tensor]);
                run(algorithm, Operands { x, w, y, accumulate: false })?;
                launch(&layout::from_planes(call, float, &shape, places, operands.accumulate))?;
            }
            Method::Own => {}
        }
        if let Some(at) = weights.filter(|_| pass == Pass::BackwardFilter) {
            launch(&layout::widen_gradient(call, float, at, accumulate))?;
        }
        Ok(true)
    }

    /// Reason why one of the requested calls has no alternative; `None` if all have some.
    pub(super) fn failure(&self) -> Option<Refusal> {
        self.state().known.values().find_map(|methods| methods.as_ref().err().cloned())
    }

    /// Forgets a stream that the libraries enqueued on; it is idle, and about to end.
    pub(super) fn forget(&self, stream: &CudaStream) {
        let mut state = self.state();
        if state.stream == Some(stream.raw() as usize) {
            state.stream = None;
            given_back(self.cublas.set_stream(None).and_then(|()| self.cudnn.set_stream(None)));
        }
    }

    fn state(&self) -> MutexGuard<'_, LibraryState> {
        // The guarded value is consistent at every moment.
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
            return known.clone();
        }
        // Trials unset cuDNN's stream.
        state.stream = None;
        let asked = self.context.enter().and_then(|()| self.ask(pass, &shape));
        let asked = asked.inspect_err(|refusal| tracing::warn!("{pass:?} of {shape:?}: {refusal}"));
        let methods = asked.map(Arc::new);
        state.known.insert((pass, shape), methods.clone());
        methods
    }

    /// Queries the methods for a pass at a shape.
    fn ask(&self, pass: Pass, shape: &ConvShape) -> Result<Vec<Method>, Refusal> {
        let product = Product::of(pass, shape, self.cublas.most());
        let mut methods = Vec::new();
        if shape.input != [1, 1] || product.is_none() {
            methods.extend(self.algorithms(pass, shape, Layout::Rows)?.into_iter().map(Method::Algorithm));
            methods.extend(also(pass, shape, self.each_group(pass, shape))?);
        }
        match product {
            Some(product) => methods.push(Method::Product(product)),
            None => {
                let columns = Columns::of(pass, shape, self.float(), self.cublas.most());
                methods.extend(columns.map(Method::Columns));
            }
        }
        if shape.input != [1, 1] {
            methods.extend(also(pass, shape, self.planes(pass, shape))?);
        }
        if kernels::is_depthwise(shape) {
            methods.push(Method::Own);
        }
        if methods.is_empty() {
            let kind = if self.deterministic { "deterministic " } else { "" };
            let text = format!("cuDNN has no {kind}algorithm for this convolution in {}", self.precision);
            let (call, name) = ("the choice of algorithms", "CUDNN_STATUS_NOT_SUPPORTED".to_owned());
            return Err(Refusal { call, code: NOT_SUPPORTED, name, text });
        }
        if self.deterministic {
            methods.truncate(1);
        }
        Ok(methods)
    }

    /// cuDNN's algorithms that may be offered.
    fn algorithms(&self, pass: Pass, shape: &ConvShape, layout: Layout) -> Result<Vec<Algorithm>, Refusal> {
        let arithmetic = Arithmetic::of(self.precision, shape);
        let listed = self.cudnn.algorithms(pass, shape, layout, arithmetic)?;
        let of = (pass, shape, layout, arithmetic);
        let mut found = self.trials.without_refused(&self.cudnn, listed, of)?;
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

    /// The first algorithm for one group of a grouped convolution, called for each; `None` if a group's channels do not
    /// start at a multiple of [`LOADED`] bytes, or if there are so many groups that each is small.
    fn each_group(&self, pass: Pass, shape: &ConvShape) -> Result<Option<Method>, Refusal> {
        let at_once = LOADED / self.float().bytes();
        let starts = |channels: u32| u64::from(channels / shape.groups.max(1)).is_multiple_of(at_once);
        let sound = (2..=MOST_GROUPS).contains(&shape.groups)
            && starts(shape.in_channels)
            && starts(shape.out_channels);
        if !sound {
            return Ok(None);
        }
        let found = self.algorithms(pass, shape, Layout::OneGroup)?;
        Ok(found.into_iter().next().map(Method::EachGroup))
    }

    /// The filter gradient by cuDNN's deterministic algorithms on planes.
    fn planes(&self, pass: Pass, shape: &ConvShape) -> Result<Vec<Method>, Refusal> {
        if pass != Pass::BackwardFilter || shape.groups > 1 {
            return Ok(Vec::new());
        }
        let found = self.algorithms(pass, shape, Layout::Planes)?;
        let way = |algorithm: Algorithm| {
            let of_algorithm = algorithm.workspace.0.next_multiple_of(STORAGE_ALIGNMENT);
            let places = layout::planes(shape, self.float(), of_algorithm);
            (algorithm.deterministic && places[3] <= MOST_SCRATCH.0)
                .then_some(Method::Planes(algorithm, places))
        };
        Ok(found.into_iter().filter_map(way).collect())
    }
}

/// Optional methods: refused ones are left out, with a warning, unless the installation is at fault.
fn also(
    pass: Pass,
    shape: &ConvShape,
    found: Result<impl IntoIterator<Item = Method>, Refusal>,
) -> Result<Vec<Method>, Refusal> {
    match found {
        Ok(found) => Ok(found.into_iter().collect()),
        Err(refusal) if broken_installation(refusal.code).is_some() => Err(refusal),
        Err(refusal) => {
            tracing::warn!("one more way for {pass:?} of {shape:?} is left out: {refusal}");
            Ok(Vec::new())
        }
    }
}

/// Largest batch of these calls' network that cuDNN accepts for all convolutions. It counts the elements of a tensor in 31
/// bits, and a larger batch has alternatives other than those measured with smaller ones.
pub fn countable_batch<'a>(calls: impl IntoIterator<Item = &'a Call>) -> u64 {
    const ELEMENTS: u64 = (1 << 31) - 1;
    let elements = |channels: u32, [height, width]: [u32; 2]| {
        [channels, height, width].into_iter().fold(1u64, |all, n| all.saturating_mul(n.into()))
    };
    let of_sample = |shape: ConvShape| match shape.input {
        // Fully connected layers use cuBLAS.
        [1, 1] => 1,
        input => elements(shape.in_channels, input).max(elements(shape.out_channels, shape.output)),
    };
    let shapes = calls.into_iter().filter_map(convolution);
    ELEMENTS / shapes.map(|(_, shape)| of_sample(shape)).max().unwrap_or(1).max(1)
}

/// A length in the libraries' integers. The maximum stands for lengths that no memory holds.
fn int(n: u32) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

/// Lengths in the libraries' integers; `None` if one does not fit.
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
