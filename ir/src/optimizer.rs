//! Optimizers: rules that update parameters from their gradients.
//!
//! - **SGD** with momentum and an L2 penalty, as in PyTorch's `SGD`.
//! - **AdamW** (Loshchilov and Hutter 2019, Algorithm 2): Adam with decoupled weight decay, and with the corrections for
//!   moments that start at 0 (Kingma and Ba 2015, section 3), as in PyTorch's `AdamW`.
//!
//! An [`UpdateRule`] is an optimizer with its settings. Its values for one update, [`UpdateNumbers`], are computed in f64 on
//! the host and stored on the device in f32, as in PyTorch: of 1 - beta2, f32 would keep four digits.
//!
//! The module deliberately does not place optimizer state on a device ([`crate::program::Role`] does), or choose a learning
//! rate.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Optimizer of the parameters. The program of a training depends on it: each has different optimizer state, which stays on
/// the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Stochastic gradient descent: a momentum for each parameter.
    #[default]
    Sgd,
    /// Adam with decoupled weight decay: two moments for each parameter.
    Adamw,
}

/// An optimizer and its settings except the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum UpdateRule {
    /// Settings of [`Optimizer::Sgd`].
    Sgd {
        /// Share of the old momentum kept.
        momentum: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Settings of [`Optimizer::Adamw`].
    Adamw {
        /// Share of the first moment kept, a running mean of gradients.
        beta1: f64,
        /// Share of the second moment kept, a running mean of squared gradients.
        beta2: f64,
        /// Added to the root of the second moment; above 0.
        epsilon: f64,
        /// Share of a parameter lost in an update, per unit of learning rate.
        weight_decay: f32,
    },
}

/// The numbers of one update that are the same for all parameters, as its kernel reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateNumbers {
    /// Numbers of [`Optimizer::Sgd`].
    Sgd {
        /// Step length.
        learning_rate: f32,
        /// Share of the old momentum kept.
        momentum: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Numbers of [`Optimizer::Adamw`]; t is the number of the update, from 1.
    Adamw {
        /// Share of the parameter kept: 1 - learning rate * weight decay.
        keep: f32,
        /// beta1 and 1 - beta1.
        first: [f32; 2],
        /// beta2 and 1 - beta2.
        second: [f32; 2],
        /// 1 / sqrt(1 - beta2^t), by which the root of the second moment is corrected.
        root: f32,
        /// Added to the corrected root.
        epsilon: f32,
        /// learning rate / (1 - beta1^t): the step length, with the correction of the first moment.
        length: f32,
    },
}

impl Optimizer {
    /// Returns `true` for the default optimizer, which documents omit.
    pub fn is_usual(&self) -> bool {
        *self == Optimizer::default()
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Optimizer::Sgd => "sgd",
            Optimizer::Adamw => "adamw",
        })
    }
}

impl UpdateRule {
    /// Returns an optimizer with its default settings: AdamW's are PyTorch's.
    pub fn usual(optimizer: Optimizer) -> UpdateRule {
        match optimizer {
            Optimizer::Sgd => UpdateRule::Sgd { momentum: 0.9, weight_decay: 5e-4 },
            Optimizer::Adamw => {
                UpdateRule::Adamw { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 1e-2 }
            }
        }
    }

    /// Returns the optimizer of this rule.
    pub fn optimizer(&self) -> Optimizer {
        match self {
            UpdateRule::Sgd { .. } => Optimizer::Sgd,
            UpdateRule::Adamw { .. } => Optimizer::Adamw,
        }
    }

    /// Returns the rule in words: the optimizer first, then each setting with its value.
    pub fn in_words(&self) -> Vec<(&'static str, String)> {
        let settings = match self {
            UpdateRule::Sgd { momentum, weight_decay } => {
                vec![("momentum", momentum.to_string()), ("weight decay", weight_decay.to_string())]
            }
            UpdateRule::Adamw { beta1, beta2, epsilon, weight_decay } => vec![
                ("beta1", beta1.to_string()),
                ("beta2", beta2.to_string()),
                ("epsilon", format!("{epsilon:e}")),
                ("weight decay", weight_decay.to_string()),
            ],
        };
        [("optimizer", self.optimizer().to_string())].into_iter().chain(settings).collect()
    }

