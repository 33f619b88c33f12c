//! Proves lowered programs correct by running them on symbols.
//!
//! The machine keeps the term of every tensor and every resident region, and runs each kernel on terms. `reference` derives
//! the correct value of every parameter from the network alone, by the chain rule, and knows nothing of the lowering. If an
//! op read a tensor that was overwritten, or a gradient were summed twice, in the wrong place or not at all, some term would
//! differ. Terms are numbered, so equal terms have equal numbers.

mod machine;
mod reference;
mod terms;

use self::machine::Machine;
use self::reference::Reference;
use self::terms::Terms;
use plimsoll_ir::document::Document;
use plimsoll_ir::network::{Axis, Extent, Function, Layer, LayerKind, Network, NetworkSpec, Shape, Window};
use plimsoll_ir::program::{Kernel, KernelAlternative, Operand, Program, Region, Role, STORAGE_ALIGNMENT};
use plimsoll_ir::trace::{Op, Phase, TensorKind};
use plimsoll_ir::{Bytes, Float, LayerId, Optimizer};
use plimsoll_networks::{Builder, LowerOptions, Mode, NetworkError, ReluStorage, build, lower};
use proptest::prelude::*;

const RELU: [ReluStorage; 3] = [ReluStorage::Auto, ReluStorage::Output, ReluStorage::Mask];

/// Returns combinations of ReLU storage, fusing and intra-layer reuse: all, except fusing without reuse, since fused ops have
/// no order to vary.
fn ways() -> impl Iterator<Item = (ReluStorage, bool, bool)> {
    RELU.into_iter().flat_map(|relu| [(relu, false, true), (relu, true, true), (relu, false, false)])
}

/// Lowers in every way and proves each. Returns the number of gradients whose order was checked.
fn check(network: &Network, batch: u64) -> usize {
    let mut layouts = Vec::new();
    let mut ordered = 0;
    for (relu, fuse, intra_layer_reuse) in ways() {
        for mode in [Mode::Train, Mode::Evaluate] {
            let other = KernelAlternative { name: "other".into(), workspace: Bytes(300) };
            let alternatives = |_: &_| [KernelAlternative::sole(Bytes(100)), vec![other.clone()]].concat();
            let alternatives = &alternatives;
            let defaults = LowerOptions::default();
            let options = LowerOptions { mode, relu, fuse, intra_layer_reuse, alternatives, ..defaults };
            let program = lower(network, batch, &options).expect("it lowers");
            program.trace.validate().expect("the trace is sound");
            check_form(&program);
            ordered += check_order(&program, intra_layer_reuse);
            let options = LowerOptions { feature_maps: Float::Bf16, ..options };
            check_stored_in_half(&program, &lower(network, batch, &options).expect("it lowers"));
            prove(network, batch, mode, &program);
            if !fuse && intra_layer_reuse {
                let options =
                    LowerOptions { optimizer: Optimizer::Adamw, feature_maps: Float::F32, ..options };
                let adamw = lower(network, batch, &options).expect("it lowers");
                check_form(&adamw);
                prove(network, batch, mode, &adamw);
            }
            layouts.push(program.resident);
        }
    }
    let small = lower(network, batch + 1, &LowerOptions::default()).expect("it lowers");
    layouts.push(small.resident);
    assert!(
        layouts.windows(2).all(|pair| pair[0] == pair[1]),
        "the resident layout depends on network and optimizer only"
    );
    ordered
}

