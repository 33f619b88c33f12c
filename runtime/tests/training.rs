//! Training: it learns, it resumes bit for bit, it stops when asked, and it reports mismatches.

use crate::support::{
    advance, cpu, everything, keep, loaded, naive, plan, spoilt, trainer, trainer_by, training, training_by,
    zoo,
};
use plimsoll_ir::network::{NetworkSpec, Shape, Window};
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Float, Optimizer, UpdateRule};
use plimsoll_networks::Builder;
use plimsoll_runtime::data::{Dataset, digits, synthetic, synthetic_like, text};
use plimsoll_runtime::{Checkpoint, CpuOptions, Error, Outcome, Trainer, TrainingPlan};
use std::cell::Cell;
use std::path::{Path, PathBuf};

fn new_trainer(network: &str, batch: u64) -> Trainer {
    let network = if network == "everything" { everything() } else { zoo(network) };
    trainer(&network, batch, CpuOptions::default(), &keep).expect("it is small")
}

/// In bf16 as well as in f32, with results that differ by rounding.
#[test]
fn a_small_network_learns_the_digits() {
    let split = digits();
    let [f32, bf16] = [Float::F32, Float::Bf16].map(|feature_maps| {
        let options = CpuOptions { feature_maps, ..CpuOptions::default() };
        let mut trainer = trainer(&everything(), 32, options, &keep).expect("it is small");
        let before = trainer.evaluate(&*split.test).expect("it evaluates");
        let per_epoch = trainer.iterations_per_epoch(split.train.len());
        assert_eq!(per_epoch, 45, "1442 / 32, the last 2 samples of each epoch's order left out");
        let mut losses = 0;
        let outcome = trainer.train(&*split.train, 12 * per_epoch, &mut |_| losses += 1, &|| false);
        assert_eq!(outcome.expect("it trains"), Outcome::Finished);
        let after = trainer.evaluate(&*split.test).expect("it evaluates");
        println!("accuracy {:.4} -> {:.4}, loss {:.4}", before.accuracy(), after.accuracy(), after.loss);
        assert_eq!((losses, after.samples), (12 * per_epoch, 355));
        assert!(before.accuracy() < 0.4, "{before:?}");
        assert!(after.accuracy() > 0.93, "{after:?}");
        assert_eq!(
            trainer.evaluate(&*split.test).expect("it evaluates"),
            after,
            "evaluation changes nothing"
        );
        after.loss
    });
    assert!((bf16 - f32).abs() < 0.05 && bf16.to_bits() != f32.to_bits(), "{f32}, {bf16}");
}

/// A trainer of a network of the zoo for texts of 16 characters.
fn of_texts(name: &str, batch: u64) -> Trainer {
    let spec = NetworkSpec { name: name.into(), image: [16, 1], channels: 1, classes: 61 };
    let network = plimsoll_networks::build(&spec).expect("the zoo has it");
    trainer(&network, batch, CpuOptions::default(), &keep).expect("it is small")
}

#[test]
fn networks_for_texts_learn_what_comes_next() {
    let split = text(16).expect("the text is longer");
    let check = |name: &str, iterations: u64, expected: f64| {
        let mut trainer = of_texts(name, 32);
        trainer.train(&*split.train, iterations, &mut |_| {}, &|| false).expect("it trains");
        let after = trainer.evaluate(&*split.test).expect("it evaluates");
        println!("{name}: {after:?}, accuracy {:.3}", after.accuracy());
        assert_eq!((after.samples, after.labels), (965, 965 * 16));
        assert!(after.loss < expected, "{name}: {after:?}");
    };
    // 4.11 is the loss of a guess among 61 characters, 3.4 that of their frequencies.
    check("gpt-tiny", 40, 3.3);
    check("llama-tiny", 40, 3.3);
    check("lstm", 30, 3.2);
}

#[test]
fn images_and_texts_are_told_apart() {
    let texts = text(16).expect("the text is longer").train;
    let images = synthetic(Shape { height: 16, width: 1, channels: 1 }, 61, 100, 1);
    let train = |name: &str, data: &dyn Dataset, expected: &str| {
        fails(of_texts(name, 4).train(data, 1, &mut |_| {}, &|| false), expected);
    };
    train("mlp", &*texts, "expected images, found texts");
    train("gpt-tiny", &*images, "expected texts, found images");
    let mut b = Builder::new(&NetworkSpec { name: "map".into(), image: [16, 16], channels: 1, classes: 3 })
        .expect("the spec has no zeros");
    let logits = b.conv("conv", b.images(), 3, Window::square(3, 1, 1), true).expect("it fits");
    let network = b.finish(logits).expect("a class for every pixel");
    let mut map = trainer(&network, 1, CpuOptions::default(), &keep).expect("it is small");
    let one = synthetic(Shape { height: 16, width: 16, channels: 1 }, 3, 10, 1);
    fails(map.train(&*one, 1, &mut |_| {}, &|| false), "expected 256, found 1");
    let all = synthetic_like(&network, 10, 1);
    map.train(&*all, 1, &mut |_| {}, &|| false).expect("it has a label for every pixel");
}

