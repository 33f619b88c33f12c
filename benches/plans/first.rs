//! The first plan: from the request, with the trace in memory, to a checked schedule and its result, for requests whose time is
//! up from the start. It runs on one core and uses no second thread.
//!
//! Budgets are at f = 0.1 and 0.4; links have 12.2, 25 and 50 GB/s each way, full and half duplex; with both means, and with
//! one. Each request is repeated: the table shows median and median absolute deviation. Ratios are to the lower bound without a
//! time limit, for the same means.

use super::runs::{FOR_LARGE, RATES, Runs};
use super::subjects::FRACTIONS;
use super::tables::{Grid, Several, shown};
use plimsoll::ir::schedule::{Duplex, Link};
use plimsoll::tuner::bound::lower_bound;
use plimsoll::tuner::{Allow, Limits, PlanRequest, Policy, plan};
use std::time::Instant;

/// Repetitions of each request.
const TIMES: usize = 5;

/// Targets: milliseconds for up to `OPS` ops, in proportion for more, and the mean ratio to the bound.
const MILLISECONDS: f64 = 20.0;
const OPS: usize = 1500;
const RATIO: f64 = 1.2;

const MEANS: [(&str, Allow); 3] = [
    ("both", Allow::ALL),
    ("--no-recompute", Allow { recompute: false, ..Allow::ALL }),
    ("--no-swap", Allow { swap: false, ..Allow::ALL }),
];

pub fn table(runs: &mut Runs) {
    let columns =
        ["trace", "ops", "means", "f", "link", "duplex", "ms", "spread", "target", "makespan / bound"];
    let mut grid = Grid::new(columns.map(str::to_owned));
    let mut late = Vec::new();
    let mut none = Vec::new();
    let mut means: Vec<(String, Several)> = Vec::new();
    let rates = if runs.evaluations.is_some() { &RATES[..1] } else { &RATES[..] };
    for subject in &runs.subjects {
        let target = MILLISECONDS * (subject.ops() as f64 / OPS as f64).max(1.0);
        for (name, allow) in MEANS {
            for fraction in FOR_LARGE.map(|at| FRACTIONS[at]) {
                for (rate, duplex) in rates.iter().flat_map(|r| [(*r, Duplex::Full), (*r, Duplex::Half)]) {
                    // Without swapping the link does not matter.
                    if !allow.swap && (rate, duplex) != (RATES[0], Duplex::Full) {
                        continue;
                    }
                    let (budget, link) = (subject.budget(fraction), Link { duplex, ..Link::symmetric(rate) });
                    let expired = || true;
                    let limits = Limits { evaluations: None, expired: Some(&expired) };
                    let request =
                        PlanRequest { allow, limits, ..PlanRequest::new(budget, link, Policy::Plimsoll) };
                    let mut times = Vec::new();
                    let mut makespan = None;
                    for _ in 0..TIMES {
                        let begun = Instant::now();
                        let outcome = plan(&subject.trace, &request).expect("a sound request");
                        times.push(begun.elapsed().as_secs_f64() * 1e3);
                        makespan = outcome.plan().map(|plan| plan.makespan.0);
                    }
                    let median = median(&mut times);
                    let spread = self::median(&mut times.iter().map(|t| (t - median).abs()).collect());
                    let bound = lower_bound(&subject.trace, budget, &link, allow).0;
                    let ratio = makespan.map(|makespan| makespan / bound);
                    let what = format!("{name}, f = {fraction}, {duplex:?} duplex");
                    match ratio {
                        Some(ratio) => {
                            let at = means.iter().position(|(of, _)| *of == what).unwrap_or_else(|| {
                                means.push((what.clone(), Several::default()));
                                means.len() - 1
                            });
                            means[at].1.add(ratio);
                        }
                        None => none.push(format!("{} {what}", subject.name)),
                    }
                    if median > target && ratio.is_some() {
                        late.push(format!("{} {what}: {median:.1}", subject.name));
                    }
                    let cells = [
                        subject.ops().to_string(),
                        name.to_owned(),
                        fraction.to_string(),
                        rate.to_string(),
                        format!("{duplex:?}").to_lowercase(),
                        format!("{median:.1}"),
                        format!("{:.0} %", 100.0 * spread / median),
                        format!("{target:.0}"),
                        shown(ratio, 4),
                    ];
                    grid.row(&subject.name, cells);
                }
            }
        }
    }
    grid.print("### The first plan: milliseconds from request to checked schedule, one core");
    for (what, several) in &means {
        let [mean, worst] = [several.mean(), several.worst()].map(|ratio| shown(ratio, 4));
        println!("{what}: {} plans, mean {mean} (target {RATIO}), worst {worst}", several.count());
    }
    println!("\nlater than the target: {}", if late.is_empty() { "none".into() } else { late.join("; ") });
    println!("no plan: {}\n", if none.is_empty() { "none".into() } else { none.join("; ") });
}

#[expect(clippy::ptr_arg, reason = "a list that was collected for it")]
fn median(values: &mut Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