    /// Returns the numbers of the update after `step` updates, at this learning rate.
    pub fn numbers(&self, learning_rate: f64, step: u64) -> UpdateNumbers {
        match *self {
            UpdateRule::Sgd { momentum, weight_decay } => {
                UpdateNumbers::Sgd { learning_rate: learning_rate as f32, momentum, weight_decay }
            }
            UpdateRule::Adamw { beta1, beta2, epsilon, weight_decay } => {
                let update = i32::try_from(step.saturating_add(1)).unwrap_or(i32::MAX);
                let start = |beta: f64| 1.0 - beta.powi(update);
                let shares = |beta: f64| [beta as f32, (1.0 - beta) as f32];
                UpdateNumbers::Adamw {
                    keep: (1.0 - learning_rate * f64::from(weight_decay)) as f32,
                    first: shares(beta1),
                    second: shares(beta2),
                    root: (1.0 / start(beta2).sqrt()) as f32,
                    epsilon: epsilon as f32,
                    length: (learning_rate / start(beta1)) as f32,
                }
            }
        }
    }
}

impl UpdateNumbers {
    /// Largest number of words of an optimizer.
    pub const WORDS: usize = 8;

    /// Returns the words as they lie on the device; words that an optimizer lacks are 0.
    pub fn words(self) -> [f32; UpdateNumbers::WORDS] {
        match self {
            UpdateNumbers::Sgd { learning_rate, momentum, weight_decay } => {
                [learning_rate, momentum, weight_decay, 0.0, 0.0, 0.0, 0.0, 0.0]
            }
            UpdateNumbers::Adamw { keep, first, second, root, epsilon, length } => {
                [keep, first[0], first[1], second[0], second[1], root, epsilon, length]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AdamW's first update has the learning rate's length, whatever the gradient: both corrections apply in full.
    #[test]
    fn the_first_update_is_corrected_for_moments_that_start_at_zero() {
        let rule = UpdateRule::usual(Optimizer::Adamw);
        let UpdateNumbers::Adamw { keep, first, second, root, length, .. } = rule.numbers(1e-3, 0) else {
            panic!("{rule:?} has numbers of its own")
        };
        assert_eq!((keep, first, second), (0.99999, [0.9, 0.1], [0.999, 0.001]));
        let gradient = 7.5_f32;
        let moved = length * first[1] * gradient / ((second[1] * gradient * gradient).sqrt() * root);
        assert!((moved / 1e-3 - 1.0).abs() < 1e-6, "{moved}");
        let UpdateNumbers::Adamw { root, length, .. } = rule.numbers(1e-3, u64::MAX) else { unreachable!() };
        assert_eq!((root, length), (1.0, 1e-3), "nothing is left to correct");
    }

    #[test]
    fn a_rule_is_read_as_it_was_written_and_nothing_else_is() {
        for rule in [Optimizer::Sgd, Optimizer::Adamw].map(UpdateRule::usual) {
            let text = serde_json::to_string(&rule).expect("finite numbers");
            assert_eq!(serde_json::from_str::<UpdateRule>(&text).expect("its own"), rule, "{text}");
            assert_eq!(rule.in_words()[0], ("optimizer", rule.optimizer().to_string()));
        }
        for text in [
            r#"{"momentum":0.9}"#,
            r#"{"momentum":0.9,"weight_decay":0.1,"beta1":0.9}"#,
            r#"{"weight_decay":0.1,"beta1":0.9}"#,
        ] {
            assert!(serde_json::from_str::<UpdateRule>(text).is_err(), "{text}");
        }
    }
}
