//! The median of noisy samples and its accuracy, by order statistics only.
//!
//! Times have a hard floor and a long upper tail, so means and standard deviations describe the tail rather than the machine.
//! A few disturbed samples do not move the median and the median absolute deviation (MAD).

use plimsoll_ir::Seconds;

/// The median of some samples and its accuracy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Centre {
    pub median: Seconds,
    /// Median absolute deviation from the median.
    pub deviation: Seconds,
    /// Relative standard error of the median: 1.253 x 1.4826 MAD / (median sqrt(n)), as if the bulk of the samples were
    /// normal; infinite for a single sample, 0 if the deviation is 0.
    pub relative_error: f64,
}

/// The standard deviation of a normal distribution in its MADs.
const DEVIATIONS_IN_MADS: f64 = 1.4826;

/// The standard error of a normal sample's median in those of its mean.
const MEDIAN_OVER_MEAN: f64 = 1.2533;

fn middle(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// Returns the median of the samples; `None` without samples.
pub fn centre(samples: &[Seconds]) -> Option<Centre> {
    if samples.is_empty() {
        return None;
    }
    let mut values: Vec<f64> = samples.iter().map(|s| s.0).collect();
    let median = middle(&mut values);
    values.iter_mut().for_each(|v| *v = (*v - median).abs());
    let deviation = middle(&mut values);
    let relative_error = if samples.len() == 1 {
        f64::INFINITY
    } else if deviation == 0.0 {
        0.0
    } else {
        MEDIAN_OVER_MEAN * DEVIATIONS_IN_MADS * deviation / (median * (samples.len() as f64).sqrt())
    };
    Some(Centre { median: Seconds(median), deviation: Seconds(deviation), relative_error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(samples: &[f64], median: f64, deviation: f64) -> f64 {
        let samples: Vec<Seconds> = samples.iter().copied().map(Seconds).collect();
        let centre = centre(&samples).expect("there are samples");
        assert_eq!((centre.median, centre.deviation), (Seconds(median), Seconds(deviation)));
        centre.relative_error
    }

    #[test]
    fn disturbed_samples_move_neither_the_middle_nor_its_error() {
        assert_eq!(check(&[3.0], 3.0, 0.0), f64::INFINITY);
        assert_eq!(check(&[2.0, 2.0, 2.0, 50.0], 2.0, 0.0), 0.0);
        let calm = check(&[1.0, 2.0, 3.0, 4.0, 5.0], 3.0, 1.0);
        let disturbed = check(&[1.0, 2.0, 3.0, 4.0, 5000.0], 3.0, 1.0);
        assert_eq!(calm, disturbed);
        assert!((calm - 1.2533 * 1.4826 / (3.0 * 5f64.sqrt())).abs() < 1e-12);
        assert_eq!(centre(&[]), None);
    }
}
