//! Tests of the search on synthetic machines whose best batch is known, and of its limits and errors.

use super::*;
use plimsoll_ir::schedule::{Command, Link, ScheduleKind};
use plimsoll_ir::search_log::SearchLog;
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
    let (makespan, log) = (Seconds(makespan), SearchLog::default());
    Planned { trace, schedule, makespan, log, sharing: Sharing::ALONE, carried: false }
}

/// Default request of the tests.
const REQUEST: SearchRequest<'static> = SearchRequest {
    dataset: 10,
    least: 1,
    most: 10,
    keeps_all: None,
    evaluations: 9,
    within: 0.0,
    stop: &|| false,
};

struct Case {
    dataset: u64,
    least: u64,
    most: u64,
    keeps_all: Option<u64>,
    /// Seconds between two iterations: Δ.
    exchange: f64,
    error: f64,
    evaluations: usize,
    within: f64,
}

const CASE: Case = Case {
    dataset: 1000,
    least: 1,
    most: 400,
    keeps_all: Some(100),
    exchange: 0.0,
    error: 0.0,
    evaluations: 1000,
    within: 0.0,
};

/// Searches over `seconds`, which returns `None` if there is no plan; everything beyond `keeps_all` swaps.
fn run(
    case: &Case,
    seconds: impl Fn(u64) -> Option<f64>,
) -> Result<(Search<'static>, Choice), SearchError<Infallible>> {
    let request = SearchRequest {
        dataset: case.dataset,
        least: case.least,
        most: case.most,
        keeps_all: case.keeps_all,
        evaluations: case.evaluations,
        within: case.within,
        stop: &|| false,
    };
    let swaps = |k| case.keeps_all.is_none_or(|most| k > most);
    let sharing = Sharing { exchange: Seconds(case.exchange), ..Sharing::ALONE };
    let found = search(request, &|_| case.error, &mut |k, _| {
        Ok(seconds(k).map(|s| Planned { sharing, ..planned(k, s, swaps(k)) }))
    })?;
    let choice = found.choose(case.within, &|_| case.error);
    Ok((found, choice))
}

#[test]
fn a_stalling_machine_has_its_best_batch_where_the_stalls_begin() {
    // Overhead 1 s per iteration, 0.01 s per sample; beyond 237 every further sample stalls for 0.05 s.
    let seconds = |k: u64| Some(1.0 + 0.01 * k as f64 + 0.05 * k.saturating_sub(237) as f64);
    let (found, Choice { candidate, plan, .. }) = run(&CASE, seconds).expect("found");
    assert_eq!(candidate.batch, 237);
    assert!((candidate.epoch.0 - 1000.0 / 237.0 * 3.37).abs() < 1e-9);
    assert_eq!(candidate.peak, Bytes(1000 + 23_700));
    assert_eq!(candidate.moved.offloaded, Bytes(23_700));
    assert!((candidate.moved.seconds().0 - 23_700.0 / 1e9).abs() < 1e-15);
    assert_eq!(plan.schedule.batch, 237);
    assert!(!found.cut_short && found.no_plan().is_empty());
    assert!(found.curve().count() < 70, "{} plans", found.curve().count());
    assert!(found.curve().is_sorted_by(|a, b| a.batch < b.batch));
}

#[test]
fn a_gain_within_the_error_keeps_everything() {
    // Larger batches save next to nothing, but above 100 they save 5 % of the epoch.
    let seconds = |k: u64| Some((1e-6 + 0.01 * k as f64) * if k > 100 { 0.95 } else { 1.0 });
    let (_, found) = run(&Case { error: 0.06, ..CASE }, seconds).expect("found");
    assert_eq!(found.candidate.batch, 100);
    assert!(matches!(found.reason, Reason::WithinError { gain, .. } if (gain - 0.05).abs() < 1e-5));
    let (_, found) = run(&Case { error: 0.04, ..CASE }, seconds).expect("found");
    assert!(found.candidate.batch > 100);
    assert!(matches!(found.reason, Reason::Shortest { gain: Some(gain) } if (gain - 0.05).abs() < 1e-5));
}

