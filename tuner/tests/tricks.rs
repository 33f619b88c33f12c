//! Tests of the searches' switches: their names, and plans without each trick.

use crate::common::{planned, request};
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::trace::Trace;
use plimsoll_testing::{between, chain_trace, random_trace_of};
use plimsoll_tuner::{Allow, Limits, Plan, PlanRequest, Policy, Trick, Tricks, Witness};

#[test]
fn a_trick_is_read_as_it_is_printed() {
    for trick in Trick::ALL {
        assert_eq!(trick.to_string().parse(), Ok(*trick));
        let policy = trick.policy().unwrap_or(Policy::Keep);
        assert!(Trick::of(policy).any(|other| other == *trick), "{trick}");
        assert!(!trick.about().ends_with('.'), "{trick} ends a line of a table");
    }
    let fault = "seed".parse::<Trick>().expect_err("there is no such trick");
    assert!(fault.to_string().contains("`seed` is no trick; there are seeds, "), "{fault}");
}

#[test]
fn a_set_has_what_it_was_made_of() {
    let all: Tricks = Trick::ALL.iter().copied().collect();
    for trick in Trick::ALL {
        let one = Tricks::from_iter([*trick]);
        assert!(all.contains(*trick) && one.contains(*trick) && !Tricks::NONE.contains(*trick), "{trick}");
        assert_eq!(Trick::ALL.iter().filter(|other| one.contains(**other)).count(), 1, "{trick}");
    }
}

/// Returns random traces, and a chain, each halfway between floor and peak or lower, and a link that tensors wait for.
fn subjects() -> Vec<(Trace, Bytes, f64)> {
    let random = (0..4).map(|seed| (random_trace_of(30, seed), 300.0));
    let all = (0..).zip(random.chain([(chain_trace(30), 5e9)]));
    all.map(|(at, (trace, rate))| (trace.clone(), between(&trace, 1 + at % 4, 8), rate)).collect()
}

/// Returns the result of a request without these tricks; any plan was checked, and is no faster than the bound.
fn without(subject: &(Trace, Bytes, f64), tricks: &[Trick], recompute: bool) -> Result<Plan, Witness> {
    let (trace, budget, rate) = subject;
    let request = PlanRequest {
        allow: Allow { recompute, ..Allow::default() },
        limits: Limits { evaluations: Some(200), expired: None },
        without: tricks.iter().copied().collect(),
        ..request(*budget, *rate, Duplex::Full, Policy::Plimsoll)
    };
    planned(trace, &request)
}

#[test]
fn without_any_trick_plans_are_valid_and_the_same_each_time() {
    without_each_trick(0..1);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn without_any_trick_plans_of_more_traces_are_valid_and_the_same_each_time() {
    without_each_trick(1..5);
}

fn without_each_trick(which: std::ops::Range<usize>) {
    for (at, subject) in subjects().iter().enumerate().filter(|(at, _)| which.contains(at)) {
        let recompute = at % 3 != 0;
        let all = without(subject, &[], recompute);
        for trick in Trick::of(Policy::Plimsoll) {
            let less = without(subject, &[trick], recompute);
            assert_eq!(less, without(subject, &[trick], recompute), "{trick}");
            if trick == Trick::Cutoff {
                assert_eq!(less, all, "what is cut off would not have been taken");
            }
        }
        // All at once.
        drop(without(subject, Trick::ALL, recompute));
    }
}
