//! Training data: sets of labelled images and texts, and the order in which samples are used.
//!
//! A set gives any sample as normalised f32 pixels, `[height][width][channels]`, or as tokens, and its labels: one class, or
//! one for each pixel or token. Two sets are embedded in the binary ([`digits()`], [`text()`]); others are read from the
//! user's files ([`mnist()`], [`cifar10()`], [`text_file()`], and sample by sample [`image_folder()`] and [`token_file()`]);
//! [`synthetic()`] makes one of any shape. Every order and every synthetic pixel is drawn from a seed by counter, so a run
//! can be repeated and resumed.
//!
//! Deliberately does not download, decompress archives or augment.

mod cifar;
mod digits;
mod image_folder;
mod images;
mod mnist;
mod npy;
mod pieces;
mod synthetic;
mod text;
mod tokens;

pub use cifar::cifar10;
pub use digits::digits;
pub use image_folder::image_folder;
pub use images::Images;
pub use mnist::mnist;
pub use synthetic::{synthetic, synthetic_like};
pub use text::{text, text_file};
pub use tokens::token_file;

use crate::error::Error;
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_ir::network::Shape;
use plimsoll_ir::philox::philox4x32;
use std::path::Path;

/// Destination of a sample.
#[derive(Debug)]
pub enum Input<'a> {
    /// f32 `[height][width][channels]`.
    Pixels(&'a mut [f32]),
    /// i32 `[length]`, each below the number of classes.
    Tokens(&'a mut [i32]),
}

impl<'a> Input<'a> {
    /// The buffer for pixels. Panics if it is for tokens.
    pub fn pixels(self) -> &'a mut [f32] {
        match self {
            Input::Pixels(pixels) => pixels,
            Input::Tokens(_) => panic!("a set of images was asked for tokens"),
        }
    }

    /// Buffers of samples of this many elements.
    fn split(self, elements: usize) -> Box<dyn Iterator<Item = Input<'a>> + 'a> {
        match self {
            Input::Pixels(all) => Box::new(all.chunks_exact_mut(elements).map(Input::Pixels)),
            Input::Tokens(all) => Box::new(all.chunks_exact_mut(elements).map(Input::Tokens)),
        }
    }

    /// The buffer for tokens. Panics if it is for pixels.
    pub fn tokens(self) -> &'a mut [i32] {
        match self {
            Input::Tokens(tokens) => tokens,
            Input::Pixels(_) => panic!("a set of texts was asked for pixels"),
        }
    }
}

/// A set of labelled images or texts.
pub trait Dataset: Send + Sync {
    /// Name of the set, for reports and checkpoints.
    fn name(&self) -> &str;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Returns `true` if it has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shape of an image; for a text its length, 1 and 1.
    fn image(&self) -> Shape;

    /// Number of classes; every label and every token is below it.
    fn classes(&self) -> u32;

    /// Number of labels of a sample: one, or one for each pixel or token.
    fn labels(&self) -> usize {
        1
    }

    /// Returns `true` if it holds tokens instead of pixels.
    fn holds_tokens(&self) -> bool {
        false
    }

    /// Reads sample `index` and its labels, as many as [`Dataset::labels`]. Panics if there is no such sample, or if `input`
    /// is of the wrong kind. Errors: its file cannot be read, or is incomplete.
    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), Error>;

    /// Reads samples into consecutive places, each as [`Dataset::read`] does. A set whose samples take long to read
    /// distributes them among threads.
    fn read_all(&self, samples: &[usize], input: Input<'_>, labels: &mut [i32]) -> Result<(), Error> {
        let places =
            input.split(self.image().elements() as usize).zip(labels.chunks_exact_mut(self.labels()));
        samples.iter().zip(places).try_for_each(|(sample, (input, labels))| self.read(*sample, input, labels))
    }
}

/// A training set and a test set.
pub struct Split {
    /// Training set.
    pub train: Box<dyn Dataset>,
    /// Held-out set.
    pub test: Box<dyn Dataset>,
}

/// Separates the draws of the order from those of parameters and dropout.
const ORDER_STREAM: u32 = 0x4f52_4452;

/// The order of an epoch: a permutation of `0..len` drawn from the seed (Fisher and Yates).
pub fn epoch_order(len: usize, seed: u64, epoch: u64, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..len as u32);
    for i in (1..len).rev() {
        let [word, ..] = philox4x32(seed, [i as u32, epoch as u32, (epoch >> 32) as u32, ORDER_STREAM]);
        let j = (u64::from(word) * (i as u64 + 1)) >> 32;
        order.swap(i, j as usize);
    }
}

