//! A set of images in memory, one byte for each pixel and channel.

use super::{Dataset, Input, Split};
use crate::error::Error;
use plimsoll_ir::network::Shape;

/// Images in memory, normalised as they are read: (pixel - mean) / standard deviation, per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Images {
    name: String,
    image: Shape,
    classes: u32,
    /// `[sample][height][width][channels]`.
    pixels: Vec<u8>,
    labels: Vec<u8>,
    /// Mean and 1 / standard deviation of each channel.
    scales: Vec<(f32, f32)>,
}

/// Result of a reader: pixels `[sample][height][width][channels]` and a label for each.
pub(super) type Samples = (Vec<u8>, Vec<u8>);

impl Images {
    /// A training and a test set, both normalised with mean and deviation of the training set.
    pub(super) fn split(name: &str, image: Shape, classes: u32, train: Samples, test: Samples) -> Split {
        let mut sums = Sums::new(image.channels);
        sums.add(&train.0);
        let scales = sums.scales();
        let of = |part: &str, (pixels, labels): Samples| {
            let name = format!("{name}-{part}");
            Box::new(Images { name, image, classes, pixels, labels, scales: scales.clone() })
        };
        Split { train: of("train", train), test: of("test", test) }
    }
}

/// Sums of pixels and of their squares, for each channel: exact integers, so that the order of adding does not matter.
pub(super) struct Sums {
    channels: Vec<(u64, u64)>,
    positions: u64,
}

impl Sums {
    pub(super) fn new(channels: u32) -> Sums {
        Sums { channels: vec![(0, 0); channels as usize], positions: 0 }
    }

    pub(super) fn add(&mut self, pixels: &[u8]) {
        for position in pixels.chunks_exact(self.channels.len()) {
            for (sum, pixel) in self.channels.iter_mut().zip(position) {
                sum.0 += u64::from(*pixel);
                sum.1 += u64::from(*pixel) * u64::from(*pixel);
            }
            self.positions += 1;
        }
    }

    /// Adds the sums of others.
    pub(super) fn join(&mut self, others: &Sums) {
        for (sum, other) in self.channels.iter_mut().zip(&others.channels) {
            *sum = (sum.0 + other.0, sum.1 + other.1);
        }
        self.positions += others.positions;
    }

    /// Mean and 1 / standard deviation of each channel.
    pub(super) fn scales(&self) -> Vec<(f32, f32)> {
        let count = self.positions.max(1) as f64;
        let scale = |(sum, squares): &(u64, u64)| {
            let mean = *sum as f64 / count;
            let variance = *squares as f64 / count - mean * mean;
            // A channel that never changes carries no information; it becomes zeros.
            (mean as f32, if variance > 0.0 { (1.0 / variance.sqrt()) as f32 } else { 0.0 })
        };
        self.channels.iter().map(scale).collect()
    }
}

/// Normalises pixels for a network: (pixel - mean) / standard deviation, per channel.
pub(super) fn normalise(raw: &[u8], scales: &[(f32, f32)], pixels: &mut [f32]) {
    let channels = scales.len();
    for (to, from) in pixels.chunks_exact_mut(channels).zip(raw.chunks_exact(channels)) {
        for ((value, byte), (mean, scale)) in to.iter_mut().zip(from).zip(scales) {
            *value = (f32::from(*byte) - mean) * scale;
        }
    }
}

impl Dataset for Images {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn image(&self) -> Shape {
        self.image
    }

    fn classes(&self) -> u32 {
        self.classes
    }

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), Error> {
        let size = self.image.elements() as usize;
        let raw = &self.pixels[index * size..(index + 1) * size];
        normalise(raw, &self.scales, input.pixels());
        labels[0] = i32::from(self.labels[index]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_training_set_has_mean_zero_and_variance_one_in_every_channel() {
        let image = Shape { height: 1, width: 2, channels: 2 };
        let train = (vec![1, 9, 3, 9, 5, 9, 7, 9], vec![0, 1]);
        let split = Images::split("tiny", image, 2, train.clone(), train);
        let mut pixels = [[0.0; 4]; 2];
        let mut labels = [-1; 2];
        split.train.read(0, Input::Pixels(&mut pixels[0]), &mut labels[..1]).expect("it is in memory");
        split.test.read(1, Input::Pixels(&mut pixels[1]), &mut labels[1..]).expect("it is in memory");
        assert_eq!(labels, [0, 1]);
        let first: Vec<f32> = pixels.iter().flat_map(|p| [p[0], p[2]]).collect();
        assert!(first.iter().sum::<f32>().abs() < 1e-6);
        assert!((first.iter().map(|p| p * p).sum::<f32>() / 4.0 - 1.0).abs() < 1e-6);
        assert!(pixels.iter().all(|p| p[1] == 0.0 && p[3] == 0.0), "a constant channel becomes zeros");
    }
}
