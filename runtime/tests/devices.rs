//! The devices: `null` against the simulation, `cpu` against its link, its memory and its failures.

use crate::support::{advance, cpu, everything, keep, link, loaded, naive, trainer, training, zoo};
use plimsoll_ir::schedule::{Command, Duplex, Link, Schedule, Stream};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Alternative;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_runtime::{Cpu, CpuOptions, Error, Executor, HostMemory, Kind, MemoryLayout, Null, host_slab};
use plimsoll_testing::{Random, random_schedule};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Gives each op a random time, and some a second alternative.
fn timed_program(seed: u64) -> plimsoll_ir::program::Program {
    let mut program = training(&everything(), 4);
    let mut random = Random::new(seed);
    for op in &mut program.trace.ops {
        op.seconds = Seconds(random.below(1000) as f64 * 1e-6);
        if random.percent(30) {
            let seconds = Seconds(random.below(2000) as f64 * 1e-6);
            let workspace_bytes = Bytes(256 * random.below(9));
            op.alternatives.push(Alternative { name: "another".into(), seconds, workspace_bytes });
        }
    }
    program
}

#[test]
fn null_takes_exactly_the_simulated_times() {
    for seed in 0..60 {
        let program = timed_program(seed);
        let mut schedule =
            if seed == 0 { naive(&program.trace) } else { random_schedule(&program.trace, seed) };
        for duplex in [Duplex::Full, Duplex::Half] {
            schedule.link.duplex = duplex;
            schedule.link.latency_seconds = Seconds(seed as f64 * 1e-6);
            let (mut executor, loaded) = loaded(Null::new(schedule.link), &program, &schedule);
            let measured = executor.run_timed(&loaded).expect("null does not fail");
            assert_eq!(measured, simulate(&program.trace, &schedule), "seed {seed}, {duplex:?}");
        }
    }
}

#[test]
fn a_schedule_is_checked_before_it_runs() {
    let program = training(&zoo("mlp"), 4);
    let schedule = keep(&program.trace);
    let layout = MemoryLayout::of(&program, &schedule);
    let check = |change: &dyn Fn(&mut Schedule), expected: &str| {
        let mut changed = schedule.clone();
        change(&mut changed);
        let mut executor = Executor::new(Box::new(cpu()), layout).expect("it is small");
        let error = executor.load(&program, &changed).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&|s| drop(s.commands.pop()), "not valid");
    check(&|s| s.trace = "another".into(), "not valid");
    check(&|s| s.pool_bytes = Bytes(64), "not valid");
    let grown = |s: &mut Schedule, bytes| {
        s.pool_bytes += Bytes(bytes);
        s.budget_bytes += Bytes(bytes);
    };
    check(&|s| grown(s, 4096), "too small");
    let shifted = |s: &mut Schedule| {
        s.buffers.iter_mut().for_each(|b| b.offset += Bytes(4));
        grown(s, 4);
    };
    let mut schedule = schedule.clone();
    shifted(&mut schedule);
    let layout = MemoryLayout::of(&program, &schedule);
    let mut executor = Executor::new(Box::new(cpu()), layout).expect("it is small");
    let error = executor.load(&program, &schedule).expect_err("4 is no multiple of 256").to_string();
    assert!(error.contains("multiples of 256"), "{error}");
}

#[test]
#[should_panic(expected = "on the executor that loaded it")]
fn a_loaded_program_runs_nowhere_else() {
    let program = training(&zoo("mlp"), 4);
    let schedule = keep(&program.trace);
    let [(_, loaded), (mut other, _)] = [0, 1].map(|_| loaded(cpu(), &program, &schedule));
    let _ = other.run(&loaded);
}

#[test]
fn the_host_slab_takes_the_offloaded_extents_and_nothing_else() {
    let program = training(&everything(), 4);
    assert_eq!(host_slab(&program.trace, &keep(&program.trace)).bytes(), Bytes::ZERO);
    let schedule = naive(&program.trace);
    let offloads = schedule.commands.iter().filter(|c| c.stream() == Stream::Offload);
    let offloaded: BTreeSet<_> =
        offloads.filter_map(Command::transfer).map(|(tensor, _, _)| tensor).collect();
    let expected: Bytes = offloaded.iter().map(|t| program.trace.tensors[t.index()].bytes).sum();
    assert!(expected > Bytes::ZERO, "naive swapping offloads something");
    assert_eq!(host_slab(&program.trace, &schedule).bytes(), expected);
}

/// A paced link is never faster than its rate: the transfers of a stream end no earlier than in sequence; on a half-duplex
/// link, those of both streams.
#[test]
fn a_paced_link_takes_its_time() {
    let program = training(&zoo("resnet20"), 8);
    let schedule = naive(&program.trace);
    for duplex in [Duplex::Full, Duplex::Half] {
        let (rate, latency_seconds) = (BytesPerSecond(100e6), Seconds(50e-6));
        let link = Link { duplex, latency_seconds, ..Link::symmetric(rate) };
        let schedule = Schedule { link, ..schedule.clone() };
        let options = CpuOptions { link: Some(link), ..CpuOptions::default() };
        let (mut executor, loaded) = loaded(Cpu::new(options), &program, &schedule);
        executor.run(&loaded).expect("a first iteration");
        let measured = executor.run_timed(&loaded).expect("a timed iteration");
        let mut told = [0.0; 3];
        let mut last = [0.0; 3];
        for (span, command) in measured.spans.iter().zip(&schedule.commands) {
            if let Some((tensor, _, _)) = command.transfer() {
                let stream = command.stream();
                told[stream.index()] += link.seconds(stream, program.trace.tensors[tensor.index()].bytes).0;
                last[stream.index()] = span.end.0;
            }
        }
        let total = measured.makespan();
        println!("{duplex:?}: {told:?} s of transfers ended at {last:?} s, all at {total}");
        assert_eq!(told.iter().filter(|told| **told > 0.0).count(), 2, "both streams move something");
        // Sleeps shorter than 20 us are skipped; other work of the machine only adds time.
        let slack = 50e-6;
        match duplex {
            Duplex::Full => assert!(told.iter().zip(last).all(|(told, last)| last > told - slack)),
            Duplex::Half => assert!(last.into_iter().fold(0.0, f64::max) > told.iter().sum::<f64>() - slack),
        }
    }
}

