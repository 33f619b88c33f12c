//! The device of a job: the CPU, a GPU, or a device modelled from its data sheet.

use crate::error::{Error, Kind};
use crate::watch::Watch;
use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::{Bytes, BytesPerSecond, Float, Precision};
use plimsoll_runtime::cuda;
use plimsoll_runtime::{Cpu, CpuOptions, CudaDevice, CudaOptions, Device, DeviceFacts, HostMemory, Hurry};
use plimsoll_tuner::model::devices::{Modelled, Sheet};
use std::rc::Rc;

/// A paced link slower than this draws a warning: no device is this slow, and the usual cause is a missing unit prefix.
const SLOW: BytesPerSecond = BytesPerSecond(1e6);

/// Device and its settings.
#[derive(Clone)]
pub enum Setup {
    Cpu(CpuOptions),
    /// An NVIDIA GPU.
    Cuda(Gpu),
    /// A device that is not present: its times and memory are modelled, and nothing runs on it.
    Modelled(Modelled),
}

/// A GPU, open from the start: only its libraries know the alternatives of a call, and the memory that they take counts.
#[derive(Clone)]
pub struct Gpu {
    options: CudaOptions,
    /// Allocates nothing; devices that allocate share its libraries.
    pub(crate) open: Rc<CudaDevice>,
}

impl Gpu {
    /// Opens the GPU, so that an unusable GPU is reported before anything is planned for it.
    pub fn open(options: CudaOptions) -> Result<Gpu, Error> {
        let open = Rc::new(CudaDevice::open(&options)?);
        Ok(Gpu { options, open })
    }

    /// Returns the GPU of worker `number`, with the same settings; `self` is worker 0's GPU.
    fn of_worker(&self, number: u32) -> Result<Gpu, Error> {
        if number == 0 {
            return Ok(self.clone());
        }
        let ordinal = gpu_of_worker(self.options.ordinal, number)?;
        Gpu::open(CudaOptions { ordinal, ..self.options.clone() })
    }

    /// Returns `true` if iterations are replayed as graphs.
    pub fn graphs(&self) -> bool {
        self.options.graphs
    }

    /// Returns `true` if every call runs by one kernel, which gives the same bits each time.
    pub fn is_deterministic(&self) -> bool {
        self.options.deterministic
    }
}

/// Returns the settings of a CPU in f32. By default all cores but one compute, which is left to the two transfer
/// streams, and the link is unpaced.
pub fn cpu_options(threads: Option<u32>, link: Option<Link>) -> CpuOptions {
    let threads = threads.unwrap_or_else(|| cores().saturating_sub(1).max(1));
    CpuOptions { threads, link, ..CpuOptions::default() }
}

/// Returns the CPU, with a warning if its link is paced very slowly; `hurry` ends the link's waiting.
pub fn processor(
    threads: Option<u32>,
    link: Option<Link>,
    feature_maps: Float,
    host: &HostMemory,
    hurry: Hurry,
    watch: &Watch<'_>,
) -> Setup {
    let host = host.clone();
    if let Some(link) = link {
        let rate = BytesPerSecond(link.offload_bytes_per_second.0.min(link.prefetch_bytes_per_second.0));
        if rate.0 < SLOW.0 {
            let time = Bytes(1 << 20) / rate;
            watch.warn(format_args!("the link is paced to {rate}: a tensor of 1 MiB takes {time} each way"));
        }
    }
    Setup::Cpu(CpuOptions { hurry, host, feature_maps, ..cpu_options(threads, link) })
}

/// Checks that this machine has a core for each of `threads` threads.
pub fn threads_are_sound(threads: Option<u32>) -> Result<(), Error> {
    let cores = cores();
    let Some(threads) = threads.filter(|threads| *threads > cores) else { return Ok(()) };
    Err(Error::usage(format_args!(
        "--threads {threads} is more than the {cores} cores that this process may use"
    ))
    .help(format_args!("give at most {cores} with --threads, or leave --threads out")))
}

