//! The memory of a lowered network, compared with sums made by hand from the network's published table.

use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};
use plimsoll_ir::program::{Program, Region};
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{Bytes, Float, Optimizer};
use plimsoll_networks::{Builder, LowerOptions, Mode, NetworkError, ReluStorage, build, lower};

fn lowered(name: &str, image: u32, batch: u64, mode: Mode, relu: ReluStorage) -> Program {
    let spec = NetworkSpec { name: name.to_owned(), image: [image; 2], channels: 3, classes: 1000 };
    let options = LowerOptions { mode, relu, ..LowerOptions::default() };
    lower(&build(&spec).expect("it fits"), batch, &options).expect("it lowers")
}

fn peak(program: &Program) -> Bytes {
    program.trace.memory().peak().expect("there are ops").1
}

/// Returns the elements of one 224x224 image's activations that the backward pass of resnet50 needs: the output of every
/// convolution (for batch normalisation) and the input of every convolution but the first.
fn resnet50_elements_kept() -> u64 {
    let stem = 112 * 112 * 64 + 56 * 56 * 64;
    let groups = [(3, 64, 56, 56), (4, 128, 56, 28), (6, 256, 28, 14), (3, 512, 14, 7)];
    let group = |(blocks, width, before, size): (u64, u64, u64, u64)| {
        let map = size * size * width;
        // Two narrow convolutions with their ReLUs, the wide one, and the block's output.
        let block = 4 * map + 4 * map + 4 * map;
        // The first block's first convolution works at the previous group's size; a convolution is its shortcut.
        let first = 2 * (before * before * width - map) + 4 * map;
        blocks * block + first
    };
    // The very last output goes to the pooling, whose backward pass does not need it.
    stem + groups.map(group).iter().sum::<u64>() - 7 * 7 * 2048
}

#[test]
fn resnet50_peaks_where_the_hand_says() {
    let program = lowered("resnet50", 224, 32, Mode::Train, ReluStorage::Auto);
    let images = 32 * 4 * 224 * 224 * 3;
    let kept = 32 * 4 * resnet50_elements_kept() + images;
    // Pooling places, one byte per element, and the mask of the first ReLU, one bit per element.
    let small = 32 * 56 * 56 * 64 + 32 * 112 * 112 * 64 / 8;
    let resident = 3 * 4 * 25_557_032;
    let by_hand = resident + kept + small;
    // At the peak also: up to three activations of the last group (12.8 MB each), statistics, rounding.
    let most = by_hand + 3 * 32 * 4 * 7 * 7 * 2048 + 2_000_000;
    let found = peak(&program).0;
    assert!((by_hand..most).contains(&found), "{found} is not from {by_hand} to {most}");
}

/// AdamW has four numbers per parameter, SGD three; evaluation has the same layout.
#[test]
fn both_moments_of_adamw_are_resident() {
    let spec = NetworkSpec { name: "resnet50".to_owned(), image: [224, 224], channels: 3, classes: 1000 };
    let network = build(&spec).expect("it fits");
    let lowered = |mode, batch| {
        let options = LowerOptions { mode, optimizer: Optimizer::Adamw, ..LowerOptions::default() };
        lower(&network, batch, &options).expect("it lowers")
    };
    let (train, evaluate) = (lowered(Mode::Train, 2), lowered(Mode::Evaluate, 1));
    let exact = 16 * 25_557_032 + 8 * 26_560;
    let found = train.trace.resident_bytes.0;
    assert!((exact..exact + 256 * (4 * 161 + 106 + 2)).contains(&found), "{found} is not about {exact}");
    assert_eq!(train.resident, evaluate.resident);
    assert_eq!(Region::optimizer_of(&train.resident), Optimizer::Adamw);
    let updates = train.trace.ops.iter().filter(|op| op.phase == Phase::Update);
    assert_eq!(updates.filter(|op| op.kind == "adamw").count(), 161);
}

#[test]
fn resident_bytes_are_those_of_parameters_gradients_and_momenta() {
    // Each of the 161 parameters and 106 running statistics of resnet50, the hyper-parameters and the metrics are rounded up
    // to 256 bytes; statistics of 26,560 channels are two each.
    let train = lowered("resnet50", 224, 32, Mode::Train, ReluStorage::Auto);
    let evaluate = lowered("resnet50", 224, 1, Mode::Evaluate, ReluStorage::Auto);
    let exact = 12 * 25_557_032 + 8 * 26_560;
    let found = train.trace.resident_bytes.0;
    assert!((exact..exact + 256 * (3 * 161 + 106 + 2)).contains(&found), "{found} is not about {exact}");
    assert_eq!(train.resident, evaluate.resident);
}

