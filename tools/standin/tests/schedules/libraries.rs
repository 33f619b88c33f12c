//! The device `cuda`'s use of cuBLAS and cuDNN, on the stand-in: the alternatives of a call; every alternative computes the
//! same up to rounding; one deterministic alternative gives the same bits for any schedule; and handles and descriptors are
//! made before an iteration and given back.

use super::bodies::{BATCH, apart, bits, program_with, train};
use super::library::StandIn;
use super::support::{drawn, everything, keep, loaded, spec, training_in, zoo};
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};
use plimsoll_ir::program::{AttentionShape, Call, ConvShape, Program};
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_ir::{Bytes, Float, Precision, Seconds};
use plimsoll_networks::Builder;
use plimsoll_runtime::{
    Checkpoint, Cpu, CpuOptions, CudaDevice, CudaOptions, Device, Executor, MemoryLayout,
};
use plimsoll_testing::random_schedule;
use std::collections::BTreeSet;

/// Options for every alternative of every call.
fn all_alternatives(library: &StandIn) -> CudaOptions {
    CudaOptions { deterministic: false, ..library.options() }
}

fn open(options: &CudaOptions) -> CudaDevice {
    CudaDevice::open(options).expect("nothing stands in the way")
}

fn trained(network: &Network, program: &Program, schedule: &Schedule, options: &CudaOptions) -> Checkpoint {
    train(network, program, schedule, Box::new(open(options))).expect("it trains")
}

/// The schedule with alternative `k` of every op that has so many, and room for its scratch.
fn by_way(program: &Program, k: u32) -> Schedule {
    let mut leaning = program.clone();
    for op in &mut leaning.trace.ops {
        let of = op.alternatives.get(k as usize).map(|a| a.workspace_bytes);
        op.workspace_bytes = of.unwrap_or(op.workspace_bytes);
    }
    let mut schedule = keep(&leaning.trace);
    for command in &mut schedule.commands {
        let Command::Compute { op, alternative, .. } = command else { panic!("nothing is moved") };
        let alternatives = program.trace.ops[op.index()].alternatives.len() as u32;
        *alternative = Some(k).filter(|k| *k < alternatives);
    }
    schedule
}

/// Largest number of an op's alternatives other than the usual one.
fn most_alternatives(program: &Program) -> u32 {
    let most = program.trace.ops.iter().map(|op| op.alternatives.len()).max().unwrap_or_default();
    assert!(most >= 3, "{most}");
    most as u32
}

fn convolution(batch: u64, window: Window, image: u32, groups: u32) -> ConvShape {
    let side = (image + 2 * window.padding[0] - window.size[0]) / window.stride[0] + 1;
    let (input, output, in_channels, out_channels, bias) = ([image; 2], [side; 2], 8, 8, true);
    ConvShape { batch, input, in_channels, output, out_channels, window, groups, bias }
}

#[test]
fn a_call_has_the_same_ways_in_the_same_order_at_every_batch() {
    let Some(library) = StandIn::open() else { return };
    let device = open(&all_alternatives(&library));
    let deterministic = open(&library.options());
    let check = |window: Window, image, groups, expected: [&[&str]; 3]| {
        for batch in [3, 4] {
            let shape = convolution(batch, window, image, groups);
            let calls = [
                Call::ConvForward { shape },
                Call::ConvBackwardData { shape, accumulate: false },
                Call::ConvBackwardFilter { shape, accumulate: false },
            ];
            for (call, expected) in calls.iter().zip(expected) {
                assert_eq!(names_of(&device, call), expected, "{call:?}");
                let first = expected.iter().find(|name| !["algo_0", "algo_3"].contains(name));
                assert_eq!(names_of(&deterministic, call), first.copied().as_slice(), "{call:?}");
            }
        }
    };
    const FILTER: [&str; 8] = [
        "algo_1",
        "algo_0",
        "algo_3",
        "winograd_nonfused",
        "cublas_windows",
        "planes_algo_1",
        "planes_winograd_nonfused",
        "planes_fft",
    ];
    let forward = ["implicit_precomp_gemm", "implicit_gemm", "winograd_nonfused"];
    check(Window::square(3, 1, 1), 6, 1, [&forward, &["algo_1", "algo_0", "winograd_nonfused"], &FILTER]);
    let grouped: [&[&str]; 3] = [
        &["implicit_precomp_gemm", "implicit_gemm", "groups_implicit_precomp_gemm"],
        &["algo_1", "algo_0", "groups_algo_1"],
        &["algo_1", "algo_0", "algo_3", "groups_algo_1"],
    ];
    check(Window::square(3, 2, 1), 6, 2, grouped);
    // Groups of two channels do not start at a multiple of a four-number load.
    let few: [&[&str]; 3] =
        [&["implicit_precomp_gemm", "implicit_gemm"], &["algo_1", "algo_0"], &["algo_1", "algo_0", "algo_3"]];
    check(Window::square(3, 2, 1), 6, 4, few);
    // A one-pixel window, with a stride of two and of one.
    for (stride, way) in [(2, "cublas_windows"), (1, "cublas")] {
        let planes = ["planes_algo_1", "planes_fft"];
        let [forward, data, filter] = few.map(|of| [of, &[way]].concat());
        check(Window::square(1, stride, 0), 6, 1, [&forward, &data, &[&filter[..], &planes].concat()]);
    }
    check(Window::square(1, 1, 0), 1, 1, [&["cublas"]; 3]);
    let [forward, data, filter] = few.map(|of| [of, &["own"]].concat());
    // Depthwise.
    check(Window::square(3, 1, 1), 6, 8, [&forward, &data, &filter]);
    // The name of our own kernels includes their arithmetic if it differs from the others'.
    let last = |precision| {
        let shape = convolution(3, Window::square(3, 1, 1), 6, 8);
        let device = open(&CudaOptions { precision: Some(precision), ..all_alternatives(&library) });
        device.alternatives(&Call::ConvForward { shape }).pop().expect("there is always one").name
    };
    assert_eq!(last(Precision::F32), "own");
    assert_eq!([Precision::Tf32, Precision::Tf32Convolutions].map(last), ["own_f32"; 2]);
    let other = device.alternatives(&Call::ReluForward { elements: 5, ceiling: f32::INFINITY });
    assert_eq!(other.len(), 1);
}