#[test]
fn a_kernel_that_panics_is_an_error_and_no_hang() {
    let program = training(&zoo("mlp"), 4);
    for schedule in [keep(&program.trace), naive(&program.trace)] {
        let (mut executor, loaded) = loaded(cpu(), &program, &schedule);
        let run = |executor: &mut Executor, label: i32| {
            executor.write_images(&loaded, &[0; 4 * 64 * 4]).expect("the images fit");
            executor.write_labels(&loaded, &[label.to_le_bytes(); 4].concat()).expect("the labels fit");
            executor.run(&loaded)
        };
        for _ in 0..3 {
            run(&mut executor, 9).expect("class 9 of 10 is there");
            match run(&mut executor, 77) {
                Err(error) => {
                    let start = "`softmax_cross_entropy_forward` failed on the Compute stream: ";
                    assert!(error.message.starts_with(start), "{error}");
                }
                other => panic!("class 77 of 10 ended as {other:?}"),
            }
        }
    }
}

fn with_host(path: &Path, host: u64) -> Result<Executor, Error> {
    let options = CpuOptions { host: HostMemory::File(path.to_owned()), ..CpuOptions::default() };
    let layout =
        MemoryLayout { resident: Bytes(0), pool: Bytes(4096), host: Bytes(host), ..MemoryLayout::default() };
    Executor::new(Box::new(Cpu::new(options)), layout)
}

#[test]
fn a_host_file_has_its_exact_size_or_says_why_not() {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let path = folder.path().join("slab");
    let executor = with_host(&path, 10_000).expect("10 kB fit");
    assert!(!path.exists(), "its name is gone, so nothing is left however the run ends");
    drop(executor);
    let check = |path: &Path, bytes: u64, expected: &str| match with_host(path, bytes) {
        Err(error) => assert!(error.message.contains(expected), "{error}"),
        other => panic!("{}: {:?}", path.display(), other.map(|_| "allocated")),
    };
    check(&folder.path().join("missing/slab"), 4096, "folder does not exist");
    check(Path::new("/dev/full"), 4096, "such a file already");
    check(folder.path(), 4096, "such a file already");
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "do not lose me").expect("a file can be written");
    check(&precious, 4096, "such a file already");
    assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "do not lose me");
    // No disk holds 2^60 bytes.
    check(&path, 1 << 60, "no room");
    assert!(!path.exists(), "what did not fit is not left behind");

    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).expect("a folder can be made");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).expect("it is ours");
    if std::fs::write(closed.join("probe"), []).is_ok() {
        println!("skipped: this user may write to a folder without permission");
    } else {
        check(&closed.join("slab"), 4096, "no permission");
    }
}

#[test]
fn more_memory_than_the_machine_has_is_refused() {
    let layout = MemoryLayout { resident: Bytes(0), pool: Bytes(1 << 60), ..MemoryLayout::default() };
    match Executor::new(Box::new(cpu()), layout) {
        Err(Error { kind: Kind::OutOfMemory { needed, .. }, .. }) => {
            assert_eq!(needed, Bytes(1 << 60));
        }
        other => panic!("{:?}", other.map(|_| "allocated")),
    }
}

#[test]
fn swapping_through_a_file_gives_the_same_bits() {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let run = |host: HostMemory| {
        let options = CpuOptions { host, poison: true, ..CpuOptions::default() };
        let mut trainer = trainer(&zoo("mlp"), 8, options, &naive).expect("it is small");
        advance(&mut trainer, 10).expect("10 iterations run");
        trainer.checkpoint().expect("the device can be read")
    };
    assert_eq!(run(HostMemory::File(folder.path().join("slab"))), run(HostMemory::Anonymous));
}

#[test]
fn a_way_that_the_device_does_not_have_is_refused() {
    let mut program = training(&zoo("mlp"), 4);
    let (seconds, workspace_bytes) = (Seconds::ZERO, Bytes::ZERO);
    for op in &mut program.trace.ops {
        op.alternatives.push(Alternative { name: "another".into(), seconds, workspace_bytes });
    }
    let mut schedule = keep(&program.trace);
    let first = schedule.commands.iter_mut().find_map(|command| match command {
        Command::Compute { op, alternative, .. } if program.trace.ops[op.index()].workspace_bytes.0 == 0 => {
            Some(alternative)
        }
        _ => None,
    });
    *first.expect("some kernels need no scratch") = Some(0);
    let layout = MemoryLayout::of(&program, &schedule);
    let load = |device: Box<dyn plimsoll_runtime::Device>| {
        Executor::new(device, layout).expect("it is small").load(&program, &schedule).map(|_| ())
    };
    let error = load(Box::new(cpu())).expect_err("it has one").to_string();
    assert!(error.contains("alternatives of `") && error.contains("number 2"), "{error}");
    load(Box::new(Null::new(link()))).expect("it takes any time that it is told");
}
