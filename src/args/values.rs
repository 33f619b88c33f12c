//! Values of options that are more than a number, a unit or a word, each with its parser.

use clap::ValueEnum;
use plimsoll_ir::{Precision, Seconds};
use plimsoll_tuner::model::devices::{self, Sheet};
use std::path::PathBuf;
use std::str::FromStr;

/// Height and width of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image(pub [u32; 2]);

impl FromStr for Image {
    type Err = String;
    fn from_str(text: &str) -> Result<Image, String> {
        let (height, width) = text.split_once('x').unwrap_or((text, text));
        let side = |t: &str| t.parse::<u32>().ok().filter(|n| *n > 0);
        match (side(height), side(width)) {
            (Some(height), Some(width)) => Ok(Image([height, width])),
            _ => {
                Err("an image size is a number of pixels such as 64, or height x width such as 48x64".into())
            }
        }
    }
}

/// Search that chooses the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SearchArg {
    /// The batch with the shortest epoch, planned by policy plimsoll
    #[default]
    Plimsoll,
    /// AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall, planned by policy accudnn
    Accudnn,
}

/// Objective of the search for the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ObjectiveArg {
    /// Of the batches whose epoch is within 1 % of the shortest (or within the scatter of the runs, up to 3 %), the one with
    /// the fewest seconds of swapping and recomputing, then the smallest
    #[default]
    Frugal,
    /// The shortest epoch, however much is swapped and recomputed for it
    Fastest,
}

/// Duplex mode of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DuplexArg {
    /// Both ways at once, each at full rate
    #[default]
    Full,
    /// One way at a time
    Half,
}

/// Parses the longest silence of a worker; a worker sends a sign of life five times a second.
pub fn timeout(text: &str) -> Result<Seconds, String> {
    let time = text.parse().ok().filter(|time: &Seconds| (1.0..=86_400.0).contains(&time.0));
    time.ok_or_else(|| "a time from 1s to 24h, such as 5s".to_owned())
}

/// Parses the fraction of the old momentum to keep.
pub fn momentum(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share: &f32| (0.0..1.0).contains(share));
    share.ok_or_else(|| "momentum is a number from 0 to below 1, such as 0.9".to_owned())
}

/// Parses a penalty on the size of weights.
pub fn weight_decay(text: &str) -> Result<f32, String> {
    let penalty = text.parse().ok().filter(|penalty: &f32| (0.0..=1.0).contains(penalty));
    penalty.ok_or_else(|| "weight decay is a number from 0 to 1, such as 5e-4".to_owned())
}

/// Parses the fraction of an old moment to keep.
pub fn beta(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| (0.0..1.0).contains(share));
    share.ok_or_else(|| "a beta is at least 0 and below 1, such as 0.9".to_owned())
}

/// Parses the term that prevents a division by 0, in f32.
pub fn epsilon(text: &str) -> Result<f64, String> {
    let number =
        text.parse().ok().filter(|number: &f64| (f64::from(f32::MIN_POSITIVE)..=1.0).contains(number));
    number.ok_or_else(|| "epsilon is a number from 1.2e-38 to 1, such as 1e-8".to_owned())
}

/// Host storage of swapped tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPlace {
    /// Anonymous memory.
    Memory,
    /// A file of exactly the needed size.
    File(PathBuf),
}

impl FromStr for HostPlace {
    type Err = String;
    fn from_str(text: &str) -> Result<HostPlace, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(HostPlace::Memory),
            Some(("file", path)) if !path.is_empty() => Ok(HostPlace::File(path.into())),
            _ => Err("the host side is `memory` or `file:PATH`".into()),
        }
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
        match text.split_once(':') {
            None if text == "cpu" => Ok(DeviceChoice::Cpu),
            None if text == "cuda" => Ok(DeviceChoice::Cuda(0)),
            Some(("cuda", number)) => number
                .parse()
                .map(DeviceChoice::Cuda)
                .map_err(|_| format!("`{number}` is no number of a device")),
            None => devices::sheet(text).map(DeviceChoice::Modelled).ok_or_else(no_device),
            Some(_) => Err(no_device()),
        }
    }
}

fn no_device() -> String {
    format!("a device is `cpu`, `cuda` or `cuda:N`, or one that is modelled: {}", devices::names())
}

/// Number format of convolutions, matrix products and activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// PyTorch's: on GPUs that have TF32, convolutions in TF32 and matrix products in f32; elsewhere f32
    #[default]
    Default,
    /// f32 throughout
    F32,
    /// Both in TF32: by tensor cores, with numbers of 10 bits after the point. The CPU has none
    Tf32,
    /// Activations and their gradients take half the bytes, and the inputs of convolutions and matrix products are rounded to
    /// bf16; sums are f32. On GPUs from Ampere on
    Bf16,
}

impl PrecisionArg {
    /// Precision asked for; `None` for the device's default.
    pub fn asked(self) -> Option<Precision> {
        match self {
            PrecisionArg::Default => None,
            PrecisionArg::F32 => Some(Precision::F32),
            PrecisionArg::Tf32 => Some(Precision::Tf32),
            PrecisionArg::Bf16 => Some(Precision::Bf16),
        }
    }
}

/// Rule by which the learning rate follows from the base point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RuleArg {
    /// AccUDNN eq. (9): (1 - (1 - base * c)^q) / c
    #[default]
    Accudnn,
    /// base * q
    Linear,
    /// base * sqrt(q)
    SquareRoot,
}

/// Schedule of the learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DecayArg {
    /// Down to 0 along half a cosine
    #[default]
    Cosine,
    /// Constant
    Constant,
    /// To a tenth after each third of the iterations
    Step,
}

/// Tensor that ReLU keeps for its backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReluArg {
    /// The mask if nothing else needs the output, else the output
    #[default]
    Auto,
    /// Its output
    Output,
    /// One bit an element (Layrub §4.2)
    Mask,
}

/// Tools with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ToolArg {
    /// A command line for PyTorch's launcher, and the lines of the training loop
    Torchrun,
    /// Python for Hugging Face Accelerate
    Accelerate,
    /// Python for Lightning
    Lightning,
    /// DeepSpeed's configuration, in JSON
    Deepspeed,
    /// The trained weights, to --output, as PyTorch's load_state_dict takes them
    Safetensors,
}

/// Optimizer of the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OptimizerArg {
    /// Stochastic gradient descent with momentum: one state for each parameter
    #[default]
    Sgd,
    /// Adam with decoupled weight decay: two states for each parameter
    Adamw,
}

/// Optimizers of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ToolOptimizerArg {
    /// Stochastic gradient descent with momentum
    Sgd,
    /// Adam
    Adam,
    /// Adam with decoupled weight decay
    Adamw,
}
