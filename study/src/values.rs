//! Values of options that are more than a number, a unit or a word of an enum, each with its parser.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::{Optimizer, Precision};
use plimsoll_networks::ReluStorage;
use plimsoll_runtime::HostMemory;
use plimsoll_tuner::model::devices::{self, Sheet};
use std::str::FromStr;

/// Requested precision; `None` for the device's default.
pub type AskedPrecision = Option<Precision>;

/// Returns a parser of words; each has its value and its description.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    words: &'static [(&'static str, T, &'static str)],
) -> impl TypedValueParser<Value = T> {
    let all = words.iter().map(|(word, _, about)| PossibleValue::new(*word).help(*about));
    PossibleValuesParser::new(all)
        .map(|chosen| words.iter().find(|(word, ..)| *word == chosen).expect("no other word is taken").1)
}

/// Returns the parser of a link's duplex mode.
pub fn duplex() -> impl TypedValueParser<Value = Duplex> {
    one_of(&[
        ("full", Duplex::Full, "Both ways at once, each at full rate"),
        ("half", Duplex::Half, "One way at a time"),
    ])
}

/// Returns the parser of an optimizer.
pub fn optimizer() -> impl TypedValueParser<Value = Optimizer> {
    const STATES: [&str; 2] = [
        "Stochastic gradient descent with momentum: one state for each parameter",
        "Adam with decoupled weight decay: two states for each parameter",
    ];
    one_of(&[("sgd", Optimizer::Sgd, STATES[0]), ("adamw", Optimizer::Adamw, STATES[1])])
}

/// Returns the parser of the tensor that ReLU keeps for its backward pass.
pub fn relu() -> impl TypedValueParser<Value = ReluStorage> {
    one_of(&[
        ("auto", ReluStorage::Auto, "The mask if nothing else needs the output, else the output"),
        ("output", ReluStorage::Output, "Its output"),
        ("mask", ReluStorage::Mask, "One bit an element (Layrub §4.2)"),
    ])
}

/// Returns the parser of a precision.
pub fn precision() -> impl TypedValueParser<Value = AskedPrecision> {
    one_of(&[
        (
            "default",
            None,
            "PyTorch's: on GPUs that have TF32, convolutions in TF32 and matrix products in f32; elsewhere f32",
        ),
        ("f32", Some(Precision::F32), "f32 throughout"),
        (
            "tf32",
            Some(Precision::Tf32),
            "Both in TF32: by tensor cores, with numbers of 10 bits after the point. The CPU has none",
        ),
        (
            "bf16",
            Some(Precision::Bf16),
            "Activations and their gradients take half the bytes, and the inputs of convolutions and matrix products are \
             rounded to bf16; sums are f32. On GPUs from Ampere on",
        ),
    ])
}

/// Returns a parser of values for which a condition holds; any other value gets this message.
pub fn such<T: FromStr + Clone + Send + Sync + 'static>(
    holds: fn(&T) -> bool,
    wanted: &'static str,
) -> impl TypedValueParser<Value = T> {
    move |text: &str| text.parse().ok().filter(holds).ok_or(wanted)
}

/// Returns the parser of the fraction of the old momentum to keep.
pub fn momentum() -> impl TypedValueParser<Value = f32> {
    such(|share| (0.0..1.0).contains(share), "momentum is a number from 0 to below 1, such as 0.9")
}

/// Returns the parser of a penalty on the size of weights.
pub fn weight_decay() -> impl TypedValueParser<Value = f32> {
    such(|penalty| (0.0..=1.0).contains(penalty), "weight decay is a number from 0 to 1, such as 5e-4")
}

/// Returns the parser of the fraction of an old moment to keep.
pub fn beta() -> impl TypedValueParser<Value = f64> {
    such(|share| (0.0..1.0).contains(share), "a beta is at least 0 and below 1, such as 0.9")
}

/// Returns the parser of the term that prevents a division by 0, in f32.
pub fn epsilon() -> impl TypedValueParser<Value = f64> {
    let holds = |number: &f64| (f64::from(f32::MIN_POSITIVE)..=1.0).contains(number);
    such(holds, "epsilon is a number from 1.2e-38 to 1, such as 1e-8")
}

/// Parses height and width of an image.
pub fn image(text: &str) -> Result<[u32; 2], &'static str> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    let side = |t: &str| t.parse::<u32>().ok().filter(|n| *n > 0);
    side(height)
        .zip(side(width))
        .map(|(height, width)| [height, width])
        .ok_or("an image size is a number of pixels such as 64, or height x width such as 48x64")
}

/// Parses the location of swapped tensors.
pub fn host(text: &str) -> Result<HostMemory, &'static str> {
    match text.split_once(':') {
        None if text == "memory" => Ok(HostMemory::Anonymous),
        Some(("file", path)) if !path.is_empty() => Ok(HostMemory::File(path.into())),
        _ => Err("the host side is `memory` or `file:PATH`"),
    }
}

/// Device that trains.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU, numbered from 0.
    Cuda(u32),
    /// A GPU that is not present, modelled from its data sheet.
    Modelled(&'static Sheet),
}

impl FromStr for DeviceChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match (text.split_once(':'), devices::sheet(text)) {
            (None, _) if text == "cpu" => Ok(DeviceChoice::Cpu),
            (None, _) if text == "cuda" => Ok(DeviceChoice::Cuda(0)),
            (None, Some(sheet)) => Ok(DeviceChoice::Modelled(sheet)),
            (Some(("cuda", number)), _) => number
                .parse()
                .map(DeviceChoice::Cuda)
                .map_err(|_| format!("`{number}` is no number of a device")),
            _ => Err(format!(
                "a device is `cpu`, `cuda` or `cuda:N`, or one that is modelled: {}",
                devices::names()
            )),
        }
    }
}
