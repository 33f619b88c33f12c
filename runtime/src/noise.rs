//! The gradient noise scale of a training: how many samples an update can have before further samples add little information
//! (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training").
//!
//! Let G be the gradient over all data, and S the covariance of the gradient of one sample. The gradient of B samples then
//! has an expected square norm of |G|^2 + tr(S) / B. An update of several virtual workers gives two such norms: that of
//! their own gradients, of b samples each, and that of the mean, of B. They give (appendix A.1)
//!
//! ```text
//! |G|^2 = (B |mean|^2 - b |own|^2) / (B - b)        tr(S) = (|own|^2 - |mean|^2) / (1 / b - 1 / B)
//! ```
//!
//! Both are unbiased and scatter from one update to the next, so each is averaged over updates before their ratio tr(S) /
//! |G|^2, the noise scale, is taken. The averages are exponential: a noise scale grows while a network learns. The usual
//! correction of such averages for their start is the same factor in both, and cancels.
//!
//! Deliberately does not compare successive updates of one virtual worker each. Parameters change between them, and momentum
//! makes their gradients alike.

use plimsoll_ir::tuning::NoiseScale;

/// Share of the averages that an update keeps.
const KEPT: f64 = 0.99;

/// Smallest number of updates in the averages.
const LEAST: u64 = 10;

/// Square norms of the gradients of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientNorms {
    /// Samples of a virtual worker that have a label which counts: mean over the virtual workers.
    pub own_samples: f64,
    /// Samples of the update, more than `own_samples`.
    pub samples: f64,
    /// Square norm of a virtual worker's own gradient: mean over the virtual workers.
    pub own: f64,
    /// Square norm of the update's gradient.
    pub mean: f64,
}

impl GradientNorms {
    /// Estimates of |G|^2 and tr(S); each may be below 0.
    fn estimates(&self) -> [f64; 2] {
        let GradientNorms { own_samples, samples, own, mean } = *self;
        let gradient = (samples * mean - own_samples * own) / (samples - own_samples);
        let noise = (own - mean) / (1.0 / own_samples - 1.0 / samples);
        [gradient, noise]
    }
}

/// Averages over the updates of a training.
#[derive(Clone, Debug, Default)]
pub struct NoiseAverages {
    updates: u64,
    /// Averages of |G|^2 and tr(S); all averages begin at 0.
    means: [f64; 2],
    /// Averages of |G|^4, |G|^2 tr(S) and tr(S)^2.
    squares: [f64; 3],
}

impl NoiseAverages {
    /// Adds an update to the averages.
    pub fn take(&mut self, norms: &GradientNorms) {
        let [gradient, noise] = norms.estimates();
        let average = |mean: &mut f64, new: f64| *mean = KEPT * *mean + (1.0 - KEPT) * new;
        self.updates += 1;
        self.means.iter_mut().zip([gradient, noise]).for_each(|(mean, new)| average(mean, new));
        let squares = [gradient * gradient, gradient * noise, noise * noise];
        self.squares.iter_mut().zip(squares).for_each(|(mean, new)| average(mean, new));
    }

    /// The noise scale of a training whose batch norm normalises over this many samples; `None` while the scatter of the
    /// estimates does not exclude that |G|^2 is 0.
    pub fn scale(&self, batch_norm_over: Option<u64>) -> Option<NoiseScale> {
        if self.updates < LEAST {
            return None;
        }
        let from_start = KEPT.powf(self.updates as f64);
        let [gradient, noise] = self.means.map(|mean| mean / (1.0 - from_start));
        let [gg, gn, nn] = self.squares.map(|mean| mean / (1.0 - from_start));
        // Number of equal weights with the same scatter.
        let count = (1.0 - from_start) / (1.0 + from_start) * (1.0 + KEPT) / (1.0 - KEPT);
        let error = |mean_square: f64| (mean_square.max(0.0) / (count - 1.0)).sqrt();
        if gradient <= 2.0 * error(gg - gradient * gradient) || noise <= 0.0 {
            return None;
        }
        let samples = noise / gradient;
        // Scatter of tr(S) - samples |G|^2, whose mean is 0.
        let scatter = nn - 2.0 * samples * gn + samples * samples * gg;
        let relative_error = error(scatter) / noise;
        let finite = samples.is_finite() && relative_error.is_finite();
        finite.then_some(NoiseScale { samples, relative_error, batch_norm_over })
    }
}

/// Size of a block whose squares are summed in 32 bits, which takes half the time: the sum is off by less than a millionth.
/// Squares of numbers above 1e19 or below 1e-19 are not represented; no network learns from such gradients.
const BLOCK: usize = 1024;

/// Multiplies the numbers, and returns the sum of their new squares, always added in the same order.
pub(crate) fn scale(numbers: &mut [f32], by: f32) -> f64 {
    let mut sum = 0.0;
    for block in numbers.chunks_mut(BLOCK) {
        block.iter_mut().for_each(|number| *number *= by);
        sum += square_of(block);
    }
    sum
}

