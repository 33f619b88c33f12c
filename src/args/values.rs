//! Values of options that are more than a number, a unit or a word, each with the words that it is read from.

use clap::ValueEnum;
use plimsoll_tuner::model::devices::{self, Sheet};
use std::fmt;
use std::path::{Path, PathBuf};
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

/// Whose search chooses the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SearchArg {
    /// The batch with the shortest epoch, planned by policy plimsoll
    #[default]
    Plimsoll,
    /// AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall, planned by policy accudnn
    Accudnn,
}

/// What the search for the batch is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Objective {
    /// Of the batches whose epoch is within 1 % of the shortest (or within what the runs scatter by, up to 3 %) the one that swaps and
    /// recomputes for the fewest seconds, then the smallest
    #[default]
    Frugal,
    /// The shortest epoch, however much is swapped and recomputed for it
    Fastest,
}

/// Whether the two ways of the link can be busy at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DuplexArg {
    /// Each way has the link to itself
    #[default]
    Full,
    /// Both ways share it
    Half,
}

/// What to train on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// The handwritten digits that come with Plimsoll.
    Digits,
    /// Noise of any shape: this many samples.
    Synthetic(u64),
    /// A folder with MNIST's four IDX files.
    Mnist(PathBuf),
    /// A folder with CIFAR-10's binary files.
    Cifar10(PathBuf),
    /// A text file of the user's, or the text that comes with Plimsoll: what character comes next.
    Text(Option<PathBuf>),
}

/// Samples of `synthetic` without a number.
const SYNTHETIC_SAMPLES: u64 = 4096;

impl DataSource {
    /// The kind alone, such as `mnist`.
    pub fn kind(&self) -> &'static str {
        match self {
            DataSource::Digits => "digits",
            DataSource::Synthetic(_) => "synthetic",
            DataSource::Mnist(_) => "mnist",
            DataSource::Cifar10(_) => "cifar10",
            DataSource::Text(_) => "text",
        }
    }

    /// The file or folder of the user's that it is read from.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DataSource::Mnist(path) | DataSource::Cifar10(path) | DataSource::Text(Some(path)) => Some(path),
            DataSource::Digits | DataSource::Synthetic(_) | DataSource::Text(None) => None,
        }
    }

    /// The same data by the whole path of its file or folder, which names it from every folder.
    pub fn whole(&self) -> DataSource {
        let whole = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        match self {
            DataSource::Mnist(path) => DataSource::Mnist(whole(path)),
            DataSource::Cifar10(path) => DataSource::Cifar10(whole(path)),
            DataSource::Text(Some(path)) => DataSource::Text(Some(whole(path))),
            other => other.clone(),
        }
    }
}

impl fmt::Display for DataSource {
    /// As `--data` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match (self, self.path()) {
            (_, Some(path)) => write!(f, "{kind}:{}", path.display()),
            (DataSource::Synthetic(samples), None) => write!(f, "{kind}:{samples}"),
            _ => f.write_str(kind),
        }
    }
}

impl FromStr for DataSource {
    type Err = String;
    fn from_str(text: &str) -> Result<DataSource, String> {
        let wanted = "data is `digits`, `text`, `synthetic`, `synthetic:SAMPLES`, `mnist:FOLDER`, `cifar10:FOLDER` or \
                      `text:FILE`";
        match text.split_once(':') {
            None if text == "digits" => Ok(DataSource::Digits),
            None if text == "text" => Ok(DataSource::Text(None)),
            None if text == "synthetic" => Ok(DataSource::Synthetic(SYNTHETIC_SAMPLES)),
            Some(("synthetic", count)) => {
                // An order of samples has numbers of 32 bits.
                let samples = count.parse().ok().filter(|n| (1..=u64::from(u32::MAX)).contains(n));
                samples.map(DataSource::Synthetic).ok_or_else(|| {
                    format!("`{count}` is no number of samples from 1 to {}; {wanted}", u32::MAX)
                })
            }
            Some((kind @ ("text" | "mnist" | "cifar10"), "")) => {
                Err(format!("`{kind}:` names no file or folder; {wanted}"))
            }
            Some(("text", file)) => Ok(DataSource::Text(Some(file.into()))),
            Some(("mnist", folder)) => Ok(DataSource::Mnist(folder.into())),
            Some(("cifar10", folder)) => Ok(DataSource::Cifar10(folder.into())),
            _ => Err(wanted.into()),
        }
    }
}

/// A share of the old momentum to keep.
pub fn momentum(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share: &f32| (0.0..1.0).contains(share));
    share.ok_or_else(|| "momentum is a number from 0 to below 1, such as 0.9".to_owned())
}

/// A penalty on the size of weights.
pub fn weight_decay(text: &str) -> Result<f32, String> {
    let penalty = text.parse().ok().filter(|penalty: &f32| (0.0..=1.0).contains(penalty));
    penalty.ok_or_else(|| "weight decay is a number from 0 to 1, such as 5e-4".to_owned())
}

/// Where the host side of the swapped tensors lies.
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

/// What trains.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its number from 0.
    Cuda(u32),
    /// A GPU that is not here, modelled from its data sheet.
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

/// Whose kernels run convolutions and fully connected layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KernelsArg {
    /// cuDNN's and cuBLAS's, with all their algorithms to choose from (the default)
    #[default]
    Libraries,
    /// Plimsoll's own: slower, and no library is needed
    Own,
}

/// How the learning rate follows from the base point.
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

/// How the rate changes during training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DecayArg {
    /// Down to 0 along half a cosine
    #[default]
    Cosine,
    /// The same all the time
    Constant,
    /// To a tenth after each third of the iterations
    Step,
}

/// What ReLU keeps for its backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReluArg {
    /// The mask where nothing else needs the output, else the output
    #[default]
    Auto,
    /// Its output
    Output,
    /// One bit an element (Layrub §4.2)
    Mask,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_source_is_written_as_it_is_read() {
        for text in ["digits", "text", "synthetic:12", "mnist:a/b", "cifar10:c", "text:a:b.txt"] {
            let source: DataSource = text.parse().expect("it is one");
            assert_eq!(source.to_string(), text);
            assert!(text.starts_with(source.kind()));
        }
        let synthetic: DataSource = "synthetic".parse().expect("it is one");
        assert_eq!(synthetic.to_string(), format!("synthetic:{SYNTHETIC_SAMPLES}"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let around = folder.path().join(".").join("..").join(folder.path().file_name().expect("a name"));
        let [straight, around] =
            [folder.path(), &around].map(|path| DataSource::Mnist(path.to_owned()).whole());
        assert_eq!(straight, around);
    }
}
