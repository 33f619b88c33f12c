//! Learning rate for a different batch size, with its warm-up.
//!
//! Every rule starts at a *base point*: a batch and a rate that are known to train well. With q = batch / base batch:
//!
//! - **linear**: rate = base * q. One step replaces q small ones. Known to hold for moderate q with a warm-up, and to break down
//!   for large q; below q = 1 it is the cautious choice.
//! - **square root**: rate = base * sqrt(q). Keeps the variance of a step (Krizhevsky 2014, arXiv:1404.5997, section 5). Slower
//!   growth, holds longer. For Adam, whose step does not grow with the gradient, it is the rule that Malladi et al. 2022
//!   (arXiv:2205.10287) derive from the same stochastic differential equation; they scale betas and epsilon, too.
//! - **AccUDNN eq. (9)**: rate = (1 - (1 - base c)^q) / c. Equal contraction per epoch (eq. 8 with mu = 1) where c is the
//!   strong convexity of the objective. It grows like the linear rule at first (c -> 0 *is* the linear rule, to first
//!   order in c) and never passes 1 / c. At q < 1 it is a little above the linear rule and below the base rate.
//!
//! The paper does not say how c is chosen, and a network's objective is not strongly convex, so c cannot be measured here. Its
//! effect is the ceiling 1 / c that no batch size passes. [`default_convexity`] therefore puts the ceiling at 32 base rates, the
//! multiple up to which linear scaling with a warm-up is reported to hold for image classifiers; so up to q = 8 the rule stays
//! within 11 % of linear and bends beyond.
//!
//! This file deliberately neither uses gradients or losses nor promises a final accuracy.

use crate::request::Error;
use plimsoll_ir::config::{Config, LearningRate, LearningRateRule, is_rate};

/// Limit of eq. (9) as the batch grows, in base rates, with [`default_convexity`].
pub const CEILING_IN_BASE_RATES: f64 = 32.0;

/// Multiple of the base batch from which batches carry [`caution`]. Up to there eq. (9) is within 11 % of the linear rule;
/// AccUDNN §6.3 D itself shows one point, 0.22 at a batch of 592 from 0.1 at 256.
pub const CAUTION_FROM: f64 = 8.0;

/// Maximum epochs of warm-up.
pub const WARMUP_EPOCHS: f64 = 5.0;

/// Returns the c that puts the ceiling of eq. (9) at [`CEILING_IN_BASE_RATES`] base rates. Valid for any valid base rate.
pub fn default_convexity(base_rate: f64) -> f64 {
    1.0 / (CEILING_IN_BASE_RATES * base_rate)
}

/// Returns a warning about the rate at a batch that is far from the base point; `None` if it is near.
pub fn caution(rate: &LearningRate, batch: u64) -> Option<String> {
    let q = batch as f64 / rate.base_batch as f64;
    (q >= CAUTION_FROM).then(|| {
        let shown = match rate.rule {
            LearningRateRule::Accudnn { .. } => "AccUDNN shows eq. (9) at 2.3 times",
            LearningRateRule::Linear => "linear scaling is shown for image classifiers with a warm-up, up to 32 times",
            LearningRateRule::SquareRoot => "square-root scaling is shown for few networks",
        };
        format!(
            "{q:.0} times the base batch, and {shown}: compare the loss of one epoch with your own setting's before a long run"
        )
    })
}

/// Returns the learning rate of an update of all workers that a config was chosen for, with its samples.
pub fn rate_of_update(config: &Config) -> Result<(f64, u64), Error> {
    let LearningRate { rate, rule, base_batch, base_rate, .. } = config.learning_rate;
    let Some(cluster) = config.cluster else { return Ok((rate, config.batch)) };
    Ok((learning_rate(rule, base_batch, base_rate, cluster.global_batch)?, cluster.global_batch))
}

/// Returns the learning rate at `batch` that follows by `rule` from `base_rate` at `base_batch`; positive and finite, also in
/// f32. At `batch == base_batch` every rule gives the base rate.
pub fn learning_rate(
    rule: LearningRateRule,
    base_batch: u64,
    base_rate: f64,
    batch: u64,
) -> Result<f64, Error> {
    if batch == 0 || base_batch == 0 {
        return Err(Error::usage(format_args!(
            "a batch has at least 1 sample; got {batch} with base batch {base_batch}"
        )));
    }
    if !is_rate(base_rate) {
        return Err(Error::usage(format_args!(
            "the base learning rate is {base_rate:?}; it must be above 0, and f32 must hold it: from 1.2e-38 to 3.4e38"
        )));
    }
    let rate = follows(rule, (base_batch, base_rate), batch)?;
    if is_rate(rate) {
        return Ok(rate);
    }
    Err(Error::usage(format_args!(
        "the learning rate at batch {batch} is {rate:?}, which f32 does not hold; choose another base rate"
    )))
}

/// Returns the rate before the check that training can compute with it.
fn follows(rule: LearningRateRule, (base_batch, base_rate): (u64, f64), batch: u64) -> Result<f64, Error> {
    let q = batch as f64 / base_batch as f64;
    match rule {
        LearningRateRule::Accudnn { convexity: c }
            if batch == base_batch && c > 0.0 && base_rate * c < 1.0 =>
        {
            Ok(base_rate)
        }
        LearningRateRule::Linear => Ok(base_rate * q),
        LearningRateRule::SquareRoot => Ok(base_rate * q.sqrt()),
        LearningRateRule::Accudnn { convexity: c } => {
            // NaN fails both comparisons.
            if !(c > 0.0 && base_rate * c < 1.0) {
                let ceiling = 1.0 / base_rate;
                return Err(Error::usage(format_args!(
                    "the convexity c is {c}; eq. (9) needs 0 < c < 1 / base rate = {ceiling}; a smaller c is closer to the \
                     linear rule"
                )));
            }
            // Written so that nothing cancels at small c; if it is even smaller, the linear rule is the same number.
            let small = base_rate * c * q.max(1.0) < 1e-15;
            Ok(if small { base_rate * q } else { -(q * (-base_rate * c).ln_1p()).exp_m1() / c })
        }
    }
}

