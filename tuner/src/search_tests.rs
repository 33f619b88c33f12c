//! Tests of the search on synthetic machines whose best batch is known, and of its limits and errors.

use super::*;
use plimsoll_ir::schedule::{Command, Link, ScheduleKind};
use plimsoll_ir::trace::{Op, Phase, Tensor, TensorKind, TraceKind};
use plimsoll_ir::{BytesPerSecond, OpId, TensorId};
use proptest::prelude::*;
use std::convert::Infallible;

/// Returns a plan with the given makespan that offloads its one activation or keeps it.
fn planned(batch: u64, makespan: f64, swaps: bool) -> Planned {
    let tensor = Tensor { name: "x".into(), bytes: Bytes(100 * batch), kind: TensorKind::Activation };
    let op = Op {
        name: "op".into(),
        layer: "op".into(),
        kind: "conv".into(),
        phase: Phase::Forward,
        seconds: Seconds(makespan),
        reads: vec![],
        writes: vec![TensorId(0)],
        workspace_bytes: Bytes::ZERO,
        flops: 0,
        recomputable: true,
        alternatives: vec![],
    };
    let kind = TraceKind;
    let resident_bytes = Bytes(1000);
    let trace = Trace { kind, name: "t".into(), batch, resident_bytes, tensors: vec![tensor], ops: vec![op] };
    let compute = Command::Compute { op: OpId(0), again: false, alternative: None, waits: vec![] };
    let offload = Command::Offload { tensor: TensorId(0), first_byte: None, bytes: None, waits: vec![] };
    let schedule = Schedule {
        kind: ScheduleKind,
        trace: "t".into(),
        batch,
        budget_bytes: Bytes(1 << 40),
        pool_bytes: Bytes(100 * batch),
        link: Link::symmetric(BytesPerSecond(1e9)),
        commands: if swaps { vec![compute, offload] } else { vec![compute] },
        buffers: vec![],
    };
    Planned::new(trace, schedule, Sharing::ALONE, 1000)
}

/// Planner by a closure, whose predictions have an error.
struct Planner<F> {
    plan_at: F,
    error: f64,
    stops: bool,
}

impl<E, F: FnMut(u64, Option<&Planned>) -> Result<Option<Planned>, E>> Batches for Planner<F> {
    type Error = E;

    fn plan(&mut self, batch: u64, near: Option<&Planned>) -> Result<Option<Planned>, E> {
        (self.plan_at)(batch, near)
    }

    fn error(&self, _: u64) -> f64 {
        self.error
    }

    fn stops(&self) -> bool {
        self.stops
    }
}

/// Returns a planner without errors or failures.
fn exact(
    mut plan_at: impl FnMut(u64, Option<&Planned>) -> Option<Planned>,
) -> impl Batches<Error = Infallible> {
    let plan_at = move |batch: u64, near: Option<&Planned>| Ok(plan_at(batch, near));
    Planner { plan_at, error: 0.0, stops: false }
}

const REQUEST: SearchRequest = SearchRequest {
    dataset: 1000,
    least: 1,
    most: 400,
    among: None,
    keeps_all: None,
    evaluations: 1000,
    within: [0.0; 2],
};

/// Default request of the tests, with everything kept up to a batch of 100.
const CASE: SearchRequest = SearchRequest { keeps_all: Some(100), ..REQUEST };

/// Searches over `seconds`, which returns `None` if there is no plan; everything beyond `keeps_all` swaps.
fn run(case: SearchRequest, error: f64, seconds: impl Fn(u64) -> Option<f64>) -> (Search, Option<Choice>) {
    let keeps_all = case.keeps_all;
    let plan_at = |k, _: Option<&Planned>| {
        let swaps = keeps_all.is_none_or(|most| k > most);
        Ok::<_, Infallible>(seconds(k).map(|seconds| planned(k, seconds, swaps)))
    };
    let mut planner = Planner { plan_at, error, stops: false };
    let Ok(found) = search(case, &mut planner);
    let choice = found.choose(&planner);
    (found, choice)
}

#[test]
fn a_stalling_machine_has_its_best_batch_where_the_stalls_begin() {
    // Overhead 1 s per iteration, 0.01 s per sample; beyond 237 every further sample stalls for 0.05 s.
    let seconds = |k: u64| Some(1.0 + 0.01 * k as f64 + 0.05 * k.saturating_sub(237) as f64);
    let (found, choice) = run(CASE, 0.0, seconds);
    let Planned { candidate, schedule, .. } = choice.expect("found").plan;
    assert_eq!((candidate.batch, schedule.batch), (237, 237));
    assert!((candidate.epoch.0 - 1000.0 / 237.0 * 3.37).abs() < 1e-9);
    assert_eq!(candidate.peak, Bytes(1000 + 23_700));
    assert_eq!(candidate.moved.offloaded, Bytes(23_700));
    assert!((candidate.moved.seconds().0 - 23_700.0 / 1e9).abs() < 1e-15);
    assert!(!found.cut_short && found.no_plan().is_empty());
    let curve = found.curve();
    assert!(curve.len() < 70, "{} plans", curve.len());
    assert!(curve.is_sorted_by(|a, b| a.batch < b.batch));
}

