//! The driver calls of an iteration: none allocates, only the end waits, and none uses the default stream; and the device's
//! errors when a call is refused.

use super::bodies::{BATCH, Case, bits, program_by, train};
use super::library::{StandIn, child};
use crate::support::{everything, keep, loaded, naive, plan, plan_by, training_by};
use plimsoll::profiler::batch_samples;
use plimsoll_ir::program::{Call, Hyper, Kernel};
use plimsoll_ir::schedule::{Command, Schedule, Stream};
use plimsoll_ir::simulate::Span;
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, CommandId, Optimizer, Seconds};
use plimsoll_runtime::group::alone;
use plimsoll_runtime::{
    Cpu, CpuOptions, Error, Executor, Kind, MemoryKind, MemoryLayout, Trainer, TrainingPlan,
};
use std::collections::BTreeMap;
use std::ffi::CStr;

fn expected(calls: &[(&str, u64)]) -> BTreeMap<String, u64> {
    calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn an_iteration_makes_the_calls_of_its_commands_and_no_other() {
    let Some(Case { place: library, program, .. }) = Case::open() else { return };
    let schedule = naive(&program.trace);
    let on = |stream| schedule.commands.iter().filter(|c| c.stream() == stream).count() as u64;
    // Without copies of the state, and with them: running statistics, parameters, momenta, and the stamp.
    for (graphs, copies) in [(false, 0), (true, 0), (false, 4), (true, 4)] {
        let device = Box::new(library.device(graphs));
        let layout = MemoryLayout::of(&program, &schedule).keeping_state(&program);
        let mut executor = Executor::new(device, layout).expect("it is small");
        let loaded = executor.load_keeping_state(&program, &schedule, None).expect("the schedule is valid");
        let mut run = || if copies > 0 { executor.run_copying(&loaded) } else { executor.run(&loaded) };
        let first = library.calls_of(|| run().expect("the first iteration"));
        let mut iteration = || library.calls_of(|| run().expect("a later iteration"));
        let second = iteration();
        let third = iteration();
        let fourth = iteration();
        assert_eq!(third, fourth, "graphs {graphs}");
        if graphs {
            // The second run is captured, and launched from then on.
            let captured = ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"];
            captured.iter().for_each(|name| assert_eq!(second.get(*name), Some(&1), "{name}"));
            let replayed = expected(&[
                ("cuCtxSetCurrent", third["cuCtxSetCurrent"]),
                ("cuGraphLaunch", 1),
                ("cuStreamSynchronize", 1),
            ]);
            assert_eq!(third, replayed);
        } else {
            assert_eq!(second, third);
        }
        // Command by command; the first time also looks functions up, and sets the libraries' stream.
        let one_by_one = if graphs { first } else { third };
        let mut rest = one_by_one.clone();
        rest.retain(|name, _| {
            !["cuCtxSetCurrent", "cuModuleGetFunction", "cublasSetStream_v2", "cudnnSetStream"]
                .contains(&name.as_str())
        });
        let joins_and_forks = 2;
        let of_call =
            |wanted: &str| program.kernels.iter().filter(|k| k.call.name() == wanted).count() as u64;
        let products = rest["cublasGemmEx"];
        assert!(rest["cuLaunchKernel"] + products >= on(Stream::Compute) / 2);
        assert!(
            rest["cuStreamWaitEvent"] > 2 * joins_and_forks && rest["cuEventRecord"] > 1 + joins_and_forks
        );
        let of_work =
            ["cuLaunchKernel", "cublasGemmEx", "cuStreamWaitEvent", "cuEventRecord"].map(String::from);
        let passes =
            ["Forward", "BackwardData", "BackwardFilter"].map(|pass| format!("cudnnConvolution{pass}"));
        let work = of_work.iter().chain(&passes).map(|name| (name.as_str(), rest[name]));
        let moved = [
            ("cublasSetWorkspace_v2", products),
            ("cuMemcpyDtoHAsync_v2", on(Stream::Offload) + copies),
            ("cuMemcpyHtoDAsync_v2", on(Stream::Prefetch)),
            ("cuStreamSynchronize", 1),
        ];
        assert_eq!(rest, expected(&work.chain(moved).collect::<Vec<_>>()));
        let by_library = ["conv_forward", "conv_backward_data", "conv_backward_filter"].map(of_call);
        let [forward, data, filter] = passes.map(|pass| rest[&pass]);
        assert_eq!(forward + data + filter + products, by_library.iter().sum::<u64>());
        assert!(products >= 5 && forward >= 2, "both libraries take part");
    }
}

#[test]
fn a_profiler_sees_the_names_of_what_is_enqueued() {
    let Some(Case { place: library, program, .. }) = Case::open() else { return };
    let schedule = naive(&program.trace);
    let on = |stream| schedule.commands.iter().filter(|c| c.stream() == stream).count() as u64;
    let (mut executor, loaded) = loaded(library.device(true), &program, &schedule);
    let names: Vec<String> = program.trace.ops.iter().map(|op| format!("iteration/{}", op.name)).collect();
    let transfers = ["iteration/offload".to_owned(), "iteration/prefetch".to_owned()];
    let seen = || {
        let ops = names.iter().map(|name| library.ranges(name)).collect::<Vec<_>>();
        (library.ranges("iteration"), ops, transfers.each_ref().map(|name| library.ranges(name)))
    };
    let before = seen();
    // Enqueued, captured, and then replayed as a whole.
    (0..5).for_each(|_| executor.run(&loaded).expect("an iteration"));
    let after = seen();
    assert_eq!(after.0 - before.0, 5);
    assert!(after.1.iter().zip(&before.1).all(|(after, before)| after - before == 2), "{after:?}");
    let moved = [0, 1].map(|alternative| after.2[alternative] - before.2[alternative]);
    assert_eq!(moved, [Stream::Offload, Stream::Prefetch].map(|stream| 2 * on(stream)));
}

#[test]
fn a_timed_iteration_tells_when_each_command_ran() {
    let Some(Case { place: library, program, .. }) = Case::open() else { return };
    let schedule = naive(&program.trace);
    let (mut executor, loaded) = loaded(library.device(true), &program, &schedule);
    library.delays(1);
    for _ in 0..3 {
        let timeline = executor.run_timed(&loaded).expect("a timed iteration");
        for (at, command) in schedule.commands.iter().enumerate() {
            let span = &timeline.spans[at];
            assert!(0.0 <= span.start.0 && span.start <= span.end, "command {at}: {span:?}");
            for wait in command.waits() {
                let before = timeline.spans[wait.index()].end;
                assert!(before <= span.start, "command {at} starts at {:?}, before {before:?}", span.start);
            }
        }
    }
}

#[test]
fn memory_that_is_not_there_is_said_before_anything_runs() {
    let Some(library) = StandIn::open() else { return };
    let pool = Bytes(1 << 40);
    let layout = MemoryLayout { pool, ..MemoryLayout::default() };
    let error = Executor::new(Box::new(library.device(true)), layout).err();
    let Some(Kind::OutOfMemory { what, needed, available }) = error.as_ref().map(|error| &error.kind) else {
        panic!("{error:?}");
    };
    assert_eq!((*what, *needed), (MemoryKind::Device, pool));
    assert!(Bytes::ZERO < *available && *available < pool, "{available}");
}

/// NVRTC 13.5 is in today's wheels, and the driver is of CUDA 13.0: machine code runs, PTX would not.
#[test]
fn kernels_are_compiled_for_the_device() {
    let Some(library) = StandIn::open() else { return };
    library.compiler(5, 100);
    let calls = library.calls_of(|| drop(library.device(true)));
    assert_eq!((calls["nvrtcGetCUBIN"], calls.get("nvrtcGetPTX")), (1, None));
    // An NVRTC that does not know the device makes PTX, which this driver accepts if it is no newer.
    library.compiler(0, 86);
    let older = library.calls_of(|| drop(library.device(true)));
    assert_eq!((older["nvrtcGetPTX"], older.get("nvrtcGetCUBIN")), (1, None));
    library.compiler(5, 86);
    let error = library.open_device(true).err().expect("the driver refuses newer PTX").to_string();
    for part in ["CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "PLIMSOLL_CUDA_LIBRARIES"] {
        assert!(error.contains(part), "`{part}` in: {error}");
    }
}

/// A refused call gives one message that names it, and the device can be dropped.
#[test]
fn a_refused_call_is_one_message() {
    let Some(Case { place: library, program, .. }) = Case::open() else { return };
    // A refused module from the cache is compiled anew.
    std::fs::remove_dir_all(library.options().cache.expect("it has one")).expect("kernels were kept there");
    let schedule = naive(&program.trace);
    let layout = MemoryLayout::of(&program, &schedule);
    let check = |call: &CStr, after: u64, code: u32, parts: &[&str]| {
        // Algorithms are tried when a program is loaded, and refused ones are left out.
        let when_loaded = call == c"cudnnConvolutionForward";
        if !when_loaded {
            library.answer(call, after, code);
        }
        let outcome = library.open_device(true).map_err(|error| error.to_string()).and_then(|device| {
            let run = || {
                let mut executor = Executor::new(Box::new(device), layout)?;
                let loaded = executor.load(&program, &schedule)?;
                if when_loaded {
                    library.answer(call, after, code);
                }
                (0..4).try_for_each(|_| executor.run(&loaded))
            };
            run().map_err(|error: Error| error.to_string())
        });
        let message = outcome.expect_err("the call was refused");
        println!("{call:?} gives {code}: {message}");
        for part in parts {
            assert!(message.contains(part), "`{part}` in: {message}");
        }
    };
    check(c"cuInit", 0, 100, &["CUDA"]);
    check(c"cuDevicePrimaryCtxRetain", 0, 2, &["cuda:0", "CUDA_ERROR_OUT_OF_MEMORY", "lower the budget"]);
    check(c"cuModuleLoadData", 0, 400, &["kernels", "CUDA_ERROR_INVALID_HANDLE"]);
    check(c"cublasCreate_v2", 0, 3, &["libcublas.so.13", "STATUS_ALLOC_FAILED", "install that for it"]);
    check(c"cudnnCreate", 0, 1001, &["libcudnn.so.9", "CUDNN_STATUS_NOT_INITIALIZED", "install that for it"]);
    check(c"cudnnConvolutionForward", 1, 5000, &["conv_forward", "CUDNN_STATUS_EXECUTION_FAILED"]);
    check(c"cublasGemmEx", 2, 13, &["cublasGemmEx", "CUBLAS_STATUS_EXECUTION_FAILED"]);
    check(c"cuMemAlloc_v2", 0, 2, &["device memory"]);
    check(c"cuMemHostRegister_v2", 0, 2, &["host"]);
    check(c"cuLaunchKernel", 7, 700, &["CUDA_ERROR_ILLEGAL_ADDRESS"]);
    check(c"cuMemcpyDtoHAsync_v2", 3, 1, &["cuMemcpyDtoHAsync", "CUDA_ERROR_INVALID_VALUE"]);
    check(c"cuStreamEndCapture", 0, 904, &["CUDA_ERROR_STREAM_CAPTURE_UNJOINED"]);
    check(c"cuGraphLaunch", 1, 700, &["CUDA_ERROR_ILLEGAL_ADDRESS"]);
    check(c"cuStreamSynchronize", 3, 700, &["CUDA_ERROR_ILLEGAL_ADDRESS"]);
}

/// The driver reads the variable once per process, so each value has a separate process: this test again.
#[test]
fn a_device_that_is_not_to_be_seen_is_not_seen() {
    const CHILD: &str = "PLIMSOLL_STANDIN_CHILD";
    let Some(library) = StandIn::open() else { return };
    if std::env::var_os(CHILD).is_some() {
        let error = library.open_device(true).err();
        return println!("{}", error.map_or("it is open".to_owned(), |error| error.to_string()));
    }
    for value in ["", "-1", "7,0"] {
        let environment = [("CUDA_VISIBLE_DEVICES", value.as_ref()), (CHILD, "1".as_ref())];
        let said = child("calls::a_device_that_is_not_to_be_seen_is_not_seen", &environment);
        assert!(said.contains(&format!("CUDA_VISIBLE_DEVICES is `{value}`")), "{said}");
    }
}

/// Checks timed ops too: as many launches, one time divided among them by bytes, and the same bits.
#[test]
fn all_parameters_are_updated_by_one_launch() {
    let Some(library) = StandIn::open() else { return };
    for optimizer in [Optimizer::Sgd, Optimizer::Adamw] {
        are_updated_by_one_launch(&library, optimizer);
    }
}

fn are_updated_by_one_launch(library: &StandIn, optimizer: Optimizer) {
    let network = everything();
    let program = program_by(optimizer, &library.device(false), &network);
    let schedule = keep(&program.trace);
    let is_update = |kernel: &&Kernel| kernel.call.name() == optimizer.to_string();
    let updates = program.kernels.iter().filter(is_update).count() as u64;
    assert!(updates > 10, "{updates}");
    let load = || loaded(library.device(false), &program, &schedule);
    let (mut executor, loaded) = load();
    let mut launches = |timed: bool| {
        let calls = library.calls_of(|| {
            if timed {
                executor.run_timed(&loaded).expect("an iteration");
            } else {
                executor.run(&loaded).expect("an iteration");
            }
        });
        calls["cuLaunchKernel"]
    };
    assert_eq!(launches(true), launches(false));
    let timeline = executor.run_timed(&loaded).expect("an iteration");
    let of_updates: Vec<(CommandId, u64)> = schedule
        .numbered_commands()
        .filter_map(|(id, command)| {
            let Command::Compute { op, .. } = command else { return None };
            match program.kernels[op.index()].call {
                Call::Sgd { elements, .. } | Call::Adamw { elements, .. } => Some((id, elements)),
                _ => None,
            }
        })
        .collect();
    let spans: Vec<Span> = of_updates.iter().map(|(id, _)| timeline.spans[id.index()]).collect();
    let whole = spans[spans.len() - 1].end.0 - spans[0].start.0;
    assert!(whole > 0.0);
    assert!(spans.windows(2).all(|two| two[0].end == two[1].start), "one after the other: {spans:?}");
    // Hyperparameters, parameter and gradient, and the optimizer state.
    let numbers = if optimizer == Optimizer::Sgd { 3 } else { 4 };
    let bytes = |elements: u64| (Hyper::BYTES as u64 + 4 * numbers * elements) as f64;
    let all = of_updates.iter().map(|(_, elements)| bytes(*elements)).sum::<f64>();
    for ((_, elements), span) in of_updates.iter().zip(&spans) {
        let share = (span.end.0 - span.start.0) / whole;
        assert!((share - bytes(*elements) / all).abs() < 1e-6, "{elements} elements have {share}");
    }
    // The overhead of one pair of events is subtracted from all of them together.
    let overhead = Seconds(whole / 2.0);
    let samples = batch_samples(&loaded, &[timeline], overhead);
    let kept = samples.ops.iter().filter(|op| op.phase == Phase::Update).flat_map(|op| &op.seconds);
    let kept = kept.copied().sum::<Seconds>();
    assert!((kept.0 / whole - 0.5).abs() < 1e-6, "{kept} of {whole} s");
    let trained = |timed: bool| {
        let (executor, loaded) = load();
        let plan = plan_by(optimizer, &network, BATCH);
        let mut trainer = Trainer::new(executor, loaded, None, plan).expect("the plan fits");
        let digits = plimsoll_runtime::data::digits();
        for step in 0..3 {
            if timed {
                trainer.train_timed(&*digits.train).expect("an iteration");
            } else {
                trainer.train(&*digits.train, step + 1, &mut |_| {}, &|| false).expect("an iteration");
            }
        }
        bits(&trainer.checkpoint().expect("it is whole"))
    };
    assert!(trained(true) == trained(false));
}

/// Swapped or kept, as a graph or one by one: the same bits after some iterations of AdamW.
#[test]
fn a_plan_changes_no_bit_of_a_training_by_adamw() {
    let Some(library) = StandIn::open() else { return };
    let network = everything();
    let program = program_by(Optimizer::Adamw, &library.device(false), &network);
    let trained = |schedule: &Schedule, graphs| {
        bits(&train(&network, &program, schedule, Box::new(library.device(graphs))).expect("it trains"))
    };
    let kept = trained(&keep(&program.trace), false);
    for graphs in [false, true] {
        assert!(trained(&naive(&program.trace), graphs) == kept, "graphs {graphs}");
    }
    let on_cpu = training_by(Optimizer::Adamw, &network, BATCH);
    let device = Box::new(Cpu::new(CpuOptions::default()));
    let on_cpu = bits(&train(&network, &on_cpu, &keep(&on_cpu.trace), device).expect("it trains"));
    // A gradient that is only rounding error changes its sign with the order of sums, and moves as far as any.
    let all = kept.iter().flat_map(|(name, found)| found.iter().zip(&on_cpu[name]));
    let (near, far): (Vec<f32>, Vec<f32>) =
        all.map(|(a, b)| (f32::from_bits(*a) - f32::from_bits(*b)).abs()).partition(|off| *off < 1e-4);
    assert!(100 * far.len() < near.len(), "{} of {} numbers are far off", far.len(), near.len() + far.len());
}

/// Mode of a training.
#[derive(Clone, Copy, Debug)]
enum Training {
    /// Copies its state during each iteration.
    Copied,
    /// Does not copy its state.
    Plain,
    /// Has updates of several passes.
    Shared,
}

/// Once its graphs are captured, an iteration writes only hyperparameters, and the data that workers share, in every mode.
/// The bits are those of inputs written by the host.
#[test]
fn inputs_are_commands_of_the_iteration_before_in_every_training() {
    const PASSES: u64 = 3;
    let Some(Case { place: library, network, program }) = Case::open() else { return };
    let schedule = naive(&program.trace);
    let digits = plimsoll_runtime::data::digits();
    for how in [Training::Copied, Training::Plain, Training::Shared] {
        let trained = |slots: bool| {
            let layout = MemoryLayout::of(&program, &schedule);
            let layout = if slots { layout.feeding(&program) } else { layout };
            let layout =
                if matches!(how, Training::Copied) { layout.keeping_state(&program) } else { layout };
            let mut executor = Executor::new(Box::new(library.device(true)), layout).expect("it is small");
            let loaded = match how {
                Training::Copied => executor.load_keeping_state(&program, &schedule, None),
                Training::Plain => executor.load(&program, &schedule),
                Training::Shared => executor.load_apart(&program, &schedule, Bytes(1 << 10)),
            };
            let (loaded, plan) = (loaded.expect("the schedule is valid"), plan(&network, BATCH));
            let trainer = match how {
                Training::Shared => {
                    let plan = TrainingPlan { virtual_workers: PASSES, ..plan };
                    Trainer::sharing(executor, loaded, None, plan, alone())
                }
                _ => Trainer::new(executor, loaded, None, plan),
            };
            let mut trainer = trainer.expect("the plan fits");
            let mut train = |until| {
                trainer.train(&*digits.train, until, &mut |_| {}, &|| false).expect("it trains");
            };
            // The first iteration of a call copies no state.
            (1..=8).for_each(|call| train(4 * call));
            let calls = library.calls_of(|| train(36));
            (calls["cuMemcpyHtoDAsync_v2"], bits(&trainer.checkpoint().expect("it is whole")))
        };
        let ((fed, found), (written, expected)) = (trained(true), trained(false));
        assert!(found == expected, "{how:?}");
        let passes = if matches!(how, Training::Shared) { PASSES } else { 1 };
        // Images and labels.
        assert_eq!(written - fed, 2 * 4 * passes, "{how:?}");
        if passes == 1 {
            assert_eq!(fed, 4, "{how:?}");
        }
    }
}
