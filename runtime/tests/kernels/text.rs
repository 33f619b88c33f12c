//! The text of the CUDA kernels, compiled by the machine's C compiler and run here: thread by thread and block by block, in
//! ascending and in descending order, on a device's operands and workspace.
//!
//! So the launches of every call, their arguments, and the kernels' results are tested without a GPU. This does not cover a
//! GPU's own rounding of `expf`, `logf` and `powf`, or threads that run at the same time.
//!
//! Deliberately does not imitate a driver; the stand-in library does.

// The interface is not public: the kernels are the device's own. Their text is the same wherever it is compiled.
#[path = "../../src/cuda/kernels/mod.rs"]
pub mod kernels;

use kernels::attention::Step;
use kernels::{Argument, Grid};
use plimsoll_ir::Float;
use plimsoll_ir::network::Window;
use plimsoll_ir::program::{After, AttentionShape, Call, ConvShape, RotaryShape, RowShape};
use plimsoll_testing::every_call;
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::fmt::Write;
use std::io::ErrorKind;
use std::process::Command;
use std::sync::OnceLock;

/// Runs all threads of a launch: blocks, threads of a block, a flag for descending order, addresses of the arguments.
type Launcher = unsafe extern "C" fn(u32, u32, u32, *const *const c_void);

/// Order of threads. They are independent of one another, so it must not affect results.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    Ascending,
    Descending,
}

/// Compiled kernels by name: the types of their parameters, and their launchers.
pub struct Text {
    /// Storage format of activations.
    float: Float,
    kernels: HashMap<String, (Vec<String>, Launcher)>,
}

/// Kernels' names and the types of their parameters, as in the text.
pub fn signatures(source: &str) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for piece in source.split("\nKERNEL(").skip(1) {
        let (name, rest) = piece.split_once(", (").expect("a kernel has a name, then its parameters");
        let (parameters, _) = rest.split_once("))").expect("parameters end");
        let kind = |parameter: &str| {
            let parameter = parameter.split_whitespace().collect::<Vec<_>>().join(" ");
            let name =
                parameter.rfind(|c: char| !c.is_alphanumeric() && c != '_').expect("a type and a name");
            parameter[..=name].trim().to_owned()
        };
        all.push((name.to_owned(), parameters.split(',').map(kind).collect()));
    }
    all
}

/// The source, followed by a launcher for each kernel.
fn with_launchers(float: Float) -> String {
    let mut text = kernels::source(float);
    for (name, types) in signatures(&text.clone()) {
        let arguments: Vec<String> =
            types.iter().enumerate().map(|(i, kind)| format!("*({kind} const *)arguments[{i}]")).collect();
        write!(
            text,
            "\nvoid launch_{name}(unsigned blocks, unsigned threads, unsigned backwards, void *const *arguments) {{
    THREADS = threads;
    u64 all = (u64)blocks * threads;
    for (u64 i = 0; i < all; i++) {{
        u64 t = backwards ? all - 1 - i : i;
        BLOCK_X = (unsigned)(t / threads);
        THREAD = (unsigned)(t % threads);
        {name}({});
    }}
}}
",
            arguments.join(", ")
        )
        .expect("a string takes all");
    }
    text
}

/// Kernels for this storage of activations, compiled once for all tests; `None`, with a message, without a C compiler.
pub fn text(float: Float) -> Option<&'static Text> {
    static TEXTS: [OnceLock<Option<Text>>; 2] = [OnceLock::new(), OnceLock::new()];
    TEXTS[float as usize].get_or_init(|| compile(float)).as_ref()
}

fn compile(float: Float) -> Option<Text> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, library) = (folder.path().join("kernels.c"), folder.path().join("kernels.so"));
    let text = with_launchers(float);
    std::fs::write(&source, &text).expect("the folder takes a file");
    let flags =
        ["-std=c11", "-O2", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared"];
    let said = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&library).arg("-lm").output();
    let said = match said {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: the text of the CUDA kernels is not run, as there is no C compiler `cc`");
            return None;
        }
        said => said.expect("cc starts"),
    };
    assert!(said.status.success(), "cc: {}", String::from_utf8_lossy(&said.stderr));
    // SAFETY: our own text, which has no initialisers. It stays loaded as long as the process lives.
    let library: &'static libloading::Library =
        Box::leak(Box::new(unsafe { libloading::Library::new(&library) }.expect("the library loads")));
    let kernels = signatures(&text).into_iter().map(|(name, types)| {
        // SAFETY: this is the type with which the launchers are written above.
        let launcher = unsafe { library.get::<Launcher>(format!("launch_{name}").as_bytes()) };
        let launcher = *launcher.expect("every kernel has its launcher");
        (name, (types, launcher))
    });
    Some(Text { float, kernels: kernels.collect() })
}

