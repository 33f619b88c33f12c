//! Profiles of real programs: exact on the simulated device, plausible on this machine's processor.

use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::{Profile, TransferSample};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Buffer, Command, Duplex, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::{Bytes, BytesPerSecond, CommandId, Document, OpId, Optimizer, Seconds, TensorId};
use plimsoll_networks::{LowerOptions, build, lower};
use plimsoll_profiler::{
    Effort, ProfileError, ProfileRequest, SubjectError, Watch, fractions, machine, profile,
};
use plimsoll_runtime::{Cpu, CpuOptions, Device, Null};

const BUDGET: Bytes = Bytes(64 << 20);

fn spec() -> NetworkSpec {
    NetworkSpec { name: "lenet".into(), image: [28, 28], channels: 1, classes: 10 }
}

/// Returns a schedule that keeps everything, each tensor at a separate address.
fn keep(program: &Program) -> Schedule {
    let trace = &program.trace;
    let mut offset = Bytes::ZERO;
    let mut buffers = Vec::new();
    let mut place = |holds, bytes: Bytes, opens: Option<OpId>, closes: OpId| {
        let id = |op: OpId| CommandId(op.0);
        buffers.push(Buffer { holds, offset, opens: opens.map(id), closes: vec![id(closes)] });
        offset += bytes.round_up(256);
    };
    for (t, life) in trace.lives().into_iter().enumerate() {
        let life = life.expect("every tensor is needed by some op");
        let holds = Holds::Tensor { tensor: TensorId::new(t), first_byte: None, bytes: None };
        place(holds, trace.tensors[t].bytes, life.born, life.dies);
    }
    for (i, op) in trace.ops.iter().enumerate().filter(|(_, op)| op.workspace_bytes > Bytes::ZERO) {
        let command = CommandId::new(i);
        place(Holds::Workspace { command }, op.workspace_bytes, Some(OpId::new(i)), OpId::new(i));
    }
    let compute = |i| Command::Compute { op: OpId::new(i), again: false, alternative: None, waits: vec![] };
    Schedule {
        kind: ScheduleKind,
        trace: trace.name.clone(),
        batch: trace.batch,
        budget_bytes: BUDGET,
        pool_bytes: offset,
        link: Link::symmetric(BytesPerSecond(1e9)),
        commands: (0..trace.ops.len()).map(compute).collect(),
        buffers,
    }
}

/// Returns the seconds that the simulated device takes for an op.
fn told(position: usize, batch: u64) -> Seconds {
    Seconds(1e-6 * (position + 1) as f64 * batch as f64)
}

fn measure(device: Box<dyn Device>, batches: Vec<u64>, paced: Option<Link>) -> Result<Profile, ProfileError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let network = build(&spec()).expect("in the zoo");
    let alternatives = |call: &_| Cpu::new(CpuOptions::default()).alternatives(call);
    let mut subject = |batch: u64, _: Option<u32>| -> Result<_, SubjectError> {
        let options = LowerOptions { alternatives: &alternatives, ..LowerOptions::default() };
        let mut program = lower(&network, batch, &options)?;
        for (i, op) in program.trace.ops.iter_mut().enumerate() {
            op.seconds = told(i, batch);
        }
        let schedule = keep(&program);
        Ok(Some((program, schedule)))
    };
    let request = ProfileRequest {
        network: spec(),
        optimizer: Optimizer::Sgd,
        machine: machine(&*device, paced, "test"),
        budget: BUDGET,
        batches,
        effort: Effort { time: Seconds(2.0), at_least: 3, bad: f64::INFINITY, ..Effort::default() },
        journal: folder.path().join("profile.journal.jsonl"),
        fresh: false,
    };
    profile(
        &request,
        &mut subject,
        device,
        &mut Watch { stop: &|| false, progress: &mut |_| {}, warn: &mut |_| {} },
    )
}

#[test]
fn the_simulated_device_is_measured_exactly() {
    let link = Link {
        offload_bytes_per_second: BytesPerSecond(2e9),
        prefetch_bytes_per_second: BytesPerSecond(4e9),
        latency_seconds: Seconds(1e-5),
        duplex: Duplex::Full,
    };
    let profile = measure(Box::new(Null::new(link)), fractions(16), Some(link)).expect("measured");
    assert_eq!(profile.overhead_seconds, Seconds::ZERO);
    assert_eq!(profile.batches.iter().map(|b| b.batch).collect::<Vec<_>>(), [2, 4, 8, 11, 16]);
    for batch in &profile.batches {
        let whole: f64 = (0..batch.ops.len()).map(|i| told(i, batch.batch).0).sum();
        assert!(batch.iteration_seconds.iter().all(|s| (s.0 / whole - 1.0).abs() < 1e-9));
        for (i, op) in batch.ops.iter().enumerate() {
            // The samples are differences of times since the iteration's start.
            let exact = |s: &Seconds| (s.0 - told(i, batch.batch).0).abs() < 1e-12;
            assert!(op.seconds.len() >= 3 && op.seconds.iter().all(exact), "{op:?}");
        }
    }
    let check = |samples: &[TransferSample], rate: f64| {
        assert!(samples.len() >= 12);
        for s in samples {
            assert!((s.seconds.0 / (1e-5 + s.bytes.0 as f64 / rate) - 1.0).abs() < 1e-6, "{s:?}");
        }
    };
    check(&profile.link.offload_alone, 2e9);
    check(&profile.link.prefetch_alone, 4e9);
    check(&profile.link.offload_together, 2e9);
    check(&profile.link.prefetch_together, 4e9);
    assert_eq!(
        (&profile.link.beside, &profile.link.pageable),
        (&None, &None),
        "its ops take no time, and it pins nothing"
    );
    assert_eq!(Profile::from_json(&profile.to_json()), Ok(profile));
}

