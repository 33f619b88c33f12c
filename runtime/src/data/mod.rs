//! What is trained on: sets of labelled images and texts, and the order in which they are taken.
//!
//! A set gives any sample as normalised f32 pixels, `[height][width][channels]`, or as tokens, and its labels: one class, or
//! one for each pixel or token. Two sets are in the binary ([`digits()`], [`text()`]); others are read from files that the
//! user has ([`mnist()`], [`cifar10()`], [`text_file()`], and sample by sample [`image_folder()`] and [`token_file()`]);
//! [`synthetic()`] makes one of any shape. Every order and every synthetic pixel is drawn from a seed by counter, so a run
//! can be repeated and resumed.
//!
//! What it deliberately does not do: download, decompress archives or augment.

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

use crate::error::RuntimeError;
use plimsoll_ir::network::Shape;
use plimsoll_ir::philox::philox4x32;
use std::path::Path;

/// Where a sample goes.
#[derive(Debug)]
pub enum Input<'a> {
    /// f32 `[height][width][channels]`.
    Pixels(&'a mut [f32]),
    /// `[length]`, each below the number of classes.
    Tokens(&'a mut [i32]),
}

impl<'a> Input<'a> {
    /// Room for pixels. Panics where it is for tokens.
    pub fn pixels(self) -> &'a mut [f32] {
        match self {
            Input::Pixels(pixels) => pixels,
            Input::Tokens(_) => panic!("a set of images was asked for tokens"),
        }
    }

    /// The places of samples of so many elements.
    fn split(self, elements: usize) -> Box<dyn Iterator<Item = Input<'a>> + 'a> {
        match self {
            Input::Pixels(all) => Box::new(all.chunks_exact_mut(elements).map(Input::Pixels)),
            Input::Tokens(all) => Box::new(all.chunks_exact_mut(elements).map(Input::Tokens)),
        }
    }

    /// Room for tokens. Panics where it is for pixels.
    pub fn tokens(self) -> &'a mut [i32] {
        match self {
            Input::Tokens(tokens) => tokens,
            Input::Pixels(_) => panic!("a set of texts was asked for pixels"),
        }
    }
}

/// A set of labelled images or texts.
pub trait Dataset: Send + Sync {
    /// Its name, for people and for checkpoints.
    fn name(&self) -> &str;

    /// How many samples it has.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of one image; of a text its length, 1 and 1.
    fn image(&self) -> Shape;

    /// How many classes there are; every label is below, and every token.
    fn classes(&self) -> u32;

    /// Labels of a sample: one, or one for each pixel or token.
    fn labels(&self) -> usize {
        1
    }

    /// Whether it holds tokens, and not pixels.
    fn holds_tokens(&self) -> bool {
        false
    }

    /// Gives sample `index` and its labels, as many as [`Dataset::labels`]. Panics where there is no such sample, or where
    /// `input` is of the other kind. Errors: its file cannot be read, or is not whole.
    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), RuntimeError>;

    /// Gives some samples one behind the other, each as [`Dataset::read`] gives it. A set whose samples take long shares them
    /// among threads.
    fn read_all(&self, samples: &[usize], input: Input<'_>, labels: &mut [i32]) -> Result<(), RuntimeError> {
        let places =
            input.split(self.image().elements() as usize).zip(labels.chunks_exact_mut(self.labels()));
        samples.iter().zip(places).try_for_each(|(sample, (input, labels))| self.read(*sample, input, labels))
    }
}

/// A set to train on and one to test with.
pub struct Split {
    /// To train on.
    pub train: Box<dyn Dataset>,
    /// Held out.
    pub test: Box<dyn Dataset>,
}

/// Keeps the draws of the order apart from those of parameters and dropout.
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

/// A batch as the device takes it, with its room kept from batch to batch.
pub(crate) struct Batch {
    input: Words,
    labels: Vec<i32>,
    /// Of a sample.
    elements: usize,
    labels_each: usize,
}

/// The elements of a batch.
enum Words {
    Pixels(Vec<f32>),
    Tokens(Vec<i32>),
}

impl Batch {
    /// Room for so many samples of a set.
    pub(crate) fn new(samples: u64, data: &dyn Dataset) -> Batch {
        let (elements, labels_each) = (data.image().elements() as usize, data.labels());
        let all = samples as usize * elements;
        let input =
            if data.holds_tokens() { Words::Tokens(vec![0; all]) } else { Words::Pixels(vec![0.0; all]) };
        Batch { input, labels: vec![-1; samples as usize * labels_each], elements, labels_each }
    }

    /// Reads these samples, at most as many as the batch has; the rest becomes zeros with the label -1.
    pub(crate) fn fill(
        &mut self,
        data: &dyn Dataset,
        samples: impl Iterator<Item = usize>,
    ) -> Result<(), RuntimeError> {
        let places = self.labels.len() / self.labels_each;
        let samples: Vec<usize> = samples.take(places).collect();
        let (labels, rest) = self.labels.split_at_mut(samples.len() * self.labels_each);
        rest.fill(-1);
        let end = samples.len() * self.elements;
        let input = match &mut self.input {
            Words::Pixels(all) => {
                all[end..].fill(0.0);
                Input::Pixels(&mut all[..end])
            }
            Words::Tokens(all) => {
                all[end..].fill(0);
                Input::Tokens(&mut all[..end])
            }
        };
        data.read_all(&samples, input, labels)
    }

    pub(crate) fn images(&self) -> &[u8] {
        match &self.input {
            Words::Pixels(all) => as_bytes(all),
            Words::Tokens(all) => as_bytes(all),
        }
    }

    pub(crate) fn labels(&self) -> &[u8] {
        as_bytes(&self.labels)
    }
}

/// Numbers that are the same as their bytes: 4 of them, without padding, every pattern allowed.
trait Word: Copy {}
impl Word for f32 {}
impl Word for i32 {}

fn as_bytes<T: Word>(words: &[T]) -> &[u8] {
    // SAFETY: f32 and i32 have no padding and u8 no alignment; the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// The whole of a file; an empty one, or none, is an error that says what was wanted.
fn whole_file(path: &Path, wanted: &str) -> Result<Vec<u8>, RuntimeError> {
    let fault = |why: String| RuntimeError::Data { path: path.to_owned(), why };
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
        let Words::Pixels(pixels) = &batch.input else { panic!("the digits are images") };
        assert!(pixels[2 * 64..].iter().all(|p| *p == 0.0));
        assert_eq!(batch.images().len(), 4 * 64 * 4);
    }

    #[test]
    fn a_batch_of_texts_has_a_label_for_every_token() {
        let split = text(10).expect("the text is longer");
        let mut batch = Batch::new(3, &*split.train);
        batch.fill(&*split.train, 4..6).expect("it is in memory");
        assert_eq!((batch.images().len(), batch.labels.len()), (3 * 10 * 4, 30));
        let Words::Tokens(tokens) = &batch.input else { panic!("a text is tokens") };
        assert_eq!(tokens[1..20], batch.labels[..19], "the pieces lie end to end");
        assert!(batch.labels[20..].iter().all(|l| *l == -1));
    }
}