/// Two depthwise convolutions.
fn depthwise() -> Network {
    let mut b = Builder::new(&spec("depthwise")).expect("the spec has no zeros");
    let mut x = b.conv("in", b.images(), 8, Window::square(1, 1, 0), false).expect("it fits");
    for (name, stride, bias) in [("first", 1, true), ("second", 2, false)] {
        let window = Window::square(3, stride, 1);
        x = b.add(name, LayerKind::Conv { out_channels: 8, window, groups: 8, bias }, &[x]).expect("it fits");
    }
    let logits = b.fully_connected("logits", x, 10).expect("it fits");
    b.finish(logits).expect("every layer is used")
}

/// Two layers of attention with these numbers of heads of queries, and of keys and values.
fn attention([heads, kv_heads]: [u32; 2], causal: bool) -> Network {
    let spec = NetworkSpec { name: "attention".to_owned(), image: [6, 1], channels: 3, classes: 5 };
    let mut b = Builder::new(&spec).expect("the spec has no zeros");
    let mut x = b.images();
    let pixel = Window::square(1, 1, 0);
    for layer in 0..2 {
        let qkv = b.conv(&format!("qkv{layer}"), x, 2 * (heads + 2 * kv_heads), pixel, true);
        let kind = LayerKind::Attention { heads, kv_heads, causal };
        x = b.add(&format!("attention{layer}"), kind, &[qkv.expect("it fits")]).expect("it fits");
    }
    let logits = b.conv("logits", x, 5, pixel, true).expect("it fits");
    b.finish(logits).expect("every layer is used")
}

#[test]
fn attention_by_batches_of_products_is_that_of_our_own_kernels() {
    let Some(library) = StandIn::open() else { return };
    let options = all_alternatives(&library);
    for (heads, causal) in [([1, 1], true), ([4, 4], false), ([4, 2], true), ([6, 1], false)] {
        let network = attention(heads, causal);
        let program = program_with(&open(&options), &network);
        let gradients = |way| {
            let (device, schedule) = (Box::new(open(&options)), by_way(&program, way));
            drawn::gradients(&network, &program, &schedule, device).expect("it runs")
        };
        // The first alternative of any call; and of attention, the one after it.
        let (by_cublas, by_own) = (gradients(u32::MAX), gradients(0));
        assert!(by_cublas != by_own, "{heads:?}: they add up in other orders");
        for ((name, found), (_, expected)) in drawn::numbers(&by_cublas).zip(drawn::numbers(&by_own)) {
            let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(near, "{heads:?}: `{name}` is {found:?}, and by our own kernels {expected:?}");
        }
    }
    let shape = AttentionShape { batch: 2, length: 3, heads: 2, kv_heads: 1, width: 8, causal: true };
    let names = |options: CudaOptions| -> Vec<String> {
        let calls = [Call::AttentionForward { shape }, Call::AttentionBackward { shape, accumulate: true }];
        let [forward, backward] = calls.map(|call| names_of(&open(&options), &call));
        assert_eq!(forward, backward);
        forward
    };
    assert_eq!(names(options.clone()), ["cublas", "own"]);
    assert_eq!(names(library.options()), ["cublas"]);
    assert_eq!(names(CudaOptions { precision: Some(Precision::Tf32), ..options }), ["cublas", "own_f32"]);
}

