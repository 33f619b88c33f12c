//! Measurements of a made-up machine: rounds, the journal, interruption, noise.

use super::*;
use plimsoll_ir::Optimizer;
use plimsoll_ir::health::{Health, OtherProcess};
use plimsoll_ir::profile::{AlternativeSamples, BatchSamples, LinkSamples, OpSamples, TransferSample};
use plimsoll_ir::trace::Phase;
use plimsoll_runtime::Whole;
use std::path::Path;
use tempfile::TempDir;

/// A machine with two ops whose every time is known.
struct Fake {
    batches: Vec<u64>,
    /// Batch size of every iteration that ran.
    ran: Vec<u64>,
    calibrated: usize,
    linked: usize,
    /// Factor of the second op's seconds per sample, by iteration.
    factor: fn(usize) -> f64,
    names: [&'static str; 2],
    /// Health after the n-th iteration.
    health: fn(usize) -> Option<Health>,
    /// Number of the second op's alternatives; at batch k only the first k fit.
    alternatives: u32,
    /// Batch size and alternative of every iteration that ran with an alternative.
    ran_alternatives: Vec<(u64, u32)>,
    /// Batch size of every iteration that ran as in training.
    wholes: Vec<u64>,
    /// Slowdown of such an iteration, by the number of this batch size that ran before it in all, and in a row.
    slow: fn(usize, usize) -> f64,
    /// Time for which other programs hold the processors, as a share of the iteration's undisturbed time, by iteration.
    others: fn(usize) -> f64,
}

impl Fake {
    fn with_alternative(&mut self, batch: u64, number: u32) -> BatchSamples {
        self.ran_alternatives.push((batch, number));
        let op = |name: &str, phase, alternatives| {
            let (name, kind, seconds) = (name.into(), "fc".into(), vec![]);
            OpSamples { name, kind, phase, flops: 10 * batch, seconds, alternatives }
        };
        let alternative = AlternativeSamples {
            name: format!("alternative{number}"),
            workspace_bytes: Bytes(10),
            seconds: vec![Seconds(f64::from(number + 2) * 1e-2 * batch as f64)],
        };
        let ops = vec![
            op(self.names[0], Phase::Forward, vec![]),
            op(self.names[1], Phase::Backward, vec![alternative]),
        ];
        BatchSamples { ops, ..BatchSamples::none(batch) }
    }
}

fn quiet(_: usize) -> f64 {
    1.0
}

fn fake() -> Fake {
    Fake {
        batches: vec![],
        ran: vec![],
        calibrated: 0,
        linked: 0,
        factor: quiet,
        names: ["fc.forward", "fc.backward"],
        health: |_| None,
        alternatives: 0,
        ran_alternatives: vec![],
        wholes: vec![],
        slow: |_, _| 1.0,
        others: |_| 0.0,
    }
}

impl Bench for Fake {
    fn calibrate(&mut self) -> Result<Seconds, ProfileError> {
        self.calibrated += 1;
        Ok(Seconds(1e-7))
    }

    fn prepare(&mut self, batches: &[u64], overhead: Seconds) -> Result<(), ProfileError> {
        assert_eq!(overhead, Seconds(1e-7));
        self.batches = batches.to_vec();
        Ok(())
    }

    fn link(&mut self, _: &mut Watch<'_>) -> Result<LinkSamples, ProfileError> {
        self.linked += 1;
        let one = vec![TransferSample { bytes: Bytes(1), seconds: Seconds(1.0) }];
        Ok(LinkSamples {
            offload_alone: one.clone(),
            prefetch_alone: one.clone(),
            offload_together: one.clone(),
            prefetch_together: one,
            pageable: None,
            beside: None,
        })
    }

    fn warm_up(&mut self, position: usize, alternative: Option<u32>) -> Result<Option<Health>, ProfileError> {
        self.iterate(position, alternative)?;
        Ok((self.health)(self.ran.len()))
    }

    fn alternatives(&self, position: usize) -> Vec<u32> {
        (0..self.alternatives).filter(|number| u64::from(*number) < self.batches[position]).collect()
    }

