//! Everything stays on the device: what the papers call vDNN_none, and what everybody has without a plan.

use crate::decide::gaps::{Alternatives, Gaps};
use crate::place::realise::{Attempt, Case, GIVEN, Realised};
use crate::request::PlanError;
use plimsoll_ir::Bytes;

/// Everything stays on the device, at addresses that are looked for with so many looks: once at aligned ones, once at any.
pub(crate) fn keep(case: &Case<'_>, looks: u64) -> Result<Realised, PlanError> {
    let gaps = Gaps::new(case.trace, Bytes(case.pool), Alternatives::BesideAll);
    // Everything stands on the addresses here, and there is nothing else to try.
    let attempt = Attempt { work: looks, ..GIVEN[1] };
    let attempts = [attempt, Attempt { alignment: 1, ..attempt }];
    case.realise(&gaps, &gaps.none(), &attempts)
}
