//! Workers: an update is the same bits for any split of its virtual workers, and any end of one worker ends all.

use crate::support::{
    Altered, advance, cpu, everything, keep, loaded, naive, plan, plan_by, side_by_side, trainer, training,
    training_by, training_in, zoo,
};
use plimsoll_ir::check::check as check_schedule;
use plimsoll_ir::network::{Network, Shape};
use plimsoll_ir::philox::philox4x32;
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Float, Optimizer, Seconds, UpdateRule};
use plimsoll_runtime::data::{Dataset, Input, epoch_order, synthetic};
use plimsoll_runtime::group::{Group, GroupError, GroupFacts, Piece, TreeSum, alone, threads};
use plimsoll_runtime::{
    Checkpoint, Cpu, CpuOptions, Error, Executor, Kind, LearningRateSchedule, MemoryLayout, Observation,
    Outcome, Trainer, TrainingPlan,
};
use plimsoll_tuner::{PlanRequest, Policy};
use std::path::Path;

/// Samples of a virtual worker.
const BATCH: u64 = 3;

type Scheduler<'a> = &'a (dyn Fn(&Trace) -> Schedule + Sync);

/// 43 images, of which updates of 12 or 18 samples leave some out in each epoch.
fn images() -> Box<dyn Dataset> {
    synthetic(Shape { height: 8, width: 8, channels: 1 }, 10, 43, 5)
}

/// A worker's trainer on the device `cpu`. Passes of workers of even rank bring the next input; for the other workers the
/// pool is poisoned between passes.
fn worker(
    network: &Network,
    plan: TrainingPlan,
    scheduler: Scheduler,
    group: Box<dyn Group>,
) -> Result<Trainer, Error> {
    let program = training_by(plan.update.optimizer(), network, plan.batch);
    worker_of(&program, plan, scheduler, group)
}

/// The same for a program, whose activations determine the device's format.
fn worker_of(
    program: &Program,
    plan: TrainingPlan,
    scheduler: Scheduler,
    group: Box<dyn Group>,
) -> Result<Trainer, Error> {
    let schedule = scheduler(&program.trace);
    check_schedule(&program.trace, &schedule).expect("a valid schedule");
    let feeds = group.facts().rank.is_multiple_of(2);
    let feature_maps = program.feature_maps;
    let options = CpuOptions { poison: !feeds, delays: Some(3), feature_maps, ..CpuOptions::default() };
    let layout = MemoryLayout::of(program, &schedule);
    let layout = if feeds { layout.feeding(program) } else { layout };
    let mut executor = Executor::new(Box::new(Cpu::new(options)), layout)?;
    // One worker sums all at once, several in many parts; so does one whose sums fail.
    let part = if group.facts().engine == "alone" { Bytes(1 << 40) } else { Bytes(1 << 10) };
    let loaded = executor.load_apart(program, &schedule, part)?;
    Trainer::sharing(executor, loaded, None, plan, group)
}

fn of(network: &Network, virtual_workers: u64) -> TrainingPlan {
    TrainingPlan { virtual_workers, ..plan(network, BATCH) }
}

/// Schedule of a policy, tight if possible.
fn planned(trace: &Trace, policy: Policy) -> Schedule {
    let mut trace = trace.clone();
    trace.ops.iter_mut().for_each(|op| op.seconds = Seconds(op.flops as f64 / 2e10 + 2e-6));
    let (floor, peak) = (trace.memory().floor().expect("ops").1, trace.memory().peak().expect("ops").1);
    for share in [0.2, 0.5, 1.0, 1.5] {
        let budget = Bytes(floor.0 + ((peak.0 - floor.0) as f64 * share) as u64);
        let request = PlanRequest::new(budget, Link::symmetric(BytesPerSecond(5e9)), policy);
        let outcome = plimsoll_tuner::plan(&trace, &request).expect("a sound trace");
        if let Some(plan) = outcome.plan() {
            return plan.schedule.clone();
        }
    }
    panic!("{policy} does not fit 1.5 times what keeping everything takes")
}

/// Results of this many workers, each on its own thread.
fn on_workers<T: Send>(workers: usize, work: impl Fn(usize, Box<dyn Group>) -> T + Sync) -> Vec<T> {
    side_by_side(threads(workers), |group| work(group.facts().rank, group))
}