    fn whole(&mut self, position: usize) -> Result<Whole, ProfileError> {
        let batch = self.batches[position];
        let factor = (self.factor)(self.wholes.len());
        let in_all = self.wholes.iter().filter(|ran| **ran == batch).count();
        let in_a_row = self.wholes.iter().rev().take_while(|ran| **ran == batch).count();
        let waited = (self.others)(self.wholes.len());
        self.wholes.push(batch);
        let alone = factor * (self.slow)(in_all, in_a_row) * 11e-3 * batch as f64;
        Ok(Whole { seconds: Seconds(alone * (1.0 + waited)), waited: Seconds(alone * waited) })
    }

    fn iterate(&mut self, position: usize, alternative: Option<u32>) -> Result<BatchSamples, ProfileError> {
        let batch = self.batches[position];
        if let Some(number) = alternative {
            return Ok(self.with_alternative(batch, number));
        }
        let factor = (self.factor)(self.ran.len());
        self.ran.push(batch);
        let op = |name: &str, phase, seconds| OpSamples {
            name: name.into(),
            kind: "fc".into(),
            phase,
            flops: 10 * batch,
            seconds: vec![Seconds(seconds)],
            alternatives: vec![],
        };
        let ops = vec![
            op(self.names[0], Phase::Forward, 1e-3 * batch as f64),
            op(self.names[1], Phase::Backward, factor * 1e-2 * batch as f64),
        ];
        let iteration_seconds = vec![Seconds(batch as f64)];
        Ok(BatchSamples { iteration_seconds, ops, ..BatchSamples::none(batch) })
    }
}

fn request(folder: &TempDir) -> ProfileRequest {
    ProfileRequest {
        network: NetworkSpec { name: "mlp".into(), image: [8, 8], channels: 1, classes: 10 },
        optimizer: Optimizer::Sgd,
        machine: Machine {
            device: "made-up".into(),
            threads: 1,
            paced: None,
            system: "none".into(),
            plimsoll: "0.1.0".into(),
            unix_seconds: 77,
            health: None,
            modelled: false,
            modelled_error: None,
            precision: None,
        },
        budget: Bytes(1000),
        batches: vec![1, 2, 4],
        effort: Effort { at_least: 6, at_most: 12, lasting: Seconds::ZERO, ..Effort::default() },
        journal: folder.path().join("study/profile.journal.jsonl"),
        fresh: false,
    }
}

/// Runs until done, or until this many checks of `stop`.
fn run(request: &ProfileRequest, bench: &mut Fake, iterations: usize) -> Result<Profile, ProfileError> {
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > iterations
    };
    profile_on(request, bench, &mut Watch { stop: &stop, progress: &mut |_| {}, warn: &mut |_| {} })
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn batch_sizes_are_those_of_the_paper() {
    assert_eq!(fractions(64), [8, 16, 32, 43, 64]);
    assert_eq!(fractions(5), [1, 3, 5]);
    assert_eq!(fractions(1), [1]);
    assert_eq!(fractions(0), [1]);
    assert_eq!(fractions(u64::MAX).last(), Some(&u64::MAX));
}

#[test]
fn batch_sizes_take_turns_and_every_other_round_goes_backwards() {
    let folder = folder();
    let mut bench = fake();
    let profile = run(&request(&folder), &mut bench, usize::MAX).expect("measured");
    let turns: Vec<u64> = bench.ran.chunks(4).map(|turn| turn[0]).collect();
    assert!(bench.ran.chunks(4).all(|turn| turn.iter().all(|b| *b == turn[0])));
    assert_eq!(turns, [1, 2, 4, 4, 2, 1]);
    for batch in &profile.batches {
        assert_eq!(batch.iteration_seconds, vec![Seconds(batch.batch as f64); 6]);
        assert_eq!(batch.ops[1].seconds, vec![Seconds(1e-2 * batch.batch as f64); 6]);
    }
    assert_eq!((profile.overhead_seconds, profile.machine.unix_seconds), (Seconds(1e-7), 77));
    use plimsoll_ir::Document;
    assert_eq!(Profile::from_json(&profile.to_json()), Ok(profile));
}

#[test]
fn an_interrupted_measurement_goes_on_and_loses_nothing() {
    let whole = run(&request(&folder()), &mut fake(), usize::MAX).expect("measured");
    // Two rounds: one check before a warm-up, one before each iteration until they are steady, before each pair and after it.
    for stop_after in 0..3 * (1 + 4 + 6) + 3 * (1 + 2 + 6) - 1 {
        let folder = folder();
        let request = request(&folder);
        let (mut first, mut second) = (fake(), fake());
        assert!(
            matches!(run(&request, &mut first, stop_after), Err(ProfileError::Interrupted)),
            "{stop_after}"
        );
        assert!(first.ran.len() <= stop_after);
        let profile = run(&request, &mut second, usize::MAX).expect("measured");
        assert_eq!((second.calibrated, second.linked), (0, 0));
        assert!(profile.batches.iter().all(|b| b.iteration_seconds.len() >= 6));
        let timed = |p: &Profile| p.batches.iter().map(|b| b.iteration_seconds.len()).sum::<usize>();
        let wasted = timed(&profile) - timed(&whole);
        assert!(wasted <= 2, "{stop_after}: {wasted} samples more than without an interruption");
        let warm_ups = first.ran.len() + second.ran.len() - timed(&profile);
        assert!(warm_ups <= 8, "{stop_after}: {warm_ups} warm-ups");
        let mut idle = fake();
        assert_eq!(run(&request, &mut idle, 0).expect("complete"), profile);
        assert!(idle.ran.is_empty() && idle.batches.is_empty(), "what is complete needs no machine");
    }
}

#[test]
fn a_line_cut_short_is_dropped_and_a_foreign_line_is_refused() {
    let folder = folder();
    let request = request(&folder);
    let whole = run(&request, &mut fake(), usize::MAX).expect("measured");
    let text = std::fs::read_to_string(&request.journal).expect("a journal");
    let line_of = |at: usize| text[..at].matches('\n').count();
    for cut in [0, 1, 50, text.len() / 3, text.len() / 2, text.len() - 1] {
        std::fs::write(&request.journal, &text[..cut]).expect("written");
        let mut bench = fake();
        let profile = run(&request, &mut bench, usize::MAX).expect("measured");
        assert_eq!(profile.batches, whole.batches, "cut at {cut}, in line {}", line_of(cut));
        assert_eq!(bench.calibrated, usize::from(line_of(cut) < 2));
    }
    std::fs::write(&request.journal, text.replacen("{\"round", "{\"sound", 1)).expect("written");
    let refused = run(&request, &mut fake(), usize::MAX);
    assert!(
        matches!(&refused, Err(ProfileError::OtherJournal(why)) if why.contains("line 4 is damaged")),
        "{refused:?}"
    );
    // The format of an older version, without checksums.
    let old: String = text.lines().map(|line| unsummed(line) + "\n").collect();
    std::fs::write(&request.journal, &old).expect("written");
    assert_eq!(run(&request, &mut fake(), 0).expect("complete"), whole);
    std::fs::write(&request.journal, old.replacen("{\"round", "{\"sound", 1)).expect("written");
    let refused = run(&request, &mut fake(), usize::MAX);
    assert!(
        matches!(&refused, Err(ProfileError::OtherJournal(why)) if why.contains("line 4 is no line")),
        "{refused:?}"
    );
    std::fs::write(&request.journal, "Dear diary,\n").expect("written");
    assert!(matches!(run(&request, &mut fake(), usize::MAX), Err(ProfileError::OtherJournal(_))));
    let fresh = ProfileRequest { fresh: true, ..request };
    assert_eq!(run(&fresh, &mut fake(), usize::MAX).expect("measured").batches, whole.batches);
}

/// Returns a line without its checksum.
fn unsummed(line: &str) -> String {
    let entry = plimsoll_ir::checksum::entry_of(line.as_bytes()).expect("it is whole");
    String::from_utf8(entry.to_vec()).expect("text")
}

/// If any bit of a complete journal flips, in any but its last byte, the journal is refused, with the file and the remedy.
#[test]
fn no_flipped_bit_of_a_journal_is_taken_for_measured() {
    let folder = folder();
    let request = request(&folder);
    let whole = run(&request, &mut fake(), usize::MAX).expect("measured");
    let text = std::fs::read(&request.journal).expect("a journal");
    for bit in 0..8 * (text.len() - 1) {
        let mut damaged = text.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&request.journal, damaged).expect("written");
        match run(&request, &mut fake(), 0) {
            // A digit of a checksum in a different case has the same value.
            Ok(found) => assert_eq!(found, whole, "bit {bit}"),
            Err(error) => {
                assert!(
                    matches!(&error, ProfileError::OtherJournal(why) if why.contains("profile.journal.jsonl")),
                    "bit {bit}: {error}"
                );
            }
        }
    }
}