#[test]
fn an_interrupted_run_goes_on_with_the_same_numbers() {
    let (folder, split) = (tempfile::tempdir().expect("there is a temporary folder"), digits());
    let path = folder.path().join("run.safetensors");
    let mut whole = new_trainer("everything", 100);
    advance(&mut whole, 37).expect("it trains");
    let expected = whole.checkpoint().expect("the device can be read");

    let mut first = new_trainer("everything", 100);
    let asked = Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) == 19;
    let outcome = first.train(&*split.train, 37, &mut |_| {}, &stop).expect("it trains");
    assert_eq!((outcome, first.step()), (Outcome::Paused, 19));
    let paused = first.checkpoint().expect("the device can be read");
    paused.save(&path).expect("the folder can be written");
    advance(&mut first, 37).expect("it trains");
    let whole_again = first.last_finished(Some(paused)).expect("it can be read");
    assert_eq!(
        whole_again.as_ref(),
        Some(&expected),
        "after a pause, in the memory of an earlier checkpoint"
    );
    drop(first);

    let saved = Checkpoint::load(&path).expect("it was saved whole");
    assert_eq!((saved.progress.step, saved.progress.epoch, saved.progress.position), (19, 1, 500));
    let mut second = trainer(&everything(), 100, CpuOptions::default(), &naive).expect("it is small");
    advance(&mut second, 2).expect("it trains");
    assert!(second.last_finished(None).expect("it can be read").is_some());
    second.resume(&saved, &path).expect("it is of the same run");
    assert_eq!(second.last_finished(None).expect("it can be read"), None, "nothing of it was finished here");
    assert_eq!(second.checkpoint().expect("the device can be read"), saved);
    advance(&mut second, 37).expect("it trains");
    assert_eq!(second.checkpoint().expect("the device can be read"), expected);
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("it is there").collect();
    assert_eq!(left.len(), 1, "no temporary file is left");
}

/// Both moments, and the corrections, which depend on the iteration, continue unchanged.
#[test]
fn a_run_by_adamw_learns_and_goes_on_with_the_same_numbers() {
    let (folder, split) = (tempfile::tempdir().expect("there is a temporary folder"), digits());
    let path = folder.path().join("run.safetensors");
    let network = everything();
    let by = |optimizer, scheduler: &dyn Fn(&Trace) -> Schedule| {
        trainer_by(optimizer, &network, 32, CpuOptions::default(), scheduler).expect("it is small")
    };
    let mut whole = by(Optimizer::Adamw, &keep);
    advance(&mut whole, 19).expect("it trains");
    let half = whole.checkpoint().expect("the device can be read");
    half.save(&path).expect("the folder can be written");
    advance(&mut whole, 6 * 45).expect("it trains");
    let after = whole.evaluate(&*split.test).expect("it evaluates");
    println!("accuracy {:.4}, loss {:.4}", after.accuracy(), after.loss);
    assert!(after.accuracy() > 0.9, "{after:?}");

    let saved = Checkpoint::load(&path).expect("it was saved whole");
    assert_eq!(saved, half);
    let mut second = by(Optimizer::Adamw, &naive);
    second.resume(&saved, &path).expect("it is of the same run");
    advance(&mut second, 6 * 45).expect("it trains");
    let [expected, found] = [&mut whole, &mut second].map(|trainer| trainer.checkpoint().expect("it works"));
    assert!(expected == found);
    let expected = "is of another training run: the optimizer is adamw in it and sgd now";
    fails(by(Optimizer::Sgd, &keep).resume(&saved, &path), expected);
}

#[test]
fn a_plan_and_a_checkpoint_of_another_optimizer_are_refused() {
    let network = zoo("mlp");
    let program = training_by(Optimizer::Adamw, &network, 8);
    let trainer_of = |how| {
        let (executor, loaded) = loaded(cpu(), &program, &keep(&program.trace));
        Trainer::new(executor, loaded, None, how)
    };
    fails(trainer_of(plan(&network, 8)), "optimizer of the training plan: expected adamw, found sgd");
    // The same except for the optimizer.
    let mut sgd = trainer(&network, 8, CpuOptions::default(), &keep).expect("it is small");
    let saved = sgd.checkpoint().expect("the device can be read");
    let update = UpdateRule::usual(Optimizer::Adamw);
    let mut adamw = trainer_of(TrainingPlan { update, ..plan(&network, 8) }).expect("the plan fits");
    let expected = "is of another training run: the optimizer is sgd in it and adamw now";
    fails(adamw.resume(&saved, Path::new("a state")), expected);
}

