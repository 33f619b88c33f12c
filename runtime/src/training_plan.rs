//! The training plan: all that the numbers of a training run depend on besides the data. The trainer follows it, and a
//! checkpoint keeps it.

use crate::rate::LearningRateSchedule;
use plimsoll_ir::network::NetworkSpec;
use serde::{Deserialize, Serialize};

/// What is trained, and how: all that the numbers depend on besides the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingPlan {
    /// The network.
    pub network: NetworkSpec,
    /// Samples in an iteration; of a virtual worker, where there are several.
    pub batch: u64,
    /// The virtual workers whose gradients make an update, each with `batch` samples; 1 for a plain training.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub virtual_workers: u64,
    /// Of parameters, orders and dropout.
    pub seed: u64,
    /// The learning rate of every iteration.
    pub rate: LearningRateSchedule,
    /// Share of the old momentum kept.
    pub momentum: f32,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f32,
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it asks about by reference")]
fn is_one(virtual_workers: &u64) -> bool {
    *virtual_workers == 1
}

impl TrainingPlan {
    /// Samples in an update, of all virtual workers together.
    pub fn samples_of_update(&self) -> u64 {
        self.batch * self.virtual_workers
    }

    /// The first thing in which a saved plan differs from the one of now.
    pub(crate) fn difference(&self, now: &TrainingPlan) -> Option<String> {
        // How long a training is to be may change.
        let same_shape = now.rate.spread_as(&self.rate) == self.rate;
        let rate = if same_shape { self.rate } else { now.rate };
        let (what, saved, now) = self.differs(&TrainingPlan { rate, ..now.clone() })?;
        Some(format!("the {what} is {saved} in it and {now} now"))
    }

    /// The first thing in which another plan differs from this one: what, here, there.
    pub(crate) fn differs(&self, other: &TrainingPlan) -> Option<(&'static str, String, String)> {
        let network = |plan: &TrainingPlan| {
            let NetworkSpec { name, image: [height, width], channels, classes } = &plan.network;
            format!("{name} for images of {height}x{width}x{channels} in {classes} classes")
        };
        let all = [
            ("network", network(self), network(other)),
            ("batch", self.batch.to_string(), other.batch.to_string()),
            (
                "number of virtual workers",
                self.virtual_workers.to_string(),
                other.virtual_workers.to_string(),
            ),
            ("seed", self.seed.to_string(), other.seed.to_string()),
            ("learning rate", self.rate.to_string(), other.rate.to_string()),
            ("momentum", self.momentum.to_string(), other.momentum.to_string()),
            ("weight decay", self.weight_decay.to_string(), other.weight_decay.to_string()),
        ];
        all.into_iter().find(|(_, here, there)| here != there)
    }
}
