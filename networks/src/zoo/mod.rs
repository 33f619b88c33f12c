//! The named networks, each at any image size, channels and class count; one family per file.
//!
//! At its default size each has the published number of parameters. The module deliberately does not read trained weights;
//! parameters start by the same rule for all (`../layers`).

mod alexnet;
mod densenet;
mod googlenet;
mod inception;
mod lstm;
mod mobilenet;
mod plain;
mod resnet;
mod transformer;
mod unet;
mod vgg;
mod wide;

use crate::error::{NetworkError, either};
use plimsoll_ir::network::{Network, NetworkSpec};

/// A named network, or a family of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name; `<N>` stands for a number, such as a depth.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Height and width of the images that it was made for; for text, its length and 1.
    pub image: [u32; 2],
    /// Channels of the images.
    pub channels: u32,
    /// Number of classes; the size of the vocabulary.
    pub classes: u32,
}

/// Returns one line of the table.
const fn entry(name: &'static str, image: u32, channels: u32, classes: u32, about: &'static str) -> Entry {
    Entry { name, about, image: [image; 2], channels, classes }
}

/// Returns one line of the table, for text of that length.
const fn text(name: &'static str, length: u32, vocabulary: u32, about: &'static str) -> Entry {
    Entry { name, about, image: [length, 1], channels: 1, classes: vocabulary }
}

/// Returns one line of the table, for images like those of ImageNet.
const fn imagenet(name: &'static str, about: &'static str) -> Entry {
    entry(name, 224, 3, 1000, about)
}

/// Returns one line of the table, for images like those of CIFAR-10.
const fn cifar(name: &'static str, about: &'static str) -> Entry {
    entry(name, 32, 3, 10, about)
}

const ENTRIES: &[Entry] = &[
    entry("mlp", 28, 1, 10, "two hidden layers of 256 with ReLU; any image"),
    entry("lenet", 28, 1, 10, "LeNet-5 with ReLU; images of at least 12x12"),
    imagenet("alexnet", "AlexNet as published: LRN, two groups, dropout; images of at least 63x63"),
    entry("overfeat", 231, 3, 1000, "OverFeat's fast model; images of at least 71x71"),
    imagenet("vgg11", "VGG A, without batch normalisation; images of at least 32x32"),
    imagenet("vgg13", "VGG B"),
    imagenet("vgg16", "VGG D"),
    imagenet("vgg19", "VGG E"),
    imagenet(
        "vgg<N>",
        "vgg16 or vgg19 with k more convolutions in each group (vDNN §4.3); N = 16 + 5k or 19 + 5k",
    ),
    imagenet(
        "googlenet",
        "GoogLeNet with batch normalisation, without auxiliary heads; images of at least 15x15",
    ),
    entry("inception_v3", 299, 3, 1000, "Inception v3 without auxiliary head; images of at least 75x75"),
    imagenet("mobilenet_v2", "inverted residuals of convolutions channel by channel, with ReLU6"),
    entry("unet", 512, 1, 2, "U-Net with padding: a class a pixel; sides are multiples of 16"),
    imagenet("resnet18", "residual network of basic blocks, for ImageNet"),
    imagenet("resnet34", "residual network of basic blocks, for ImageNet"),
    imagenet("resnet50", "residual network of bottlenecks, for ImageNet"),
    imagenet("resnet101", "residual network of bottlenecks, for ImageNet"),
    imagenet("resnet152", "residual network of bottlenecks, for ImageNet"),
    imagenet(
        "resnet<N>",
        "bottlenecks, the third group as long as it takes; N = 3n + 2, such as 1001 or 1517",
    ),
    imagenet(
        "resnet<N>-imagenet",
        "the same where resnet<N> is a network for CIFAR, such as resnet1202-imagenet",
    ),
    imagenet("wide_resnet50_2", "resnet50 with inner convolutions of twice the width"),
    imagenet("wide_resnet101_2", "resnet101 with inner convolutions of twice the width"),
    imagenet("densenet121", "dense blocks of 6, 12, 24 and 16 layers, growth 32; images of at least 29x29"),
    imagenet("densenet161", "dense blocks of 6, 12, 36 and 24 layers, growth 48"),
    imagenet("densenet169", "dense blocks of 6, 12, 32 and 32 layers, growth 32"),
    imagenet("densenet201", "dense blocks of 6, 12, 48 and 32 layers, growth 32"),
    cifar("resnet20", "residual network for CIFAR; good on 8x8 images too"),
    cifar("resnet32", "residual network for CIFAR"),
    cifar("resnet44", "residual network for CIFAR"),
    cifar("resnet56", "residual network for CIFAR"),
    cifar("resnet110", "residual network for CIFAR"),
    cifar("resnet1202", "residual network for CIFAR"),
    cifar("resnet<N>-cifar", "residual network for CIFAR of any depth N = 6n + 2"),
    cifar(
        "wrn-<D>-<W>",
        "wide residual network of depth D = 6n + 4 and W times the width, such as wrn-28-10",
    ),
    text("lstm", 128, 65, "character model: a memory of 512, unrolled over the text"),
    text("gpt-tiny", 64, 65, "GPT-2 of 4 blocks of 128, 4 heads: a character model for small machines"),
    text("gpt-mini", 256, 65, "GPT-2 of 6 blocks of 384, 6 heads: a character model"),
    text("gpt", 1024, 50_257, "GPT-2 small: 12 blocks of 768, 12 heads, tied head"),
    text("gpt-medium", 1024, 50_257, "GPT-2 medium: 24 blocks of 1024, 16 heads"),
    text("gpt-large", 1024, 50_257, "GPT-2 large: 36 blocks of 1280, 20 heads"),
    text("gpt-xl", 1024, 50_257, "GPT-2 XL: 48 blocks of 1600, 25 heads"),
    text(
        "llama-tiny",
        64,
        65,
        "Llama of 4 blocks of 128, 4 heads that share 2 of keys and values: characters",
    ),
    text("tinyllama", 2048, 32_000, "TinyLlama: 22 blocks of 2048, 32 heads that share 4 of keys and values"),
    text("bert-tiny", 512, 30_522, "BERT tiny as masked language model: 2 blocks of 128, 2 heads"),
    text("bert", 512, 30_522, "BERT base as masked language model: 12 blocks of 768, tied head"),
    text("bert-large", 512, 30_522, "BERT large as masked language model: 24 blocks of 1024"),
];

