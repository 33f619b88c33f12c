//! `doctor`: capabilities of this machine, and missing parts.

use crate::args::DoctorArgs;
use crate::output::{Cell, Facts, Table};
use crate::processes;
use plimsoll_ir::health::{Health, PcieLink, Warning};
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::program::Call;
use plimsoll_ir::{Bytes, BytesPerSecond};
use plimsoll_networks::{LowerOptions, build, lower, usual};
use plimsoll_runtime::cpu::available_bytes;
use plimsoll_runtime::cuda::{KernelCode, Refusal, Survey, survey};
use plimsoll_runtime::group::measure;
use plimsoll_runtime::{CudaDevice, CudaOptions, Device, Error as RuntimeError, MemoryKind};
use plimsoll_study::device::{Setup, cores, cpu_options, threads_are_sound};
use plimsoll_study::error::cuda_in_words;
use plimsoll_study::profile_cache::ProfileCache;
use plimsoll_study::{Error, version};
use std::time::{Duration, Instant};

/// Bytes of one copy; larger than the caches of most machines.
const COPY: usize = 256 << 20;

/// Number of copies; the fastest counts.
const COPIES: usize = 5;

/// Relative error above which rate and latency of a network are reported as poor predictors of other message sizes.
const OFF: f64 = 0.2;

/// Silence after which a launched process is given up.
const SILENCE: Duration = Duration::from_secs(5);

/// Runs the verb. Of the processes that a launcher started, the first reports its machine and the network.
pub fn run(args: &DoctorArgs) -> Result<Vec<Table>, Error> {
    threads_are_sound(args.threads)?;
    let workers = workers()?;
    if processes::is_spoken_for() {
        return Ok(Vec::new());
    }
    let facts = Setup::Cpu(cpu_options(args.threads, None)).device()?.facts();
    let cores = u64::from(cores());
    let machine = Table::facts(
        "machine",
        vec![
            ("plimsoll", "plimsoll", version().into()),
            ("device", "device", facts.name.into()),
            ("system", "system", facts.system.into()),
            ("cores", "cores", cores.into()),
            ("threads", "compute threads", u64::from(facts.threads).into()),
            ("memory_bytes", "memory", facts.memory.into()),
            ("vector", "vector instructions", vector().into()),
            ("copy_rate", "memory copy, one thread", copy_rate()?.into()),
            ("profile_cache", "profiles kept in", kept_in().into()),
        ],
    );
    let mut advice = Table::new("advice", &[("what", "what"), ("advice", "what to do")]);
    if cores < 2 {
        let what = "one core: transfers and compute share it";
        let todo = "expect stalls that the plan does not predict; pace the link with --link, or use a machine with two cores";
        advice.rows.push(vec![Cell::from(what), todo.into()]);
    }
    if vector() == "none" {
        let what = "no AVX2";
        advice.rows.push(vec![
            Cell::from(what),
            "training works, several times slower than on newer processors".into(),
        ]);
    }
    let mut tables = vec![machine];
    tables.extend(cuda(survey(), &mut advice));
    tables.push(mpi());
    if let Some((table, todo)) = workers {
        tables.push(table);
        advice.rows.push(vec!["the network between these workers".into(), todo.into()]);
    }
    tables.extend((!advice.rows.is_empty()).then_some(advice));
    Ok(tables)
}

/// Measured network between launched processes, and advice on planning for it; `None` for one process.
fn workers() -> Result<Option<(Table, String)>, Error> {
    let Some(world) = processes::join(SILENCE)? else { return Ok(None) };
    let lost = |error| processes::noted(RuntimeError::from(error).into());
    let Some(measured) = measure(&mut *world.group()).map_err(lost)? else { return Ok(None) };
    let (count, interconnect) = (world.facts().workers as u64, measured.interconnect.to_string());
    let mut facts: Facts = vec![
        ("workers", "workers", count.into()),
        ("library", "MPI library", world.library().into()),
        ("interconnect", "interconnect, measured", interconnect.as_str().into()),
        (
            "measured_to_predicted",
            "pieces of another size, measured / predicted",
            Cell::Number(measured.measured_to_predicted, 3),
        ),
    ];
    facts.extend(off(measured.measured_to_predicted).map(|words| ("fit", "rate and latency", words.into())));
    let table = Table::facts("workers", facts);
    Ok(Some((table, format!("plan for it: `plimsoll tune --workers {count} --interconnect {interconnect}`"))))
}

/// Warning that rate and latency mispredict other message sizes, with advice; `None` if they predict them.
fn off(measured_to_predicted: f64) -> Option<String> {
    let off = (measured_to_predicted - 1.0).abs();
    (off > OFF).then(|| {
        format!(
            "off by {:.0} %: a prediction of the exchange can be off by as much; end what else runs on these machines and \
             measure again, or compare with an update of `run`",
            100.0 * off
        )
    })
}

