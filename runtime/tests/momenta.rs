//! Sharded momenta: the same bits as with momenta on the device, also in a file, wherever training pauses, fails or goes on.

use crate::support::{everything, keep, naive, plan_by, training_with, zoo};
use crate::workers::{BATCH, Failing, Scheduler, bits, images, of, planned, train_as, worker, worker_with};
use plimsoll_ir::network::Network;
use plimsoll_ir::philox::philox4x32;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Momenta, Optimizer};
use plimsoll_runtime::group::{Group, alone, threads};
use plimsoll_runtime::{
    Checkpoint, Cpu, CpuOptions, Executor, MemoryLayout, Outcome, RuntimeError, Trainer, TrainingPlan,
};
use plimsoll_tuner::Policy;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

fn sharded(
    network: &Network,
    plan: &TrainingPlan,
    scheduler: Scheduler,
    group: Box<dyn Group>,
) -> Result<Trainer, RuntimeError> {
    worker_with(Momenta::Sharded, network, plan.clone(), scheduler, group)
}

/// What each of some workers with sharded momenta comes to, by rank.
fn each<T: Send>(
    workers: usize,
    (network, plan, scheduler): (&Network, &TrainingPlan, Scheduler),
    work: impl Fn(usize, Trainer) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let begin = |(rank, group): (usize, Box<dyn Group>)| {
            scope.spawn(move || work(rank, sharded(network, plan, scheduler, group).expect("it is small")))
        };
        let all: Vec<_> = threads(workers).into_iter().enumerate().map(begin).collect();
        all.into_iter().map(|worker| worker.join().expect("it works")).collect()
    })
}

/// Trains on so many workers with sharded momenta until so many updates are done; gives worker 0's state.
fn train_sharded(
    (network, plan, scheduler): (&Network, &TrainingPlan, Scheduler),
    workers: usize,
    until: u64,
    from: Option<&Checkpoint>,
) -> Checkpoint {
    let all = each(workers, (network, plan, scheduler), |rank, mut trainer| {
        if let Some(checkpoint) = from.filter(|_| rank == 0) {
            trainer.resume(checkpoint, Path::new("a state")).expect("it is of the same training");
        }
        let outcome = trainer.train(&*images(), until, &mut |_| {}, &|| false).expect("it trains");
        assert_eq!((outcome, trainer.step()), (Outcome::Finished, until));
        if rank == 0 {
            return Some(trainer.checkpoint().expect("the others have given their momenta"));
        }
        let error = trainer.checkpoint().expect_err("it has a share").to_string();
        assert!(error.contains("expected worker 0"), "{error}");
        None
    });
    all.into_iter().next().flatten().expect("there is worker 0")
}

fn by(optimizer: Optimizer, network: &Network) -> TrainingPlan {
    TrainingPlan { virtual_workers: 4, ..plan_by(optimizer, network, BATCH) }
}

#[test]
fn every_split_gives_the_bits_of_momenta_on_the_device() {
    let network = everything();
    let plimsoll = |trace: &Trace| planned(trace, Policy::Plimsoll);
    for optimizer in [Optimizer::Sgd, Optimizer::Adamw] {
        let plan = by(optimizer, &network);
        let [half, expected] = [3, 7].map(|until| train_as(&network, &plan, &keep, 1, until, None));
        for (scheduler, workers) in
            [(&keep as Scheduler, 1), (&naive, 2), (&plimsoll, 3), (&keep, 4), (&plimsoll, 2)]
        {
            for from in [None, Some(&half)] {
                let found = train_sharded((&network, &plan, scheduler), workers, 7, from);
                assert!(bits(&found) == bits(&expected), "{optimizer} on {workers} workers");
                assert_eq!(found.progress, expected.progress);
            }
        }
        // Back on the device.
        let half = train_sharded((&network, &plan, &keep), 3, 3, None);
        assert!(bits(&train_as(&network, &plan, &naive, 2, 7, Some(&half))) == bits(&expected));
    }
}