/// Trains on this many workers until `until` updates are done; returns worker 0's state and checks that all have it.
fn train(
    network: &Network,
    virtual_workers: u64,
    scheduler: Scheduler,
    workers: usize,
    until: u64,
    from: Option<&Checkpoint>,
) -> Checkpoint {
    train_as(network, &of(network, virtual_workers), scheduler, workers, until, from)
}

/// The same with this plan.
fn train_as(
    network: &Network,
    plan: &TrainingPlan,
    scheduler: Scheduler,
    workers: usize,
    until: u64,
    from: Option<&Checkpoint>,
) -> Checkpoint {
    let mut states = on_workers(workers, |rank, group| {
        let mut trainer = worker(network, plan.clone(), scheduler, group).expect("it is small");
        if let Some(checkpoint) = from.filter(|_| rank == 0) {
            trainer.resume(checkpoint, Path::new("a state")).expect("it is of the same training");
        }
        let outcome = trainer.train(&*images(), until, &mut |seen| assert!(seen.loss.is_finite()), &|| false);
        assert_eq!(outcome.expect("it trains"), Outcome::Finished);
        assert_eq!(trainer.step(), until);
        trainer.checkpoint().expect("the device can be read")
    });
    assert!(states.iter().all(|state| bits(state) == bits(&states[0])), "all workers have the same state");
    states.swap_remove(0)
}

fn bits(checkpoint: &Checkpoint) -> Vec<(String, Vec<u32>)> {
    let of = |name: &str| checkpoint.region(name).expect("it has it").into_iter().map(f32::to_bits).collect();
    checkpoint.names().map(|name| (name.to_owned(), of(name))).collect()
}

#[test]
fn every_split_of_the_virtual_workers_gives_the_same_bits_under_every_policy() {
    let network = everything();
    let policy = |policy| move |trace: &Trace| planned(trace, policy);
    let policies: [(&str, Scheduler); 4] = [
        ("keep", &keep),
        ("naive", &naive),
        ("accudnn", &policy(Policy::Accudnn { as_printed: false })),
        ("plimsoll", &policy(Policy::Plimsoll)),
    ];
    for (virtual_workers, splits) in [(4, &[1, 2, 4][..]), (6, &[1, 2, 3, 4, 6])] {
        let expected = train(&network, virtual_workers, &keep, 1, 7, None);
        let parameters = expected.region("parameter/a.weight").expect("a convolution");
        assert!(parameters.iter().all(|number| number.is_finite()));
        for (name, scheduler) in policies {
            for workers in splits {
                let found = train(&network, virtual_workers, scheduler, *workers, 7, None);
                assert!(
                    bits(&found) == bits(&expected),
                    "{virtual_workers} on {workers} workers under {name}"
                );
                assert_eq!(found.progress, expected.progress);
            }
        }
    }
}

#[test]
fn a_training_goes_on_with_the_same_bits_on_another_number_of_workers() {
    let network = everything();
    let whole = train(&network, 6, &keep, 3, 9, None);
    let begun = train(&network, 6, &naive, 3, 4, None);
    assert_eq!((begun.progress.step, begun.progress.epoch, begun.progress.position), (4, 2, 0));
    for workers in [1, 2, 6] {
        let on = train(&network, 6, &keep, workers, 9, Some(&begun));
        assert!(bits(&on) == bits(&whole), "on {workers} workers");
    }
}

/// A training may end at any point, and continue with any number of workers under any schedule.
#[test]
#[ignore = "minutes: CI runs it"]
fn thirty_random_restarts_on_other_workers_change_no_bit() {
    let network = everything();
    let whole = train(&network, 6, &keep, 1, 9, None);
    let schedulers: [Scheduler; 2] = [&keep, &naive];
    for seed in 0..30u64 {
        let [step, before, after, schedule] = philox4x32(seed, [0; 4]);
        let step = u64::from(step) % 8 + 1;
        let [before, after] = [before, after].map(|word| word as usize % 6 + 1);
        let [first, second] = [schedulers[schedule as usize % 2], schedulers[schedule as usize / 2 % 2]];
        let begun = train(&network, 6, first, before, step, None);
        let on = train(&network, 6, second, after, 9, Some(&begun));
        assert!(bits(&on) == bits(&whole), "{before} workers, and from step {step} on {after}");
    }
}