/// Sum of squares of a block.
fn square_of(block: &[f32]) -> f64 {
    let mut lanes = [0.0f32; 32];
    let (whole, rest) = block.as_chunks::<32>();
    for some in whole {
        lanes.iter_mut().zip(some).for_each(|(lane, number)| *lane += number * number);
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, number)| *lane += number * number);
    lanes.iter().copied().map(f64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::philox::{philox4x32, unit_f32};

    /// Gradients of virtual workers around a gradient G of |G|^2 = 1 over `DIMENSIONS` numbers, with tr(S) = `noise`.
    const DIMENSIONS: usize = 1000;

    fn square_norm(numbers: &[f32]) -> f64 {
        scale(&mut numbers.to_vec(), 1.0)
    }

    fn update(seed: u64, step: u32, batch: f64, workers: u32, noise: f64) -> GradientNorms {
        // A uniform number from -a to a has the variance a^2 / 3.
        let reach = (3.0 * noise / batch / DIMENSIONS as f64).sqrt();
        let at = (1.0 / DIMENSIONS as f64).sqrt();
        let gradient = |worker: u32| {
            let draw = move |element: usize| {
                let word = philox4x32(seed, [element as u32, worker, step, 0])[0];
                (at + (2.0 * f64::from(unit_f32(word)) - 1.0) * reach) as f32
            };
            (0..DIMENSIONS).map(draw).collect::<Vec<f32>>()
        };
        let all: Vec<Vec<f32>> = (0..workers).map(gradient).collect();
        let of_element = |element: usize| all.iter().map(|own| own[element]).sum::<f32>() / workers as f32;
        let mean: Vec<f32> = (0..DIMENSIONS).map(of_element).collect();
        GradientNorms {
            own_samples: batch,
            samples: batch * f64::from(workers),
            own: all.iter().map(|own| square_norm(own)).sum::<f64>() / f64::from(workers),
            mean: square_norm(&mean),
        }
    }

    #[track_caller]
    fn check(batch: f64, workers: u32, noise: f64) {
        for seed in 0..5 {
            let mut averages = NoiseAverages::default();
            (0..400).for_each(|step| averages.take(&update(seed, step, batch, workers, noise)));
            let NoiseScale { samples, relative_error, .. } = averages.scale(None).expect("it shows");
            let off = samples / noise - 1.0;
            let words =
                format!("{workers} x {batch}, seed {seed}: {samples} for {noise}, +-{relative_error}");
            assert!(off.abs() < 0.1, "{words}");
            assert!(off.abs() < 3.0 * relative_error && relative_error < 0.1, "{words}");
        }
    }

    #[test]
    fn a_known_noise_scale_is_found_within_a_tenth() {
        check(32.0, 8, 300.0);
        check(32.0, 2, 30.0);
        check(16.0, 4, 100.0);
        check(64.0, 16, 1000.0);
        check(8.0, 2, 2.0);
    }

    #[test]
    fn what_noise_hides_is_not_told() {
        let mut averages = NoiseAverages::default();
        assert_eq!(averages.scale(None), None);
        (0..LEAST as u32 - 1).for_each(|step| averages.take(&update(1, step, 32.0, 8, 30.0)));
        assert_eq!(averages.scale(None), None, "so few updates tell nothing");
        averages.take(&update(1, LEAST as u32, 32.0, 8, 30.0));
        assert!(averages.scale(None).is_some());
        let mut hidden = NoiseAverages::default();
        (0..30).for_each(|step| hidden.take(&update(1, step, 2.0, 2, 3000.0)));
        assert_eq!(hidden.scale(None), None, "of two gradients of two samples each nothing is the same");
    }

    /// A change of the noise shows once the averages have forgotten the earlier updates.
    #[test]
    fn a_noise_scale_follows_the_training() {
        let mut averages = NoiseAverages::default();
        (0..300).for_each(|step| averages.take(&update(2, step, 32.0, 8, 100.0)));
        (300..800).for_each(|step| averages.take(&update(2, step, 32.0, 8, 400.0)));
        let found = averages.scale(None).expect("it shows").samples;
        assert!((found / 400.0 - 1.0).abs() < 0.1, "{found}");
    }

    #[test]
    fn squares_are_summed_whatever_blocks_they_fill() {
        for length in [0, 1, 31, 32, 33, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 77] {
            let numbers: Vec<f32> = (1..=length).map(|number| number as f32).collect();
            let expected = (length * (length + 1) * (2 * length + 1) / 6) as f64;
            let found = square_norm(&numbers);
            assert!((found - expected).abs() <= 1e-6 * expected, "{found} for {expected}, of {length}");
        }
    }
}