/// Worker 0 pauses to save, or comes to the end of an epoch, while the others train on.
#[test]
fn worker_0_saves_all_momenta_wherever_it_pauses() {
    let network = everything();
    let plan = by(Optimizer::Adamw, &network);
    let expected: Vec<Checkpoint> =
        (0..7).map(|until| train_as(&network, &plan, &keep, 1, until, None)).collect();
    for seed in 0..6 {
        let pauses = philox4x32(seed, [0; 4]);
        each(1 + seed as usize % 3, (&network, &plan, &keep), |rank, mut trainer| {
            let done = AtomicU64::new(0);
            while trainer.step() < 6 {
                let due = |step: u64| rank == 0 && pauses[step as usize % 4] >> step & 1 == 0;
                let last = AtomicU64::new(trainer.step());
                let pause = || {
                    let step = done.load(Ordering::Relaxed);
                    step > last.load(Ordering::Relaxed) && due(step)
                };
                let mut observe =
                    |seen: &plimsoll_runtime::Observation| done.store(seen.step + 1, Ordering::Relaxed);
                let until = if rank == 0 { (trainer.step() + 3) / 3 * 3 } else { 6 };
                trainer.train(&*images(), until, &mut observe, &pause).expect("it trains");
                for _ in 0..if rank == 0 { 2 } else { 0 } {
                    let state = trainer.checkpoint().expect("the others wait");
                    let step = trainer.step() as usize;
                    assert!(bits(&state) == bits(&expected[step]), "after {step} updates");
                    assert_eq!(state.progress, expected[step].progress);
                }
            }
        });
    }
}

/// Whoever leaves, worker 0 has all momenta then, and all can go on from there.
#[test]
fn worker_0_has_all_momenta_where_a_worker_leaves() {
    let network = everything();
    let plan = by(Optimizer::Adamw, &network);
    let [expected, later] = [3, 5].map(|until| train_as(&network, &plan, &keep, 1, until, None));
    for leaving in [&[0][..], &[1], &[2, 1], &[0, 2]] {
        each(3, (&network, &plan, &keep), |rank, mut trainer| {
            let (leaves, asked) = (leaving.contains(&rank), AtomicU64::new(0));
            // Asked before each update.
            let pause = || leaves && asked.fetch_add(1, Ordering::Relaxed) == 3;
            let outcome = trainer.train(&*images(), 6, &mut |_| {}, &pause).expect("it trains");
            assert_eq!((outcome, trainer.step()), (Outcome::Paused, 3), "worker {rank}");
            if rank == 0 {
                let state = trainer.checkpoint().expect("it has all momenta, or the others wait");
                assert!(bits(&state) == bits(&expected), "{leaving:?} leave");
            }
            if leaves {
                trainer.leave().expect("the others are there");
            }
            trainer.train(&*images(), 5, &mut |_| {}, &|| false).expect("it trains");
            if rank == 0 {
                let state = trainer.checkpoint().expect("the others have given their momenta");
                assert!(bits(&state) == bits(&later), "{leaving:?} leave");
            }
        });
    }
}

/// As a bench or a test of one's own does: all workers train on together, some of the times with nothing to do.
#[test]
fn workers_train_on_together_call_after_call() {
    let network = everything();
    let plan = by(Optimizer::Sgd, &network);
    let expected = [2, 5].map(|until| train_as(&network, &plan, &keep, 1, until, None));
    each(3, (&network, &plan, &keep), |rank, mut trainer| {
        for (until, expected) in
            [(2, Some(&expected[0])), (2, None), (3, None), (5, None), (5, Some(&expected[1]))]
        {
            trainer.train(&*images(), until, &mut |_| {}, &|| false).expect("it trains");
            if let Some(expected) = expected.filter(|_| rank == 0) {
                assert!(
                    bits(&trainer.checkpoint().expect("the others have given their momenta"))
                        == bits(expected)
                );
            }
        }
    });
}

