//! The device that a job is for: the processor, a GPU, or one that is modelled from its data sheet.

use crate::error::{Error, SetupError};
use crate::watch::Watch;
use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::{Bytes, BytesPerSecond, Float, Precision};
use plimsoll_runtime::cuda;
use plimsoll_runtime::{Cpu, CpuOptions, CudaDevice, CudaOptions, Device, DeviceFacts, RuntimeError};
use plimsoll_tuner::model::devices::{Modelled, Sheet};
use std::rc::Rc;

/// A paced link below this draws a warning: no device has such a one, and a missing prefix of a unit looks like it.
const SLOW: BytesPerSecond = BytesPerSecond(1e6);

/// Which device, and how it is set up.
#[derive(Clone)]
pub enum Setup {
    /// The processor.
    Cpu(CpuOptions),
    /// An NVIDIA GPU.
    Cuda(Gpu),
    /// A device that is not here: what it would take is known, and nothing runs on it.
    Modelled(Modelled),
}

/// A GPU: open from the start, since only its libraries know the alternatives of a call, and what they take of it counts.
#[derive(Clone)]
pub struct Gpu {
    options: CudaOptions,
    /// Allocates nothing; those that do share its libraries.
    pub(crate) open: Rc<CudaDevice>,
}

impl Gpu {
    /// Opens it, so that one that cannot be used is said before anything is planned for it.
    pub fn open(options: CudaOptions) -> Result<Gpu, Error> {
        let open = Rc::new(CudaDevice::open(&options)?);
        Ok(Gpu { options, open })
    }

    /// The GPU of the worker with this number, where worker 0 has this one: set up alike.
    fn of_worker(&self, number: u32) -> Result<Gpu, Error> {
        if number == 0 {
            return Ok(self.clone());
        }
        let ordinal = gpu_of_worker(self.options.ordinal, number)?;
        Gpu::open(CudaOptions { ordinal, ..self.options.clone() })
    }

    /// Whether it replays iterations as graphs.
    pub fn graphs(&self) -> bool {
        self.options.graphs
    }

    /// Whether it runs every call by one kernel, which gives the same bits each time.
    pub fn is_deterministic(&self) -> bool {
        self.options.deterministic
    }
}

/// The processor in f32 with so many threads, by default all cores but one, which is left to the two transfer streams, and a
/// link of this pace, by default as fast as it goes.
pub fn cpu_options(threads: Option<u32>, link: Option<Link>) -> CpuOptions {
    let threads = threads.unwrap_or_else(|| cores().saturating_sub(1).max(1));
    CpuOptions { threads, link, ..CpuOptions::default() }
}

impl Setup {
    /// A GPU, by its number from 0, with or without graphs, with one deterministic kernel for each call or all alternatives, in
    /// a precision, by default PyTorch's. What is offloaded goes to pinned memory.
    ///
    /// # Errors
    ///
    /// There is no such GPU, its driver or a library is missing or too old, it lacks the precision, or it refuses.
    pub fn cuda(
        ordinal: u32,
        graphs: bool,
        deterministic: bool,
        precision: Option<Precision>,
    ) -> Result<Setup, Error> {
        let options = CudaOptions { ordinal, graphs, deterministic, precision, ..CudaOptions::default() };
        Ok(Setup::Cuda(Gpu::open(options)?))
    }

    /// A device of which only the data sheet is known, in a precision, by default PyTorch's.
    ///
    /// # Errors
    ///
    /// It has no tensor cores for the precision.
    pub fn modelled(sheet: &'static Sheet, precision: Option<Precision>) -> Result<Setup, SetupError> {
        let has_tf32 = sheet.tf32_peak.is_some();
        let precision = precision.unwrap_or(Precision::usual(has_tf32));
        let has = match precision {
            Precision::F32 => true,
            Precision::Tf32Convolutions | Precision::Tf32 => has_tf32,
            Precision::Bf16 => sheet.bf16_peak.is_some(),
        };
        if !has {
            return Err(SetupError::Precision { device: sheet.product.to_owned(), precision });
        }
        Ok(Setup::Modelled(Modelled { precision, ..Modelled::new(sheet) }))
    }

    /// In what convolutions and matrix products multiply, and feature maps are stored.
    pub fn precision(&self) -> Precision {
        match self {
            Setup::Cpu(options) => options.precision(),
            Setup::Cuda(gpu) => gpu.open.facts().precision,
            Setup::Modelled(device) => device.precision,
        }
    }

    /// Warns of a paced link on which training takes hours for what others do in a second.
    pub fn warn_of_slow_link(&self, watch: &Watch<'_>) {
        let Some(link) = self.link() else { return };
        let rate = BytesPerSecond(link.offload_bytes_per_second.0.min(link.prefetch_bytes_per_second.0));
        if rate.0 < SLOW.0 {
            let tensor = Bytes(1 << 20);
            watch.warn(format_args!(
                "the link is paced to {rate}: a tensor of 1 MiB takes {} each way",
                tensor / rate
            ));
        }
    }

    /// The device that is modelled, where it is.
    pub fn model(&self) -> Option<Modelled> {
        if let Setup::Modelled(device) = self { Some(*device) } else { None }
    }