/// bf16 activations are rounded in different places if a sum has a different order: alternatives differ by that much more
/// than in f32, and from the CPU in bf16 by no more.
#[test]
fn every_way_computes_what_the_cpu_does_up_to_rounding() {
    let Some(library) = StandIn::open() else { return };
    for (feature_maps, precision, near) in
        [(Float::F32, Precision::F32, 0.0..1e-3), (Float::Bf16, Precision::Bf16, 1e-6..2e-2)]
    {
        let options = CudaOptions { precision: Some(precision), ..all_alternatives(&library) };
        for network in [everything(), depthwise()] {
            let program = program_with(&open(&options), &network);
            assert_eq!(program.feature_maps, feature_maps);
            let alternatives = most_alternatives(&program);
            let on_cpu = training_in(feature_maps, &network, BATCH);
            let cpu = Box::new(Cpu::new(CpuOptions { feature_maps, ..CpuOptions::default() }));
            let reference = train(&network, &on_cpu, &keep(&on_cpu.trace), cpu).expect("it trains");
            let mut seen = BTreeSet::new();
            let mut check = |what: &str, schedule: &Schedule, graphs: bool| {
                let found = trained(&network, &program, schedule, &CudaOptions { graphs, ..options.clone() });
                let off = apart(&found, &reference);
                assert!(near.contains(&off), "{what}: off by {off}");
                seen.insert(bits(&found).into_values().collect::<Vec<_>>());
            };
            check("the usual alternatives", &keep(&program.trace), true);
            (0..alternatives).for_each(|k| check(&format!("way {k}"), &by_way(&program, k), k % 2 == 0));
            for seed in (0..4).filter(|_| feature_maps == Float::F32) {
                check(&format!("random {seed}"), &random_schedule(&program.trace, seed), seed % 2 == 0);
            }
            let all = alternatives as usize;
            assert!(
                feature_maps == Float::Bf16 || seen.len() > all,
                "ways differ by rounding: {}",
                seen.len()
            );
        }
    }
}

/// Batches of products, and their widened operands, in networks of tokens.
#[test]
fn attention_in_bf16_computes_what_the_cpu_does_up_to_rounding() {
    let Some(library) = StandIn::open() else { return };
    let network = drawn::text();
    let cpu = CpuOptions { feature_maps: Float::Bf16, ..CpuOptions::default() };
    let train = |program: &Program, device: Box<dyn Device>| {
        drawn::train(&network, program, &keep(&program.trace), device, 5).expect("it trains")
    };
    let reference = train(&training_in(Float::Bf16, &network, BATCH), Box::new(Cpu::new(cpu)));
    let options = CudaOptions { precision: Some(Precision::Bf16), ..all_alternatives(&library) };
    let program = program_with(&open(&options), &network);
    // The first alternative of any call; and of attention, our own kernels.
    for way in [u32::MAX, 0] {
        let (schedule, device) = (by_way(&program, way), Box::new(open(&options)));
        let found = drawn::train(&network, &program, &schedule, device, 5).expect("it trains");
        for ((name, found), (_, expected)) in drawn::numbers(&found).zip(drawn::numbers(&reference)) {
            let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-2);
            assert!(near, "`{name}` by way {way} is not what the device cpu computes");
        }
    }
}

/// Each convolution and each product uses the arithmetic of the precision: the stand-in rounds by cuDNN's math type and
/// cuBLAS's compute type. The default is PyTorch's: only convolutions are coarser.
#[test]
fn tf32_is_coarser_where_it_is_asked_for() {
    let Some(library) = StandIn::open() else { return };
    let train = |network: &Network, precision: Option<Precision>| {
        let options = CudaOptions { precision, ..library.options() };
        let program = program_with(&open(&options), network);
        trained(network, &program, &keep(&program.trace), &options)
    };
    let all = [Some(Precision::F32), Some(Precision::F32), Some(Precision::Tf32), None];
    let [fine, again, coarse, usual] = all.map(|precision| train(&everything(), precision));
    assert!(bits(&fine) == bits(&again));
    assert!(bits(&usual) != bits(&coarse) && bits(&usual) != bits(&fine));
    for other in [&coarse, &usual] {
        let off = apart(&fine, other);
        assert!((1e-6..2e-2).contains(&off), "{off}");
    }
    assert_eq!(
        open(&CudaOptions { precision: None, ..library.options() }).facts().precision,
        Precision::Tf32Convolutions
    );
    let [fine, _, coarse, usual] = all.map(|precision| train(&zoo("mlp"), precision));
    assert!(bits(&usual) == bits(&fine), "a network of fully connected layers alone has no convolution");
    assert!(bits(&coarse) != bits(&fine));
}