/// Checks that in bf16 the same kernels run on the same tensors. Those of activations or their gradients have half the bytes,
/// and all ops that read or write one treat it so; parameters and everything else keep their places.
fn check_stored_in_half(f32: &Program, bf16: &Program) {
    assert_eq!(bf16.feature_maps, Float::Bf16);
    assert_eq!((&f32.kernels, &f32.resident), (&bf16.kernels, &bf16.resident));
    assert_eq!(f32.trace.resident_bytes, bf16.trace.resident_bytes);
    let mut maps: Vec<Option<bool>> = vec![None; f32.trace.tensors.len()];
    for (operand, spec) in f32.kernels.iter().flat_map(Kernel::specified) {
        match operand {
            Operand::Resident(_) => assert!(!spec.feature_map, "`{}` is resident", spec.name),
            Operand::Tensor(tensor) => {
                let map = *maps[tensor.index()].get_or_insert(spec.feature_map);
                assert_eq!(map, spec.feature_map, "`{}`", f32.trace.tensors[tensor.index()].name);
                let room = bf16.trace.tensors[tensor.index()].bytes;
                assert!(spec.bytes_in(Float::Bf16) <= room, "`{}`", spec.name);
                // No more than needed, except for a fact that calls lack: several of them may look up parts of one input.
                let needed = spec.bytes_in(Float::Bf16).round_up(STORAGE_ALIGNMENT);
                assert!(room == needed || !spec.feature_map, "`{}` takes {needed} of {room}", spec.name);
            }
        }
    }
    for ((before, after), map) in f32.trace.tensors.iter().zip(&bf16.trace.tensors).zip(maps) {
        let gradient_or_map = matches!(before.kind, TensorKind::Activation | TensorKind::Gradient);
        assert!(map != Some(false) || !gradient_or_map, "`{}` is a feature map", before.name);
        assert!(map == Some(true) || before == after, "`{}` is no feature map", before.name);
    }
}

/// Checks the form of a program, independent of the ops' results: sizes, names, layout, order.
fn check_form(program: &Program) {
    let trace = &program.trace;
    assert_eq!(trace.ops.len(), program.kernels.len());
    assert!(trace.tensors.iter().all(|t| t.bytes.0 % 256 == 0 && t.bytes.0 > 0), "sizes are aligned");
    assert!(
        trace.ops.iter().all(|op| op.workspace_bytes == Bytes(256)),
        "workspaces are asked for and aligned"
    );
    let others =
        |op: &Op| -> Vec<_> { op.alternatives.iter().map(|a| (a.name.clone(), a.workspace_bytes)).collect() };
    let other: Vec<(String, Bytes)> = vec![("other".into(), Bytes(512))];
    assert!(trace.ops.iter().all(|op| others(op) == other), "every further way is an alternative");
    assert!(trace.lives().iter().all(Option::is_some), "every tensor is needed by some op");
    let host = [program.images, program.labels];
    let written = trace.ops.iter().flat_map(|op| &op.writes).any(|t| host.contains(t));
    assert!(!written, "what the host writes stays as it is");
    let mut names: Vec<&str> = trace.tensors.iter().map(|t| t.name.as_str()).collect();
    names.extend(trace.ops.iter().map(|op| op.name.as_str()));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "names are unique");
    let mut end = Bytes::ZERO;
    for region in &program.resident {
        assert_eq!(region.offset, end, "regions lie side by side");
        end += region.bytes().round_up(256);
    }
    assert_eq!(trace.resident_bytes, end);
}

/// Checks that the parameter gradient comes before the neuron gradient; without intra-layer reuse, after it and its sums.
/// Returns the number of neuron gradients.
fn check_order(program: &Program, intra_layer_reuse: bool) -> usize {
    let ops = &program.trace.ops;
    let mut ordered = 0;
    for (i, op) in ops.iter().enumerate() {
        let Some(layer) = op.name.strip_suffix(".backward_data") else { continue };
        let filter = format!("{layer}.backward_filter");
        if intra_layer_reuse {
            assert_eq!(ops[i - 1].name, filter);
        } else {
            let later = ops[i + 1..].iter().take_while(|later| later.layer == op.layer);
            assert!(later.into_iter().any(|later| later.name == filter), "{filter} comes after {}", op.name);
        }
        ordered += 1;
    }
    ordered
}

