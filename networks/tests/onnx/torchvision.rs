//! Torchvision's classifiers, one of each family: which are read as `torch.onnx.export(model.train(), ..., dynamo=True,
//! optimize=False)` writes them, and what of the others is not. docs/command-line.md has the table, which is held to this list.

use crate::onnx::export;
use crate::onnx::judge::{judge_bytes, read_bytes};
use plimsoll_ir::Document;
use plimsoll_ir::network::LayerKind;
use plimsoll_networks::{LowerOptions, lower};
use std::path::Path;

/// A network that is read: its family in docs/command-line.md, itself, PyTorch's count of parameters, and the kinds of layers
/// without which it would be another.
const READ: [(&str, &str, u64, &[&str]); 14] = [
    ("AlexNet", "alexnet", 61_100_840, &["dropout"]),
    ("VGG", "vgg11_bn", 132_868_840, &["bn", "dropout"]),
    ("SqueezeNet", "squeezenet1_1", 1_235_496, &["concat"]),
    ("ResNet, ResNeXt", "resnet18", 11_689_512, &["bn", "add"]),
    ("ResNet, ResNeXt", "resnext50_32x4d", 25_028_904, &["bn", "add"]),
    ("MNASNet", "mnasnet0_5", 2_218_512, &["bn", "dropout"]),
    ("MobileNet v2, v3", "mobilenet_v2", 3_504_872, &["bn", "add"]),
    (
        "MobileNet v2, v3",
        "mobilenet_v3_small",
        2_542_856,
        &["bn", "hardswish", "hardsigmoid", "multiply", "dropout"],
    ),
    ("RegNet X, Y", "regnet_x_400mf", 5_495_976, &["bn", "relu"]),
    ("RegNet X, Y", "regnet_y_400mf", 4_344_144, &["bn", "sigmoid", "multiply"]),
    ("EfficientNet", "efficientnet_b0", 5_288_548, &["bn", "silu", "sigmoid", "multiply", "dropout"]),
    ("ConvNeXt", "convnext_tiny", 28_589_128, &["layernorm", "gelu", "scale", "dropout"]),
    ("ViT", "vit_b_16", 86_567_656, &["learned", "bias", "layernorm", "attention", "gelu", "slice"]),
    // These two are in `main.rs`, too, as the older exporter writes them.
    ("DenseNet, GoogLeNet, Inception v3", "densenet121", 7_978_856, &["bn", "concat"]),
];

/// A network that is not read, and what stands in its way.
const REFUSED: [(&str, &str, &[&str]); 3] = [
    ("ShuffleNet v2", "shufflenet_v2_x0_5", &["operator SplitToSequence", "operator SequenceAt"]),
    ("Swin", "swin", &["operator ScatterND"]),
    ("MaxViT", "maxvit", &["operator Einsum", "operator Tanh"]),
];

/// The file of a network in training mode.
fn file(name: &str) -> Vec<u8> {
    let way = if name == "densenet121" { "script" } else { "dynamo" };
    export(&format!("{name}.{way}.train"))
}

#[test]
fn classifiers_are_read_whole() {
    for (_, name, parameters, kinds) in READ {
        let bytes = file(name);
        assert!(judge_bytes(&bytes), "{name}");
        let network = read_bytes(&bytes).unwrap_or_else(|error| panic!("{name}: {error}")).network;
        assert_eq!(network.all_parameters(), parameters, "{name}");
        for kind in kinds {
            assert!(network.layers.iter().any(|layer| layer.kind.name() == *kind), "{name} has no {kind}");
        }
        let trace = lower(&network, 2, &LowerOptions::default()).expect("it can be lowered").trace;
        assert_eq!(trace.validate(), Ok(()), "{name}");
    }
}

#[test]
fn stochastic_depth_drops_as_the_exporter_says() {
    let drops = |name: &str| -> Vec<String> {
        let network = read_bytes(&file(name)).expect("it is read").network;
        let each = network.layers.iter().filter_map(|layer| match layer.kind {
            LayerKind::Dropout { probability, unit } => Some(format!("{unit:?} {probability}")),
            _ => None,
        });
        each.collect()
    };
    let efficientnet = drops("efficientnet_b0");
    assert_eq!((efficientnet.len(), &efficientnet[0][..]), (10, "Sample 0.025"));
    assert_eq!(efficientnet.last().map(String::as_str), Some("Element 0.2"));
    let convnext = drops("convnext_tiny");
    assert_eq!((convnext.len(), convnext.last().map(String::as_str)), (17, Some("Sample 0.1")));
    assert_eq!(drops("mobilenet_v3_small"), ["Element 0.2"]);
}

#[test]
fn what_is_not_read_says_what_stands_in_its_way() {
    for (_, name, expected) in REFUSED {
        let text = read_bytes(&file(name)).expect_err("it is refused").to_string();
        for part in expected {
            assert!(text.contains(part), "{name}: `{part}` is not in: {text}");
        }
    }
}

#[test]
fn the_documentation_says_what_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command-line.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let row = |start: &str| {
        let found = page.lines().find(|line| line.starts_with(&format!("| {start} |")));
        found.unwrap_or_else(|| panic!("docs/command-line.md has no row `{start}`")).to_owned()
    };
    let (read, refused) = (row("read"), row("refused"));
    for (family, ..) in READ {
        assert!(read.contains(family), "docs/command-line.md does not say that {family} is read");
    }
    for (family, ..) in REFUSED {
        assert!(refused.contains(family), "docs/command-line.md does not say that {family} is refused");
        assert!(!read.contains(family), "{family}");
    }
}
