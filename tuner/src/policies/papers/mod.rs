//! The policies of the papers, section by section, and what several of them need.

use crate::place::realise::{Realised, Task};
use crate::request::{PlanError, Policy};

pub mod accudnn;
pub mod baselines;
mod chain;
pub mod dynprog;
pub mod greedy;
pub(crate) mod keep;
pub mod layrub;
pub mod memonger;
pub mod naive;
mod recomputing;
mod stages;
pub mod superneurons;
pub mod vdnn;

/// What a policy of the papers makes of a task.
pub(crate) fn realise(policy: Policy, task: &Task<'_>) -> Result<Realised, PlanError> {
    match policy {
        Policy::Keep | Policy::LayrubIntra => keep::keep(task, task.exhaustive()),
        Policy::Naive => naive::realise(task),
        Policy::Accudnn => accudnn::realise(task),
        Policy::AccudnnAsPrinted => accudnn::as_printed(task),
        Policy::VdnnAll => vdnn::realise(task, vdnn::Layers::All),
        Policy::VdnnConv => vdnn::realise(task, vdnn::Layers::Conv),
        Policy::VdnnDyn => vdnn::dynamic(task),
        Policy::LayrubInter | Policy::LayrubHybrid => layrub::inter(task),
        Policy::Greedy => greedy::realise(task),
        Policy::DynProg => dynprog::realise(task),
        Policy::VdnnRatio => baselines::ratio(task),
        Policy::Tflms => baselines::tflms(task),
        Policy::AutoSwap => baselines::autoswap(task),
        Policy::SuperNeurons => superneurons::realise(task),
        Policy::Memonger => memonger::realise(task),
        Policy::Optimal | Policy::Plimsoll => unreachable!("{policy} is no paper's"),
    }
}