/// Runs the program on symbols and compares all its results with those of the network.
fn prove(network: &Network, batch: u64, mode: Mode, program: &Program) {
    let mut terms = Terms::default();
    let mut expected = Reference::new(&mut terms, network, batch, mode == Mode::Train);
    if mode == Mode::Train {
        expected.differentiate(&mut terms);
    }
    let mut machine = Machine::new(&mut terms, program);
    let forward_and_backward = program.trace.ops.iter().filter(|op| op.phase != Phase::Update).count();
    for op in 0..forward_and_backward {
        machine.run(&mut terms, op);
    }
    machine.check_repeats(&mut terms);
    for op in forward_and_backward..program.trace.ops.len() {
        machine.run(&mut terms, op);
    }
    let optimizer = Region::optimizer_of(&program.resident);
    for region in &program.resident {
        let found = machine.resident(region.offset);
        let name = &region.name;
        let same = |wanted| assert_eq!(found, wanted, "{name}: {:?}", region.role);
        match region.role {
            Role::Parameter(_) => same(expected.parameter(&mut terms, name, optimizer)),
            Role::Momentum => same(expected.momentum(&mut terms, name)),
            Role::FirstMoment => same(expected.moment(&mut terms, name, "first")),
            Role::SecondMoment => same(expected.moment(&mut terms, name, "second")),
            Role::Gradient => same(expected.gradient(name)),
            Role::State(_) => same(expected.state(&mut terms, name)),
            Role::Hyper => same(Some(terms.atom("hyper"))),
            Role::Metrics => same(Some(expected.metrics)),
        }
        if region.role == Role::Gradient && mode == Mode::Train {
            let sharing = sharing(network, name);
            assert_eq!(
                machine.times_written(region.offset),
                sharing,
                "{name}: each layer gives its gradient once"
            );
        }
    }
}

/// Returns the number of layers that use a parameter.
fn sharing(network: &Network, parameter: &str) -> u32 {
    let of = |layer: &Layer| layer.shares.map_or(layer, |owner| network.layer(owner)).name.clone();
    let uses = |layer: &&Layer| {
        parameter
            .strip_prefix(&of(layer))
            .is_some_and(|rest| !rest[1..].contains('.') && rest.starts_with('.'))
    };
    network.layers.iter().filter(uses).count() as u32
}

/// Returns at least two steps of a memory over tokens, every step with the same weights, and their outputs one below the
/// other.
fn memory(steps: u32, bias: bool) -> Result<Network, NetworkError> {
    let spec = NetworkSpec { name: "memory".to_owned(), image: [steps, 1], channels: 1, classes: 5 };
    let mut b = Builder::new(&spec)?;
    let (mut before, mut first, mut outputs): (Option<LayerId>, Vec<LayerId>, _) = (None, vec![], vec![]);
    for t in 0..steps {
        let lookup = LayerKind::Embedding { vocabulary: 5, width: 3, first: t, length: 1 };
        let from_input = LayerKind::FullyConnected { outputs: 8, bias: true };
        let from_before = LayerKind::FullyConnected { outputs: 8, bias };
        let mut add = |what: &str, part: usize, kind: LayerKind, input: LayerId| {
            let name = format!("{what}{t}");
            let id = match first.get(part) {
                Some(owner) => b.add_sharing(&name, kind, &[input], *owner)?,
                None => b.add(&name, kind, &[input])?,
            };
            if first.len() == part {
                first.push(id);
            }
            Ok::<_, NetworkError>(id)
        };
        let x = add("token", 0, lookup, LayerId(0))?;
        let mut gates = add("input", 1, from_input, x)?;
        if let Some(before) = before {
            let recurrent = add("recurrent", 2, from_before, before)?;
            gates = b.add(&format!("gates{t}"), LayerKind::Add, &[gates, recurrent])?;
        }
        let inputs: Vec<LayerId> = [gates].into_iter().chain(before).collect();
        let h = b.add(&format!("cell{t}"), LayerKind::LstmCell, &inputs)?;
        outputs.push(h);
        before = Some(h);
    }
    let all = b.add("all", LayerKind::Concat { along: Axis::Rows }, &outputs)?;
    let logits = b.conv("logits", all, 5, Window::square(1, 1, 0), true)?;
    b.finish(logits)
}