/// A batch in the device's layout; its buffers are reused.
pub(crate) struct Batch {
    /// f32 pixels, or i32 tokens.
    input: Vec<u32>,
    holds_tokens: bool,
    labels: Vec<i32>,
    /// Elements of a sample.
    elements: usize,
    labels_each: usize,
}

impl Batch {
    /// A batch with room for this many samples of a set.
    pub(crate) fn new(samples: u64, data: &dyn Dataset) -> Batch {
        let (samples, holds_tokens) = (samples as usize, data.holds_tokens());
        let (elements, labels_each) = (data.image().elements() as usize, data.labels());
        let (input, labels) = (vec![0; samples * elements], vec![-1; samples * labels_each]);
        Batch { input, holds_tokens, labels, elements, labels_each }
    }

    /// Reads these samples, at most as many as the batch has; the rest becomes zeros with the label -1.
    pub(crate) fn fill(
        &mut self,
        data: &dyn Dataset,
        samples: impl Iterator<Item = usize>,
    ) -> Result<(), Error> {
        let places = self.labels.len() / self.labels_each;
        let samples: Vec<usize> = samples.take(places).collect();
        let (labels, rest) = self.labels.split_at_mut(samples.len() * self.labels_each);
        rest.fill(-1);
        let (input, rest) = self.input.split_at_mut(samples.len() * self.elements);
        rest.fill(0);
        let input = match self.holds_tokens {
            true => Input::Tokens(cast_slice_mut(input)),
            false => Input::Pixels(cast_slice_mut(input)),
        };
        data.read_all(&samples, input, labels)
    }

    pub(crate) fn images(&self) -> &[u8] {
        cast_slice(&self.input)
    }

    pub(crate) fn labels(&self) -> &[u8] {
        cast_slice(&self.labels)
    }
}

/// Contents of a file; an empty or missing file is an error that names `wanted`.
fn whole_file(path: &Path, wanted: &str) -> Result<Vec<u8>, Error> {
    let fault = |why: String| Error::data(path, why);
    let bytes = std::fs::read(path).map_err(|error| {
        let mut packed = path.as_os_str().to_owned();
        packed.push(".gz");
        if Path::new(&packed).is_file() {
            return fault(format!(
                "only `{0}` is there; unpack it: gunzip -k {0}",
                Path::new(&packed).display()
            ));
        }
        fault(format!("{error}; expected {wanted}"))
    })?;
    if bytes.is_empty() { Err(fault(format!("the file is empty; expected {wanted}"))) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_takes_every_sample_once_in_an_order_of_its_own() {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        epoch_order(1000, 7, 0, &mut first);
        epoch_order(1000, 7, 1, &mut second);
        assert_ne!(first, second);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<u32>>());
        epoch_order(1000, 7, 0, &mut second);
        assert_eq!(first, second);
        epoch_order(1000, 8, 0, &mut second);
        assert_ne!(first, second);
    }

    #[test]
    fn a_batch_that_is_not_full_ends_with_samples_that_do_not_count() {
        let split = digits();
        let mut batch = Batch::new(4, &*split.train);
        batch.fill(&*split.train, 0..4).expect("they are in memory");
        batch.fill(&*split.train, 10..12).expect("they are in memory");
        assert!(batch.labels[..2].iter().all(|l| *l >= 0));
        assert_eq!(batch.labels[2..], [-1, -1]);
        assert!(batch.input[2 * 64..].iter().all(|pixel| *pixel == 0));
        assert_eq!(batch.images().len(), 4 * 64 * 4);
    }

    #[test]
    fn a_batch_of_texts_has_a_label_for_every_token() {
        let split = text(10).expect("the text is longer");
        let mut batch = Batch::new(3, &*split.train);
        batch.fill(&*split.train, 4..6).expect("it is in memory");
        assert_eq!((batch.images().len(), batch.labels.len()), (3 * 10 * 4, 30));
        assert_eq!(
            cast_slice::<_, i32>(&batch.input)[1..20],
            batch.labels[..19],
            "the pieces lie end to end"
        );
        assert!(batch.labels[20..].iter().all(|l| *l == -1));
    }
}
