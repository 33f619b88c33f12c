//! The training plan: everything that the results of a training run depend on besides the data. The trainer follows it, and
//! a checkpoint stores it.

use crate::rate::LearningRateSchedule;
use plimsoll_ir::UpdateRule;
use plimsoll_ir::network::NetworkSpec;
use serde::{Deserialize, Serialize};

/// The network and how it is trained: everything that the results depend on besides the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingPlan {
    pub network: NetworkSpec,
    /// Samples in an iteration; if there are several virtual workers, samples of one of them.
    pub batch: u64,
    /// Virtual workers whose gradients make an update, each with `batch` samples; 1 for a plain training.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub virtual_workers: u64,
    /// Seed of parameters, epoch orders and dropout.
    pub seed: u64,
    /// The learning rate of every iteration.
    pub rate: LearningRateSchedule,
    /// The optimizer and its settings. In a saved plan their names stand next to the other fields. Unknown names are
    /// rejected.
    #[serde(flatten)]
    pub update: UpdateRule,
    /// Checksum of the initial weights; `None` if they are drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it asks about by reference")]
fn is_one(virtual_workers: &u64) -> bool {
    *virtual_workers == 1
}

impl TrainingPlan {
    /// Samples in an update, over all virtual workers.
    pub fn samples_of_update(&self) -> u64 {
        self.batch * self.virtual_workers
    }

    /// First difference between a saved plan and the current one.
    pub(crate) fn difference(&self, now: &TrainingPlan) -> Option<String> {
        // The length of a training may change.
        let same_shape = now.rate.spread_as(&self.rate) == self.rate;
        let rate = if same_shape { self.rate } else { now.rate };
        let (what, saved, now) = self.differs(&TrainingPlan { rate, ..now.clone() })?;
        Some(format!("the {what} is {saved} in it and {now} now"))
    }

    /// First difference between two plans: field, value here, value there.
    pub(crate) fn differs(&self, other: &TrainingPlan) -> Option<(&'static str, String, String)> {
        let network = |plan: &TrainingPlan| {
            let NetworkSpec { name, image: [height, width], channels, classes } = &plan.network;
            format!("{name} for images of {height}x{width}x{channels} in {classes} classes")
        };
        let settings = self.update.in_words().into_iter().zip(other.update.in_words());
        let settings = settings.map(|((what, here), (_, there))| (what, here, there));
        let all = [
            ("network", network(self), network(other)),
            ("batch", self.batch.to_string(), other.batch.to_string()),
            (
                "number of virtual workers",
                self.virtual_workers.to_string(),
                other.virtual_workers.to_string(),
            ),
            ("seed", self.seed.to_string(), other.seed.to_string()),
        ];
        let weights = |plan: &TrainingPlan| plan.weights.clone().unwrap_or_else(|| "drawn".to_owned());
        let weights = ("checksum of the weights to start from", weights(self), weights(other));
        let rate = ("learning rate", self.rate.to_string(), other.rate.to_string());
        all.into_iter().chain(settings).chain([weights, rate]).find(|(_, here, there)| here != there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::Optimizer;

    fn plan(optimizer: Optimizer) -> TrainingPlan {
        let network = NetworkSpec { name: "mlp".into(), image: [8; 2], channels: 1, classes: 10 };
        let (rate, update) = (LearningRateSchedule::constant(0.05), UpdateRule::usual(optimizer));
        TrainingPlan { network, batch: 8, virtual_workers: 1, seed: 1, rate, update, weights: None }
    }

    /// Plans used these names before a second optimizer was added.
    #[test]
    fn a_plan_of_sgd_is_saved_as_it_always_was() {
        let saved = serde_json::to_value(plan(Optimizer::Sgd)).expect("finite numbers");
        let names: Vec<&str> = saved.as_object().expect("names").keys().map(String::as_str).collect();
        for name in ["network", "batch", "seed", "rate", "momentum", "weight_decay"] {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
        assert_eq!(names.len(), 6, "{names:?}");
    }

    #[test]
    fn a_saved_plan_is_read_as_it_was_and_no_other_name_is() {
        for optimizer in [Optimizer::Sgd, Optimizer::Adamw] {
            let plan = plan(optimizer);
            let text = serde_json::to_string(&plan).expect("finite numbers");
            assert_eq!(serde_json::from_str::<TrainingPlan>(&text).expect("its own"), plan);
            let more = text.replacen('{', r#"{"more":1,"#, 1);
            assert!(serde_json::from_str::<TrainingPlan>(&more).is_err(), "{more}");
        }
    }

    #[test]
    fn plans_of_two_optimizers_differ_in_that() {
        let [sgd, adamw] = [Optimizer::Sgd, Optimizer::Adamw].map(plan);
        let expected = Some(("optimizer", "sgd".to_owned(), "adamw".to_owned()));
        assert_eq!(sgd.differs(&adamw), expected);
        let UpdateRule::Adamw { beta1, epsilon, weight_decay, .. } = adamw.update else { unreachable!() };
        let update = UpdateRule::Adamw { beta1, beta2: 0.95, epsilon, weight_decay };
        let said = adamw.difference(&TrainingPlan { update, ..adamw.clone() });
        assert_eq!(said, Some("the beta2 is 0.999 in it and 0.95 now".to_owned()));
        assert_eq!(adamw.difference(&adamw), None);
    }
}
