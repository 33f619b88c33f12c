//! Sets of any shape, made from a seed: for measurements, where the data do not matter, and yet learnable.
//!
//! Each class has its own coarse pattern, and every sample adds noise to its class's pattern. If there is a label for every
//! pixel, classes change along the rows. In a text most tokens follow from the previous one.
//!
//! Deliberately does not imitate real data.

use super::{Dataset, Input};
use crate::error::Error;
use plimsoll_ir::network::{LayerKind, Network, Shape};
use plimsoll_ir::philox::{philox4x32, unit_f32};

const PATTERN_STREAM: u32 = 0x5359_4e50;
const NOISE_STREAM: u32 = 0x5359_4e4e;
const LABEL_STREAM: u32 = 0x5359_4e4c;
const TOKEN_STREAM: u32 = 0x5359_4e54;

/// Neighbouring pixels that share a label.
const RUN: usize = 8;

struct Synthetic {
    image: Shape,
    classes: u32,
    samples: usize,
    seed: u64,
    labels: usize,
    /// Vocabulary size, for a text.
    vocabulary: Option<u32>,
}

/// Makes `samples` images of this shape in `classes` classes (at least 1), the same for the same seed.
pub fn synthetic(image: Shape, classes: u32, samples: usize, seed: u64) -> Box<dyn Dataset> {
    Box::new(Synthetic { image, classes: classes.max(1), samples, seed, labels: 1, vocabulary: None })
}

/// Makes `samples` samples of a network's input, with the labels that it is trained with: images or texts, with one class
/// each, or one for each pixel or token. The same for the same seed.
pub fn synthetic_like(network: &Network, samples: usize, seed: u64) -> Box<dyn Dataset> {
    let [height, width] = network.spec.image;
    let vocabulary = network.layers.iter().filter_map(|layer| match layer.kind {
        LayerKind::Embedding { vocabulary, .. } => Some(vocabulary),
        _ => None,
    });
    Box::new(Synthetic {
        image: Shape { height, width, channels: network.spec.channels },
        classes: network.spec.classes.max(1),
        samples,
        seed,
        labels: network.labels() as usize,
        vocabulary: vocabulary.min(),
    })
}

impl Synthetic {
    /// Draws words of a sample, or of data shared by all samples.
    fn draw(&self, at: u32, index: usize, stream: u32) -> [u32; 4] {
        philox4x32(self.seed, [at, index as u32, (index as u64 >> 32) as u32, stream])
    }

    /// A text: three of four tokens follow from the previous one, the others are drawn. Its labels are the next tokens, or
    /// its first token if there is one label.
    fn read_text(&self, index: usize, vocabulary: u32, tokens: &mut [i32], labels: &mut [i32]) {
        let mut token = self.draw(u32::MAX, index, TOKEN_STREAM)[0] % vocabulary;
        let first = token;
        for (at, place) in (0..).zip(&mut *tokens) {
            *place = token as i32;
            let [chance, drawn, ..] = self.draw(at, index, TOKEN_STREAM);
            let follows = ((5 * u64::from(token) + 3) % u64::from(vocabulary)) as u32;
            token = if chance % 4 > 0 { follows } else { drawn % vocabulary };
            if let Some(label) = labels.get_mut(at as usize) {
                *label = (token % self.classes) as i32;
            }
        }
        if labels.len() != tokens.len() {
            labels.fill((first % self.classes) as i32);
        }
    }

    /// An image with one class.
    fn read_image(&self, index: usize, class: u32, pixels: &mut [f32]) {
        for (number, four) in (0..).zip(pixels.chunks_mut(4)) {
            let pattern = philox4x32(self.seed, [number / 4, class, 0, PATTERN_STREAM]);
            add_noise(four, pattern, self.draw(number, index, NOISE_STREAM));
        }
    }