impl Setup {
    /// Opens a GPU, numbered from 0, with or without graphs, with one deterministic kernel for each call or all
    /// alternatives, in a precision, by default PyTorch's. Offloaded tensors go to pinned memory.
    ///
    /// # Errors
    ///
    /// The GPU does not exist, its driver or a library is missing or too old, it lacks the precision, or it fails.
    pub fn cuda(
        ordinal: u32,
        graphs: bool,
        deterministic: bool,
        precision: Option<Precision>,
    ) -> Result<Setup, Error> {
        let options = CudaOptions { ordinal, graphs, deterministic, precision, ..CudaOptions::default() };
        Ok(Setup::Cuda(Gpu::open(options)?))
    }

    /// Returns a device that is known only by its data sheet; `precision` defaults to PyTorch's.
    ///
    /// # Errors
    ///
    /// It has no tensor cores for the precision.
    pub fn modelled(sheet: &'static Sheet, precision: Option<Precision>) -> Result<Setup, Error> {
        let has_tf32 = sheet.tf32_peak.is_some();
        let precision = precision.unwrap_or(Precision::usual(has_tf32));
        let has = match precision {
            Precision::F32 => true,
            Precision::Tf32Convolutions | Precision::Tf32 => has_tf32,
            Precision::Bf16 => sheet.bf16_peak.is_some(),
        };
        if !has {
            return Err(lacks(sheet.product, precision));
        }
        Ok(Setup::Modelled(Modelled { precision, ..Modelled::new(sheet) }))
    }

    /// Returns the precision of convolutions, matrix products and stored activations.
    pub fn precision(&self) -> Precision {
        match self {
            Setup::Cpu(options) => options.precision(),
            Setup::Cuda(gpu) => gpu.open.facts().precision,
            Setup::Modelled(device) => device.precision,
        }
    }

    /// Returns the modelled device, if it is one.
    pub fn model(&self) -> Option<Modelled> {
        if let Setup::Modelled(device) = self { Some(*device) } else { None }
    }

    /// Returns `true` for a GPU that runs every call by one kernel.
    pub fn is_deterministic(&self) -> bool {
        matches!(self, Setup::Cuda(gpu) if gpu.is_deterministic())
    }

    /// Returns the processor threads that compute; 1 if a GPU computes.
    pub fn threads(&self) -> u32 {
        if let Setup::Cpu(options) = self { options.threads.max(1) } else { 1 }
    }

