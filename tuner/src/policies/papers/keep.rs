//! Everything stays on the device: the papers' vDNN_none, and training without a plan.

use crate::decide::gaps::{Alternatives, Gaps};
use crate::place::realise::{Attempt, Case, GIVEN, Realised};
use crate::request::Error;
use plimsoll_ir::Bytes;

/// Keeps everything on the device, with this many looks for addresses: once for aligned ones, once for any.
pub(crate) fn keep(case: &Case<'_>, looks: u64) -> Result<Realised, Error> {
    let gaps = Gaps::new(case.trace, Bytes(case.pool), Alternatives::BesideAll);
    // Here everything depends on the addresses, and there is nothing else to try.
    let attempt = Attempt { work: looks, ..GIVEN[1] };
    let attempts = [attempt, Attempt { alignment: 1, ..attempt }];
    case.realise(&gaps, &gaps.none(), &attempts)
}