/// Returns the number of iterations in which the rate should rise linearly to its full value: 0 if the batch is not larger than
/// the base batch, else log2(q) epochs, at most [`WARMUP_EPOCHS`] and at most a tenth of the training.
pub fn warmup_iterations(base_batch: u64, batch: u64, iterations_per_epoch: u64, epochs: u64) -> u64 {
    if base_batch == 0 || batch <= base_batch {
        return 0;
    }
    let q = batch as f64 / base_batch as f64;
    let wanted = q.log2().min(WARMUP_EPOCHS) * iterations_per_epoch as f64;
    let most = epochs as f64 * iterations_per_epoch as f64 / 10.0;
    wanted.min(most).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use LearningRateRule::{Accudnn, Linear, SquareRoot};
    use proptest::prelude::*;

    #[track_caller]
    fn check(rule: LearningRateRule, base: (u64, f64), batch: u64, expected: f64) {
        let rate = learning_rate(rule, base.0, base.1, batch).expect("valid");
        assert!((rate / expected - 1.0).abs() < 1e-9, "{rate} is not {expected}");
    }

    #[test]
    fn rules_give_what_their_formulas_say() {
        check(Linear, (256, 0.1), 1024, 0.4);
        check(SquareRoot, (256, 0.1), 1024, 0.2);
        // (1 - (1 - 0.1 * 2)^4) / 2 = (1 - 0.4096) / 2
        check(Accudnn { convexity: 2.0 }, (256, 0.1), 1024, 0.2952);
        check(Accudnn { convexity: 2.0 }, (256, 0.1), 128, (1.0 - 0.8f64.sqrt()) / 2.0);
        for rule in [Linear, SquareRoot, Accudnn { convexity: 2.0 }] {
            check(rule, (7, 0.1), 7, 0.1);
        }
        check(Accudnn { convexity: 1e-12 }, (1, 0.1), 100, 10.0);
        check(Accudnn { convexity: 1e-320 }, (1, 0.1), 100, 10.0);
        check(Accudnn { convexity: default_convexity(0.1) }, (1, 0.1), 1_000_000, 3.2);
    }

    #[test]
    fn a_rate_far_from_its_base_point_carries_a_caution() {
        let rate =
            |rule| LearningRate { rate: 0.511, rule, base_batch: 32, base_rate: 0.05, warmup_iterations: 0 };
        let accudnn = rate(Accudnn { convexity: default_convexity(0.05) });
        assert_eq!(caution(&accudnn, 255), None);
        let words = caution(&accudnn, 388).expect("388 is far from 32");
        assert!(
            words.starts_with("12 times the base batch, and AccUDNN shows eq. (9) at 2.3 times"),
            "{words}"
        );
        assert!(caution(&rate(Linear), 256).is_some() && caution(&rate(SquareRoot), 4096).is_some());
    }

    #[test]
    fn invalid_input_is_named() {
        let refused = |rule, base_batch, base_rate, batch, words: &str| {
            let error = learning_rate(rule, base_batch, base_rate, batch).expect_err(words);
            assert!(error.message.contains(words), "{error}");
        };
        refused(Linear, 0, 0.1, 4, "got 4 with base batch 0");
        refused(Linear, 4, 0.1, 0, "got 0 with base batch 4");
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            refused(SquareRoot, 1, rate, 1, "the base learning rate is");
        }
        for convexity in [0.0, -1.0, 10.0, 11.0, f64::NAN, f64::INFINITY] {
            refused(Accudnn { convexity }, 1, 0.1, 2, "the convexity c is");
        }
    }

    #[test]
    fn warm_up_grows_with_the_batch_and_stays_short() {
        assert_eq!(warmup_iterations(256, 256, 100, 90), 0);
        assert_eq!(warmup_iterations(256, 128, 100, 90), 0);
        assert_eq!(warmup_iterations(256, 512, 100, 90), 100);
        assert_eq!(warmup_iterations(256, 1 << 20, 100, 90), 500);
        assert_eq!(warmup_iterations(256, 1 << 20, 100, 10), 100);
    }

    proptest! {
        /// Between 1 and q times the base rate, below the ceiling, and growing with the batch.
        #[test]
        fn equation_nine_lies_between_constant_and_linear(
            base_rate in 1e-5..10.0f64, share in 1e-6..0.999f64, base in 1u64..1000, more in 1u64..100_000,
        ) {
            let c = share / base_rate;
            let rate = |batch| learning_rate(Accudnn { convexity: c }, base, base_rate, batch).expect("valid");
            let (low, high) = (rate(base + more), rate(base + more + 1));
            let q = (base + more) as f64 / base as f64;
            prop_assert!(low >= base_rate * (1.0 - 1e-9));
            prop_assert!(low <= base_rate * q * (1.0 + 1e-9));
            prop_assert!(low <= 1.0 / c * (1.0 + 1e-9));
            prop_assert!(high >= low * (1.0 - 1e-12));
        }
    }
}