/// One worker has the whole state by itself wherever its update fails.
#[test]
fn nothing_is_left_of_an_update_that_its_owner_has_not_made_whole() {
    let network = everything();
    let plan = of(&network, 4);
    let expected: Vec<Checkpoint> =
        (0..4).map(|until| train_as(&network, &plan, &keep, 1, until, None)).collect();
    let mut left = 0;
    loop {
        let group = Box::new(Failing { group: alone(), left, at_end: false });
        let mut trainer = sharded(&network, &plan, &keep, group).expect("it is small");
        let outcome = trainer.train(&*images(), 3, &mut |_| {}, &|| false);
        let step = trainer.step();
        let state = trainer.checkpoint().expect("it is alone");
        assert!(bits(&state) == bits(&expected[step as usize]), "after {left} pieces, {step} updates");
        if outcome.is_ok() {
            assert_eq!(step, 3);
            break;
        }
        left += 1;
    }
    assert!(left > 20, "{left} failures");
}

#[test]
fn norms_of_gradients_are_those_of_momenta_on_the_device() {
    let network = everything();
    let plan = of(&network, 4);
    let norms = |mut trainer: Trainer| {
        let mut found = Vec::new();
        trainer.train(&*images(), 5, &mut |seen| found.extend(seen.norms), &|| false).expect("it trains");
        found
    };
    let expected = norms(worker(&network, plan.clone(), &keep, alone()).expect("it is small"));
    assert_eq!(expected.len(), 5);
    for workers in 1..4 {
        for found in each(workers, (&network, &plan, &keep), |_, trainer| norms(trainer)) {
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!((found.own, found.samples), (expected.own, expected.samples));
                assert!((found.mean / expected.mean - 1.0).abs() < 1e-6, "{found:?} {expected:?}");
            }
            assert_eq!(found.len(), 5);
        }
    }
}

#[test]
fn workers_have_to_have_their_momenta_in_one_place() {
    let network = everything();
    let mut all = threads(2);
    let (second, first) = (all.pop().expect("two"), all.pop().expect("two"));
    let train = |momenta, group| {
        let mut trainer = worker_with(momenta, &network, of(&network, 4), &keep, group).expect("it is small");
        trainer.train(&*images(), 3, &mut |_| {}, &|| false).expect_err("they differ").to_string()
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| train(Momenta::Sharded, second));
        let words = train(Momenta::Device, first);
        assert_eq!(
            words,
            "worker 1 has another place of the momenta than worker 0: sharded, not on every device"
        );
        assert_eq!(second.join().expect("no panic"), words);
    });
}

#[test]
fn a_program_without_an_update_is_no_plain_training() {
    let network = zoo("mlp");
    let plan = plan_by(Optimizer::Adamw, &network, BATCH);
    let program = training_with(Momenta::Sharded, Optimizer::Adamw, &network, BATCH);
    let schedule = keep(&program.trace);
    let device = Box::new(Cpu::new(CpuOptions::default()));
    let mut executor = Executor::new(device, MemoryLayout::of(&program, &schedule)).expect("it is small");
    let loaded = executor.load(&program, &schedule).expect("it is valid");
    let refused = Trainer::new(executor, loaded, None, plan.clone()).err().expect("it would learn nothing");
    assert!(refused.to_string().contains("found one without"), "{refused}");
    // It is measured as it is.
    let device = Box::new(Cpu::new(CpuOptions::default()));
    let mut executor = Executor::new(device, MemoryLayout::of(&program, &schedule)).expect("it is small");
    let loaded = executor.load(&program, &schedule).expect("it is valid");
    let mut trainer = Trainer::without_update(executor, loaded, plan).expect("it runs");
    let before = trainer.checkpoint().expect("it can be read");
    trainer.train(&*images(), 2, &mut |_| {}, &|| false).expect("it runs");
    let after = trainer.checkpoint().expect("it can be read");
    let parameters = |state: &Checkpoint| state.region("parameter/fc1.weight").expect("it has it");
    assert_eq!(parameters(&before), parameters(&after));
}

/// A worker that is lost once all its updates are made.
const AT_END: usize = usize::MAX;