fn fails(outcome: Result<impl Sized, Error>, expected: &str) {
    let error = outcome.err().expect(expected).to_string();
    assert!(error.contains(expected), "`{error}` does not say `{expected}`");
}

/// The state of a network after three iterations, and its file in a folder.
fn saved_mlp() -> (tempfile::TempDir, PathBuf, Checkpoint) {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("run.safetensors");
    let mut mlp = new_trainer("mlp", 10);
    advance(&mut mlp, 3).expect("it trains");
    let saved = mlp.checkpoint().expect("the device can be read");
    saved.save(&path).expect("the folder can be written");
    (folder, path, saved)
}

/// A file with any flipped bit is refused, or has the same contents.
#[test]
fn no_flipped_bit_of_a_checkpoint_is_loaded() {
    let (_folder, path, saved) = saved_mlp();
    let whole = std::fs::read(&path).expect("it was saved");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    // Samples of each, and of every bit of a byte: the steps have no factor in common with 8.
    let all = (0..8 * header).step_by(37).chain((8 * header..8 * whole.len()).step_by(12_347));
    for bit in all {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &damaged).expect("the folder can be written");
        let loaded = Checkpoint::load(&path);
        assert!(
            loaded.as_ref().map_or(true, |found| *found == saved),
            "bit {bit} of a header of {header} bytes"
        );
        assert!(loaded.is_err() || bit < 8 * header, "bit {bit} is one of a number");
    }
}

/// Rewrites a file in the format of `checkpoint/1`: the same without a checksum.
fn without_checksum(path: &Path, spoil: bool) {
    let bytes = std::fs::read(path).expect("it was saved");
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).expect("it is whole");
    let metadata = metadata.metadata().as_ref().expect("it has metadata");
    let (_, progress) = metadata["plimsoll"].split_once(' ').expect("a checksum and the progress");
    let old = progress.replace("checkpoint/2", "checkpoint/1");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("it is whole");
    let mut all: Vec<(String, Vec<usize>, Vec<u8>)> =
        tensors.iter().map(|(name, t)| (name.to_owned(), t.shape().to_vec(), t.data().to_vec())).collect();
    if spoil {
        all[0].2[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    }
    let views = all.iter().map(|(name, shape, data)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), data);
        (name, view.expect("the bytes of its shape"))
    });
    let written = safetensors::serialize(views, Some([("plimsoll".to_owned(), old)].into()))
        .expect("it can be written");
    std::fs::write(path, written).expect("the folder can be written");
}

#[test]
fn a_checkpoint_of_an_older_version_is_read_and_numbers_that_are_none_are_not() {
    let (folder, path, saved) = saved_mlp();
    assert!(Checkpoint::load(&path).expect("it is whole").has_checksum());
    without_checksum(&path, false);
    let old = Checkpoint::load(&path).expect("it is whole");
    assert!(!old.has_checksum());
    let mut other = new_trainer("mlp", 10);
    other.resume(&old, &path).expect("it is of the same run");
    assert_eq!(other.checkpoint().expect("the device can be read"), saved);
    saved.save(&path).expect("the folder can be written");
    without_checksum(&path, true);
    fails(Checkpoint::load(&path), "that is not finite");
    // A state that overflowed does not replace a good one.
    saved.save(&path).expect("the folder can be written");
    let mut mlp = new_trainer("mlp", 10);
    spoilt::last_finished(&mut mlp, 5).expect("the iteration after it is spoilt");
    fails(mlp.checkpoint().expect("the device can be read").save(&path), "holds a number that is not finite");
    assert_eq!(Checkpoint::load(&path).expect("it is whole"), saved);
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("it is there").collect();
    assert_eq!(left.len(), 1, "no temporary file is left");
}

#[test]
fn room_for_a_checkpoint_is_made_sure_of_and_nothing_is_left_of_that() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("run.safetensors");
    std::fs::write(&path, "what is there").expect("the folder can be written");
    Checkpoint::make_sure(&path, Bytes(1 << 20)).expect("there is room");
    fails(Checkpoint::make_sure(&path, Bytes(1 << 62)), "cannot be written");
    fails(Checkpoint::make_sure(&folder.path().join("no/such"), Bytes(1)), "see to its folder");
    assert_eq!(std::fs::read(&path).expect("it is there"), b"what is there");
    assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 1);
}