/// Returns all networks of the zoo, with the images that each was made for.
pub fn entries() -> &'static [Entry] {
    ENTRIES
}

/// Returns the default spec of a network: its name with the image size, channels and classes of its entry, or of its
/// family's. `None` for a name without either; [`build`] decides if a depth is possible.
pub fn usual(name: &str) -> Option<NetworkSpec> {
    let exact = entries().iter().find(|entry| entry.name == name && !name.contains('<'));
    let entry = exact.or_else(|| entries().iter().find(|entry| numbers(name, entry.name).is_some()))?;
    let Entry { image, channels, classes, .. } = *entry;
    Some(NetworkSpec { name: name.to_owned(), image, channels, classes })
}

/// Builds the network that a spec names.
pub fn build(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    construct(spec).map_err(|error| {
        let Some(layer) = error.too_small_for else { return error };
        let (NetworkSpec { name, image: [height, width], .. }, smallest) = (spec, smallest_image(spec));
        NetworkError::new(format_args!(
            "{height}x{width} images are too small for `{name}`: its layer `{layer}` has nothing left to work on; give \
             images of at least {smallest}x{smallest}, or choose a network for small images such as resnet20 or mlp"
        ))
    })
}

/// Builds the network of a name, for any images.
fn construct(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    match spec.name.as_str() {
        "mlp" => return plain::mlp(spec),
        "lenet" => return plain::lenet(spec),
        "alexnet" => return alexnet::alexnet(spec),
        "overfeat" => return alexnet::overfeat(spec),
        "googlenet" => return googlenet::build(spec),
        "mobilenet_v2" => return mobilenet::v2(spec),
        "unet" => return unet::build(spec),
        "lstm" => return lstm::build(spec),
        "inception_v3" => return inception::build(spec),
        _ => {}
    }
    let families = [vgg::named, resnet::named, wide::named, densenet::named, transformer::named];
    families.into_iter().find_map(|named| named(spec)).unwrap_or_else(|| {
        let (name, nearest) = (&spec.name, nearest_names(&spec.name));
        let meant = match &nearest[..] {
            [] => String::new(),
            names => format!("; did you mean {}?", either(names)),
        };
        let error = NetworkError::new(format_args!("no network is called `{name}`{meant}"));
        Err(NetworkError { help: Some("`plimsoll networks` lists all that there are"), ..error })
    })
}

/// Returns the numbers of a name at the `<N>` and similar places of a pattern, if it matches; `None` for a pattern without
/// any. Too many digits for a number count as the largest.
fn numbers(name: &str, pattern: &str) -> Option<Vec<u32>> {
    let mut pieces = pattern.split(['<', '>']);
    let mut rest = name.strip_prefix(pieces.next()?)?;
    let mut found = Vec::new();
    while let (Some(_), Some(literal)) = (pieces.next(), pieces.next()) {
        let (digits, after) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
        if digits.is_empty() || digits.starts_with('0') {
            return None;
        }
        found.push(digits.parse().unwrap_or(u32::MAX));
        rest = after.strip_prefix(literal)?;
    }
    (rest.is_empty() && !found.is_empty()).then_some(found)
}

/// Returns the error for a depth that a family does not have; `possible` gives the names of the possible depths.
fn impossible(
    name: &str,
    depth: u32,
    rule: &'static str,
    possible: impl Fn(u32) -> Option<String>,
) -> NetworkError {
    let below = (1..depth.min(10_000)).rev().find_map(&possible);
    let above = (depth.saturating_add(1)..10_000).find_map(&possible);
    let nearest: Vec<String> = below.into_iter().chain(above).collect();
    NetworkError::new(format_args!("there is no `{name}`: {rule}; the nearest are {}", either(&nearest)))
}

/// Returns the smallest height and width at which the network can be built; called only after a smaller image was given.
fn smallest_image(spec: &NetworkSpec) -> u32 {
    let fits = |side: u32| {
        let spec = NetworkSpec { image: [side; 2], ..spec.clone() };
        construct(&spec).err().and_then(|error| error.too_small_for).is_none()
    };
    (1..).find(|side| fits(*side)).expect("every network of the zoo works on some image")
}

/// Returns the names of the zoo nearest to a given name.
fn nearest_names(asked: &str) -> Vec<String> {
    nearest(asked, entries().iter().map(|e| e.name).filter(|name| !name.contains('<')))
}

/// Returns the names that may have been meant, at most three, the nearest first, ignoring case: those that a few edits for
/// their length turn into the given name, and those that begin with it.
pub fn nearest<'n>(asked: &str, names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let asked = asked.to_lowercase();
    let length = asked.chars().count();
    let edits_to = |name: &'n str| {
        let lower = name.to_lowercase();
        let edits = strsim::osa_distance(&asked, &lower);
        let begins = length > 2 && lower.starts_with(&asked);
        (begins || edits <= (length + 1) / 4).then_some((edits, name))
    };
    let mut ranked: Vec<(usize, &str)> = names.into_iter().filter_map(edits_to).collect();
    ranked.sort_by_key(|(edits, _)| *edits);
    ranked.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}