#[test]
fn of_epochs_that_count_as_equal_the_least_work_and_then_the_smallest_batch_is_taken() {
    // 1 s of an iteration is the same for every batch: 100 saves 1 % over 50, and 400, which swaps, 0.75 % over 100.
    let seconds = |k: u64| Some(1.0 + k as f64);
    let case = Case { least: 10, within: 0.01, ..CASE };
    let (found, choice) = run(&case, seconds).expect("found");
    assert_eq!(found.shortest().batch, 400);
    let smallest =
        (10..).find(|k| (1.0 + 1.0 / *k as f64) <= 1.01 * (1.0 + 1.0 / 400.0)).expect("one is near");
    let batch = choice.candidate.batch;
    assert!((smallest..=smallest + 1).contains(&batch), "{batch}, not {smallest}");
    assert!(choice.candidate.keeps_everything());
    let Reason::Near { batch: 400, saves, extra } = choice.reason else { panic!("{:?}", choice.reason) };
    assert!((0.0..=0.01).contains(&saves) && extra > Seconds::ZERO);
    // If every difference counts, or the allowed share is too small, the shortest is taken.
    assert_eq!(found.choose(0.0, &|_| 0.0).candidate.batch, 400);
    let steep = |k: u64| Some(1.0 + k as f64 / if k > 100 { 1.2 } else { 1.0 });
    assert!(!run(&case, steep).expect("found").1.candidate.keeps_everything());
}

#[test]
fn of_plans_that_swap_the_one_that_swaps_least_is_taken() {
    let case = Case { keeps_all: None, least: 100, within: 0.01, ..CASE };
    let (found, choice) = run(&case, |k| Some(10.0 + k as f64)).expect("found");
    let limit = found.shortest().epoch * 1.01;
    assert!(choice.candidate.epoch <= limit && choice.candidate.batch < 400);
    let less =
        found.curve().filter(|c| c.epoch <= limit && c.moved.seconds() < choice.candidate.moved.seconds());
    assert_eq!(less.count(), 0);
}

#[test]
fn time_between_iterations_favours_large_batches() {
    let seconds = |k: u64| Some(0.01 * k as f64 + 0.005 * k.saturating_sub(100) as f64);
    let (_, small) = run(&CASE, seconds).expect("found");
    let (_, large) = run(&Case { exchange: 10.0, ..CASE }, seconds).expect("found");
    assert!(small.candidate.batch <= 100);
    assert_eq!(large.candidate.batch, 400);
}

#[test]
fn an_epoch_of_workers_is_so_many_updates() {
    // 1000 samples in updates of 4 x 25: two workers make two passes each of 3 s, and exchange for 1 s.
    // The update's own half second is in both.
    let sharing = Sharing {
        iterations: 4,
        passes: 2,
        repeated: Seconds(0.5),
        exchange: Seconds(1.0),
        ..Sharing::ALONE
    };
    assert_eq!(sharing.update(Seconds(3.0)), Seconds(6.5));
    assert_eq!(sharing.epoch(1000, 25, Seconds(3.0)), Seconds(65.0));
    assert_eq!(Sharing::ALONE.epoch(1000, 25, Seconds(3.0)), Seconds(120.0));
}

#[test]
fn batches_without_a_plan_are_named_and_passed_by() {
    let (found, choice) = run(&CASE, |k| (k < 50).then_some(1.0)).expect("found");
    assert_eq!(choice.candidate.batch, 49);
    assert!(found.no_plan().contains(&400) && found.no_plan().contains(&100));
    assert!(matches!(choice.reason, Reason::Shortest { gain: None }));
    assert!(matches!(run(&CASE, |_| None), Err(SearchError::NoPlan { tried }) if tried > 10));
}

#[test]
fn of_given_batches_no_other_is_planned() {
    let request = SearchRequest { dataset: 12, most: 12, ..REQUEST };
    let mut plan_at = |k: u64, _: Option<&Planned>| {
        Ok::<_, Infallible>((k != 6).then(|| planned(k, 1.0 + k as f64, false)))
    };
    let found = search_among(request, &[12, 6, 4, 3], &|_| 0.0, &mut plan_at).expect("found");
    let ranked: Vec<u64> = found.ranked().iter().map(|candidate| candidate.batch).collect();
    assert_eq!((ranked, found.no_plan()), (vec![12, 4, 3], vec![6]));
    assert_eq!(found.choose(0.2, &|_| 0.0).candidate.batch, 4);
}