    /// Whether it is a GPU that runs every call by one kernel.
    pub fn is_deterministic(&self) -> bool {
        matches!(self, Setup::Cuda(gpu) if gpu.is_deterministic())
    }

    /// Threads of the processor that compute; 1 where a GPU does.
    pub fn threads(&self) -> u32 {
        if let Setup::Cpu(options) = self { options.threads.max(1) } else { 1 }
    }

    /// Makes sure that the workers' devices can sum by NCCL, where that is asked for.
    ///
    /// # Errors
    ///
    /// It is the processor, or NCCL is missing here.
    pub fn takes(&self, nccl: bool) -> Result<(), Error> {
        match self {
            Setup::Cpu(_) if nccl => Err(SetupError::NcclWithoutGpu.into()),
            Setup::Cuda(gpu) if nccl => {
                gpu.open.another()?.with_nccl(&gpu.options.libraries)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The pace of the link; none for as fast as it goes.
    pub fn link(&self) -> Option<Link> {
        if let Setup::Cpu(options) = self { options.link } else { None }
    }

    /// Whether batch normalisations take over the sums and ReLUs that follow them ([`plimsoll_networks::LowerOptions`]): on
    /// devices whose kernels are ours. The modelled ones are those of papers, whose libraries ran each layer by itself.
    pub fn fuses(&self) -> bool {
        !matches!(self, Setup::Modelled(_))
    }

    /// How the device can run a call.
    pub fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        match self {
            Setup::Cpu(options) => options.alternatives(call),
            Setup::Cuda(gpu) => gpu.open.alternatives(call),
            Setup::Modelled(device) => device.alternatives(call),
        }
    }

    /// What is known of the device.
    pub fn facts(&self) -> Result<DeviceFacts, Error> {
        let Setup::Modelled(device) = self else { return Ok(self.device()?.facts()) };
        let machine = device.machine("");
        let (name, system, threads) = (machine.device, machine.system, machine.threads);
        let (memory, precision) = (Some(device.sheet.memory), device.precision);
        Ok(DeviceFacts { name, system, threads, memory, precision })
    }

    /// Whether a failure takes the device's memory along.
    pub fn can_be_lost(&self) -> bool {
        matches!(self, Setup::Cuda(_))
    }

    /// The device, with nothing allocated.
    pub fn device(&self) -> Result<Box<dyn Device>, Error> {
        Ok(match self {
            Setup::Cpu(options) => Box::new(Cpu::new(options.clone())),
            Setup::Cuda(gpu) => Box::new(gpu.open.another()?),
            Setup::Modelled(device) => {
                return Err(SetupError::NothingRuns { device: device.to_string() }.into());
            }
        })
    }

    /// The device of one of several workers, with this number among those of this process, with nothing allocated: the
    /// processor for all, or each its own of the GPUs from the first worker's on. A GPU's iterations are no graphs, so that
    /// what they complete can be sent while they go on; GPUs sum by NCCL where that is asked for.
    ///
    /// # Errors
    ///
    /// There are fewer GPUs than workers, or another is of another kind: the schedule was chosen for the first. NCCL is asked
    /// for and missing, or this is no GPU.
    pub fn device_of_worker(&self, number: u32, nccl: bool) -> Result<Box<dyn Device>, Error> {
        self.takes(nccl)?;
        let Setup::Cuda(first) = self else { return self.device() };
        let gpu = first.of_worker(number)?;
        let [wanted, found] = [&first.open, &gpu.open].map(|gpu| gpu.facts().name);
        if found != wanted {
            return Err(SetupError::OtherGpu { number, found, wanted }.into());
        }
        let device = gpu.open.another()?.without_graphs().map_err(RuntimeError::Device)?;
        Ok(Box::new(if nccl { device.with_nccl(&first.options.libraries)? } else { device }))
    }
}

/// The GPU of the worker with this number on its machine, where worker 0 has the first.
///
/// # Errors
///
/// There are fewer.
pub fn gpu_of_worker(first: u32, number: u32) -> Result<u32, Error> {
    let (ordinal, devices) = (first.saturating_add(number), cuda::visible()?);
    if ordinal < devices {
        Ok(ordinal)
    } else {
        Err(SetupError::TooFewGpus { number, ordinal, devices }.into())
    }
}

/// Whether a document's name of a device means the CPU: `cpu`, or with its model, `cpu: AMD EPYC 9J14`.
pub fn is_cpu(name: &str) -> bool {
    name.split(':').next() == Some("cpu")
}

/// The cores that this process may use.
pub fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).unwrap_or(u32::MAX)
}

/// In what the processor stores feature maps in a precision; none is its default, f32.
///
/// # Errors
///
/// It does not have the precision.
pub fn of_processor(precision: Option<Precision>) -> Result<Float, SetupError> {
    match precision.unwrap_or_default() {
        precision @ (Precision::F32 | Precision::Bf16) => Ok(precision.feature_maps()),
        precision @ (Precision::Tf32Convolutions | Precision::Tf32) => {
            Err(SetupError::Precision { device: "cpu".to_owned(), precision })
        }
    }
}

/// Makes sure that this machine has a core for each of so many threads.
pub fn as_many_cores(threads: u32) -> Result<(), SetupError> {
    let cores = cores();
    if threads <= cores {
        return Ok(());
    }
    Err(SetupError::Threads { threads, cores })
}
