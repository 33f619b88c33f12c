//! A set of any shape, made from a seed: for measuring, where what is learned does not matter, and yet learnable.
//!
//! Each class has a coarse pattern of its own, and every sample adds noise to its class's pattern.

use super::Dataset;
use plimsoll_ir::network::Shape;
use plimsoll_ir::philox::{philox4x32, unit_f32};

const PATTERN_STREAM: u32 = 0x5359_4e50;
const NOISE_STREAM: u32 = 0x5359_4e4e;

struct Synthetic {
    image: Shape,
    classes: u32,
    samples: usize,
    seed: u64,
}

/// `samples` images of this shape in `classes` classes (at least 1), the same for the same seed.
pub fn synthetic(image: Shape, classes: u32, samples: usize, seed: u64) -> Box<dyn Dataset> {
    Box::new(Synthetic { image, classes: classes.max(1), samples, seed })
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

    fn read(&self, index: usize, pixels: &mut [f32]) -> i32 {
        assert!(index < self.samples, "sample {index} of {}", self.samples);
        let class = index as u32 % self.classes;
        for (number, four) in (0..).zip(pixels.chunks_mut(4)) {
            let pattern = philox4x32(self.seed, [number / 4, class, 0, PATTERN_STREAM]);
            let noise =
                philox4x32(self.seed, [number, index as u32, (index as u64 >> 32) as u32, NOISE_STREAM]);
            for ((pixel, p), n) in four.iter_mut().zip(pattern).zip(noise) {
                // Two uniform parts with mean 0; together about variance 1.
                *pixel = 2.4 * (unit_f32(p) - 0.5) + 2.4 * (unit_f32(n) - 0.5);
            }
        }
        class as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_set_and_another_seed_another() {
        let image = Shape { height: 5, width: 3, channels: 2 };
        let read = |seed: u64, index: usize| {
            let mut pixels = vec![0.0; 30];
            let label = synthetic(image, 3, 9, seed).read(index, &mut pixels);
            (label, pixels)
        };
        assert_eq!(read(1, 4), read(1, 4));
        assert_eq!(read(1, 4).0, 1);
        assert_ne!(read(1, 4).1, read(2, 4).1);
        assert_ne!(read(1, 4).1, read(1, 7).1, "two samples of one class");
    }
}
