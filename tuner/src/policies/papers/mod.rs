//! The policies of the papers, section by section, and what several of them need.

use crate::place::realise::{Case, Realised};
use crate::request::{PlanError, Policy};

pub mod accudnn;
mod baselines;
mod chain;
pub mod dqn;
mod dynprog;
mod greedy;
pub(crate) mod keep;
mod layrub;
mod memonger;
mod naive;
mod recomputing;
mod stages;
mod superneurons;
mod vdnn;

/// What a policy of the papers makes of a case.
pub(crate) fn realise(policy: Policy, case: &Case<'_>) -> Result<Realised, PlanError> {
    match policy {
        Policy::Keep | Policy::LayrubIntra => keep::keep(case, case.exhaustive()),
        Policy::Naive => naive::realise(case),
        Policy::Accudnn => accudnn::realise(case),
        Policy::AccudnnAsPrinted => accudnn::as_printed(case),
        Policy::VdnnAll => vdnn::realise(case, vdnn::Layers::All),
        Policy::VdnnAllLeanest => vdnn::leanest(case, vdnn::Layers::All),
        Policy::VdnnAllFastest => vdnn::fastest(case, vdnn::Layers::All),
        Policy::VdnnConv => vdnn::realise(case, vdnn::Layers::Conv),
        Policy::VdnnConvLeanest => vdnn::leanest(case, vdnn::Layers::Conv),
        Policy::VdnnConvFastest => vdnn::fastest(case, vdnn::Layers::Conv),
        Policy::VdnnDyn => vdnn::dynamic(case),
        Policy::LayrubInter | Policy::LayrubHybrid => layrub::inter(case),
        Policy::Greedy => greedy::realise(case),
        Policy::DynProg => dynprog::realise(case),
        Policy::VdnnRatio => baselines::ratio(case),
        Policy::Tflms => baselines::tflms(case),
        Policy::AutoSwap => baselines::autoswap(case),
        Policy::SuperNeurons => superneurons::realise(case),
        Policy::Memonger => memonger::realise(case),
        Policy::MemongerSearch => memonger::searched(case),
        Policy::Dqn | Policy::Optimal | Policy::Plimsoll => {
            unreachable!("{policy} gives more than a schedule, and was asked before")
        }
    }
}