#[test]
fn a_gain_within_the_error_keeps_everything() {
    // Larger batches save next to nothing, but above 100 they save 5 % of the epoch.
    let seconds = |k: u64| Some((1e-6 + 0.01 * k as f64) * if k > 100 { 0.95 } else { 1.0 });
    let choice = run(CASE, 0.06, seconds).1.expect("found");
    assert_eq!(choice.plan.candidate.batch, 100);
    assert!(matches!(choice.reason, Reason::WithinError { gain, .. } if (gain - 0.05).abs() < 1e-5));
    let choice = run(CASE, 0.04, seconds).1.expect("found");
    assert!(choice.plan.candidate.batch > 100);
    assert!(matches!(choice.reason, Reason::Shortest { gain: Some(gain) } if (gain - 0.05).abs() < 1e-5));
}

#[test]
fn of_epochs_that_count_as_equal_the_least_work_and_then_the_smallest_batch_is_taken() {
    // 1 s of an iteration is the same for every batch: 100 saves 1 % over 50, and 400, which swaps, 0.75 % over 100.
    let seconds = |k: u64| Some(1.0 + k as f64);
    let case = SearchRequest { least: 10, within: [0.01; 2], ..CASE };
    let (found, choice) = run(case.clone(), 0.0, seconds);
    assert_eq!(found.ranked()[0].batch, 400);
    let smallest =
        (10..).find(|k| (1.0 + 1.0 / *k as f64) <= 1.01 * (1.0 + 1.0 / 400.0)).expect("one is near");
    let Choice { plan: Planned { candidate, .. }, reason } = choice.expect("found");
    assert!((smallest..=smallest + 1).contains(&candidate.batch), "{}, not {smallest}", candidate.batch);
    assert!(candidate.keeps_everything());
    let Reason::Near { batch: 400, saves, extra, .. } = reason else { panic!("{reason:?}") };
    assert!((0.0..=0.01).contains(&saves) && extra > Seconds::ZERO);
    // If every difference counts, or the allowed share is too small, the shortest is taken.
    let batch = |(_, choice): (Search, Option<Choice>)| choice.expect("found").plan.candidate.batch;
    assert_eq!(batch(run(CASE, 0.0, seconds)), 400);
    let steep = |k: u64| Some(1.0 + k as f64 / if k > 100 { 1.2 } else { 1.0 });
    assert!(batch(run(case, 0.0, steep)) > 100);
}

#[test]
fn of_plans_that_swap_the_one_that_swaps_least_is_taken() {
    let case = SearchRequest { keeps_all: None, least: 100, within: [0.01; 2], ..CASE };
    let (found, choice) = run(case, 0.0, |k| Some(10.0 + k as f64));
    let (limit, chosen) = (found.ranked()[0].epoch * 1.01, choice.expect("found").plan.candidate);
    assert!(chosen.epoch <= limit && chosen.batch < 400);
    let less = |c: &Candidate| c.epoch <= limit && c.moved.seconds() < chosen.moved.seconds();
    assert!(!found.curve().iter().any(less));
}

/// A run whose times scatter by 2 % makes 50 as good as 100, which saves 1 %.
#[test]
fn the_scatter_of_a_run_widens_what_counts_as_equal() {
    struct Scattered;
    impl Batches for Scattered {
        type Error = Infallible;
        fn plan(&mut self, batch: u64, _: Option<&Planned>) -> Result<Option<Planned>, Infallible> {
            Ok(Some(planned(batch, 1.0 + batch as f64, false)))
        }
        fn run(&mut self, plan: &Planned) -> Result<Option<Confirmed>, Infallible> {
            Ok(Some(Confirmed {
                iteration: plan.candidate.iteration,
                scatter: 0.02,
                between: Seconds::ZERO,
                samples: BatchSamples::none(plan.candidate.batch),
                timeline: simulate(&plan.trace, &plan.schedule),
                peak: plan.candidate.peak,
                taken_by_others: 0.0,
            }))
        }
        fn error(&self, _: u64) -> f64 {
            0.0
        }
    }
    for (within, batch) in [([0.0; 2], 100), ([0.0, 0.015], 50), ([0.001, 0.015], 50)] {
        let request = SearchRequest { among: Some(vec![100, 50]), within, ..CASE };
        let Ok(mut found) = search(request, &mut Scattered);
        assert_eq!(found.choose(&Scattered).expect("found").plan.candidate.batch, 100);
        let Ok(confirmed) = found.confirm(&mut Scattered);
        let (choice, run) = confirmed.expect("found");
        assert_eq!((choice.plan.candidate.batch, found.within), (batch, within[1]));
        assert_eq!(run.expect("it was run").samples.batch, batch, "the choice itself was run");
    }
}

