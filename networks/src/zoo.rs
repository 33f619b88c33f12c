//! The networks that have a name, each at any image size, channels and class count.
//!
//! At its usual size each has the published number of parameters. What it deliberately does not do: read trained
//! weights; how parameters start is the same rule for all (`resident.rs`).

use crate::builder::Builder;
use crate::error::NetworkError;
use crate::resnet;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// A network that has a name, or a family of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name; `<N>` stands for a depth.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Height and width of the images that it was made for.
    pub image: u32,
    /// Their channels.
    pub channels: u32,
    /// Their classes.
    pub classes: u32,
}

/// One line of the table.
const fn entry(name: &'static str, image: u32, channels: u32, classes: u32, about: &'static str) -> Entry {
    Entry { name, about, image, channels, classes }
}

/// All that the zoo knows, with the images that each was made for.
pub fn entries() -> &'static [Entry] {
    const ENTRIES: &[Entry] = &[
        entry("mlp", 28, 1, 10, "two hidden layers of 256 with ReLU; any image"),
        entry("lenet", 28, 1, 10, "LeNet-5 with ReLU; images of at least 12x12"),
        entry(
            "alexnet",
            224,
            3,
            1000,
            "AlexNet as published: LRN, two groups, dropout; images of at least 63x63",
        ),
        entry("vgg11", 224, 3, 1000, "VGG A, without batch normalisation; images of at least 32x32"),
        entry("vgg13", 224, 3, 1000, "VGG B"),
        entry("vgg16", 224, 3, 1000, "VGG D"),
        entry("vgg19", 224, 3, 1000, "VGG E"),
        entry(
            "vgg<N>",
            224,
            3,
            1000,
            "vgg16 with (N - 16) / 5 more convolutions in each group (vDNN §4.3); N = 21, 26, ...",
        ),
        entry("resnet18", 224, 3, 1000, "residual network of basic blocks, for ImageNet"),
        entry("resnet34", 224, 3, 1000, "residual network of basic blocks, for ImageNet"),
        entry("resnet50", 224, 3, 1000, "residual network of bottlenecks, for ImageNet"),
        entry("resnet101", 224, 3, 1000, "residual network of bottlenecks, for ImageNet"),
        entry("resnet152", 224, 3, 1000, "residual network of bottlenecks, for ImageNet"),
        entry(
            "resnet<N>",
            224,
            3,
            1000,
            "bottlenecks, the third group as long as it takes; N = 3n + 2, such as 1001",
        ),
        entry("resnet20", 32, 3, 10, "residual network for CIFAR; good on 8x8 images too"),
        entry("resnet32", 32, 3, 10, "residual network for CIFAR"),
        entry("resnet44", 32, 3, 10, "residual network for CIFAR"),
        entry("resnet56", 32, 3, 10, "residual network for CIFAR"),
        entry("resnet110", 32, 3, 10, "residual network for CIFAR"),
        entry("resnet1202", 32, 3, 10, "residual network for CIFAR"),
    ];
    ENTRIES
}

/// What a network was made for: its name with the image size, channels and classes of its entry, or of its family's.
/// None for a name that has neither; whether a depth is possible is for [`build`] to say.
pub fn usual(name: &str) -> Option<NetworkSpec> {
    let named = |name: &str| entries().iter().find(|entry| entry.name == name);
    if name.contains('<') {
        return None;
    }
    let family = ["vgg", "resnet"].into_iter().find(|family| depth(name, family).is_some());
    let entry = named(name).or_else(|| named(&format!("{}<N>", family?)))?;
    let Entry { image, channels, classes, .. } = *entry;
    Some(NetworkSpec { name: name.to_owned(), image: [image; 2], channels, classes })
}

/// Builds the network that a spec names.
pub fn build(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    match construct(spec) {
        Err(NetworkError::WindowTooLarge { layer, .. }) => Err(NetworkError::ImageTooSmall {
            network: spec.name.clone(),
            image: spec.image,
            layer,
            smallest: smallest_image(spec),
        }),
        other => other,
    }
}