#[test]
fn handles_and_descriptors_are_made_once_counted_and_given_back() {
    let Some(library) = StandIn::open() else { return };
    let network = everything();
    let calls = library.calls_of(|| {
        let first = open(&library.options());
        let free = first.free_memory().expect("it is known");
        let second = first.another().expect("nothing stands in the way");
        assert_eq!(second.free_memory().expect("it is known"), free, "it shares them");
        let program = program_with(&first, &network);
        let (mut executor, loaded) = loaded(second, &program, &keep(&program.trace));
        drop(first);
        (0..4).for_each(|_| executor.run(&loaded).expect("an iteration"));
    });
    let count = |name: &str| calls.get(name).copied().unwrap_or_default();
    assert_eq!((count("cudnnCreate"), count("cublasCreate_v2")), (1, 1));
    assert_eq!((count("cudnnDestroy"), count("cublasDestroy_v2")), (1, 1));
    for kind in ["Tensor", "Filter", "Convolution"] {
        let [made, gone] = ["Create", "Destroy"].map(|what| count(&format!("cudnn{what}{kind}Descriptor")));
        assert!(made > 0 && made == gone, "{kind}: {made} made, {gone} given back");
    }
    assert_eq!(count("default stream"), 0);
}

#[test]
fn what_the_libraries_take_is_not_free() {
    let Some(library) = StandIn::open() else { return };
    let device = open(&library.options());
    let free = device.free_memory().expect("it is known");
    let all = device.facts().memory.expect("it is a GPU");
    assert!(free + Bytes(2 << 20) <= all, "{free}, {all}");
}

#[test]
fn scratch_that_a_way_needs_is_asked_for_by_its_name() {
    let Some(library) = StandIn::open() else { return };
    let mut program = program_with(&open(&library.options()), &everything());
    let first = program.kernels.iter().position(|k| k.call.name() == "conv_forward").expect("there are some");
    program.trace.ops[first].workspace_bytes = Bytes::ZERO;
    let schedule = keep(&program.trace);
    let layout = MemoryLayout::of(&program, &schedule);
    let mut executor = Executor::new(Box::new(open(&library.options())), layout).expect("it is small");
    let error = executor.load(&program, &schedule).expect_err("it needs some").to_string();
    assert!(error.contains("workspace of `a.") && error.contains("by `implicit_precomp_gemm`"), "{error}");
}

/// Measurements carry these words, so that one fit does not mix those of different kernels.
#[test]
fn facts_tell_whose_kernels_they_are_of() {
    let Some(library) = StandIn::open() else { return };
    let check = |options: CudaOptions, ends: &str| {
        let system = open(&options).facts().system;
        assert!(system.ends_with(ends), "`{ends}` in: {system}");
    };
    check(library.options(), "CUDA driver 13.0, cuDNN 9.1.0, deterministic");
    check(all_alternatives(&library), ", cuDNN 9.1.0");
    let all = |precision| CudaOptions { precision, ..all_alternatives(&library) };
    check(all(Some(Precision::Tf32)), ", cuDNN 9.1.0, TF32");
    check(all(None), "9.1.0, convolutions in TF32");
    check(all(Some(Precision::Bf16)), ", cuDNN 9.1.0, bf16");
}

/// Names of a call's alternatives.
fn names_of(device: &CudaDevice, call: &Call) -> Vec<String> {
    device.alternatives(call).into_iter().map(|alternative| alternative.name).collect()
}

/// If cuDNN answers oddly about rare layouts, the usual alternatives stay.
#[test]
fn one_more_way_that_is_refused_oddly_is_left_out() {
    let Some(library) = StandIn::open() else { return };
    let shape = convolution(3, Window::square(3, 1, 1), 6, 1);
    let call = Call::ConvBackwardFilter { shape, accumulate: false };
    let all = names_of(&open(&all_alternatives(&library)), &call);
    let usual: Vec<String> = all.iter().filter(|name| !name.starts_with("planes_")).cloned().collect();
    assert!(usual.len() < all.len(), "{all:?}");
    for code in [2000, 4000, 5000] {
        // Earlier queries are for the usual layout, and for a single sample of it.
        library.answer(c"cudnnGetConvolutionBackwardFilterAlgorithm_v7", 2, code);
        assert_eq!(names_of(&open(&all_alternatives(&library)), &call), usual, "{code}");
    }
}