impl Text {
    /// Computes a call.
    ///
    /// # Safety
    /// As `plimsoll_runtime::cpu::kernels::run`.
    pub unsafe fn run(&self, call: &Call, operands: &[*mut u8], workspace: *mut u8, order: Order) {
        for grid in kernels::grids(call, self.float) {
            // SAFETY: passed on.
            unsafe { self.launch(&grid, operands, workspace, order) };
        }
    }

    /// One launch.
    ///
    /// # Safety
    /// As [`Text::run`].
    unsafe fn launch(&self, grid: &Grid, operands: &[*mut u8], workspace: *mut u8, order: Order) {
        let (types, launcher) =
            self.kernels.get(grid.kernel).unwrap_or_else(|| panic!("there is no kernel {}", grid.kernel));
        assert_eq!(types.len(), grid.arguments.len(), "arguments of {}", grid.kernel);
        assert!(grid.blocks[0] > 0 && grid.blocks[1..] == [1, 1] && (1..=256).contains(&grid.threads));
        // Eight bytes each; the shorter types use the first of them.
        let mut values = Vec::new();
        for (kind, argument) in types.iter().zip(&grid.arguments) {
            let (bytes, fits) = match *argument {
                Argument::Operand(i) => ((operands[i] as u64).to_le_bytes(), kind.ends_with('*')),
                Argument::Workspace(at) => {
                    assert_eq!(at % 256, 0, "scratch of {}", grid.kernel);
                    let address = workspace.wrapping_add(at as usize);
                    ((address as u64).to_le_bytes(), kind.ends_with('*'))
                }
                Argument::U32(n) => (u64::from(n).to_le_bytes(), kind == "unsigned"),
                Argument::U64(n) => (n.to_le_bytes(), kind == "unsigned long long"),
                Argument::F32(v) => (u64::from(v.to_bits()).to_le_bytes(), kind == "float"),
            };
            assert!(fits, "{} takes a `{kind}` where it is given {argument:?}", grid.kernel);
            values.push(bytes);
        }
        let addresses: Vec<*const c_void> = values.iter().map(|v| v.as_ptr().cast()).collect();
        let backwards = u32::from(matches!(order, Order::Descending));
        // SAFETY: the arguments have the kernel's types; the caller's promise covers the memory that they point at.
        unsafe { launcher(grid.blocks[0], grid.threads, backwards, addresses.as_ptr()) };
    }
}

/// A small call of each kind; and calls that use other kernels: a depthwise convolution, sums of many rows, an update that
/// leaves its parameter as it is.
fn calls() -> Vec<Call> {
    let shape = ConvShape {
        batch: 2,
        input: [3; 2],
        in_channels: 4,
        output: [3; 2],
        out_channels: 4,
        window: Window::square(3, 1, 1),
        groups: 4,
        bias: true,
    };
    let long = RowShape { rows: 9000, channels: 5 };
    let accumulate = false;
    let mut all = every_call();
    all.extend([
        Call::ConvForward { shape },
        Call::ConvBackwardFilter { shape, accumulate },
        Call::ConvBackwardData { shape, accumulate },
        Call::BatchNormForward { shape: long, epsilon: 1e-5, then: After::default() },
        Call::BatchNormBackward { shape: long, then: After::default(), accumulate },
        Call::BiasBackward { shape: long, accumulate },
    ]);
    all
}