#[test]
fn limits_end_the_search_with_the_best_so_far() {
    let (found, _) = run(&Case { evaluations: 2, ..CASE }, |k| Some(1.0 + k as f64)).expect("found");
    assert_eq!(found.curve().map(|c| c.batch).collect::<Vec<_>>(), [100, 400]);
    assert!(found.cut_short);
    assert!(matches!(run(&Case { dataset: 0, ..CASE }, |_| Some(1.0)), Err(SearchError::Empty { .. })));
    assert!(matches!(run(&Case { evaluations: 0, ..CASE }, |_| Some(1.0)), Err(SearchError::Empty { .. })));
    assert!(matches!(run(&Case { least: 0, ..CASE }, |_| Some(1.0)), Err(SearchError::Empty { .. })));
    assert!(matches!(run(&Case { least: 401, ..CASE }, |_| Some(1.0)), Err(SearchError::Empty { .. })));
    let stopped = SearchRequest { stop: &|| true, ..REQUEST };
    let got = search::<Infallible>(stopped, &|_| 0.0, &mut |k, _| Ok(Some(planned(k, 1.0, false))));
    assert!(matches!(got, Err(SearchError::Stopped)));
}

#[test]
fn the_callers_error_comes_through() {
    let request = REQUEST;
    assert!(matches!(
        search(request, &|_| 0.0, &mut |_, _| Err("broken")),
        Err(SearchError::Caller("broken"))
    ));
}

#[test]
fn the_papers_loop_stops_at_the_first_batch_that_does_not_stall() {
    let mut asked = Vec::new();
    let mut plan_at = |k: u64| {
        asked.push(k);
        Ok::<_, Infallible>((k == 7 || k == 90).then_some("a plan"))
    };
    assert_eq!(accudnn_batch(1, 100, &|| false, &mut plan_at), Ok(Some((90, "a plan"))));
    assert_eq!(asked, (90..=100).rev().collect::<Vec<u64>>(), "every batch on the way, the largest first");
    let of = |least: u64, most: u64, good: u64| {
        accudnn_batch(least, most, &|| false, &mut |k| Ok::<_, Infallible>((k <= good).then_some(())))
    };
    assert_eq!(of(1, 100, 0), Ok(None));
    assert_eq!(of(0, 0, 9), Ok(None));
    assert_eq!(of(0, 3, 9), Ok(Some((3, ()))));
    // Batches below the minimum are not tried.
    assert_eq!((of(8, 10, 7), of(8, 10, 8)), (Ok(None), Ok(Some((8, ())))));
}

#[test]
fn the_papers_loop_stops_when_it_is_told_and_hands_failures_on() {
    let left = std::cell::Cell::new(5);
    let stop = || left.replace(left.get() - 1) == 0;
    let mut asked = 0;
    let mut plan_at = |k: u64| {
        asked += 1;
        Ok::<_, Infallible>((k < 50).then_some(()))
    };
    assert_eq!(accudnn_batch(1, 100, &stop, &mut plan_at), Ok(None));
    assert_eq!(asked, 5);
    assert_eq!(accudnn_batch(1, 9, &|| false, &mut |_| Err::<Option<()>, _>("broken")), Err("broken"));
}

#[test]
fn confirmation_keeps_to_the_stated_error_and_allows_no_larger_peak() {
    let figures = |iteration, peak, relative_error| Observed {
        iteration: Seconds(iteration),
        peak: Bytes(peak),
        relative_error,
    };
    let predicted = figures(1.0, 100, 0.05);
    let accepts = |measured| confirm(&predicted, &measured) == Verdict::Accept;
    // A measurement that scatters does not excuse the prediction.
    assert!(!accepts(figures(1.06, 100, 0.02)));
    assert!(accepts(figures(1.04, 100, 0.02)));
    assert!(accepts(figures(0.96, 90, 0.0)));
    assert!(!accepts(figures(1.06, 100, 0.0)));
    assert!(!accepts(figures(0.9, 100, 0.0)));
    assert!(!accepts(figures(1.0, 101, 0.0)));
    assert!(!accepts(figures(f64::NAN, 100, 0.0)));
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
        let case = Case { dataset: 10_000, most, keeps_all: None, ..CASE };
        let per_sample = |k: u64| 1.0 + ((k as f64) / (floor as f64)).ln().abs();
        let (_, found) = run(&case, |k| Some(per_sample(k) * k as f64)).expect("found");
        prop_assert_eq!(found.candidate.batch, floor);
    }
}

#[test]
fn nothing_below_the_least_batch_is_considered() {
    // The smaller the batch the shorter the epoch, so only the bound stops the search.
    let case = Case { least: 150, ..CASE };
    let (found, choice) = run(&case, |k| Some((k * k) as f64)).expect("there are plans");
    assert_eq!(choice.candidate.batch, 150);
    assert!(found.curve().all(|c| c.batch >= 150), "not even the batch that keeps everything");
    assert_eq!(choice.reason, Reason::Shortest { gain: None });
}