#[track_caller]
fn check_refused(change: fn(&mut ProfileRequest), named: &str) {
    let folder = folder();
    let mut request = request(&folder);
    run(&request, &mut fake(), usize::MAX).expect("measured");
    change(&mut request);
    let refused = run(&request, &mut fake(), usize::MAX);
    assert!(matches!(&refused, Err(ProfileError::OtherJournal(why)) if why.contains(named)), "{refused:?}");
    request.fresh = true;
    run(&request, &mut fake(), usize::MAX).expect("measured afresh");
}

#[test]
fn a_journal_of_another_measurement_is_refused_with_what_differs() {
    check_refused(|r| r.network.name = "lenet".into(), "mlp at 8x8x1, 10 classes there, and lenet");
    check_refused(|r| r.optimizer = Optimizer::Adamw, "the optimizer is sgd there, and adamw now");
    check_refused(|r| r.machine.device = "h200".into(), "the device is made-up there, and h200 now");
    check_refused(|r| r.machine.threads = 2, "the number of threads is 1 there, and 2 now");
    check_refused(
        |r| r.machine.precision = Some(plimsoll_ir::Precision::Bf16),
        "the precision is none there, and bf16 now",
    );
    check_refused(|r| r.machine.plimsoll = "0.2.0".into(), "the version");
    check_refused(
        |r| r.machine.paced = Some(Link::symmetric(plimsoll_ir::BytesPerSecond(1e9))),
        "1 GB/s out",
    );
    check_refused(|r| r.budget = Bytes(999), "the budget is 1000 B (1000 B) there, and 999 B (999 B) now");
    check_refused(|r| r.batches = vec![1, 2], "the batch sizes");
}