#[test]
fn a_faster_worker_makes_more_of_the_passes_and_changes_no_bit() {
    let network = everything();
    let whole = train(&network, 6, &keep, 1, 5, None);
    let of_workers = on_workers(3, |rank, group| {
        let trainer = worker(&network, of(&network, 6), &keep, group).expect("it is small");
        let mut trainer = trainer.at_pace(Seconds([3.0, 1.0, 1.5][rank]));
        trainer.train(&*images(), 5, &mut |_| {}, &|| false).expect("it trains");
        let state = trainer.checkpoint().expect("the device can be read");
        (trainer.virtual_workers(), bits(&state))
    });
    let expected = [Some(0..1), Some(1..4), Some(4..6)].map(|own| (own, bits(&whole)));
    assert!(of_workers == expected, "{:?}", of_workers.iter().map(|(own, _)| own).collect::<Vec<_>>());
}

#[test]
fn one_virtual_worker_is_a_plain_training() {
    let network = everything();
    let mut plain = trainer(&network, BATCH, CpuOptions::default(), &keep).expect("it is small");
    plain.train(&*images(), 17, &mut |_| {}, &|| false).expect("it trains");
    let shared = train(&network, 1, &naive, 1, 17, None);
    assert_eq!(shared, plain.checkpoint().expect("the device can be read"));
}

/// Images, some of them without a label.
fn partly_labelled() -> Box<dyn Dataset> {
    let read = |data: &dyn Dataset, index: usize, pixels: &mut [f32], labels: &mut [i32]| {
        data.read(index, Input::Pixels(pixels), labels)?;
        if index % 3 == 1 {
            labels[0] = -1;
        }
        Ok(())
    };
    Box::new(Altered { data: images(), read })
}

/// Without batch norm and dropout, an update of several virtual workers is that of one large batch, except for rounding.
#[test]
fn an_update_is_that_of_one_large_batch_also_where_labels_are_missing() {
    let network = zoo("mlp");
    for (data, what) in [(images(), "all labels"), (partly_labelled(), "some labels")] {
        let mut large = trainer(&network, 4 * BATCH, CpuOptions::default(), &keep).expect("it is small");
        let mut small = worker(&network, of(&network, 4), &keep, alone()).expect("it is small");
        let [losses, shared] = [&mut large, &mut small].map(|trainer| {
            let mut seen = Vec::new();
            let observe = &mut |o: &Observation| seen.push((o.loss, o.accuracy));
            trainer.train(&*data, 5, observe, &|| false).expect("it trains");
            seen
        });
        assert_eq!((losses.len(), shared.len()), (5, 5));
        for (one, all) in losses.iter().zip(&shared) {
            assert!((one.0 - all.0).abs() < 1e-5 * one.0 && (one.1 - all.1).abs() < 1e-6, "{one:?} {all:?}");
        }
        let (large, small) = [large, small].map(|mut t| t.checkpoint().expect("it can be read")).into();
        let apart = |(a, b): (f32, f32)| (a - b).abs() > 1e-5 * a.abs().max(0.01);
        for name in large.names() {
            let [one, all] =
                [&large, &small].map(|state: &Checkpoint| state.region(name).expect("both have it"));
            let pairs = one.into_iter().zip(all);
            assert_eq!(pairs.filter(|both| apart(*both)).count(), 0, "{name} of {what}");
        }
        let mut momenta =
            large.names().filter(|name| name.starts_with("momentum/")).flat_map(|name| large.region(name));
        assert!(
            momenta.any(|numbers| numbers.iter().any(|momentum| *momentum != 0.0)),
            "nothing was learned"
        );
    }
}

