//! Training data: their sources, and opening them for a network.

use crate::error::Error;
use crate::request::NetworkRequest;
use plimsoll_ir::Bytes;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Shape};
use plimsoll_networks::{build, usual};
use plimsoll_runtime::cpu;
use plimsoll_runtime::data::{self, Split};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Sequence length in characters, if neither the network nor the request gives one.
const USUAL_LENGTH: u32 = 128;

/// Image shape and classes, if neither the network nor the request gives them.
const USUAL_IMAGES: NetworkSpec =
    NetworkSpec { name: String::new(), image: [32; 2], channels: 3, classes: 10 };

/// Source of the training data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// Handwritten digits that come with Plimsoll.
    Digits,
    /// Noise of any shape, with this many samples.
    Synthetic(u64),
    /// Directory with MNIST's four IDX files.
    Mnist(PathBuf),
    /// Directory with CIFAR-10's binary files.
    Cifar10(PathBuf),
    /// The user's text file, or the text that comes with Plimsoll; the task is to predict the next character.
    Text(Option<PathBuf>),
    /// Directory with a subdirectory of images for each class.
    Images(PathBuf),
    /// File of tokens, or a directory with `train.bin`; the task is to predict the next token.
    Tokens(PathBuf),
}

/// Samples of `synthetic` if no number is given.
const SYNTHETIC_SAMPLES: u64 = 4096;

impl DataSource {
    /// Returns the kind alone, such as `mnist`.
    pub fn kind(&self) -> &'static str {
        match self {
            DataSource::Digits => "digits",
            DataSource::Synthetic(_) => "synthetic",
            DataSource::Mnist(_) => "mnist",
            DataSource::Cifar10(_) => "cifar10",
            DataSource::Text(_) => "text",
            DataSource::Images(_) => "images",
            DataSource::Tokens(_) => "tokens",
        }
    }

    /// Returns the user's file or directory that the data are read from.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DataSource::Mnist(path)
            | DataSource::Cifar10(path)
            | DataSource::Text(Some(path))
            | DataSource::Images(path)
            | DataSource::Tokens(path) => Some(path),
            DataSource::Digits | DataSource::Synthetic(_) | DataSource::Text(None) => None,
        }
    }

    /// Returns the same source with an absolute path, which is valid from every directory.
    pub fn whole(&self) -> DataSource {
        let path = self.path().and_then(|path| path.canonicalize().ok());
        path.and_then(|path| DataSource::at(self.kind(), path)).unwrap_or_else(|| self.clone())
    }

    /// Returns the source of a kind at a path; `None` for a kind that has none.
    fn at(kind: &str, path: PathBuf) -> Option<DataSource> {
        Some(match kind {
            "text" => DataSource::Text(Some(path)),
            "mnist" => DataSource::Mnist(path),
            "cifar10" => DataSource::Cifar10(path),
            "images" => DataSource::Images(path),
            "tokens" => DataSource::Tokens(path),
            _ => return None,
        })
    }
}

impl fmt::Display for DataSource {
    /// Writes the source as `--data` accepts it.
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
        let wanted = "data is `digits`, `text`, `synthetic`, `synthetic:SAMPLES`, `images:FOLDER`, `text:FILE`, \
                      `tokens:FILE`, `mnist:FOLDER` or `cifar10:FOLDER`";
        match text.split_once(':') {
            None if text == "digits" => Ok(DataSource::Digits),
            None if text == "text" => Ok(DataSource::Text(None)),
            None if text == "synthetic" => Ok(DataSource::Synthetic(SYNTHETIC_SAMPLES)),
            Some(("synthetic", count)) => {
                // An order of samples uses 32-bit numbers.
                let samples = count.parse().ok().filter(|n| (1..=u64::from(u32::MAX)).contains(n));
                samples.map(DataSource::Synthetic).ok_or_else(|| {
                    format!("`{count}` is no number of samples from 1 to {}; {wanted}", u32::MAX)
                })
            }
            None => Err(wanted.into()),
            Some((kind, path)) => match DataSource::at(kind, path.into()) {
                Some(_) if path.is_empty() => Err(format!("`{kind}:` names no file or folder; {wanted}")),
                source => source.ok_or_else(|| wanted.into()),
            },
        }
    }
}

/// Reads or makes the data for a network of the zoo, given its name and the request.
pub(crate) fn open(source: &DataSource, name: &str, request: &NetworkRequest) -> Result<Split, Error> {
    match source {
        DataSource::Text(file) => text(file.as_deref(), request.image.unwrap_or_else(|| usual_length(name))),
        DataSource::Tokens(file) => {
            tokens(file, request.image.unwrap_or_else(|| usual_length(name)), request.classes)
        }
        DataSource::Images(folder) => {
            let usual = usual(name).filter(|spec| spec.image[1] != 1).unwrap_or(USUAL_IMAGES);
            let [height, width] = request.image.unwrap_or(usual.image);
            let channels = request.channels.unwrap_or(usual.channels);
            Ok(data::image_folder(folder, Shape { height, width, channels })?)
        }
        DataSource::Synthetic(_) => {
            let usual = usual_text(name).unwrap_or(USUAL_IMAGES);
            let network = build(&NetworkSpec {
                image: request.image.unwrap_or(usual.image),
                channels: request.channels.unwrap_or(usual.channels),
                classes: request.classes.unwrap_or(usual.classes),
                name: name.to_owned(),
            })?;
            of_network(source, &network)
        }
        files => in_files(files),
    }
}