/// Trains for 6 updates on so many workers, of which some are lost after so many pieces; gives what the others keep.
fn survivors(
    workers: usize,
    (network, plan): (&Network, &TrainingPlan),
    lost: &(dyn Fn(usize) -> Option<usize> + Sync),
) -> Vec<Checkpoint> {
    std::thread::scope(|scope| {
        let begin = |(rank, group): (usize, Box<dyn Group>)| {
            scope.spawn(move || {
                let group = match lost(rank) {
                    Some(left) => Box::new(Failing { group, left, at_end: left == AT_END }),
                    None => group,
                };
                let mut trainer = sharded(network, plan, &keep, group).expect("it is small");
                let ended = trainer.train(&*images(), 6, &mut |_| {}, &|| false);
                assert!(
                    matches!(ended, Err(RuntimeError::Group(_))),
                    "all end with the one that is lost: {ended:?}"
                );
                lost(rank).is_none().then(|| {
                    let share = trainer.share_of_state().expect("its momenta are sharded");
                    // As many bytes as were made sure of, or half of them where nothing was updated yet.
                    let sure = trainer.bytes_of_share().expect("others have copies").0 as usize;
                    let takes: usize =
                        share.names().map(|name| share.region_bytes(name).expect("it is there").len()).sum();
                    assert!(takes <= sure && 3 * takes > sure, "{takes} of {sure} bytes");
                    share
                })
            })
        };
        let all: Vec<_> = threads(workers).into_iter().enumerate().map(begin).collect();
        all.into_iter().filter_map(|worker| worker.join().expect("it works")).collect()
    })
}

/// Whoever is lost, and wherever in an update: what the others keep has a state in common, and training goes on from there to
/// the same bits.
#[test]
fn a_worker_that_is_lost_takes_no_momenta_along() {
    let (network, mut steps) = (everything(), BTreeSet::new());
    for (optimizer, workers) in [(Optimizer::Adamw, 3), (Optimizer::Sgd, 2), (Optimizer::Adamw, 4)] {
        let plan = by(optimizer, &network);
        let expected: Vec<Checkpoint> =
            (0..7).map(|until| train_as(&network, &plan, &keep, 1, until, None)).collect();
        let program = training_with(Momenta::Sharded, optimizer, &network, BATCH);
        for seed in 0..12 {
            let [rank, left, ..] = philox4x32(seed, [workers as u32, 0, 0, 0]);
            let (rank, left) = (rank as usize % workers, left as usize % (30 * workers));
            let shares = survivors(workers, (&network, &plan), &|of| (of == rank).then_some(left));
            assert_eq!(shares.len(), workers - 1);
            let found = Checkpoint::put_together(&shares, &program, optimizer);
            let found =
                found.unwrap_or_else(|| panic!("worker {rank} of {workers} lost after {left} pieces"));
            let step = found.progress.step as usize;
            assert!(
                bits(&found) == bits(&expected[step]),
                "worker {rank} of {workers} lost after {left} pieces"
            );
            assert_eq!(found.progress, expected[step].progress);
            steps.insert(step);
            let on = train_sharded((&network, &plan, &keep), seed as usize % 3 + 1, 6, Some(&found));
            assert!(bits(&on) == bits(&expected[6]));
        }
    }
    assert!(steps.len() > 3, "{steps:?}");
    // Nobody has ended while another may still be lost.
    for rank in 0..3 {
        let plan = by(Optimizer::Adamw, &network);
        let program = training_with(Momenta::Sharded, Optimizer::Adamw, &network, BATCH);
        let shares = survivors(3, (&network, &plan), &|of| (of == rank).then_some(AT_END));
        let found =
            Checkpoint::put_together(&shares, &program, Optimizer::Adamw).expect("two keep all of it");
        let step = found.progress.step;
        assert!(
            step >= 5 && bits(&found) == bits(&train_as(&network, &plan, &keep, 1, step, None)),
            "{rank}: {step}"
        );
    }
    // An owner and its neighbour.
    let plan = by(Optimizer::Sgd, &network);
    let program = training_with(Momenta::Sharded, Optimizer::Sgd, &network, BATCH);
    let shares = survivors(4, (&network, &plan), &|rank| [1, 2].contains(&rank).then_some(30));
    assert_eq!(Checkpoint::put_together(&shares, &program, Optimizer::Sgd), None);
    assert_eq!(Checkpoint::put_together(&[], &program, Optimizer::Sgd), None);
}

