//! Tests of the plan of a request whose time is up from the start: there is one wherever the whole search finds one.

use crate::common::{LESS, planned, request};
use plimsoll_ir::schedule::Duplex;
use plimsoll_testing::{between, random_trace, random_trace_of};
use plimsoll_tuner::{Allow, Limits, PlanRequest, Policy, Status};

const MEANS: [Allow; 3] = [Allow::ALL, LESS[0], LESS[1]];

#[test]
fn with_no_time_at_all_there_is_a_plan_where_the_search_finds_one() {
    with_no_time_at_all(0..20);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn with_no_time_at_all_there_is_a_plan_of_more_traces() {
    with_no_time_at_all(20..150);
}

fn with_no_time_at_all(seeds: std::ops::Range<u64>) {
    let expired = || true;
    let (mut asked, mut found, mut missed) = (0, 0, 0);
    for seed in seeds {
        let mut trace =
            if seed % 3 == 0 { random_trace_of(20 + seed as usize, seed) } else { random_trace(seed) };
        if seed % 2 == 1 {
            // Sizes that are aligned.
            trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * 256);
            trace.ops.iter_mut().for_each(|op| op.workspace_bytes = op.workspace_bytes * 256);
        }
        let duplex = if seed % 4 < 2 { Duplex::Full } else { Duplex::Half };
        // Most of them tight.
        for budget in [0, 1, 5, 20, 50].map(|part| between(&trace, part, 100)) {
            for allow in MEANS {
                let whole = PlanRequest { allow, ..request(budget, 1e3, duplex, Policy::Plimsoll) };
                // Half of the requests are those of a command with a time limit.
                let anytime = seed % 2 == 0;
                let limits = Limits { expired: Some(&expired), ..whole.limits };
                let at_once = PlanRequest { limits, anytime, ..whole };
                let plan = planned(&trace, &at_once);
                asked += 1;
                found += u32::from(plan.is_ok());
                if seed % 10 < 2 {
                    assert_eq!(plan, planned(&trace, &at_once), "seed {seed}: it is deterministic");
                }
                match plan {
                    Ok(plan) => assert_ne!(plan.status, Status::Feasible, "seed {seed}: time was up"),
                    Err(witness) => {
                        if planned(&trace, &whole).is_err() {
                            continue;
                        }
                        assert!(!allow.swap, "seed {seed}, {budget}: {witness}, but there is a plan");
                        missed += 1;
                    }
                }
            }
        }
    }
    println!("{found} plans of {asked}, {missed} missed");
    // Without the link, finding a plan at all may take a search.
    assert!(missed * 100 < asked, "{missed} missed of {asked}");
    assert!(found * 3 > asked * 2, "{found} plans of {asked}");
}