/// Returns a block of attention over tokens, the table shared with the logits; queries and keys are rotated, the keys not in
/// place, since their input is read twice.
fn attention(length: u32, heads: [u32; 2], causal: bool) -> Result<Network, NetworkError> {
    let [heads, kv_heads] = heads;
    let spec = NetworkSpec { name: "attention".to_owned(), image: [length, 1], channels: 1, classes: 7 };
    let mut b = Builder::new(&spec)?;
    let pixel = Window::square(1, 1, 0);
    let table =
        b.add("tokens", LayerKind::Embedding { vocabulary: 7, width: 6, first: 0, length }, &[LayerId(0)])?;
    let x = b.add("positions", LayerKind::Bias { over: Extent::Positions, spare: 2 }, &[table])?;
    let normal = b.layer_norm("norm", x)?;
    let rotary = LayerKind::Rotary { width: 4, base: 100.0 };
    let query = b.conv("query", normal, 4 * heads, pixel, true)?;
    let query = b.add("turned query", rotary.clone(), &[query])?;
    let plain = b.conv("key", normal, 4 * kv_heads, pixel, true)?;
    let key = b.add("turned key", rotary, &[plain])?;
    let qkv = b.concat("qkv", &[query, key, plain])?;
    let mixed = b.add("attention", LayerKind::Attention { heads, kv_heads, causal }, &[qkv])?;
    let out = b.conv("out", mixed, 6, pixel, true)?;
    let x = b.add("sum", LayerKind::Add, &[x, out])?;
    let head = LayerKind::Conv { out_channels: 7, window: pixel, groups: 1, bias: false };
    let logits = b.add_sharing("logits", head, &[x], table)?;
    b.finish(logits)
}

#[test]
fn sequences_compute_what_they_say() {
    for steps in [1, 2, 5] {
        for bias in [false, true] {
            assert!(check(&memory(steps, bias).expect("it is sound"), 3) > 0, "{steps} steps");
        }
    }
    for (length, heads, causal) in
        [(1, [1, 1], true), (4, [2, 2], false), (5, [6, 3], true), (4, [3, 1], true)]
    {
        assert!(check(&attention(length, heads, causal).expect("it is sound"), 2) > 0, "{length} tokens");
    }
}

#[test]
fn the_zoo_computes_what_it_says() {
    for (name, image) in [
        ("mlp", 8),
        ("lenet", 12),
        ("alexnet", 64),
        ("vgg11", 32),
        ("vgg21", 32),
        ("resnet18", 64),
        ("resnet20", 8),
        ("resnet50", 32),
        ("resnet38", 33),
    ] {
        let spec = NetworkSpec { name: name.to_owned(), image: [image, image + 1], channels: 3, classes: 7 };
        assert!(check(&build(&spec).expect("it fits"), 2) > 0, "{name}: no gradient has an order");
    }
}

/// One step of a random network: the kind of layer, and the layers that it takes.
#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    on: usize,
    with: usize,
    flag: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Most layers take the latest one; the others branch.
    let on = prop_oneof![3 => Just(0usize), 2 => 0..64usize];
    let step = (0..18u8, on, 0..64usize, any::<bool>());
    proptest::collection::vec(step.prop_map(|(kind, on, with, flag)| Step { kind, on, with, flag }), 1..16)
}

/// Returns the layer that a step takes, counted from the latest.
fn pick(layers: &[LayerId], back: usize) -> LayerId {
    layers[layers.len() - 1 - back % layers.len()]
}

/// Returns a convolution that keeps height and width.
fn conv(step: &Step, shape: Shape) -> LayerKind {
    let groups = if shape.channels.is_multiple_of(2) && step.flag { 2 } else { 1 };
    let size = 1 + 2 * (step.with as u32 % 2);
    let dilation = [1, 1 + u32::from(step.flag)];
    let padding = [size / 2, dilation[1] * (size / 2)];
    let window = Window { dilation, padding, ..Window::square(size, 1, 1) };
    LayerKind::Conv { out_channels: 2 + 2 * (step.with as u32 % 3 / 2), window, groups, bias: step.flag }
}