/// Also with AdamW, and when training continues from a checkpoint.
#[test]
fn every_split_gives_the_same_bits_by_adamw() {
    let network = everything();
    let plan = TrainingPlan { virtual_workers: 4, ..plan_by(Optimizer::Adamw, &network, BATCH) };
    let [half, expected] = [3, 7].map(|until| train_as(&network, &plan, &keep, 1, until, None));
    let moments = expected.region("second-moment/a.weight").expect("a convolution");
    assert!(moments.iter().all(|number| number.is_finite()) && moments.iter().any(|number| *number > 0.0));
    let plimsoll = |trace: &Trace| planned(trace, Policy::Plimsoll);
    for (scheduler, workers) in [(&naive as Scheduler, 2), (&plimsoll, 3), (&keep, 4)] {
        for from in [None, Some(&half)] {
            let found = train_as(&network, &plan, scheduler, workers, 7, from);
            assert!(bits(&found) == bits(&expected), "{workers} workers differ from one");
        }
    }
}

#[test]
fn running_statistics_are_the_mean_of_those_of_the_virtual_workers() {
    let network = everything();
    let after_one = |data: &dyn Dataset| {
        let mut plain = trainer(&network, BATCH, CpuOptions::default(), &keep).expect("it is small");
        plain.train(data, 1, &mut |_| {}, &|| false).expect("it trains");
        plain.checkpoint().expect("it can be read")
    };
    let mut order = Vec::new();
    epoch_order(images().len(), plan(&network, BATCH).seed, 0, &mut order);
    // Virtual worker 1's samples come first.
    let read = |data: &dyn Dataset, index: usize, pixels: &mut [f32], labels: &mut [i32]| {
        let place = order.iter().position(|sample| *sample as usize == index).expect("all are in it");
        let later = order[(place + BATCH as usize) % order.len()] as usize;
        data.read(later, Input::Pixels(pixels), labels)
    };
    let (first, second) = (after_one(&*images()), after_one(&Altered { data: images(), read }));
    let both = train(&network, 2, &keep, 2, 1, None);
    let names: Vec<&str> = both.names().filter(|name| name.starts_with("state/")).collect();
    assert!(!names.is_empty());
    for name in names {
        let [first, second, both] = [&first, &second, &both].map(|c| c.region(name).expect("it has it"));
        assert_ne!(first, second);
        let mean: Vec<f32> = first.iter().zip(&second).map(|(a, b)| (a + b) * 0.5).collect();
        assert_eq!(both, mean, "{name}");
    }
}

/// Results of the workers of a training.
fn ends(
    workers: usize,
    plan_of: impl Fn(usize) -> TrainingPlan + Sync,
    work: impl Fn(usize, Trainer) -> Result<(), Error> + Sync,
) -> Vec<Result<(), Error>> {
    let network = everything();
    on_workers(workers, |rank, group| work(rank, worker(&network, plan_of(rank), &keep, group)?))
}

/// Checks that three workers, of whom worker 2 has data of this seed, train nothing, and that all report the reason.
fn all_say(
    worker: impl Fn(usize, Box<dyn Group>) -> Result<Trainer, Error> + Sync,
    seed: u64,
    expected: &str,
) {
    let ended = on_workers(3, |rank, group| {
        let (mut trainer, seed) = (worker(rank, group)?, if rank == 2 { seed } else { 5 });
        let data = synthetic(Shape { height: 8, width: 8, channels: 1 }, 10, 43, seed);
        let ended = trainer.train(&*data, 3, &mut |_| panic!("nothing is trained"), &|| false);
        assert_eq!(trainer.step(), 0);
        ended
    });
    for ended in ended {
        let words = ended.expect_err("they differ").to_string();
        assert!(words.starts_with(expected), "{words}");
    }
}

