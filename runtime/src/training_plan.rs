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
    /// Samples in an iteration.
    pub batch: u64,
    /// Of parameters, orders and dropout.
    pub seed: u64,
    /// The learning rate of every iteration.
    pub rate: LearningRateSchedule,
    /// Share of the old momentum kept.
    pub momentum: f32,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f32,
}

impl TrainingPlan {
    /// The first thing in which a saved plan differs from the one of now.
    pub(crate) fn difference(&self, now: &TrainingPlan) -> Option<String> {
        let saved = self;
        let network = |plan: &TrainingPlan| {
            let NetworkSpec { name, image: [height, width], channels, classes } = &plan.network;
            format!("{name} for images of {height}x{width}x{channels} in {classes} classes")
        };
        // How long a training is to be may change.
        let same_shape = now.rate.spread_as(&saved.rate) == saved.rate;
        let rate = if same_shape { saved.rate } else { now.rate };
        let all = [
            ("network", network(saved), network(now)),
            ("batch", saved.batch.to_string(), now.batch.to_string()),
            ("seed", saved.seed.to_string(), now.seed.to_string()),
            ("learning rate", saved.rate.to_string(), rate.to_string()),
            ("momentum", saved.momentum.to_string(), now.momentum.to_string()),
            ("weight decay", saved.weight_decay.to_string(), now.weight_decay.to_string()),
        ];
        let (what, saved, now) = all.into_iter().find(|(_, saved, now)| saved != now)?;
        Some(format!("the {what} is {saved} in it and {now} now"))
    }
}
