//! The learning rate as a function of the iteration's number, as plain data.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The learning rate of every iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRateSchedule {
    /// The rate after warm-up and before any decay.
    pub base: f64,
    /// Number of first iterations in which the rate rises linearly, from base / this, to the base; 0 for no warm-up.
    pub warmup_iterations: u64,
    /// Change of the rate after warm-up.
    pub decay: Decay,
}

/// Decay of the rate after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Decay {
    /// No decay.
    Constant,
    /// Multiplies by `factor` after every `every` iterations, counted from the start of training.
    Step {
        /// Iterations between two falls; 0 means 1.
        every: u64,
        /// Between 0 and 1.
        factor: f64,
    },
    /// Half a cosine from the base to `floor` times the base, reached at iteration `iterations` and kept from then on.
    Cosine {
        /// Iterations in all, warm-up included.
        iterations: u64,
        /// Share of the base that remains at the end.
        floor: f64,
    },
}

impl fmt::Display for LearningRateSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LearningRateSchedule { base, warmup_iterations, decay } = self;
        write!(f, "{base}, {warmup_iterations} iterations of warm-up, then ")?;
        match decay {
            Decay::Constant => write!(f, "constant"),
            Decay::Step { every, factor } => write!(f, "times {factor} every {every} iterations"),
            Decay::Cosine { iterations, floor } => {
                write!(f, "a cosine to {floor} times it at iteration {iterations}")
            }
        }
    }
}

impl LearningRateSchedule {
    /// Constant rate.
    pub fn constant(base: f64) -> LearningRateSchedule {
        LearningRateSchedule { base, warmup_iterations: 0, decay: Decay::Constant }
    }

    /// Returns the same shape, spread over as many iterations as the other schedule's decay.
    pub fn spread_as(&self, other: &LearningRateSchedule) -> LearningRateSchedule {
        let decay = match (self.decay, other.decay) {
            (Decay::Step { factor, .. }, Decay::Step { every, .. }) => Decay::Step { every, factor },
            (Decay::Cosine { floor, .. }, Decay::Cosine { iterations, .. }) => {
                Decay::Cosine { iterations, floor }
            }
            (own, _) => own,
        };
        LearningRateSchedule { decay, ..*self }
    }

    /// Rate of iteration `step`, from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_iterations {
            return self.base * (step + 1) as f64 / self.warmup_iterations as f64;
        }
        match self.decay {
            Decay::Constant => self.base,
            Decay::Step { every, factor } => {
                let falls = i32::try_from(step / every.max(1)).unwrap_or(i32::MAX);
                self.base * factor.powi(falls)
            }
            Decay::Cosine { iterations, floor } => {
                let length = iterations.saturating_sub(self.warmup_iterations).max(1);
                let passed = (step - self.warmup_iterations).min(length) as f64 / length as f64;
                let share = 0.5 * (1.0 + (std::f64::consts::PI * passed).cos());
                self.base * (floor + (1.0 - floor) * share)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(warmup_iterations: u64, decay: Decay, expected: &[(u64, f64)]) {
        let schedule = LearningRateSchedule { base: 0.8, warmup_iterations, decay };
        for (step, rate) in expected {
            assert!(
                (schedule.at(*step) - rate).abs() < 1e-12,
                "{schedule:?} at {step}: {}",
                schedule.at(*step)
            );
        }
    }

    #[test]
    fn only_the_length_of_a_decay_is_taken_from_another() {
        let of = |base, decay| LearningRateSchedule { base, warmup_iterations: 3, decay };
        let cosine = |iterations, floor| Decay::Cosine { iterations, floor };
        let step = |every, factor| Decay::Step { every, factor };
        for (own, other, expected) in [
            (cosine(200, 0.0), cosine(20, 0.5), cosine(20, 0.0)),
            (step(200, 0.1), step(20, 0.5), step(20, 0.1)),
            (step(200, 0.1), cosine(20, 0.5), step(200, 0.1)),
            (Decay::Constant, cosine(20, 0.5), Decay::Constant),
        ] {
            assert_eq!(of(0.8, own).spread_as(&of(0.4, other)), of(0.8, expected));
        }
    }

    #[test]
    fn rates_follow_their_shape() {
        check(0, Decay::Constant, &[(0, 0.8), (1_000_000, 0.8)]);
        check(4, Decay::Constant, &[(0, 0.2), (1, 0.4), (3, 0.8), (4, 0.8)]);
        check(0, Decay::Step { every: 10, factor: 0.5 }, &[(0, 0.8), (9, 0.8), (10, 0.4), (25, 0.2)]);
        check(2, Decay::Step { every: 10, factor: 0.5 }, &[(0, 0.4), (1, 0.8), (9, 0.8), (10, 0.4)]);
        check(0, Decay::Cosine { iterations: 10, floor: 0.0 }, &[(0, 0.8), (5, 0.4), (10, 0.0), (99, 0.0)]);
        check(
            10,
            Decay::Cosine { iterations: 30, floor: 0.1 },
            &[(0, 0.08), (10, 0.8), (20, 0.44), (30, 0.08)],
        );
    }
}