#[test]
fn ops_that_changed_since_are_refused() {
    let folder = folder();
    let request = request(&folder);
    assert!(run(&request, &mut fake(), 7).is_err());
    let mut other = Fake { names: ["fc.forward", "fc.backward_data"], ..fake() };
    let refused = run(&request, &mut other, usize::MAX);
    assert!(matches!(&refused, Err(ProfileError::OtherJournal(why)) if why.contains("ops")), "{refused:?}");
}

#[test]
fn another_time_is_no_other_measurement_but_two_runs_at_once_are() {
    let folder = folder();
    let mut request = request(&folder);
    assert!(run(&request, &mut fake(), 3).is_err());
    request.machine.unix_seconds = 99;
    let held = Journal::open(&request.journal, Header::of(&request), false).expect("free");
    assert!(
        matches!(run(&request, &mut fake(), usize::MAX), Err(ProfileError::Unusable(why)) if why.contains("in use"))
    );
    drop(held);
    assert_eq!(run(&request, &mut fake(), usize::MAX).expect("measured").machine.unix_seconds, 77);
}

#[test]
fn noise_is_met_with_more_repetitions_and_told_where_they_do_not_help() {
    // A disturbance in every fifth iteration costs nothing: medians.
    let folder = folder();
    let mut bench = Fake { factor: |n| if n % 5 == 4 { 7.0 } else { 1.0 }, ..fake() };
    let profile = run(&request(&folder), &mut bench, usize::MAX).expect("measured");
    assert_eq!(profile.batches[0].iteration_seconds.len(), 6);
    // Times that vary by a fifth: more repetitions, and good enough.
    let folder = self::folder();
    let mut bench = Fake { factor: |n| [0.9, 1.0, 1.1][n % 3], ..fake() };
    let profile = run(&request(&folder), &mut bench, usize::MAX).expect("measured");
    assert_eq!(profile.batches[0].iteration_seconds.len(), 12);
    // Anything between 1 and 4 times: too noisy to decide.
    let folder = self::folder();
    let mut bench = Fake { factor: |n| 1.0 + (n * 7 % 4) as f64, ..fake() };
    match run(&request(&folder), &mut bench, usize::MAX) {
        Err(ProfileError::Noisy { op, spread, samples, .. }) => {
            assert_eq!((op.as_str(), samples), ("fc.backward", 12));
            assert!(spread > 0.15 && spread < 1.0, "{spread}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_too_noisy_is_measured_again_when_the_machine_is_calm() {
    let folder = folder();
    let request = request(&folder);
    let mut noisy = Fake { factor: |n| 1.0 + (n * 7 % 4) as f64, ..fake() };
    assert!(matches!(run(&request, &mut noisy, usize::MAX), Err(ProfileError::Noisy { samples: 12, .. })));
    let mut calm = fake();
    let profile = run(&request, &mut calm, usize::MAX).expect("calm enough");
    assert!(!calm.ran.is_empty());
    assert!(profile.batches.iter().all(|batch| batch.iteration_seconds.len() > 12), "the journal is kept");
}

#[test]
fn time_leaves_other_ways_to_the_smallest_batch() {
    let folder = folder();
    let mut request = request(&folder);
    request.effort.time = Seconds::ZERO;
    let mut bench = Fake { alternatives: 2, ..fake() };
    let profile = run(&request, &mut bench, usize::MAX).expect("measured");
    assert_eq!(bench.ran_alternatives, [(1, 0); 4]);
    let alternatives: Vec<usize> =
        profile.batches.iter().map(|batch| batch.ops[1].alternatives.len()).collect();
    assert_eq!(alternatives, [1, 0, 0]);
    request.effort.time = Seconds(60.0);
    request.fresh = true;
    let mut bench = Fake { alternatives: 1, ..fake() };
    run(&request, &mut bench, usize::MAX).expect("measured");
    let order: Vec<u64> = bench.ran_alternatives.iter().step_by(4).map(|(batch, _)| *batch).collect();
    assert_eq!(order, [1, 2, 4]);
}

#[test]
fn time_ends_the_rounds_once_there_is_enough() {
    let folder = folder();
    let mut request = request(&folder);
    request.effort.time = Seconds::ZERO;
    let mut bench = Fake { factor: |n| [0.9, 1.0, 1.1][n % 3], ..fake() };
    let profile = run(&request, &mut bench, usize::MAX).expect("measured");
    assert!(profile.batches.iter().all(|b| b.iteration_seconds.len() == 6));
}

#[test]
fn progress_reaches_its_end() {
    let folder = folder();
    let mut told = Vec::new();
    let mut watch = Watch { stop: &|| false, progress: &mut |p| told.push(p), warn: &mut |_| {} };
    profile_on(&request(&folder), &mut fake(), &mut watch).expect("measured");
    assert_eq!(told.len(), 18);
    assert_eq!(told.last().map(|p| (p.stage, p.done, p.of)), Some((Stage::Iterations { batch: 1 }, 18, 18)));
    assert!(told.windows(2).all(|w| w[0].done < w[1].done));
}

#[test]
fn unusable_requests_and_folders_are_named() {
    let folder = folder();
    for batches in [vec![], vec![0, 1], vec![2, 2], vec![4, 2]] {
        let request = ProfileRequest { batches, ..request(&folder) };
        assert!(
            matches!(run(&request, &mut fake(), usize::MAX), Err(ProfileError::Unusable(why)) if why.contains("batch sizes"))
        );
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    for journal in
        [file.join("journal"), folder.path().to_owned(), Path::new("/proc/none/journal").to_owned()]
    {
        let request = ProfileRequest { journal, ..request(&folder) };
        assert!(
            matches!(run(&request, &mut fake(), usize::MAX), Err(ProfileError::Unusable(why)) if why.contains("cannot "))
        );
    }
}

/// A different process comes after 6 iterations and goes after 18; heat comes after 12 and stays.
fn shared(ran: usize) -> Option<Health> {
    let other = OtherProcess { pid: 7, name: Some("python".into()), bytes: Some(Bytes(5)) };
    let others = if (6..18).contains(&ran) { vec![other] } else { vec![] };
    let slowed_by = if ran >= 12 { vec!["heat".into()] } else { vec![] };
    Some(Health { slowed_by, others, celsius: Some(40 + ran as u32), ..Health::default() })
}

#[test]
fn who_else_is_on_the_device_is_said_once_and_stands_in_the_profile() {
    let folder = folder();
    let request = request(&folder);
    for stop_after in [59, usize::MAX] {
        let mut said = Vec::new();
        let asked = std::cell::Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > stop_after
        };
        let mut watch =
            Watch { stop: &stop, progress: &mut |_| {}, warn: &mut |warning| said.push(warning.to_owned()) };
        let mut bench = Fake { health: shared, ..fake() };
        let outcome = profile_on(&request, &mut bench, &mut watch);
        if stop_after < usize::MAX {
            assert!(matches!(outcome, Err(ProfileError::Interrupted)));
            assert_eq!(said.len(), 2, "{said:?}");
            assert!(said[0].contains("process 7 (python") && said[1].contains("heat"), "{said:?}");
        } else {
            let health = outcome.expect("measured").machine.health.expect("it was told");
            assert_eq!((health.others.len(), &health.slowed_by[..]), (1, &["heat".to_owned()][..]));
            assert!(said.is_empty(), "the journal knows it: {said:?}");
        }
    }
}

#[test]
fn other_ways_are_measured_where_they_fit_and_an_interruption_loses_none() {
    for stop_after in [usize::MAX, 41, 42, 44, 45, 46, 49, 56] {
        let folder = folder();
        let request = request(&folder);
        let mut benches = [0, 1].map(|_| Fake { alternatives: 2, ..fake() });
        if stop_after < usize::MAX {
            assert!(matches!(run(&request, &mut benches[0], stop_after), Err(ProfileError::Interrupted)));
        }
        let profile = run(&request, &mut benches[1], usize::MAX).expect("measured");
        for batch in &profile.batches {
            assert!(batch.ops[0].alternatives.is_empty());
            let alternatives = &batch.ops[1].alternatives;
            assert_eq!(alternatives.len(), batch.batch.min(2) as usize, "at batch 1 only one fits");
            for (number, alternative) in (0..).zip(alternatives) {
                assert_eq!(alternative.name, format!("alternative{number}"));
                let seconds = f64::from(number + 2) * 1e-2 * batch.batch as f64;
                assert_eq!(alternative.seconds, vec![Seconds(seconds); 3], "{stop_after}");
            }
            assert_eq!(batch.iteration_seconds.len(), batch.ops[1].seconds.len());
        }
        let ran: usize = benches.iter().map(|bench| bench.ran_alternatives.len()).sum();
        assert!((20..=22).contains(&ran), "five pairs, four iterations each, and at most two more: {ran}");
        let mut idle = Fake { alternatives: 2, ..fake() };
        assert_eq!(run(&request, &mut idle, 0).expect("complete"), profile);
    }
}

#[test]
fn slow_first_iterations_and_cold_caches_are_not_measured() {
    let folder = folder();
    // The first seven of a batch size are slow, each less than the one before; so is the first after a different batch size.
    let slow = |in_all: usize, in_a_row: usize| {
        (1.0 + 0.3 * 7_usize.saturating_sub(in_all) as f64) * if in_a_row == 0 { 1.5 } else { 1.0 }
    };
    let mut bench = Fake { slow, ..fake() };
    let profile = run(&request(&folder), &mut bench, usize::MAX).expect("measured");
    for batch in &profile.batches {
        let steady = Seconds(11e-3 * batch.batch as f64);
        assert_eq!(batch.whole_seconds, vec![steady; 6], "at batch {}", batch.batch);
        assert_eq!(batch.waited_seconds, vec![Seconds::ZERO; 6]);
    }
}

#[test]
fn a_shared_machine_is_measured_as_if_it_were_not() {
    let folder = folder();
    // Other programs take between nothing and three times an iteration's time.
    let mut bench = Fake { others: |n| (n * 7 % 4) as f64, ..fake() };
    let profile = run(&request(&folder), &mut bench, usize::MAX).expect("measured");
    for batch in &profile.batches {
        assert_eq!(batch.whole_seconds.len(), 6, "the median is known at once");
        assert!(
            batch.whole_seconds.iter().any(|s| s.0 > 2.0 * 11e-3 * batch.batch as f64),
            "raw samples are kept"
        );
        for alone in batch.alone_seconds() {
            assert!((alone.0 / (11e-3 * batch.batch as f64) - 1.0).abs() < 1e-9, "{alone}");
        }
    }
}

#[test]
fn rounds_go_on_for_a_while_however_well_the_median_seems_to_be_known() {
    let of = |lasting: f64| {
        let folder = folder();
        let request = request(&folder);
        let request =
            ProfileRequest { effort: Effort { lasting: Seconds(lasting), ..request.effort }, ..request };
        let profile = run(&request, &mut fake(), usize::MAX).expect("measured");
        profile.batches.iter().map(|b| b.whole_seconds.len()).collect::<Vec<_>>()
    };
    assert_eq!(of(0.0), [6; 3], "each iteration is like the others");
    assert_eq!(of(1e6), [12; 3]);
}