/// Launches around a library's part of a convolution that takes its tensors in a different layout.
fn around_library(call: &Call, float: Float) -> Vec<Grid> {
    use kernels::layout::{from_planes, gather_windows, planes, scatter_pixels, to_planes};
    use kernels::layout::{round_weights, weights, widen_gradient};
    match *call {
        Call::ConvBackwardFilter { shape, accumulate } => {
            let places = planes(&shape, float, 256);
            let planes = [
                to_planes(call, float, &shape, &places),
                from_planes(call, float, &shape, &places, accumulate),
            ];
            let windows = gather_windows(call, float, &shape, [0, shape.batch], 0);
            let widened = match float {
                Float::F32 => Vec::new(),
                Float::Bf16 => widen_gradient(call, float, 0, accumulate),
            };
            [planes.concat(), windows, widened].concat()
        }
        Call::ConvBackwardData { shape, accumulate } => {
            scatter_pixels(call, float, &shape, [0, shape.batch], 0, accumulate)
        }
        Call::ConvForward { shape } if float == Float::Bf16 => {
            let of_weight = call.operands()[call.operands().index("weight")].bytes;
            assert_eq!(2 * weights(&shape, float).0, of_weight.0, "{call:?}");
            round_weights(call, float, 0)
        }
        _ => Vec::new(),
    }
}

/// Checks that every kernel is used, and that every call has launches, or a library's with ours around them.
#[test]
fn every_kernel_serves_a_call_and_every_call_has_kernels() {
    for float in [Float::F32, Float::Bf16] {
        let launched = calls().into_iter().map(|call| {
            let served = kernels::serve(&call);
            let mut grids = if served { kernels::grids(&call, float) } else { Vec::new() };
            assert_eq!(!grids.is_empty(), served, "{call:?}");
            grids.extend(kernels::after_library(&call, float).0);
            grids.extend(around_library(&call, float));
            grids.iter().map(|grid| grid.kernel.to_owned()).collect::<BTreeSet<_>>()
        });
        let launched: BTreeSet<String> = launched.flatten().collect();
        let written: BTreeSet<String> =
            signatures(&kernels::source(float)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(launched, written, "{float:?}");
    }
}

/// A library computes attention's products; all other launches, and their scratch, are ours in both alternatives.
#[test]
fn a_library_leaves_all_of_attention_but_its_products() {
    let shape = AttentionShape { batch: 3, length: 2000, heads: 4, kv_heads: 2, width: 8, causal: true };
    let calls =
        [(Call::AttentionForward { shape }, 2), (Call::AttentionBackward { shape, accumulate: true }, 5)];
    for ((call, of_block), float) in calls.into_iter().flat_map(|of| [(of, Float::F32), (of, Float::Bf16)]) {
        let (steps, scratch) = kernels::attention::steps(&call, float).expect("it is attention");
        let (mut own, mut products) = (Vec::new(), 0);
        for step in steps {
            match step {
                Step::Own(grids) => own.extend(grids),
                Step::Product(product) => products += product.groups,
            }
        }
        let mut rest = kernels::grids(&call, float);
        rest.retain(|grid| grid.kernel != "attention_product");
        assert_eq!(own, rest, "{call:?}");
        assert_eq!(scratch, kernels::workspace_bytes(&call, float));
        assert_eq!(products, of_block * shape.batch * shape.kv_heads);
    }
}

/// Checks that a call of impossible size neither overflows nor needs little scratch.
#[test]
fn shapes_beyond_all_memory_ask_for_more_than_there_is() {
    let most = u64::MAX;
    let shape = RowShape { rows: most, channels: most };
    let heads = AttentionShape { batch: 1, length: most, heads: 1, kv_heads: 1, width: most, causal: false };
    let turned = RotaryShape { batch: most, length: most, channels: most, width: most };
    for call in [
        Call::BatchNormForward { shape, epsilon: 0.1, then: After::default() },
        Call::BatchNormBackward { shape, then: After::default(), accumulate: false },
        Call::LayerNormForward { shape, epsilon: 0.1 },
        Call::LayerNormBackward { shape, accumulate: false },
        Call::RmsNormForward { shape, epsilon: 0.1 },
        Call::RmsNormBackward { shape, accumulate: false },
        Call::SoftmaxCrossEntropyForward { shape },
        Call::BiasBackward { shape, accumulate: true },
        Call::AttentionForward { shape: heads },
        Call::AttentionBackward { shape: heads, accumulate: true },
        Call::RotaryForward { shape: turned, base: 1e4 },
    ] {
        for float in [Float::F32, Float::Bf16] {
            assert!(kernels::workspace_bytes(&call, float).0 > 1 << 60, "{call:?}");
        }
    }
}
