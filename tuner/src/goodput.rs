//! Goodput: throughput by statistical efficiency (Pollux, Qiao et al. 2021, section 3).
//!
//! A larger update uses a device better, and its samples less well. With a gradient noise scale phi (McCandlish et al. 2018) and
//! a base batch B0, the value of a sample of an update of B samples, compared with one of the base batch, is
//!
//! ```text
//! efficiency(B) = (phi + B0) / (phi + B)
//! ```
//!
//! provided that the learning rate follows the batch. Throughput by efficiency is the rate of progress, in samples of the base
//! batch. It has a maximum: the fixed cost of an update is paid less often with a larger one, and beyond the noise scale that
//! gains little.
//!
//! This file deliberately neither measures a noise scale nor follows one that changes during training.

use plimsoll_ir::Seconds;

/// Returns the value of a sample of an update of `global_batch` samples, compared with one of an update of the base batch.
pub fn efficiency(noise_scale: f64, base_batch: u64, global_batch: u64) -> f64 {
    (noise_scale + base_batch as f64) / (noise_scale + global_batch as f64)
}

/// Returns the number of passes of each worker per update, up to the given maximum, for which throughput by efficiency is
/// highest. Updates of one, two and four passes take the given seconds, and each further pass as much as the third and the
/// fourth: the second may hide the exchange, and three are no whole subtree of the sums. A pass of all workers has `samples`
/// samples.
pub fn best_passes(noise_scale: f64, samples: u64, [one, two, four]: [Seconds; 3], most: u64) -> u64 {
    let (samples, more) = (samples as f64, (four - two).0 / 2.0);
    let fixed = (two.0 - 2.0 * more).max(0.0);
    let rate = |passes: u64| {
        let seconds = if passes == 1 { one.0 } else { fixed + passes as f64 * more };
        passes as f64 / seconds / (noise_scale + passes as f64 * samples)
    };
    // From two passes on the rate is highest where passes^2 x more x samples = fixed x noise scale.
    let highest = (fixed * noise_scale / (more * samples)).sqrt().max(2.0) as u64;
    let all = [1, highest, highest.saturating_add(1)].map(|passes| passes.clamp(1, most.max(1)));
    all.into_iter().reduce(|best, other| if rate(other) > rate(best) { other } else { best }).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_the_base_batch_is_worth_one() {
        assert_eq!(efficiency(300.0, 256, 256), 1.0);
        assert_eq!(efficiency(300.0, 100, 500), 0.5);
        assert_eq!(efficiency(300.0, 500, 100), 2.0);
        assert!(efficiency(1e12, 256, 4096) > 0.999_999, "noise alone: every sample counts");
    }

    /// ResNet-152 on the cluster of AccUDNN's table 2: eight workers; an iteration of 13 samples at 19 images/s, of 54 at 24,
    /// a line through both, and 0.687 s between iterations.
    fn pass(batch: u64) -> f64 {
        let slope = (54.0 / 24.0 - 13.0 / 19.0) / (54.0 - 13.0);
        13.0 / 19.0 + slope * (batch as f64 - 13.0)
    }

    const BETWEEN: f64 = 0.687;

    /// Updates of one, two and four passes.
    fn updates(pass: f64, between: f64) -> [Seconds; 3] {
        [1.0, 2.0, 4.0].map(|passes| Seconds(passes * pass + between))
    }

    fn images_per_second(batch: u64, passes: u64) -> f64 {
        8.0 * (batch * passes) as f64 / (passes as f64 * pass(batch) + BETWEEN)
    }

    fn goodput(noise_scale: f64, (batch, passes): (u64, u64)) -> f64 {
        images_per_second(batch, passes) * efficiency(noise_scale, 256, 8 * batch * passes)
    }

    #[test]
    fn on_the_cluster_of_accudnn_the_largest_batch_has_not_the_highest_goodput() {
        let of_noise = |noise_scale| {
            let passes =
                |batch| (batch, best_passes(noise_scale, 8 * batch, updates(pass(batch), BETWEEN), 64));
            let better = |a: &(u64, u64), b: &(u64, u64)| {
                goodput(noise_scale, *a).total_cmp(&goodput(noise_scale, *b))
            };
            (2..=54).map(passes).max_by(better).expect("there are batches")
        };
        assert_eq!(of_noise(300.0), (29, 1));
        let loses = 1.0 - goodput(300.0, (54, 1)) / goodput(300.0, (29, 1));
        assert!((loses - 0.09).abs() < 0.005, "AccUDNN's batch of 54 loses {loses}");
        assert!((images_per_second(54, 1) / 147.0 - 1.0).abs() < 0.01, "the paper's own number");
        // If each sample counts, only throughput matters.
        let (batch, passes) = of_noise(10_000.0);
        assert!(batch == 54 && passes > 1, "{batch} x {passes}");
    }

    #[test]
    fn the_best_number_of_passes_is_better_than_its_neighbours() {
        for noise_scale in [1.0, 30.0, 300.0, 3e4, 3e6] {
            for batch in [1, 8, 54] {
                let best = best_passes(noise_scale, 8 * batch, updates(pass(batch), BETWEEN), 1000);
                let of = |passes| goodput(noise_scale, (batch, passes));
                assert!(best == 1 || of(best) > of(best - 1), "{noise_scale} {batch}: {best}");
                assert!(best == 1000 || of(best) >= of(best + 1), "{noise_scale} {batch}: {best}");
            }
        }
        assert_eq!(best_passes(1e9, 8, updates(1.0, 0.0), 5), 1, "nothing is saved by a second pass");
        assert_eq!(best_passes(1e9, 8, updates(1.0, 99.0), 5), 5);
        assert_eq!(best_passes(1e9, 8, updates(1.0, 99.0), 0), 1);
    }

    /// The first pass of the next update hides an exchange under way, and no further pass is useless.
    #[test]
    fn a_second_pass_that_hides_the_exchange_is_taken_and_no_more_of_them() {
        let seconds = [10.0, 10.0, 20.0].map(Seconds);
        assert_eq!(best_passes(1e9, 8, seconds, 1000), 2);
        assert_eq!(
            best_passes(8.0, 8, seconds, 1000),
            2,
            "two thirds of what a sample was worth, and twice as many"
        );
        assert_eq!(best_passes(1e9, 8, seconds, 1), 1);
        assert_eq!(best_passes(0.0, 8, seconds, 1000), 1, "without noise one sample says all");
    }
}
