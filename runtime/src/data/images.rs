//! A set of images in memory, one byte a pixel and channel.

use super::{Dataset, Input, Split};
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

/// What a reader finds: pixels `[sample][height][width][channels]` and a label for each.
pub(super) type Samples = (Vec<u8>, Vec<u8>);

impl Images {
    /// A training and a test set, both normalised with mean and deviation of the training set.
    pub(super) fn split(name: &str, image: Shape, classes: u32, train: Samples, test: Samples) -> Split {
        let scales = scales(&train.0, image.channels as usize);
        let of = |part: &str, (pixels, labels): Samples| {
            let name = format!("{name}-{part}");
            Box::new(Images { name, image, classes, pixels, labels, scales: scales.clone() })
        };
        Split { train: of("train", train), test: of("test", test) }
    }
}

/// From exact integer sums, so that no order of adding can matter.
fn scales(pixels: &[u8], channels: usize) -> Vec<(f32, f32)> {
    let mut sums = vec![(0u64, 0u64); channels];
    for position in pixels.chunks_exact(channels) {
        for (sum, pixel) in sums.iter_mut().zip(position) {
            sum.0 += u64::from(*pixel);
            sum.1 += u64::from(*pixel) * u64::from(*pixel);
        }
    }
    let count = (pixels.len() / channels).max(1) as f64;
    let scale = |(sum, squares): (u64, u64)| {
        let mean = sum as f64 / count;
        let variance = squares as f64 / count - mean * mean;
        // A channel that never changes carries nothing; it becomes zeros.
        (mean as f32, if variance > 0.0 { (1.0 / variance.sqrt()) as f32 } else { 0.0 })
    };
    sums.into_iter().map(scale).collect()
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

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) {
        let size = self.image.elements() as usize;
        let raw = &self.pixels[index * size..(index + 1) * size];
        let channels = self.scales.len();
        for (to, from) in input.pixels().chunks_exact_mut(channels).zip(raw.chunks_exact(channels)) {
            for ((value, byte), (mean, scale)) in to.iter_mut().zip(from).zip(&self.scales) {
                *value = (f32::from(*byte) - mean) * scale;
            }
        }
        labels[0] = i32::from(self.labels[index]);
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
        split.train.read(0, Input::Pixels(&mut pixels[0]), &mut labels[..1]);
        split.test.read(1, Input::Pixels(&mut pixels[1]), &mut labels[1..]);
        assert_eq!(labels, [0, 1]);
        let first: Vec<f32> = pixels.iter().flat_map(|p| [p[0], p[2]]).collect();
        assert!(first.iter().sum::<f32>().abs() < 1e-6);
        assert!((first.iter().map(|p| p * p).sum::<f32>() / 4.0 - 1.0).abs() < 1e-6);
        assert!(pixels.iter().all(|p| p[1] == 0.0 && p[3] == 0.0), "a constant channel becomes zeros");
    }
}