/// cuDNN uses one range of statuses both for an unsupported shape and for a missing part of itself.
#[test]
fn a_broken_cudnn_is_told_from_a_shape_that_it_does_not_take() {
    let Some(library) = StandIn::open() else { return };
    let call = Call::ConvForward { shape: convolution(3, Window::square(3, 1, 1), 6, 1) };
    let names = |device: &CudaDevice| names_of(device, &call);
    let all = names(&open(&all_alternatives(&library)));
    // For an unsupported shape, or an odd answer about one algorithm, the others serve.
    for code in [3000, 3002, 3010, 2000, 4000] {
        library.answer(c"cudnnGetConvolutionForwardWorkspaceSize", 0, code);
        assert_eq!(names(&open(&all_alternatives(&library))), all[1..], "{code}");
    }
    for (code, part) in [
        (3005, "update the driver"),
        (3006, "runtime"),
        (3007, "this GPU"),
        (3008, "cuBLASLt"),
        (3009, "install all of cuDNN again"),
    ] {
        let run = |answered_before: &dyn Fn(&str)| {
            let device = open(&library.options());
            answered_before("lowering");
            let mut program = program_with(&device, &everything());
            program.trace.ops.iter_mut().for_each(|op| op.seconds = Seconds(1e-6));
            let (mut executor, loaded) = loaded(device, &program, &keep(&program.trace));
            answered_before("the iteration");
            executor.run(&loaded).expect_err("not in silence").to_string()
        };
        // At the query, at the trial, and at the computation.
        for (call, moment) in [
            (c"cudnnGetConvolutionForwardWorkspaceSize", "lowering"),
            (c"cudnnConvolutionForward", "lowering"),
            (c"cudnnConvolutionForward", "the iteration"),
        ] {
            let error = run(&|now| {
                if now == moment {
                    library.answer(call, 0, code);
                }
            });
            assert!(error.contains(part) && error.contains("cannot work here"), "{code}, {moment}: {error}");
            assert!(!error.contains("lower the budget"), "{code}, {moment}: {error}");
        }
        library.answer(c"cudnnCreate", 0, code);
        let error = CudaDevice::open(&library.options()).err().expect("it does not start").to_string();
        assert!(error.contains(part) && error.contains("does not start"), "{code}: {error}");
    }
}

/// For any batch size, so that profile, plan and run have the same alternatives.
#[test]
fn an_algorithm_that_refuses_to_run_is_left_out() {
    let Some(library) = StandIn::open() else { return };
    let call = |batch| Call::ConvForward { shape: convolution(batch, Window::square(3, 1, 1), 6, 1) };
    let all = names_of(&open(&all_alternatives(&library)), &call(3));
    for (position, code) in [(0, 2000), (1, 3000), (2, 4000), (0, 5000)] {
        library.answer(c"cudnnConvolutionForward", position, code);
        let device = open(&all_alternatives(&library));
        let mut others = all.clone();
        others.remove(position as usize);
        for batch in [3, 4, 1] {
            assert_eq!(names_of(&device, &call(batch)), others, "{code} at {batch}");
        }
    }
    // The remaining alternatives train.
    let network = everything();
    library.answer(c"cudnnConvolutionForward", 0, 3000);
    let device = open(&library.options());
    let mut program = program_with(&device, &network);
    program.trace.ops.iter_mut().for_each(|op| op.seconds = Seconds(1e-6));
    train(&network, &program, &keep(&program.trace), Box::new(device)).expect("it trains");
}

/// Our own kernels do not replace a convolution that cuDNN refuses in every alternative.
#[test]
fn a_query_that_fails_is_the_failure_of_the_next_iteration() {
    let Some(library) = StandIn::open() else { return };
    let network = everything();
    for (code, words) in [
        (5000, "CUDNN_STATUS_EXECUTION_FAILED"),
        (3000, "cuDNN has no deterministic algorithm for this convolution in f32"),
    ] {
        library.answer(c"cudnnGetConvolutionForwardAlgorithm_v7", 0, code);
        let device = open(&library.options());
        let mut program = program_with(&device, &network);
        program.trace.ops.iter_mut().for_each(|op| op.seconds = Seconds(1e-6));
        let (mut executor, loaded) = loaded(device, &program, &keep(&program.trace));
        for _ in 0..2 {
            let error = executor.run(&loaded).expect_err("not in silence").to_string();
            assert!(error.contains("conv_forward") && error.contains(words), "{error}");
        }
    }
}