/// MPI libraries that workers could use.
fn mpi() -> Table {
    let mut table = Table::new("mpi", &[("library", "MPI libraries")]);
    let found = plimsoll_runtime::group::mpi::found();
    if found.is_empty() {
        table.rows.push(vec!["none: workers are threads of one process (`plimsoll run --workers`)".into()]);
    }
    table.rows.extend(found.into_iter().map(|library| vec![library.into()]));
    table
}

/// Folder where profiles are kept for other studies, or the reason why they are not.
fn kept_in() -> String {
    match ProfileCache::of_user().folder() {
        Some(folder) => folder.display().to_string(),
        None => "nowhere: this build has uncommitted changes, or there is no home for them".to_owned(),
    }
}

/// CUDA's state, with doubts as advice; a machine without CUDA gets one line.
fn cuda(survey: Result<Survey, RuntimeError>, advice: &mut Table) -> Vec<Table> {
    let survey = match survey {
        Ok(survey) => survey,
        Err(error) => {
            return vec![Table::facts("cuda", vec![("cuda", "CUDA", cuda_in_words(&error).into())])];
        }
    };
    let has_tf32 = survey.devices.iter().any(|(gpu, _)| gpu.has_tf32());
    let libraries = libraries(&survey, has_tf32);
    let mut devices = Table::new(
        "cuda_devices",
        &[
            ("device", "device"),
            ("name", "name"),
            ("capability", "compute capability"),
            ("multiprocessors", "multiprocessors"),
            ("memory_bytes", "memory"),
            ("free_bytes", "free"),
            ("bus", "bus"),
        ],
    );
    let mut state = Table::new(
        "cuda_state",
        &[
            ("device", "device"),
            ("pcie", "PCIe now"),
            ("pcie_best", "at best"),
            ("clock_mhz", "MHz now"),
            ("clock_best_mhz", "at best"),
            ("power_limit_watts", "watts allowed"),
            ("power_best_watts", "at most"),
            ("celsius", "°C"),
            ("slowed", "slowed by"),
            ("processes", "others on it"),
        ],
    );
    for (ordinal, (gpu, health)) in survey.devices.iter().cloned().enumerate() {
        if health != Health::default() {
            state.rows.push(state_of(ordinal, &health));
        }
        for warning in health.warnings(&Health::default()) {
            let todo = match warning {
                Warning::Shared(_) => "wait for its end, or take another device",
                Warning::Slowed(_) => {
                    "see to its cooling, its power limit and its clocks (`nvidia-smi -q -d PERFORMANCE`)"
                }
            };
            advice.rows.push(vec![Cell::from(format!("cuda:{ordinal}: {warning}")), todo.into()]);
        }
        devices.rows.push(vec![
            format!("cuda:{ordinal}").into(),
            gpu.name.into(),
            gpu.capability.to_string().into(),
            u64::from(gpu.multiprocessors).into(),
            gpu.memory.into(),
            health.memory_bytes.now.into(),
            gpu.bus.into(),
        ]);
    }
    let mut tables = vec![libraries, devices, started(survey.devices.len(), advice)];
    tables.extend((!state.rows.is_empty()).then_some(state));
    tables
}

/// Versions and paths of the driver and of the libraries.
fn libraries(survey: &Survey, has_tf32: bool) -> Table {
    let version = |(major, minor)| format!("{major}.{minor}");
    let compiler = match &survey.compiler {
        Ok((path, number)) => format!("{}, in {}", version(*number), path.display()),
        Err(error) => cuda_in_words(error),
    };
    let cublas = match &survey.cublas {
        Ok(path) => path.display().to_string(),
        Err(error) => cuda_in_words(error),
    };
    let cudnn = match &survey.cudnn {
        Ok((path, (major, minor, patch))) => format!("{major}.{minor}.{patch}, in {}", path.display()),
        Err(error) => cuda_in_words(error),
    };
    let nccl = match &survey.nccl {
        Ok((path, number)) => format!("{number}, in {}", path.display()),
        Err(error) => error.to_string(),
    };
    let tf32 = "convolutions, by default, where cuDNN or cuBLAS computes them; our own kernels (the alternative `own_f32`) \
                multiply in f32";
    let mut facts = vec![
        ("driver_version", "driver", survey.driver_version.as_ref().ok().cloned().into()),
        ("cuda_version", "CUDA of the driver", version(survey.version).into()),
        ("driver_library", "driver's library", survey.driver.display().to_string().into()),
        ("nvrtc", "NVRTC", compiler.into()),
        ("cublas", "cuBLAS", cublas.into()),
        ("cudnn", "cuDNN", cudnn.into()),
        ("nccl", "NCCL, for --nccl", nccl.into()),
        (
            "nvml",
            "NVML",
            survey.driver_version.as_ref().map_or_else(ToString::to_string, |_| "it answers".into()).into(),
        ),
    ];
    facts.extend(has_tf32.then(|| ("tf32", "multiplied in TF32", tf32.into())));
    Table::facts("cuda", facts)
}