#[test]
fn time_between_iterations_favours_large_batches() {
    let chosen = |seconds: f64| {
        let sharing = Sharing { exchange: Seconds(seconds), ..Sharing::ALONE };
        let mut planner = exact(|k, _| {
            let makespan = 0.01 * k as f64 + 0.005 * k.saturating_sub(100) as f64;
            let Planned { trace, schedule, .. } = planned(k, makespan, k > 100);
            Some(Planned::new(trace, schedule, sharing, 1000))
        });
        let Ok(found) = search(CASE, &mut planner);
        found.choose(&planner).expect("found").plan.candidate.batch
    };
    assert!(chosen(0.0) <= 100);
    assert_eq!(chosen(10.0), 400);
}

#[test]
fn an_epoch_of_workers_is_so_many_updates() {
    // 1000 samples in updates of 4 x 25: two workers make two passes each of 3 s, and exchange for 1 s.
    // The update's own half second is in both.
    let sharing = Sharing { iterations: 4, passes: 2, repeated: Seconds(0.5), exchange: Seconds(1.0) };
    assert_eq!(sharing.update(Seconds(3.0)), Seconds(6.5));
    assert_eq!(sharing.epoch(1000, 25, Seconds(3.0)), Seconds(65.0));
    assert_eq!(Sharing::ALONE.epoch(1000, 25, Seconds(3.0)), Seconds(120.0));
}

#[test]
fn batches_without_a_plan_are_named_and_passed_by() {
    let (found, choice) = run(CASE, 0.0, |k| (k < 50).then_some(1.0));
    let choice = choice.expect("found");
    assert_eq!(choice.plan.candidate.batch, 49);
    assert!(found.no_plan().contains(&400) && found.no_plan().contains(&100));
    assert!(matches!(choice.reason, Reason::Shortest { gain: None }));
    let (found, choice) = run(CASE, 0.0, |_| None);
    assert!(choice.is_none() && found.no_plan().len() > 10);
}

#[test]
fn of_given_batches_no_other_is_planned() {
    let among = Some(vec![500, 12, 6, 4, 3]);
    let request = SearchRequest { among, within: [0.2; 2], ..REQUEST };
    let (found, choice) = run(request, 0.0, |k| (k != 6).then_some(1.0 + k as f64));
    let ranked: Vec<u64> = found.ranked().iter().map(|candidate| candidate.batch).collect();
    assert_eq!((ranked, found.no_plan()), (vec![12, 4, 3], vec![6]));
    assert_eq!(choice.expect("found").plan.candidate.batch, 4);
}

#[test]
fn limits_end_the_search_with_the_best_so_far() {
    let seconds = |k: u64| Some(1.0 + k as f64);
    let (found, _) = run(SearchRequest { evaluations: 2, ..CASE }, 0.0, seconds);
    assert_eq!(found.curve().iter().map(|c| c.batch).collect::<Vec<_>>(), [100, 400]);
    assert!(found.cut_short);
    let empty = [
        SearchRequest { dataset: 0, ..CASE },
        SearchRequest { evaluations: 0, ..CASE },
        SearchRequest { least: 401, ..CASE },
    ];
    for request in empty {
        let (found, choice) = run(request, 0.0, seconds);
        assert!(choice.is_none() && found.no_plan().is_empty());
    }
    let plan_at = |k, _: Option<&Planned>| Ok::<_, Infallible>(Some(planned(k, 1.0, false)));
    let Ok(found) = search(REQUEST, &mut Planner { plan_at, error: 0.0, stops: true });
    assert!(found.cut_short && found.plans().next().is_none());
    let broken = |_, _: Option<&Planned>| Err("broken");
    assert_eq!(
        search(REQUEST, &mut Planner { plan_at: broken, error: 0.0, stops: false }).err(),
        Some("broken")
    );
}

proptest! {
    /// Binary search agrees with a scan of every k, and makes few calls.
    #[test]
    fn the_largest_is_the_last_that_has_it(limit in 0u64..5000, edge in 0u64..6000) {
        let mut asked = 0u32;
        let got = largest(limit, &mut |k| { asked += 1; Ok::<_, Infallible>(k <= edge) }).expect("infallible");
        let expected = edge.min(limit);
        prop_assert_eq!(got, (expected > 0).then_some(expected));
        prop_assert!(asked <= 30);
    }

    /// On a curve with one valley the search finds its floor, at any place.
    #[test]
    fn one_valley_is_found(most in 2u64..3000, at in 0.0..1.0f64) {
        let floor = ((most as f64 * at) as u64).max(1);
        let per_sample = |k: u64| 1.0 + ((k as f64) / (floor as f64)).ln().abs();
        let request = SearchRequest { dataset: 10_000, most, ..REQUEST };
        let (_, choice) = run(request, 0.0, |k| Some(per_sample(k) * k as f64));
        prop_assert_eq!(choice.expect("found").plan.candidate.batch, floor);
    }
}