#[test]
fn masks_take_a_bit_an_element_and_places_a_byte() {
    let program = lowered("vgg16", 224, 8, Mode::Train, ReluStorage::Auto);
    let bytes = |name: &str| program.trace.tensors.iter().find(|t| t.name == name).map(|t| t.bytes.0);
    // The last ReLU before a pooling: the pooling needs no input, so a mask is enough.
    assert_eq!(bytes("relu1_2.mask"), Some(8 * 224 * 224 * 64 / 8));
    assert_eq!(bytes("pool1.places"), Some(8 * 112 * 112 * 64));
    // The first ReLU: the second convolution needs its output, so there is no mask.
    assert_eq!(bytes("relu1_1.mask"), None);
    assert!(peak(&program) < peak(&lowered("vgg16", 224, 8, Mode::Train, ReluStorage::Output)));
}

/// Returns patches of 4x4 as 16 channels, then a transformer's expansion to four times as many and back.
fn transformer() -> Network {
    let spec = NetworkSpec { name: "test".to_owned(), image: [64, 64], channels: 3, classes: 10 };
    let made = || -> Result<Network, NetworkError> {
        let mut b = Builder::new(&spec)?;
        let patches = b.conv("patches", b.images(), 16, Window::square(4, 4, 0), true)?;
        let ln = b.layer_norm("ln", patches)?;
        let up = b.conv("up", ln, 64, Window::square(1, 1, 0), true)?;
        let gelu = b.gelu("gelu", up)?;
        let down = b.conv("down", gelu, 16, Window::square(1, 1, 0), true)?;
        let add = b.add("add", LayerKind::Add, &[down, patches])?;
        let pool = b.add("pool", LayerKind::GlobalAvgPool, &[add])?;
        let logits = b.fully_connected("fc", pool, 10)?;
        b.finish(logits)
    };
    made().expect("the shapes agree")
}

#[test]
fn a_transformers_block_keeps_inputs_and_two_numbers_a_position() {
    let network = transformer();
    // Scale and shift of the normalisation have 16 each.
    let weights = (48 + 1) * 16 + 2 * 16 + (16 + 1) * 64 + (64 + 1) * 16 + (16 + 1) * 10;
    assert_eq!(network.all_parameters(), weights);
    let batch = 8;
    let trace = lower(&network, batch, &LowerOptions::default()).expect("it lowers").trace;
    let first = trace.ops.iter().position(|op| op.phase == Phase::Backward).expect("it trains");
    let lives = trace.lives();
    let crosses = |t: &usize| {
        lives[*t].is_some_and(|l| l.born.is_none_or(|op| op.index() < first) && l.dies.index() > first)
    };
    let kept = (0..lives.len()).filter(crosses).map(|t| trace.tensors[t].bytes.0).sum::<u64>();
    let positions = batch * 16 * 16;
    let images = 4 * batch * 64 * 64 * 3;
    // The input of the normalisation, its output (which `up` reads), those of GELU; statistics; the pooled output, and the
    // logits.
    let by_hand = images + 4 * positions * (16 + 16 + 64 + 64) + 8 * positions + 4 * batch * 16 + 512;
    assert_eq!(kept, by_hand);
}

/// In the backward pass of vgg16's first group, the gradient of the second convolution's input is born: with reuse next to
/// the gradient of its output alone, without reuse also next to the input, an activation of 224x224x64 too.
#[test]
fn without_intra_layer_reuse_a_layers_input_outlives_the_birth_of_its_gradient() {
    let spec = NetworkSpec { name: "vgg16".to_owned(), image: [224; 2], channels: 3, classes: 1000 };
    let network = build(&spec).expect("it fits");
    let alive = |intra_layer_reuse| {
        // With other storage its ReLU would still need it.
        let relu = ReluStorage::Mask;
        let options = LowerOptions { relu, intra_layer_reuse, ..LowerOptions::default() };
        let trace = lower(&network, 8, &options).expect("it lowers").trace;
        let at = trace.ops.iter().position(|op| op.name == "conv1_2.backward_data").expect("it is trained");
        let input = trace.tensors.iter().position(|tensor| tensor.name == "conv1_1.y").expect("it is there");
        let dies = trace.lives()[input].expect("it is used").dies.index();
        let ops: Vec<String> = trace.ops.into_iter().map(|op| op.name).collect();
        (dies > at, ops)
    };
    let ((with, mut ordered), (without, mut other)) = (alive(true), alive(false));
    assert_eq!((with, without), (false, true));
    assert_ne!(ordered, other);
    // The same ops, in a different order.
    ordered.sort();
    other.sort();
    assert_eq!(ordered, other);
}

