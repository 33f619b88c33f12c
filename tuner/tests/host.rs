//! Tests of plans within a limit of host memory: none takes more, a plan found without a limit that it keeps is found with it, a
//! refusal names the bytes, and the stated need is real.
//!
//! This file deliberately does not measure the distance of such plans from the optimum, except on traces small enough for
//! `optimal`.

use crate::common::{expires_after, planned, request};
use plimsoll_ir::schedule::{Duplex, place_on_host};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_testing::{GRAIN, between, chain_trace, coarse_trace_of};
use plimsoll_tuner::bound::lower_bound;
use plimsoll_tuner::policies::optimal::least;
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, Shortage, Trick, Witness, plan};
use std::ops::Range;

/// Bytes per second, each direction.
const RATE: f64 = 1e3 * GRAIN as f64;

/// Returns the budget at this many quarters of the way from floor to peak.
fn budget(trace: &Trace, quarters: u64) -> Bytes {
    between(trace, quarters, 4)
}

/// Returns traces, each at a budget at which something has to leave.
fn cases(seeds: Range<u64>, ops: u64) -> impl Iterator<Item = (u64, Trace, Bytes)> {
    seeds.map(move |seed| {
        let trace = coarse_trace_of(ops + 4 * seed, seed);
        let budget = budget(&trace, 1 + seed % 3);
        (seed, trace, budget)
    })
}

/// Plans within this much host memory.
fn within(trace: &Trace, free: &PlanRequest<'_>, host: Option<Bytes>) -> Result<Plan, Witness> {
    planned(trace, &PlanRequest { allow: Allow { host, ..free.allow }, ..*free })
}