/// Builds what a name means, whatever the images.
fn construct(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    match spec.name.as_str() {
        "mlp" => return mlp(spec),
        "lenet" => return lenet(spec),
        "alexnet" => return alexnet(spec),
        _ => {}
    }
    if let Some(depth) = depth(&spec.name, "vgg") {
        return match vgg_groups(depth) {
            Some(groups) => vgg(spec, groups),
            None => Err(impossible(&spec.name, "vgg", depth, VGG_RULE, |d| vgg_groups(d).is_some())),
        };
    }
    if let Some(depth) = depth(&spec.name, "resnet") {
        if resnet::has_depth(depth) {
            return resnet::build(spec, depth);
        }
        return Err(impossible(&spec.name, "resnet", depth, resnet::RULE, resnet::has_depth));
    }
    Err(NetworkError::UnknownName { name: spec.name.clone(), nearest: nearest_names(&spec.name) })
}

/// The depth that a name gives after its family's; more digits than a depth can have count as the largest.
fn depth(name: &str, family: &str) -> Option<u32> {
    let digits = name.strip_prefix(family)?;
    let plain = !digits.is_empty() && !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(u32::MAX))
}

/// The error for a depth that a family does not have.
fn impossible(
    name: &str,
    family: &str,
    depth: u32,
    rule: &'static str,
    possible: impl Fn(u32) -> bool,
) -> NetworkError {
    let below = (1..depth.min(10_000)).rev().find(|d| possible(*d));
    let above = (depth.saturating_add(1)..10_000).find(|d| possible(*d));
    let nearest = below.into_iter().chain(above).map(|d| format!("{family}{d}")).collect();
    NetworkError::ImpossibleDepth { name: name.to_owned(), rule, nearest }
}

/// The least height and width at which the network can be built; it is asked only where too small a one was given.
fn smallest_image(spec: &NetworkSpec) -> u32 {
    let fits = |side: u32| {
        let spec = NetworkSpec { image: [side; 2], ..spec.clone() };
        !matches!(construct(&spec), Err(NetworkError::WindowTooLarge { .. }))
    };
    (1..).find(|side| fits(*side)).expect("every network of the zoo works on some image")
}

/// The names of the zoo nearest to what was asked for.
fn nearest_names(asked: &str) -> Vec<String> {
    nearest(asked, entries().iter().map(|e| e.name).filter(|name| !name.contains('<')))
}

/// The three names that take the fewest edits from what was asked for, whatever its capitals.
pub fn nearest<'n>(asked: &str, names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let asked = asked.to_lowercase();
    let edits_to = |name: &'n str| (edits(&asked, &name.to_lowercase()), name);
    let mut ranked: Vec<(usize, &str)> = names.into_iter().map(edits_to).collect();
    ranked.sort_by_key(|(edits, _)| *edits);
    ranked.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}

/// How many characters must be put in, left out or changed to make `a` of `b`.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let change = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Two hidden layers of 256.
fn mlp(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.fully_connected("fc1", b.images(), 256)?;
    x = b.relu("relu1", x)?;
    x = b.fully_connected("fc2", x, 256)?;
    x = b.relu("relu2", x)?;
    x = b.fully_connected("fc3", x, spec.classes)?;
    b.finish(x)
}

/// LeNet-5 (LeCun et al. 1998, §II.B) with what has replaced its parts since: ReLU, plain average pooling, a full
/// second convolution, softmax.
fn lenet(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.conv("conv1", b.images(), 6, Window::square(5, 1, 2), true)?;
    x = b.relu("relu1", x)?;
    x = b.add("pool1", LayerKind::AvgPool { window: Window::square(2, 2, 0) }, &[x])?;
    x = b.conv("conv2", x, 16, Window::square(5, 1, 0), true)?;
    x = b.relu("relu2", x)?;
    x = b.add("pool2", LayerKind::AvgPool { window: Window::square(2, 2, 0) }, &[x])?;
    for (i, width) in [120, 84].into_iter().enumerate() {
        x = b.fully_connected(&format!("fc{}", i + 1), x, width)?;
        x = b.relu(&format!("relu{}", i + 3), x)?;
    }
    x = b.fully_connected("fc3", x, spec.classes)?;
    b.finish(x)
}

