//! AccUDNN's policy repaired and as printed, compared with Euro-Par's greedy: makespan over compute.
//!
//! `tuner/src/policies/accudnn.rs` lists the repairs. The budgets are larger than those of the other tables, up to unlimited: a
//! repaired policy does not stall when nothing needs to move.

use super::runs::{RATE, Runs};
use super::tables::{Grid, Several, shown};
use plimsoll::ir::Bytes;
use plimsoll::ir::schedule::Link;
use plimsoll::tuner::{PlanRequest, Policy, plan};

const POLICIES: [Policy; 3] =
    [Policy::Accudnn { as_printed: false }, Policy::Accudnn { as_printed: true }, Policy::Greedy];

/// Fractions f of budgets at floor + f x (peak - floor); the last is practically unlimited.
const WHERE: [f64; 4] = [0.4, 0.7, 1.0, 100.0];

pub fn table(runs: &mut Runs) {
    let heading = ["trace", "policy", "f = 0.4", "f = 0.7", "f = 1", "no limit"];
    let mut grid = Grid::new(heading.map(str::to_owned));
    let mut sums: [[Several; WHERE.len()]; POLICIES.len()] = Default::default();
    for subject in &runs.subjects {
        let compute = subject.trace.fastest_seconds();
        for (policy, sums) in POLICIES.into_iter().zip(&mut sums) {
            let mut cells = vec![policy.to_string()];
            for (fraction, sum) in WHERE.into_iter().zip(sums) {
                let spread = (fraction * (subject.peak - subject.floor).0 as f64) as u64;
                let request = PlanRequest::new(subject.floor + Bytes(spread), Link::symmetric(RATE), policy);
                let outcome = plan(&subject.trace, &request).expect("a sound request");
                let ratio = outcome.plan().map(|plan| plan.makespan / compute);
                ratio.into_iter().for_each(|ratio| sum.add(ratio));
                cells.push(shown(ratio, 3));
            }
            grid.row(subject.name.clone(), cells);
        }
    }
    for (policy, sums) in POLICIES.into_iter().zip(&sums) {
        let cells = sums.iter().map(|sum| shown(sum.mean(), 3));
        grid.row("geometric mean", std::iter::once(policy.to_string()).chain(cells));
    }
    grid.print("### AccUDNN's policy, repaired and as printed: makespan over compute");
}