/// Seconds of an independent plan, and the additional share of a carried one.
struct Machine {
    compute: fn(u64) -> f64,
    excess: fn(u64) -> f64,
    slower: fn(u64) -> f64,
}

impl Machine {
    fn plan(&self, batch: u64, carried: bool) -> Planned {
        let compute = (self.compute)(batch);
        let own = compute * (1.0 + (self.excess)(batch));
        let makespan = Seconds(own * if carried { 1.0 + (self.slower)(batch) } else { 1.0 });
        Planned { makespan, carried, ..planned(batch, compute, (self.excess)(batch) > 0.0) }
    }
}

#[test]
fn plans_that_are_carried_lead_to_the_choice_of_plans_of_their_own() {
    // Beyond 150 a larger batch stalls more; carried plans are slower by up to 1 %, each by a different share.
    let machine = Machine {
        compute: |k| 1.0 + 0.01 * k as f64,
        excess: |k| 2e-4 * k.saturating_sub(150) as f64,
        slower: |k| (k * 37 % 100) as f64 * 1e-4,
    };
    let request = SearchRequest { dataset: 1000, least: 8, most: 400, evaluations: 60, ..REQUEST };
    for within in [0.0, 0.01, 0.03] {
        let request = SearchRequest { within, ..request };
        let (mut own, mut near) = (Vec::new(), Vec::new());
        let mut plan_at = |k: u64, from: Option<&Planned>| {
            match from {
                None => own.push(k),
                Some(from) => near.push((k, from.schedule.batch)),
            }
            Ok::<_, Infallible>(Some(machine.plan(k, from.is_some())))
        };
        let found = search(request, &|_| 0.0, &mut plan_at).expect("found");
        let Choice { candidate, plan, .. } = found.choose(within, &|_| 0.0);
        assert!(!plan.carried && plan.makespan == candidate.iteration);
        let batches: Vec<u64> = found.curve().map(|c| c.batch).collect();
        let alone = search_among(request, &batches, &|_| 0.0, &mut |k, _| {
            Ok::<_, Infallible>(Some(machine.plan(k, false)))
        });
        let alone = alone.expect("found").choose(within, &|_| 0.0).candidate;
        assert_eq!(candidate, alone, "within {within}");
        assert!(near.len() > 15 && own.len() * 2 < near.len(), "{within}: {own:?} and {near:?}");
        // The plan of a larger batch if it is near, and none from far away.
        assert!(near.iter().all(|(k, from)| from.max(k) * 4 <= from.min(k) * 5), "{near:?}");
        assert!(near.iter().filter(|(k, from)| from > k).count() * 2 > near.len());
    }
}

#[test]
fn a_carried_plan_stays_where_a_plan_of_its_own_is_slower_or_missing() {
    for own in [None, Some(3.0)] {
        let mut plan_at = |k: u64, near: Option<&Planned>| {
            let plan = Planned { carried: near.is_some(), ..planned(k, 1.0, true) };
            let slower = |seconds| Planned { makespan: Seconds(seconds), ..planned(k, 1.0, true) };
            Ok::<_, Infallible>(if near.is_some() || k == 10 { Some(plan) } else { own.map(slower) })
        };
        let request = SearchRequest { dataset: 100, ..REQUEST };
        let found = search_among(request, &[10, 9], &|_| 0.0, &mut plan_at).expect("found");
        let epochs: Vec<f64> = found.curve().map(|c| c.epoch.0).collect();
        assert_eq!(epochs, [100.0 / 9.0, 10.0]);
    }
    // The chosen plan is made once.
    let mut asked = Vec::new();
    let request = SearchRequest { dataset: 100, within: 0.2, ..REQUEST };
    let mut plan_at = |k: u64, near: Option<&Planned>| {
        asked.push((k, near.is_some()));
        let own = planned(k, k as f64, k == 10);
        Ok::<_, Infallible>((near.is_some() || k == 10).then_some(Planned { carried: near.is_some(), ..own }))
    };
    let found = search_among(request, &[10, 9], &|_| 0.0, &mut plan_at).expect("found");
    assert_eq!(found.choose(0.2, &|_| 0.0).candidate.batch, 9);
    assert_eq!(asked, [(10, false), (9, true), (9, false)]);
}