    /// An image with a class for every pixel; if there are fewer labels, each covers the pixels around it in reading order.
    fn read_map(&self, index: usize, pixels: &mut [f32], labels: &mut [i32]) {
        for (run, places) in (0..).zip(labels.chunks_mut(RUN)) {
            places.fill((self.draw(run, index, LABEL_STREAM)[0] % self.classes) as i32);
        }
        let (all, channels) = (self.image.pixels() as usize, self.image.channels as usize);
        let mut number = 0;
        for (at, pixel) in pixels.chunks_exact_mut(channels).enumerate() {
            let class = labels[at * labels.len() / all] as u32;
            for (block, four) in (0..).zip(pixel.chunks_mut(4)) {
                let pattern = philox4x32(self.seed, [block, class, 0, PATTERN_STREAM]);
                add_noise(four, pattern, self.draw(number, index, NOISE_STREAM));
                number += 1;
            }
        }
    }
}

/// Adds to up to four numbers two uniform parts with mean 0; together about variance 1.
fn add_noise(numbers: &mut [f32], pattern: [u32; 4], noise: [u32; 4]) {
    for ((number, p), n) in numbers.iter_mut().zip(pattern).zip(noise) {
        *number = 2.4 * (unit_f32(p) - 0.5) + 2.4 * (unit_f32(n) - 0.5);
    }
}

impl Dataset for Synthetic {
    fn name(&self) -> &str {
        "synthetic"
    }

    fn len(&self) -> usize {
        self.samples
    }

    fn image(&self) -> Shape {
        self.image
    }

    fn classes(&self) -> u32 {
        self.classes
    }

    fn labels(&self) -> usize {
        self.labels
    }

    fn holds_tokens(&self) -> bool {
        self.vocabulary.is_some()
    }

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), Error> {
        assert!(index < self.samples, "sample {index} of {}", self.samples);
        match self.vocabulary {
            Some(vocabulary) => self.read_text(index, vocabulary, input.tokens(), labels),
            None if labels.len() == 1 => {
                let class = index as u32 % self.classes;
                self.read_image(index, class, input.pixels());
                labels[0] = class as i32;
            }
            None => self.read_map(index, input.pixels(), labels),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_set_and_another_seed_another() {
        let image = Shape { height: 5, width: 3, channels: 2 };
        let read = |seed: u64, index: usize| {
            let (mut pixels, mut label) = (vec![0.0; 30], [-1]);
            synthetic(image, 3, 9, seed)
                .read(index, Input::Pixels(&mut pixels), &mut label)
                .expect("it is made");
            (label[0], pixels)
        };
        assert_eq!(read(1, 4), read(1, 4));
        assert_eq!(read(1, 4).0, 1);
        assert_ne!(read(1, 4).1, read(2, 4).1);
        assert_ne!(read(1, 4).1, read(1, 7).1, "two samples of one class");
    }

    #[test]
    fn every_pixel_and_every_token_has_a_label_that_follows_from_it() {
        let image = Shape { height: 16, width: 4, channels: 3 };
        let map = Synthetic { image, classes: 5, samples: 2, seed: 1, labels: 64, vocabulary: None };
        let (mut pixels, mut labels) = (vec![0.0; 192], vec![-1; 64]);
        map.read(1, Input::Pixels(&mut pixels), &mut labels).expect("it is made");
        assert!(labels.chunks(RUN).all(|run| run.iter().all(|l| *l == run[0] && (0..5).contains(l))));
        assert!(labels.iter().any(|l| *l != labels[0]));

        let image = Shape { height: 1000, width: 1, channels: 1 };
        let text = Synthetic { image, classes: 7, samples: 2, seed: 1, labels: 1000, vocabulary: Some(7) };
        let (mut tokens, mut labels) = (vec![-1; 1000], vec![-1; 1000]);
        text.read(1, Input::Tokens(&mut tokens), &mut labels).expect("it is made");
        assert_eq!(tokens[1..], labels[..999], "what comes next");
        let follows = tokens.iter().zip(&labels).filter(|(t, l)| (5 * **t + 3) % 7 == **l).count();
        assert!((720..860).contains(&follows), "{follows}");
    }
}