/// Returns a layer of one input.
fn of_one_input(step: &Step, shape: Shape) -> LayerKind {
    match step.kind {
        0 | 1 => conv(step, shape),
        2 => LayerKind::BatchNorm { epsilon: 1e-5, momentum: 0.1 },
        3 => LayerKind::RELU,
        4 => LayerKind::Relu { ceiling: 6.0 },
        5 => LayerKind::Dropout { probability: 0.25 },
        9 if step.flag => LayerKind::MaxPool { window: Window::square(3, 1, 1), ceil: true },
        9 => LayerKind::AvgPool { window: Window::square(2, 2, 1) },
        10 if step.flag => LayerKind::GlobalAvgPool,
        10 => LayerKind::FullyConnected { outputs: 4, bias: step.with.is_multiple_of(2) },
        11 if step.flag => LayerKind::RmsNorm { epsilon: 1e-5 },
        11 if shape.channels > 1 => LayerKind::LayerNorm { epsilon: 1e-5 },
        12 => LayerKind::Activation { function: Function::ALL[step.with % Function::ALL.len()] },
        13 => LayerKind::Bias {
            over: if step.flag { Extent::Channels } else { Extent::Positions },
            spare: step.with as u32 % 2,
        },
        14 if shape.height < 20 && shape.width < 20 => LayerKind::ConvTranspose {
            out_channels: 2,
            window: Window::square(2 + step.with as u32 % 2, 2, 0),
        },
        _ => LayerKind::Lrn { size: 3, alpha: 0.5, beta: 0.75, bias: 2.0 },
    }
}

/// Returns a sound network from any steps: unused layers are pooled and concatenated at the end.
fn grow(steps: &[Step]) -> Result<Network, NetworkError> {
    let spec = NetworkSpec { name: "random".to_owned(), image: [6, 5], channels: 2, classes: 3 };
    let mut b = Builder::new(&spec)?;
    let mut layers = vec![b.images()];
    let mut unused = vec![true];
    for (i, step) in steps.iter().enumerate() {
        let x = pick(&layers, step.on);
        let shape = b.shape(x);
        let other = |same: &dyn Fn(LayerId) -> bool| {
            let candidates: Vec<LayerId> = layers.iter().copied().filter(|l| same(*l)).collect();
            pick(&candidates, step.with)
        };
        let mut inputs = vec![x];
        let kind = match step.kind {
            6 | 7 => {
                inputs.push(other(&|l| b.shape(l) == shape));
                LayerKind::Add
            }
            8 => {
                inputs.push(other(&|l| (b.shape(l).height, b.shape(l).width) == (shape.height, shape.width)));
                LayerKind::Concat { along: Axis::Channels }
            }
            15 => {
                inputs.push(other(&|l| {
                    (b.shape(l).width, b.shape(l).channels) == (shape.width, shape.channels)
                }));
                LayerKind::Concat { along: Axis::Rows }
            }
            16 => {
                inputs.push(other(&|l| b.shape(l) == shape));
                LayerKind::Multiply
            }
            _ => of_one_input(step, shape),
        };
        let layer = b.add(&format!("l{i}"), kind, &inputs)?;
        for input in inputs {
            unused[input.index()] = false;
        }
        layers.push(layer);
        unused.push(true);
    }
    let mut ends = Vec::new();
    for layer in layers.iter().filter(|l| unused[l.index()]) {
        ends.push(b.add(&format!("end{}", layer.0), LayerKind::GlobalAvgPool, &[*layer])?);
    }
    let ends = b.concat("ends", &ends)?;
    let logits = b.fully_connected("logits", ends, 3)?;
    b.finish(logits)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_networks_compute_what_they_say(steps in steps(), batch in 2..5u64) {
        check(&grow(&steps).expect("every step is sound"), batch);
    }
}