#[test]
fn a_half_duplex_link_shows_half_the_rate_while_both_ways_run() {
    let link = Link { duplex: Duplex::Half, ..Link::symmetric(BytesPerSecond(1e9)) };
    let profile = measure(Box::new(Null::new(link)), vec![4], Some(link)).expect("measured");
    let rate = |s: &TransferSample| s.bytes.0 as f64 / s.seconds.0;
    assert!(profile.link.offload_alone.iter().all(|s| (rate(s) / 1e9 - 1.0).abs() < 1e-6));
    for together in [&profile.link.offload_together, &profile.link.prefetch_together] {
        assert!(
            !together.is_empty() && together.iter().all(|s| (rate(s) / 0.5e9 - 1.0).abs() < 1e-6),
            "{together:?}"
        );
    }
}

#[test]
fn a_processor_is_measured_and_a_paced_link_keeps_its_pace() {
    let link = Link::symmetric(BytesPerSecond(400e6));
    let device = Cpu::new(CpuOptions { link: Some(link), ..CpuOptions::default() });
    let profile = measure(Box::new(device), vec![4, 16], Some(link)).expect("measured");
    assert_eq!(profile.machine.device, "cpu");
    // Loose, because tests run in parallel on shared machines.
    assert!(profile.overhead_seconds.0 < 1e-4, "{}", profile.overhead_seconds);
    let fastest = |b: usize| {
        let ops = profile.batches[b].ops.iter();
        ops.map(|op| op.seconds.iter().copied().fold(Seconds(1e9), Seconds::min)).sum::<Seconds>()
    };
    assert!(fastest(0).0 > 0.0 && fastest(1).0 > fastest(0).0, "{} {}", fastest(0), fastest(1));
    // A transfer whose thread is held up ends late, and the next one, which begins where it should have ended, looks shorter
    // by as much. So the pace is checked for most of them, and for all together.
    for samples in [&profile.link.offload_alone, &profile.link.prefetch_together] {
        let large: Vec<_> = samples.iter().filter(|s| s.bytes >= Bytes(1 << 20)).collect();
        let mut rates: Vec<f64> = large.iter().map(|s| s.bytes.0 as f64 / s.seconds.0).collect();
        rates.sort_by(f64::total_cmp);
        let bytes: Bytes = large.iter().map(|s| s.bytes).sum();
        let seconds: Seconds = large.iter().map(|s| s.seconds).sum();
        assert!(!rates.is_empty() && bytes.0 as f64 / seconds.0 < 1.05 * 400e6, "{rates:?}");
        assert!((0.5..1.05).contains(&(rates[rates.len() / 2] / 400e6)), "{rates:?}");
    }
    // The link is slow, so that the ops run during transfers unless other programs delay their thread.
    let beside = profile.link.beside.as_ref().expect("there is room for four large tensors");
    let found = [&beside.offloading, &beside.prefetching, &beside.both].map(Vec::len);
    assert!(!beside.alone.is_empty() && found.iter().sum::<usize>() > 0, "{beside:?}");
    assert_eq!(profile.link.pageable, None, "a processor takes all memory alike");
}

#[test]
fn a_budget_without_room_for_the_link_is_named() {
    let network = build(&spec()).expect("in the zoo");
    let resident = lower(&network, 1, &LowerOptions::default()).expect("lowers").trace.resident_bytes;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut subject = |batch: u64, _: Option<u32>| -> Result<_, SubjectError> {
        let program = lower(&network, batch, &LowerOptions::default())?;
        let schedule = keep(&program);
        Ok(Some((program, schedule)))
    };
    let device: Box<dyn Device> = Box::new(Null::new(Link::symmetric(BytesPerSecond(1e9))));
    let request = ProfileRequest {
        network: spec(),
        optimizer: Optimizer::Sgd,
        machine: machine(&*device, None, "test"),
        budget: resident + Bytes(100),
        batches: vec![1],
        effort: Effort::default(),
        journal: folder.path().join("journal"),
        fresh: false,
    };
    let watch = &mut Watch { stop: &|| false, progress: &mut |_| {}, warn: &mut |_| {} };
    assert!(matches!(
        profile(&request, &mut subject, device, watch),
        Err(ProfileError::NoRoom { left: Bytes(100) })
    ));
}