#[test]
fn workers_that_train_something_else_are_named_before_the_first_update() {
    let network = everything();
    let plan = || of(&network, 4);
    let by = |plan: TrainingPlan, group| worker(&network, plan, &keep, group);
    all_say(|_, group| by(plan(), group), 6, "worker 2 has another checksum of its data than worker 0");
    let rate = |rank| if rank == 2 { LearningRateSchedule::constant(0.5) } else { plan().rate };
    let rates = |rank, group| by(TrainingPlan { rate: rate(rank), ..plan() }, group);
    all_say(rates, 5, "worker 2 has another learning rate than worker 0: 0.5, ");
    let update = |rank| match rank {
        2 => UpdateRule::Adamw { beta1: 0.8, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
        _ => UpdateRule::usual(Optimizer::Adamw),
    };
    let updates = |rank, group| by(TrainingPlan { update: update(rank), ..plan() }, group);
    all_say(updates, 5, "worker 2 has another beta1 than worker 0: 0.8, not 0.9");
    let in_bf16 = |rank, group| {
        let feature_maps = if rank == 2 { Float::Bf16 } else { Float::F32 };
        worker_of(&training_in(feature_maps, &network, BATCH), plan(), &keep, group)
    };
    all_say(in_bf16, 5, "worker 2 has another precision than worker 0: bf16, not f32");
    // Whatever else differs.
    let built = |rank, group| Ok(rates(rank, group)?.built_as(format!("1.0.0 (commit {})", rank / 2)));
    let versions = "1.0.0 (commit 1), not 1.0.0 (commit 0)";
    all_say(built, 5, &format!("worker 2 has another version of Plimsoll than worker 0: {versions}"));
}

#[test]
fn whatever_ends_one_worker_ends_all() {
    let network = everything();
    let too_fast = LearningRateSchedule::constant(1e30);
    let diverging = |_| TrainingPlan { rate: too_fast, ..of(&network, 4) };
    let train = |_, mut trainer: Trainer| trainer.train(&*images(), 50, &mut |_| {}, &|| false).map(|_| ());
    let ended = ends(4, diverging, train);
    let steps = ended.iter().map(|ended| match ended {
        Err(error) if error.kind == Kind::Diverged => error.message.as_str(),
        other => panic!("{other:?}"),
    });
    let steps: Vec<&str> = steps.collect();
    assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");

    let ended = ends(
        3,
        |_| of(&network, 4),
        |rank, mut trainer| {
            let outcome = trainer.train(&*images(), if rank == 1 { 2 } else { 6 }, &mut |_| {}, &|| false);
            outcome.map(|_| assert_eq!(rank, 1, "the others wait for nobody"))
        },
    );
    assert!(ended[1].is_ok());
    for rank in [0, 2] {
        let lost = |error: &Error| matches!(error.kind, Kind::Group(GroupError::Lost { .. }));
        assert!(ended[rank].as_ref().is_err_and(lost), "{:?}", ended[rank]);
    }
}

/// A worker whose sums fail after `left` of them.
struct Failing {
    group: Box<dyn Group>,
    left: usize,
}

impl Group for Failing {
    fn facts(&self) -> GroupFacts {
        GroupFacts { engine: "failing", ..self.group.facts() }
    }

    fn start(&mut self, piece: &Piece, mine: &TreeSum) -> Result<(), GroupError> {
        self.group.start(piece, mine)
    }

    fn finish(&mut self, piece: &Piece, sum: &mut [f32]) -> Result<(), GroupError> {
        self.left = self.left.checked_sub(1).ok_or(GroupError::Lost { rank: 1 })?;
        self.group.finish(piece, sum)
    }

    fn advance(&mut self) -> Result<(), GroupError> {
        self.group.advance()
    }

    fn look(&mut self) -> Result<(), GroupError> {
        self.group.look()
    }

    fn forget(&mut self) {
        self.group.forget();
    }

    fn agree(&mut self, mine: &[u32]) -> Result<Vec<Vec<u32>>, GroupError> {
        self.group.agree(mine)
    }

    fn broadcast(&mut self, words: &mut Vec<u32>) -> Result<(), GroupError> {
        self.group.broadcast(words)
    }
}

/// A worker may be lost at any point of an update, even while a part of it is applied: the state is that of an earlier
/// update, and includes all reported updates.
#[test]
fn nothing_is_left_of_an_update_whose_sums_do_not_come() {
    let network = everything();
    let expected: Vec<Checkpoint> = (0..4).map(|until| train(&network, 4, &keep, 1, until, None)).collect();
    let (mut within, mut left) = (0, 0);
    loop {
        let group = Box::new(Failing { group: alone(), left });
        let mut trainer = worker(&network, of(&network, 4), &keep, group).expect("it is small");
        let mut told = Vec::new();
        let outcome = trainer.train(&*images(), 3, &mut |seen| told.push(seen.step), &|| false);
        let step = trainer.step();
        assert_eq!(told, (0..step).collect::<Vec<_>>(), "after {left} sums");
        let state = trainer.checkpoint().expect("the device can be read");
        assert!(bits(&state) == bits(&expected[step as usize]), "after {left} sums, {step} updates");
        if outcome.is_ok() {
            assert_eq!(step, 3);
            break;
        }
        within += usize::from(step < 2);
        left += 1;
    }
    assert!(within > 10, "{within} failures before the last update is pending, {left} in all");
}

/// No worker keeps the state for all before the workers have begun to train together.
#[test]
fn the_first_worker_that_is_left_has_begun_to_train() {
    let network = everything();
    let mut trainer = worker(&network, of(&network, 4), &keep, alone()).expect("it is small");
    assert!(!trainer.is_first_left());
    trainer.train(&*images(), 2, &mut |_| {}, &|| false).expect("it trains");
    assert!(trainer.is_first_left());
}

/// If one or several leave in the middle, all end with the state after the last update, and can continue together from
/// there.
#[test]
fn a_worker_that_leaves_takes_the_others_along() {
    for leaving in [&[0][..], &[1], &[2, 1], &[0, 2]] {
        leave_and_go_on(leaving);
    }
}

fn leave_and_go_on(leaving: &[usize]) {
    let network = everything();
    let [expected, later] = [3, 5].map(|until| train(&network, 4, &keep, 1, until, None));
    let ended = ends(
        3,
        |_| of(&network, 4),
        |rank, mut trainer| {
            let leaves = leaving.contains(&rank);
            let outcome = trainer.train(&*images(), if leaves { 3 } else { 9 }, &mut |_| {}, &|| false)?;
            if leaves {
                trainer.leave()?;
            } else {
                assert_eq!(outcome, Outcome::Paused);
            }
            assert_eq!(bits(&trainer.checkpoint()?), bits(&expected), "worker {rank}");
            trainer.train(&*images(), 5, &mut |_| {}, &|| false)?;
            assert_eq!(bits(&trainer.checkpoint()?), bits(&later), "worker {rank}, later");
            Ok(())
        },
    );
    ended.into_iter().for_each(|ended| ended.expect("they end together"));
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let network = zoo("mlp");
    let says = |result: Result<Trainer, Error>, expected: &str| {
        let words = result.err().expect("it is refused").to_string();
        assert!(words.contains(expected), "`{expected}` in: {words}");
    };
    let group = threads(3).remove(0);
    says(
        worker(&network, of(&network, 2), &keep, group),
        "virtual workers: expected at least the 3 workers, found 2",
    );
    let program = training(&network, BATCH);
    let load = || loaded(cpu(), &program, &keep(&program.trace));
    let (executor, whole) = load();
    says(Trainer::sharing(executor, whole, None, of(&network, 2), alone()), "loaded in two parts");
    let (executor, whole) = load();
    let plain = Trainer::new(executor, whole, None, of(&network, 2));
    says(plain, "virtual workers of a plain training: expected 1");
}

/// A checkpoint of several virtual workers records their number, and fits no other training.
#[test]
fn a_checkpoint_keeps_the_number_of_virtual_workers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run.safetensors");
    let network = everything();
    train(&network, 4, &keep, 2, 2, None).save(&path).expect("the folder can be written");
    let saved = Checkpoint::load(&path).expect("it is whole");
    assert_eq!(saved.progress.plan.virtual_workers, 4);
    let mut other = worker(&network, of(&network, 6), &keep, alone()).expect("it is small");
    let words = other.resume(&saved, &path).expect_err("it is another training").to_string();
    assert!(words.contains("the number of virtual workers is 4 in it and 6 now"), "{words}");
    let mut plain = trainer(&network, BATCH, CpuOptions::default(), &keep).expect("it is small");
    advance(&mut plain, 1).expect("it trains");
    plain.checkpoint().expect("it can be read").save(&path).expect("the folder can be written");
    let text = String::from_utf8_lossy(&std::fs::read(&path).expect("it was saved")).into_owned();
    assert!(!text.contains("virtual_workers"), "a plain training's file is what it was");
}