#[test]
fn nothing_below_the_least_batch_is_considered() {
    // The smaller the batch the shorter the epoch, so only the bound stops the search.
    let (found, choice) = run(SearchRequest { least: 150, ..CASE }, 0.0, |k| Some((k * k) as f64));
    let choice = choice.expect("there are plans");
    assert_eq!(choice.plan.candidate.batch, 150);
    assert!(found.curve().iter().all(|c| c.batch >= 150), "not even the batch that keeps everything");
    assert_eq!(choice.reason, Reason::Shortest { gain: None });
}

/// Returns a plan whose ops alone take `compute`, and a whole iteration longer by a share of that.
fn stalling(batch: u64, compute: f64, excess: f64, carried: bool) -> Planned {
    let plan = planned(batch, compute, excess > 0.0);
    let iteration = Seconds(compute * (1.0 + excess));
    let epoch = Sharing::ALONE.epoch(1000, batch, iteration);
    Planned { carried, candidate: Candidate { iteration, epoch, ..plan.candidate }, ..plan }
}

#[test]
fn plans_that_are_carried_lead_to_the_choice_of_plans_of_their_own() {
    // Beyond 150 a larger batch stalls more; carried plans are slower by up to 1 %, each by a different share.
    let plan = |k: u64, carried: bool| {
        let excess = 2e-4 * k.saturating_sub(150) as f64;
        let slower = if carried { (k * 37 % 100) as f64 * 1e-4 } else { 0.0 };
        stalling(k, 1.0 + 0.01 * k as f64, (1.0 + excess) * (1.0 + slower) - 1.0, carried)
    };
    for within in [0.0, 0.01, 0.03] {
        let request = SearchRequest { least: 8, evaluations: 60, within: [within; 2], ..REQUEST };
        let (mut own, mut near) = (Vec::new(), Vec::new());
        let mut planner = exact(|k, from| {
            match from {
                None => own.push(k),
                Some(from) => near.push((k, from.candidate.batch)),
            }
            Some(plan(k, from.is_some()))
        });
        let Ok(found) = search(request.clone(), &mut planner);
        let Choice { plan: chosen, .. } = found.choose(&planner).expect("found");
        drop(planner);
        assert!(!chosen.carried);
        let among = Some(found.curve().iter().map(|c| c.batch).collect());
        let mut planner = exact(|k, _| Some(plan(k, false)));
        let Ok(alone) = search(SearchRequest { among, ..request }, &mut planner);
        let alone = alone.choose(&planner).expect("found").plan;
        assert_eq!(chosen.candidate, alone.candidate, "within {within}");
        assert!(near.len() > 15 && own.len() * 2 < near.len(), "{within}: {own:?} and {near:?}");
        // The plan of a larger batch if it is near, and none from far away.
        assert!(near.iter().all(|(k, from)| from.max(k) * 4 <= from.min(k) * 5), "{near:?}");
        assert!(near.iter().filter(|(k, from)| from > k).count() * 2 > near.len());
    }
}

#[test]
fn a_carried_plan_stays_where_a_plan_of_its_own_is_slower_or_missing() {
    let request = SearchRequest { among: Some(vec![10, 9]), ..REQUEST };
    for own in [None, Some(2.0)] {
        let mut planner = exact(|k, near| match near {
            None if k != 10 => own.map(|excess| stalling(k, 1.0, excess, false)),
            near => Some(stalling(k, 1.0, 0.0, near.is_some())),
        });
        let Ok(found) = search(request.clone(), &mut planner);
        let epochs: Vec<f64> = found.curve().iter().map(|c| c.epoch.0).collect();
        assert_eq!(epochs, [1000.0 / 9.0, 100.0]);
    }
    // The chosen plan is made once.
    let mut asked = Vec::new();
    let mut planner = exact(|k, near| {
        asked.push((k, near.is_some()));
        let plan = Planned { carried: near.is_some(), ..planned(k, k as f64, k == 10) };
        (near.is_some() || k == 10).then_some(plan)
    });
    let Ok(found) = search(SearchRequest { within: [0.2; 2], ..request }, &mut planner);
    assert_eq!(found.choose(&planner).expect("found").plan.candidate.batch, 9);
    drop(planner);
    assert_eq!(asked, [(10, false), (9, true), (9, false)]);
}