#[test]
fn a_foreign_or_cut_checkpoint_says_what_differs() {
    let (folder, path, saved) = saved_mlp();
    assert_eq!(Checkpoint::load(&path).expect("it is whole"), saved);

    fails(new_trainer("everything", 10).resume(&saved, &path), "the network is");
    fails(new_trainer("mlp", 20).resume(&saved, &path), "the batch is 10 in it and 20 now");
    let mut other = saved.clone();
    other.progress.plan.seed = 5;
    fails(new_trainer("mlp", 10).resume(&other, &path), "the seed is 5 in it and 11 now");

    let bytes = std::fs::read(&path).expect("it was saved");
    let check = |bytes: &[u8], expected: &str| {
        let path = folder.path().join("bad");
        std::fs::write(&path, bytes).expect("the folder can be written");
        fails(Checkpoint::load(&path), expected);
    };
    check(&[], "no whole safetensors file");
    check(&bytes[..100], "no whole safetensors file");
    check(&bytes[..bytes.len() - 1], "no whole safetensors file");
    check(b"{\"plimsoll\": \"schedule/1\"}", "no whole safetensors file");
    check(&[&2u64.to_le_bytes()[..], b"{}"].concat(), "not made by Plimsoll");
    fails(Checkpoint::load(&folder.path().join("none")), "cannot be read");
    fails(saved.save(Path::new("/proc/plimsoll/run")), "cannot be written");
    fails(saved.save(&folder.path().join("missing/run")), "cannot be written");
}

#[test]
fn data_that_does_not_fit_is_refused_with_the_numbers() {
    let mut mlp = new_trainer("mlp", 10);
    let mut train = |shape: (u32, u32, u32), classes: u32, samples: usize, expected: &str| {
        let image = Shape { height: shape.0, width: shape.1, channels: shape.2 };
        let data = synthetic(image, classes, samples, 1);
        fails(mlp.train(&*data, 1, &mut |_| {}, &|| false), expected);
    };
    train((9, 8, 1), 10, 100, "expected 8x8x1, found 9x8x1");
    train((8, 8, 1), 11, 100, "expected at most 10, found 11");
    train((8, 8, 1), 10, 0, "at least 1");
    train((8, 8, 1), 10, 9, "at most the 9 samples");
    let mut mlp = new_trainer("mlp", 10);
    advance(&mut mlp, 1).expect("it trains");
    let other = synthetic(Shape { height: 8, width: 8, channels: 1 }, 10, 100, 1);
    fails(mlp.train(&*other, 2, &mut |_| {}, &|| false), "expected digits-train (1442 samples)");
}

#[test]
fn the_state_of_the_last_finished_iteration_is_kept_beside_the_next() {
    let mut reference = new_trainer("everything", 4);
    let paced = Link::symmetric(BytesPerSecond(200e6));
    let mut options: Vec<CpuOptions> = (0..6)
        .map(|seed| CpuOptions { delays: Some(seed), poison: seed % 2 == 0, ..CpuOptions::default() })
        .collect();
    options.push(CpuOptions { link: Some(paced), ..CpuOptions::default() });
    for finished in 1..4 {
        advance(&mut reference, finished).expect("it trains");
        let expected = reference.checkpoint().expect("the device works");
        assert_eq!(reference.last_finished(None).expect("it can be read"), Some(expected.clone()));
        for options in &options {
            for schedule in [keep, naive] {
                let mut trainer = trainer(&everything(), 4, options.clone(), &schedule).expect("it is small");
                let found = spoilt::last_finished(&mut trainer, finished).expect("the next is spoilt");
                assert_eq!(found.as_ref(), Some(&expected), "{options:?}");
            }
        }
    }
    // Nothing is kept before the first iteration has finished.
    let none = spoilt::last_finished(&mut new_trainer("everything", 4), 0);
    assert_eq!(none.expect("the first is spoilt"), None);
}

#[test]
fn what_is_told_is_kept_also_where_training_pauses_and_goes_on() {
    let split = digits();
    let mut trainer = new_trainer("mlp", 32);
    let told = Cell::new(0);
    for until in [3, 4, 9] {
        let pause = || told.get() == 6;
        let outcome = trainer.train(&*split.train, until, &mut |o| told.set(o.step + 1), &pause);
        outcome.expect("it trains");
        assert_eq!(told.get(), trainer.step());
        let kept = trainer.last_finished(None).expect("it can be read");
        assert_eq!(kept, Some(trainer.checkpoint().expect("the device works")));
    }
    assert_eq!(trainer.step(), 7, "one more had begun when six were told");
}

#[test]
fn a_loss_that_is_no_number_ends_training_with_advice() {
    let mut plan = plan(&zoo("mlp"), 10);
    plan.rate = plimsoll_runtime::LearningRateSchedule::constant(1e30);
    let program = training(&zoo("mlp"), 10);
    let (executor, loaded) = loaded(cpu(), &program, &keep(&program.trace));
    let mut trainer = Trainer::new(executor, loaded, None, plan).expect("the plan fits");
    fails(advance(&mut trainer, 20), "lower the learning rate");
    fails(trainer.evaluate(&*digits().test), "one for evaluation");
}