/// Shares are files as states are.
#[test]
fn shares_are_read_as_they_were_written_and_only_of_one_training() {
    let network = everything();
    let plan = by(Optimizer::Adamw, &network);
    let program = training_with(Momenta::Sharded, Optimizer::Adamw, &network, BATCH);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let shares = survivors(3, (&network, &plan), &|rank| (rank == 2).then_some(100));
    let again: Vec<Checkpoint> = (0..2)
        .map(|rank| {
            let path = folder.path().join(format!("{rank}"));
            shares[rank].save(&path).expect("the folder can be written");
            Checkpoint::load(&path).expect("it is whole")
        })
        .collect();
    assert_eq!(again, shares);
    let found = Checkpoint::put_together(&again, &program, Optimizer::Adamw);
    let whole = training_with(Momenta::Device, Optimizer::Adamw, &network, BATCH);
    assert_eq!(
        Checkpoint::put_together(&again, &whole, Optimizer::Adamw),
        found,
        "for momenta on the device, too"
    );
    assert!(found.is_some());
    assert_eq!(
        Checkpoint::put_together(&again[..1], &program, Optimizer::Adamw),
        None,
        "of 3 workers 2 are missing"
    );
    let mut other = again.clone();
    other[1].progress.plan.seed += 1;
    assert_eq!(Checkpoint::put_together(&other, &program, Optimizer::Adamw), None);
    // One that is left from another training stands in no one's way.
    other[1].progress.step = 0;
    let with_other = [again[0].clone(), other[1].clone(), again[1].clone()];
    assert_eq!(Checkpoint::put_together(&with_other, &program, Optimizer::Adamw), found);
    let whole = train_as(&network, &plan, &keep, 1, 2, None);
    assert_eq!(Checkpoint::put_together(&[whole], &program, Optimizer::Adamw), None, "it is no share");
}

/// One worker by itself has all of it, and no share.
#[test]
fn worker_0_says_whether_it_has_the_whole_state() {
    let network = everything();
    let plan = by(Optimizer::Sgd, &network);
    let shown = each(2, (&network, &plan, &keep), |rank, mut trainer| {
        let mut shown = vec![trainer.has_whole_state()];
        if rank == 0 {
            trainer.train(&*images(), 2, &mut |_| {}, &|| false).expect("it trains");
            shown.push(trainer.has_whole_state());
            trainer.checkpoint().expect("the other waits");
            shown.push(trainer.has_whole_state());
        }
        trainer.train(&*images(), 3, &mut |_| {}, &|| false).expect("it trains");
        shown.push(trainer.has_whole_state());
        shown
    });
    assert_eq!(shown, [vec![true, false, true, true], vec![true, false]]);
    let mut single = sharded(&network, &plan, &keep, alone()).expect("it is small");
    single.train(&*images(), 3, &mut |_| {}, &|| false).expect("it trains");
    assert!(single.has_whole_state(), "nobody else has any of it");
    let mut plain = worker(&network, plan, &keep, alone()).expect("it is small");
    assert!(plain.has_whole_state() && plain.share_of_state().is_none());
    // The share of one that has the whole state needs no other, and nobody keeps one before all have begun together.
    assert!(!plain.is_first_left());
    plain.train(&*images(), 2, &mut |_| {}, &|| false).expect("it trains");
    assert!(plain.is_first_left());
    let whole = plain.checkpoint().expect("it can be read");
    let shares = [whole.clone().as_share()];
    for momenta in [Momenta::Device, Momenta::Sharded] {
        let program = training_with(momenta, Optimizer::Sgd, &network, BATCH);
        assert_eq!(Checkpoint::put_together(&shares, &program, Optimizer::Sgd), Some(whole.clone()));
    }
}