    /// Checks that the workers' devices can sum by NCCL, if `nccl` asks for that.
    ///
    /// # Errors
    ///
    /// The device is the processor, or NCCL is missing here.
    pub fn takes(&self, nccl: bool) -> Result<(), Error> {
        match self {
            Setup::Cpu(_) if nccl => {
                Err(Error::usage("NCCL sums on GPUs alone").help("leave --nccl out, or choose --device cuda"))
            }
            Setup::Cuda(gpu) if nccl => {
                gpu.open.another()?.with_nccl(&gpu.options.libraries)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the pace of the link; `None` means unpaced.
    pub fn link(&self) -> Option<Link> {
        if let Setup::Cpu(options) = self { options.link } else { None }
    }

    /// Returns `true` if batch normalisations absorb the sums and ReLUs that follow them ([`plimsoll_networks::LowerOptions`]):
    /// on devices that run our kernels. Modelled devices are those of papers, whose libraries ran each layer separately.
    pub fn fuses(&self) -> bool {
        !matches!(self, Setup::Modelled(_))
    }

    /// Returns the alternatives with which the device can run a call.
    pub fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        match self {
            Setup::Cpu(options) => options.alternatives(call),
            Setup::Cuda(gpu) => gpu.open.alternatives(call),
            Setup::Modelled(device) => device.alternatives(call),
        }
    }

    /// Returns the facts known of the device.
    pub fn facts(&self) -> Result<DeviceFacts, Error> {
        let Setup::Modelled(device) = self else { return Ok(self.device()?.facts()) };
        let machine = device.machine("");
        let (name, system, threads) = (machine.device, machine.system, machine.threads);
        let (memory, precision) = (Some(device.sheet.memory), device.precision);
        Ok(DeviceFacts { name, system, threads, memory, precision })
    }

    /// Returns `true` if a device failure also loses its memory.
    pub fn can_be_lost(&self) -> bool {
        matches!(self, Setup::Cuda(_))
    }

    /// Opens the device, with nothing allocated.
    pub fn device(&self) -> Result<Box<dyn Device>, Error> {
        Ok(match self {
            Setup::Cpu(options) => Box::new(Cpu::new(options.clone())),
            Setup::Cuda(gpu) => Box::new(gpu.open.another()?),
            Setup::Modelled(device) => {
                return Err(Error::nothing_runs(device));
            }
        })
    }

    /// Opens the device of worker `number` of this process, with nothing allocated. All workers share the processor; each
    /// worker has a separate GPU, counted from the first worker's. A GPU's iterations are not graphs, so that finished results
    /// can be sent while the iteration goes on. GPUs sum by NCCL if `nccl` is set.
    ///
    /// # Errors
    ///
    /// There are fewer GPUs than workers, or a GPU's model differs from the first, for which the schedule was chosen. NCCL is
    /// requested but missing, or the device is no GPU.
    pub fn device_of_worker(&self, number: u32, nccl: bool) -> Result<Box<dyn Device>, Error> {
        self.takes(nccl)?;
        let Setup::Cuda(first) = self else { return self.device() };
        let gpu = first.of_worker(number)?;
        let [wanted, found] = [&first.open, &gpu.open].map(|gpu| gpu.facts().name);
        if found != wanted {
            let message =
                format!("worker {number} of this machine would train on {found}, and the first on {wanted}");
            return Err(Error::new(Kind::Device, message)
                .help("let the workers see GPUs of one kind only, by CUDA_VISIBLE_DEVICES"));
        }
        let device = gpu.open.another()?.without_graphs()?;
        Ok(Box::new(if nccl { device.with_nccl(&first.options.libraries)? } else { device }))
    }
}

/// Returns the ordinal of the GPU of worker `number` on its machine; worker 0 has the first.
///
/// # Errors
///
/// There are fewer GPUs.
pub fn gpu_of_worker(first: u32, number: u32) -> Result<u32, Error> {
    let (ordinal, devices) = (first.saturating_add(number), cuda::visible()?);
    if ordinal < devices {
        return Ok(ordinal);
    }
    let there = if devices == 1 { "is one GPU".to_owned() } else { format!("are {devices} GPUs") };
    let message = format!("worker {number} of this machine would train on cuda:{ordinal}, and there {there}");
    Err(Error::new(Kind::Device, message).help(
        "start at most as many workers on a machine as it has GPUs; --global-batch N gives an update of N samples on any \
         number of them",
    ))
}

/// Returns `true` if a device name in a document means the CPU: `cpu`, or with its model, `cpu: AMD EPYC 9J14`.
pub fn is_cpu(name: &str) -> bool {
    name.split(':').next() == Some("cpu")
}

/// Returns the number of cores that this process may use.
pub fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).unwrap_or(u32::MAX)
}

/// Returns the type in which the processor stores activations for a precision; `None` is its default, f32.
///
/// # Errors
///
/// It does not have the precision.
pub fn of_processor(precision: Option<Precision>) -> Result<Float, Error> {
    match precision.unwrap_or_default() {
        precision @ (Precision::F32 | Precision::Bf16) => Ok(precision.feature_maps()),
        precision @ (Precision::Tf32Convolutions | Precision::Tf32) => Err(lacks("cpu", precision)),
    }
}

/// Returns the error of a device without tensor cores for a precision.
fn lacks(device: &str, precision: Precision) -> Error {
    Error::usage(format_args!("{device} has no tensor cores for {precision}"))
        .help("leave --precision out: its default is f32 there")
}