#[test]
fn residual_networks_copy_no_gradient() {
    for name in ["resnet18", "resnet50", "resnet20"] {
        let program = lowered(name, 64, 2, Mode::Train, ReluStorage::Auto);
        let is_copy = |name: &str| name.contains(".sum");
        let copies = program.trace.ops.iter().filter(|op| op.phase == Phase::Backward && is_copy(&op.name));
        assert_eq!(copies.count(), 0, "{name}");
    }
}

#[test]
fn memory_is_linear_in_the_batch() {
    let at = |batch| {
        let program = lowered("resnet18", 64, batch, Mode::Train, ReluStorage::Auto);
        let trace = &program.trace;
        let maps =
            trace.tensors.iter().filter(|t| matches!(t.kind, TensorKind::Activation | TensorKind::Gradient));
        maps.filter(|t| t.name != "fc.y").map(|t| t.bytes.0).sum::<u64>()
    };
    assert_eq!(at(24), 3 * at(8));
}

/// Activations and their gradients take half the bytes; parameters, statistics, masks and labels are unchanged.
#[test]
fn bf16_halves_feature_maps() {
    for (name, image) in [("resnet50", 224), ("densenet121", 64), ("mobilenet_v2", 64)] {
        let spec = NetworkSpec { name: name.to_owned(), image: [image; 2], channels: 3, classes: 1000 };
        let network = build(&spec).expect("it fits");
        let [f32, bf16] = [Float::F32, Float::Bf16].map(|feature_maps| {
            lower(&network, 32, &LowerOptions { feature_maps, ..LowerOptions::default() }).expect("it lowers")
        });
        let taken = |program: &Program| {
            let of = |kinds: &[TensorKind]| -> u64 {
                let all = program.trace.tensors.iter().filter(|tensor| kinds.contains(&tensor.kind));
                all.map(|tensor| tensor.bytes.0).sum()
            };
            [of(&[TensorKind::Activation, TensorKind::Gradient]), of(&[TensorKind::Other])]
        };
        let ([maps, other], [half, same]) = (taken(&f32), taken(&bf16));
        // Sizes are rounded up to 256 bytes.
        assert!((maps / 2..=maps / 2 + 128 * f32.trace.tensors.len() as u64).contains(&half), "{name}");
        assert_eq!(other, same, "{name}");
        assert_eq!(f32.trace.resident_bytes, bf16.trace.resident_bytes, "{name}");
        let [before, after] = [&f32, &bf16].map(|p| peak(p).0 - p.trace.resident_bytes.0);
        assert!(after < before * 11 / 20, "{name} takes {before} beside its parameters, and {after} in bf16");
    }
}

#[test]
fn evaluation_needs_little() {
    let program = lowered("resnet50", 224, 32, Mode::Evaluate, ReluStorage::Auto);
    let pool = peak(&program).0 - program.trace.resident_bytes.0;
    // The stem's output with the pooling's, or in a block its input, its output and the convolution between: at most three
    // activations of 56x56x256.
    let map = 32 * 4 * 56 * 56 * 256;
    assert!(pool <= 3 * map + 32 * 4 * 224 * 224 * 3, "{pool}");
    assert!(program.trace.ops.iter().all(|op| op.phase == Phase::Forward && op.recomputable));
}

#[test]
fn ops_say_their_kind_their_pass_and_their_flops() {
    let kinds = [
        "conv",
        "fc",
        "bn",
        "layernorm",
        "relu",
        "gelu",
        "pool",
        "dropout",
        "add",
        "concat",
        "lrn",
        "loss",
        "sgd",
    ];
    let passes = ["forward", "running", "backward", "backward_filter", "backward_data", "update"];
    let of_the_zoo = |name: &str| {
        build(&NetworkSpec { name: name.to_owned(), image: [64, 64], channels: 3, classes: 10 })
            .expect("it fits")
    };
    for network in ["alexnet", "resnet18", "lenet"].map(of_the_zoo).into_iter().chain([transformer()]) {
        let program = lower(&network, 8, &LowerOptions::default()).expect("it lowers");
        for op in &program.trace.ops {
            let pass = op.name.rsplit('.').next().expect("a name has parts");
            assert!(kinds.contains(&op.kind.as_str()) && passes.contains(&pass), "{} {}", op.kind, op.name);
            let layer = network.layers.iter().find(|l| l.name == op.layer).expect("an op has a layer");
            if pass == "forward" || op.kind == "conv" && op.phase == Phase::Backward {
                // Bias, scale and exponent are counted equally in all passes.
                assert_eq!(op.flops, 8 * layer.forward_flops, "{}", op.name);
            }
            assert!(op.flops > 0, "{}", op.name);
        }
    }
}