/// Network whose convolutions are looked up, and the side of its images: small enough for a quick test of all of them.
const ASKED: (&str, u32) = ("resnet20", 16);

/// Kernels and libraries that start on each device, as a training would use them. Failures become advice.
fn started(devices: usize, advice: &mut Table) -> Table {
    let mut table = Table::new(
        "cuda_kernels",
        &[
            ("device", "device"),
            ("code", "own kernels"),
            ("kept", "kept in"),
            ("libraries", "cuDNN and cuBLAS"),
            ("convolutions", "passes of resnet20's convolutions"),
        ],
    );
    for ordinal in 0..u32::try_from(devices).unwrap_or(u32::MAX) {
        let name = format!("cuda:{ordinal}");
        let options = CudaOptions { ordinal, precision: None, ..CudaOptions::default() };
        let row = match CudaDevice::open(&options) {
            Ok(device) => {
                let KernelCode { target, kept } = device.code().clone();
                let kind = if target.starts_with("sm_") { "machine code" } else { "PTX" };
                let kept = kept
                    .map_or("nowhere: compiled at each start".to_owned(), |file| file.display().to_string());
                let convolutions = convolutions(&device).map_or_else(
                    |why| format!("none: {why}"),
                    |all| format!("the libraries compute all {all}"),
                );
                [format!("{kind} for {target}"), kept, "they start".to_owned(), convolutions]
            }
            Err(error) => {
                let what = format!("{name} does not start: {error}");
                advice.rows.push(vec![Cell::from(what), cuda_in_words(&error).into()]);
                ["none".to_owned(), "nowhere".to_owned(), "not started".to_owned(), "not asked".to_owned()]
            }
        };
        table.rows.push([name].into_iter().chain(row).map(Cell::from).collect());
    }
    table
}

/// Number of convolution passes of [`ASKED`]'s network, all of which the libraries must compute; or the reason why
/// they do not.
fn convolutions(device: &CudaDevice) -> Result<usize, Refusal> {
    let (name, side) = ASKED;
    let spec = NetworkSpec { image: [side; 2], ..usual(name).expect("it is in the zoo") };
    let network = build(&spec).expect("it can be built");
    let program = lower(&network, 1, &LowerOptions::default()).expect("it can be lowered");
    let is_convolution = |call: &Call| {
        matches!(
            call,
            Call::ConvForward { .. } | Call::ConvBackwardData { .. } | Call::ConvBackwardFilter { .. }
        )
    };
    let mut all = 0;
    for call in program.kernels.iter().map(|kernel| &kernel.call).filter(|call| is_convolution(call)) {
        device.alternatives(call);
        if let Some(refusal) = device.fault() {
            return Err(refusal);
        }
        all += 1;
    }
    Ok(all)
}

/// Row with the present state of a device.
fn state_of(ordinal: usize, health: &Health) -> Vec<Cell> {
    let number = |of: Option<u32>| of.map(u64::from);
    let watts = |of: Option<f64>| of.map_or(Cell::None, |watts| Cell::Number(watts, 0));
    let words = |of: Option<PcieLink>| of.map(|link| link.to_string());
    let others = health.others.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    vec![
        format!("cuda:{ordinal}").into(),
        words(health.pcie.now).into(),
        words(health.pcie.best).into(),
        number(health.clock_mhz.now).into(),
        number(health.clock_mhz.best).into(),
        watts(health.power_limit_watts.now),
        watts(health.power_limit_watts.best),
        number(health.celsius).into(),
        health.slowed_by.join(", ").into(),
        others.into(),
    ]
}

/// Widest vector instructions that the kernels use here.
fn vector() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return "AVX-512";
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return "AVX2";
        }
    }
    if cfg!(target_arch = "aarch64") { "NEON" } else { "none" }
}

/// Bytes per second of a plain copy: an upper limit for an unpaced link of the CPU device.
fn copy_rate() -> Result<BytesPerSecond, Error> {
    let needed = Bytes(2 * COPY as u64);
    if let Some(available) = available_bytes().filter(|available| *available < needed) {
        return Err(RuntimeError::out_of_memory(MemoryKind::Host, needed, available, &[]).into());
    }
    let (from, mut to) = (vec![1u8; COPY], vec![2u8; COPY]);
    let mut best = f64::INFINITY;
    for _ in 0..COPIES {
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(BytesPerSecond(COPY as f64 / best))
}

#[cfg(test)]
mod tests {
    use super::off;

    #[test]
    fn a_fit_that_is_off_is_told_with_what_to_do() {
        for ratio in [0.81, 1.0, 1.19] {
            assert_eq!(off(ratio), None, "{ratio}");
        }
        for (ratio, expected) in [(0.4, "off by 60 %: "), (1.25, "off by 25 %: ")] {
            let said = off(ratio).expect("it is far off");
            assert!(said.starts_with(expected) && said.contains("measure again"), "{said}");
        }
    }
}