/// Reads or makes the data for a network.
pub fn of_network(source: &DataSource, network: &Network) -> Result<Split, Error> {
    match source {
        DataSource::Text(_) | DataSource::Tokens(_) if !network.takes_tokens() => {
            Err(Error::texts(&network.spec.name, format_args!("data `{source}`")))
        }
        DataSource::Images(_) if network.takes_tokens() => {
            Err(Error::images(&network.spec.name, format_args!("data `{source}`")))
        }
        DataSource::Text(file) => text(file.as_deref(), network.spec.image),
        DataSource::Tokens(file) => {
            let vocabularies = network.layers.iter().filter_map(|layer| match layer.kind {
                LayerKind::Embedding { vocabulary, .. } => Some(vocabulary),
                _ => None,
            });
            tokens(file, network.spec.image, vocabularies.chain([network.spec.classes]).min())
        }
        DataSource::Images(folder) => {
            let NetworkSpec { image: [height, width], channels, .. } = network.spec;
            Ok(data::image_folder(folder, Shape { height, width, channels })?)
        }
        DataSource::Synthetic(samples) => {
            // Samples are made when they are read; only their order in an epoch is held, four bytes each.
            let order = Bytes(samples.saturating_mul(4));
            if let Some(available) = cpu::available_bytes().filter(|available| order > *available) {
                let message =
                    format!("the order of {samples} samples takes {order}, and {available} are there");
                return Err(Error::usage(message).help("choose fewer with --data synthetic:SAMPLES"));
            }
            let set = |samples: u64, seed| data::synthetic_like(network, samples as usize, seed);
            Ok(Split { train: set(*samples, 1), test: set((*samples / 10).max(1), 2) })
        }
        files => in_files(files),
    }
}

/// Reads data whose shape does not depend on the network.
fn in_files(source: &DataSource) -> Result<Split, Error> {
    Ok(match source {
        DataSource::Mnist(folder) => data::mnist(folder)?,
        DataSource::Cifar10(folder) => data::cifar10(folder)?,
        _ => data::digits(),
    })
}

/// Reads a text, cut into samples of `image` = length by 1 characters.
fn text(file: Option<&Path>, image: [u32; 2]) -> Result<Split, Error> {
    let length = length_of(image)?;
    Ok(match file {
        Some(file) => data::text_file(file, length)?,
        None => data::text(length)?,
    })
}

/// Opens a file of tokens, cut into samples of `image` = length by 1 tokens.
fn tokens(file: &Path, image: [u32; 2], vocabulary: Option<u32>) -> Result<Split, Error> {
    Ok(data::token_file(file, length_of(image)?, vocabulary)?)
}

/// Returns the length of text samples, whose width must be 1.
fn length_of([length, width]: [u32; 2]) -> Result<u32, Error> {
    if width == 1 {
        return Ok(length);
    }
    Err(Error::usage(format_args!("texts have no width, and --image says {length}x{width}"))
        .help(format_args!("give --image {length}x1 for texts of {length} characters, or leave it out")))
}

/// Returns the shape of text samples if the request gives none.
fn usual_length(name: &str) -> [u32; 2] {
    [usual_text(name).map_or(USUAL_LENGTH, |spec| spec.image[0]), 1]
}

/// Returns the spec for which a text network was made; `None` for other networks.
pub(crate) fn usual_text(name: &str) -> Option<NetworkSpec> {
    usual(name).filter(|spec| spec.image[1] == 1)
}

/// Checks that the data have the shape that a network takes.
pub(crate) fn fits(spec: &NetworkSpec, data: &Split) -> Result<(), Error> {
    let wanted = Shape { height: spec.image[0], width: spec.image[1], channels: spec.channels };
    if data.train.image() == wanted && data.train.classes() <= spec.classes {
        return Ok(());
    }
    let (name, has, classes) = (data.train.name(), data.train.image(), data.train.classes());
    Err(Error::usage(format_args!(
        "{name} has images of {has} in {classes} classes, the network is for {wanted} in {}",
        spec.classes
    ))
    .help("leave --image, --channels and --classes out, or choose other --data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_source_is_written_as_it_is_read() {
        for text in [
            "digits",
            "text",
            "synthetic:12",
            "mnist:a/b",
            "cifar10:c",
            "text:a:b.txt",
            "images:a/b",
            "tokens:a.bin",
        ] {
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