#[test]
fn no_plan_takes_more_of_the_host_than_there_is() {
    no_plan_takes_more(0..2);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn so_it_is_for_more_traces() {
    no_plan_takes_more(2..10);
    every_plan_takes_what_is_proved(3..16);
    recomputed_where_the_host_is_too_small(4..12);
    plans_in_no_time(4..16);
}

fn no_plan_takes_more(seeds: Range<u64>) {
    let (mut kept, mut refused, traces) = (0, 0, seeds.end - seeds.start);
    for (seed, trace, budget) in cases(seeds, 24) {
        for policy in Policy::ALL {
            let free = request(budget, RATE, Duplex::Full, policy);
            let Ok(plain) = within(&trace, &free, None) else { continue };
            let takes = plain.schedule.host_bytes(&trace);
            let what = format!("{policy} of {seed}");
            // A limit that it keeps changes nothing.
            assert_eq!(within(&trace, &free, Some(takes)), Ok(plain), "{what} within {takes}");
            for limit in [Bytes(0), Bytes(takes.0 / 2), Bytes(takes.0.saturating_sub(1))] {
                match within(&trace, &free, Some(limit)) {
                    Ok(_) => kept += u64::from(takes > Bytes::ZERO),
                    // Policies that ignore the host are refused for their decisions.
                    Err(short) if policy != Policy::Plimsoll && short.why == Shortage::HostTried => {
                        assert_eq!(short.needs, takes, "{what} within {limit}: {short}");
                        refused += 1;
                    }
                    Err(short) => {
                        let proved = short.why == Shortage::Host || policy == Policy::Plimsoll;
                        assert!(proved, "{what} within {limit}: {short}");
                    }
                }
            }
        }
    }
    assert!(2 * kept >= traces && refused > 5 * traces, "{kept} plans, {refused} refusals of {traces}");
}

/// A host without memory means no swapping.
#[test]
fn without_host_memory_nothing_is_swapped() {
    let mut plans = 0;
    for (seed, trace, budget) in cases(0..12, 30) {
        let free = request(budget, RATE, Duplex::Full, Policy::Plimsoll);
        let none = within(&trace, &free, Some(Bytes::ZERO));
        let allow = Allow { swap: false, ..Allow::ALL };
        let no_swap = planned(&trace, &PlanRequest { allow, ..free });
        match (none, no_swap) {
            (Ok(none), no_swap) => {
                assert_eq!(Ok(none), no_swap, "{seed}");
                plans += 1;
            }
            (Err(_), no_swap) => assert!(no_swap.is_err(), "{seed}"),
        }
    }
    assert!(plans > 0, "no trace has a plan without swapping");
}

/// The proven need is in every plan, of any policy, and less is refused before any search.
#[test]
fn what_is_proved_to_be_needed_is_taken_by_every_plan() {
    every_plan_takes_what_is_proved(0..3);
}

fn every_plan_takes_what_is_proved(seeds: Range<u64>) {
    let (mut proved, mut tight, traces) = (0, 0, seeds.end - seeds.start);
    for (seed, trace, budget) in cases(seeds, 16) {
        for recompute in [false, true] {
            let mut free = request(budget, RATE, Duplex::Full, Policy::Plimsoll);
            free.allow.recompute = recompute;
            let Err(short) = within(&trace, &free, Some(Bytes::ZERO)) else { continue };
            if short.why != Shortage::Host {
                continue;
            }
            proved += 1;
            let needs = short.needs;
            let one_less = within(&trace, &free, Some(needs - Bytes(1))).expect_err("it is proved");
            assert_eq!((one_less.why, one_less.short_by), (Shortage::Host, Bytes(1)), "{seed}");
            for policy in Policy::ALL {
                if let Ok(plan) = within(&trace, &PlanRequest { policy, ..free }, None) {
                    let takes = plan.schedule.host_bytes(&trace);
                    assert!(takes >= needs, "{policy} of {seed}: {takes}, and {needs} are said to be needed");
                }
            }
            let most = within(&trace, &free, None).map(|plan| plan.schedule.host_bytes(&trace));
            let half = most.map_or(needs, |most| Bytes(needs.0.midpoint(most.0)));
            tight += u64::from(within(&trace, &free, Some(half)).is_ok());
        }
    }
    assert!(
        proved * 3 > 2 * traces && tight * 3 > traces,
        "{proved} proofs, {tight} tight plans of {traces}"
    );
}

/// A chain by hand: swapping alone, bytes that do not fit at the end of the peak have to be on the host.
#[test]
fn a_chain_needs_what_it_cannot_keep() {
    let trace = chain_trace(6);
    let (budget, peak) = (budget(&trace, 2), trace.memory().peak().expect("an op"));
    let mut free = request(budget, RATE, Duplex::Full, Policy::Plimsoll);
    free.allow.recompute = false;
    let short = within(&trace, &free, Some(Bytes::ZERO)).expect_err("it does not fit");
    assert_eq!((short.why, short.needs), (Shortage::Host, peak.1 - budget));
    let says = short.to_string();
    assert!(says.contains(&format!("{}", short.needs)) && says.contains("host"), "{says}");
    let enough = within(&trace, &free, None).expect("all of it may leave").schedule.host_bytes(&trace);
    let plan = within(&trace, &free, Some(enough)).expect("a limit of what it takes is enough");
    assert!(plan.schedule.host_bytes(&trace) >= short.needs);
}

/// If the host is short the planner recomputes: no host memory gives a plan without swapping, and a little of it is no worse.
#[test]
fn the_planner_recomputes_where_the_host_is_too_small() {
    recomputed_where_the_host_is_too_small(0..4);
}

fn recomputed_where_the_host_is_too_small(seeds: Range<u64>) {
    let (mut found, mut faster, traces) = (0, 0, seeds.end - seeds.start);
    for (seed, mut trace, budget) in cases(seeds, 30) {
        trace.ops.iter_mut().for_each(|op| op.recomputable = true);
        let free = request(budget, RATE, Duplex::Full, Policy::Plimsoll);
        let allow = Allow { swap: false, ..Allow::ALL };
        let Ok(without) = planned(&trace, &PlanRequest { allow, ..free }) else { continue };
        let plain = within(&trace, &free, None).unwrap_or_else(|short| panic!("{seed}: {short}"));
        let some = Bytes(plain.schedule.host_bytes(&trace).0 / 2);
        let ours = within(&trace, &free, Some(some)).unwrap_or_else(|short| panic!("{seed}: {short}"));
        assert!(ours.makespan.0 <= without.makespan.0 * 1.001, "{seed} within {some}");
        found += 1;
        faster += u64::from(ours.makespan.0 < without.makespan.0 * 0.999);
    }
    assert!(4 * found >= traces && faster > 0, "{found} of {traces}, {faster} faster with some host memory");
}

/// If time is up at once, or during the search, the limit holds as well.
#[test]
fn a_plan_in_no_time_keeps_the_limit() {
    plans_in_no_time(0..4);
}

fn plans_in_no_time(seeds: Range<u64>) {
    let (mut found, mut asked) = (0, 0);
    for (_, trace, budget) in cases(seeds, 30) {
        let free = request(budget, RATE, Duplex::Full, Policy::Plimsoll);
        let Ok(plain) = within(&trace, &free, None) else { continue };
        let host = Some(Bytes(plain.schedule.host_bytes(&trace).0 / 2));
        for polls in [0, 3, 40, 400] {
            let expired = expires_after(polls);
            let limits = Limits { expired: Some(&expired), ..free.limits };
            let made = within(&trace, &PlanRequest { limits, anytime: true, ..free }, host);
            found += usize::from(made.is_ok());
            asked += 1;
        }
    }
    assert!(found * 3 > asked, "{found} of {asked}");
}

/// The optimum within a limit is no faster than that without one, and no plan of the planner is faster.
#[test]
fn the_optimum_keeps_the_limit() {
    let mut slower = 0;
    for seed in 0..60 {
        let trace = coarse_trace_of(4 + seed % 5, seed);
        let mut free = request(budget(&trace, 1), 0.6 * RATE, Duplex::Full, Policy::Optimal);
        free.limits.evaluations = None;
        (free.allow.pieces, free.allow.recompute) = (false, seed % 2 == 0);
        let Ok(plain) = within(&trace, &free, None) else { continue };
        let takes = plain.schedule.host_bytes(&trace);
        if takes == Bytes::ZERO {
            continue;
        }
        for host in [takes, Bytes(takes.0 - 1), Bytes(takes.0 / 2)] {
            let asked = PlanRequest { allow: Allow { host: Some(host), ..free.allow }, ..free };
            // Nothing is recomputed early in the optimal policy's space.
            let without = [Trick::Early].into_iter().collect();
            let ours = planned(&trace, &PlanRequest { policy: Policy::Plimsoll, without, ..asked });
            let best = planned(&trace, &asked);
            if let Ok(best) = &best {
                assert!(best.makespan.0 >= plain.makespan.0 * (1.0 - 1e-9), "{seed}");
                assert!(host < takes || best.makespan <= plain.makespan, "{seed}");
                slower += usize::from(best.makespan > plain.makespan);
                assert!(ours.is_err() || ours.is_ok_and(|ours| best.makespan <= ours.makespan), "{seed}");
            }
            let found = least(&trace, &asked, Seconds(f64::INFINITY)).expect("it is small");
            match found {
                None => assert!(best.is_err(), "{seed} within {host} of {takes}"),
                Some(found) => assert!(found.reached, "{seed} within {host} of {takes}: {found:?}"),
            }
        }
    }
    assert!(slower > 5, "{slower} are slower for it");
}

/// The bound respects the limit: it rises as the host shrinks, at most to the bound without swapping.
#[test]
fn the_bound_rises_as_the_host_shrinks() {
    let mut sharper = 0;
    for (seed, mut trace, budget) in cases(0..20, 16) {
        trace.ops.iter_mut().for_each(|op| op.recomputable = true);
        let link = request(budget, RATE, Duplex::Full, Policy::Plimsoll).link;
        let bound = |allow: Allow| lower_bound(&trace, budget, &link, allow).0;
        let all: u64 = trace.tensors.iter().map(|tensor| tensor.bytes.0).sum();
        let hosts = [all, all / 4, all / 8, all / 16, 0];
        let free = bound(Allow::ALL);
        let bounds = hosts.map(|host| bound(Allow { host: Some(Bytes(host)), ..Allow::ALL }));
        let what = format!("{seed}: {free} without a limit, {bounds:?}");
        assert!((bounds[0] / free - 1.0).abs() < 1e-4, "{what}");
        assert!(bounds.is_sorted_by(|a, b| a <= &(b * (1.0 + 1e-4))), "{what}");
        let none = bound(Allow { swap: false, ..Allow::ALL });
        // Twice the seconds of all ops means that nothing fits without swapping.
        let fits = none < 1.99 * trace.fastest_seconds().0;
        assert!(!fits || bounds[4] <= none * (1.0 + 1e-4), "{what}, {none} without swapping");
        sharper += usize::from(bounds[4] > free * 1.01);
    }
    assert!(sharper > 5, "{sharper} of 20");
}

/// A place on the host is as large as the largest part of a tensor that is ever there, in whole units.
#[test]
fn places_are_whole_units() {
    assert_eq!([0, 1, 256, 257].map(place_on_host), [0, 256, 256, 512]);
    assert_eq!(place_on_host(u64::MAX), u64::MAX);
    let trace = chain_trace(4);
    let free = request(budget(&trace, 2), RATE, Duplex::Full, Policy::Naive);
    let Ok(Outcome::Planned(made)) = plan(&trace, &free) else { panic!("naive has a plan") };
    let host = made.schedule.host_bytes(&trace);
    let whole = host > Bytes::ZERO && host.0.is_multiple_of(256);
    assert!(whole && host.0 * 2 >= made.moved.0, "{host} of {}", made.moved);
}