/// AlexNet (Krizhevsky et al. 2012, §3) as the papers on memory train it: local response normalisation, convolutions
/// in two groups, overlapping pooling, dropout. The first convolution is padded by 2, which makes 55x55 of 224x224
/// images as the paper has it.
fn alexnet(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    // §3.3 has k = 2, n = 5, alpha = 1e-4 on the plain sum; our alpha is divided by n.
    let lrn = LayerKind::Lrn { size: 5, alpha: 5e-4, beta: 0.75, bias: 2.0 };
    // Output channels, window, groups, and whether LRN and pooling follow.
    let convolutions = [
        (96, Window::square(11, 4, 2), 1, true, true),
        (256, Window::square(5, 1, 2), 2, true, true),
        (384, Window::square(3, 1, 1), 1, false, false),
        (384, Window::square(3, 1, 1), 2, false, false),
        (256, Window::square(3, 1, 1), 2, false, true),
    ];
    let mut b = Builder::new(spec)?;
    let mut x = b.images();
    for (i, (out_channels, window, groups, normalised, pooled)) in (1..).zip(convolutions) {
        x = b.add(&format!("conv{i}"), LayerKind::Conv { out_channels, window, groups, bias: true }, &[x])?;
        x = b.relu(&format!("relu{i}"), x)?;
        if normalised {
            x = b.add(&format!("norm{i}"), lrn.clone(), &[x])?;
        }
        if pooled {
            x = b.max_pool(&format!("pool{i}"), x, Window::square(3, 2, 0))?;
        }
    }
    x = classifier(&mut b, x, 6)?;
    b.finish(x)
}

/// The head of AlexNet and VGG: two hidden layers of 4096 with ReLU and dropout, and the logits.
fn classifier(b: &mut Builder, mut x: LayerId, first: usize) -> Result<LayerId, NetworkError> {
    let classes = b.classes();
    for i in [first, first + 1] {
        x = b.fully_connected(&format!("fc{i}"), x, 4096)?;
        x = b.relu(&format!("relu{i}"), x)?;
        x = b.add(&format!("drop{i}"), LayerKind::Dropout { probability: 0.5 }, &[x])?;
    }
    b.fully_connected(&format!("fc{}", first + 2), x, classes)
}

/// Which depths VGG networks have.
const VGG_RULE: &str = "VGG networks have the depths 11, 13, 16 and 19, and 16 + 5k up to 9996 (k more convolutions in \
                        each of the five groups)";

/// Convolutions of each of the five groups: configurations A, B, D and E of Simonyan and Zisserman 2015, and D
/// enlarged evenly.
fn vgg_groups(depth: u32) -> Option<[u32; 5]> {
    match depth {
        11 => Some([1, 1, 2, 2, 2]),
        13 => Some([2; 5]),
        19 => Some([2, 2, 4, 4, 4]),
        16..10_000 if (depth - 16).is_multiple_of(5) => Some([2, 2, 3, 3, 3].map(|n| n + (depth - 16) / 5)),
        _ => None,
    }
}

/// VGG: 3x3 convolutions in five groups, each closed by a pooling. Images of less than 224x224 leave fewer inputs to
/// the classifier.
fn vgg(spec: &NetworkSpec, groups: [u32; 5]) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.images();
    for (group, (convolutions, width)) in (1..).zip(groups.into_iter().zip([64, 128, 256, 512, 512])) {
        for i in 1..=convolutions {
            x = b.conv(&format!("conv{group}_{i}"), x, width, Window::square(3, 1, 1), true)?;
            x = b.relu(&format!("relu{group}_{i}"), x)?;
        }
        x = b.max_pool(&format!("pool{group}"), x, Window::square(2, 2, 0))?;
    }
    x = classifier(&mut b, x, 6)?;
    b.finish(x)
}
