//! Devices that are not here: what an op would take on them, from their vendors' data sheets.
//!
//! ```text
//! seconds of an op = LAUNCH + max((FLOPs + x_half) / (peak * share), bytes / (MEMORY_SHARE * bandwidth))
//! ```
//!
//! a roofline. `share` is what of the peak the device reaches in products (convolutions and fully connected layers; nothing
//! else is bound by arithmetic), and x_half makes the curve saturate as AccUDNN's does (Fig. 5: FLOPs / (FLOPs + x_half)): it is what
//! the device computes in [`RAMP`] at best. Bytes are those of all operands, weights included.
//!
//! What the shares stand on:
//! - k40: Layrub Table 5, VGGNet at batch 64: 20 iterations in 91.8 s are 1.3 TFLOP/s, 30 % of the peak with all that is no product.
//! - m40: AccUDNN Table 1, VGG-16: 51 images/s are 4.7 TFLOP/s, 69 % of the peak, with the fastest algorithms, which save
//!   multiplications ([`FAST`]); and the benchmark of Caffe2 (`caffe2/python/convnet_benchmarks.py`, cuDNN 4): VGG-A at batch 64 in
//!   1.33 s, 32 %.
//! - the others: no measurement of the papers. 60 % of the f32 peak and 40 % of the TF32 peak are assumed.
//!
//! Convolutions with windows of 3x3 and more that step by 1 have two ways in f32: `implicit_gemm`, the usual one, without
//! workspace, and a fast one with workspace, `winograd` (F(2x2, 3x3), 16 products where 36 were) for 3x3, `fft` (tiles of 32x32) for
//! larger ones: its products at the same share, and everything that is transformed written and read once. Its workspace is
//! what it transforms, at most [`WORKSPACE_MOST`] at once, in parts of the batch where that is less. In TF32 there is one way.
//!
//! Links are PCIe. Of the rate of a x16 link of the device's generation, the plan gets the share that Euro-Par'20 measured
//! (§6.1: 12.2 GB/s of 15.75), each way, since all of these devices have two copy engines.
//!
//! What it deliberately does not do: clocks that fall, other kernels' fusions, what transfers do to ops. Nothing of it is a
//! measurement, and a profile made of it says so ([`Machine::modelled`]).

use plimsoll_ir::document::Document;
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::{
    BatchSamples, LinkSamples, Machine, OpSamples, Profile, ProfileKind, TransferSample, WaySamples,
};
use plimsoll_ir::program::{Access, Call, ConvShape, Kernel, Operand, Program, Way};
use plimsoll_ir::schedule::{Duplex, Link, Stream};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use std::collections::HashMap;
use std::fmt;

/// What a device's vendor says of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sheet {
    /// As `--device` takes it.
    pub name: &'static str,
    /// The product.
    pub product: &'static str,
    /// Its memory.
    pub memory: Bytes,
    /// The host's memory, of a machine in which it is common: what there is for one such device, all of it. Where that is from
    /// stands beside the number.
    pub host: Bytes,
    /// Peak f32 FLOP/s, without tensor cores.
    pub f32_peak: f64,
    /// Peak TF32 FLOP/s of its tensor cores, without sparsity; none where they have no TF32.
    pub tf32_peak: Option<f64>,
    /// Bytes per second between processors and memory.
    pub bandwidth: f64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Generation of its PCIe link, which is 16 lanes wide.
    pub pcie: u32,
    /// What of the f32 peak products reach.
    pub share: f64,
    /// Where the numbers are from.
    pub source: &'static str,
}

const GB: f64 = 1e9;
const TERA: f64 = 1e12;
const GIB: u64 = 1 << 30;

/// The devices that are modelled, in the order of their years.
pub const SHEETS: [Sheet; 8] = [
    Sheet {
        name: "k40",
        product: "NVIDIA Tesla K40",
        memory: Bytes(12 * GIB),
        // Layrub §5.1: the machine of its K40M has 256 GB.
        host: Bytes(256 * GIB),
        f32_peak: 4.29 * TERA,
        tf32_peak: None,
        bandwidth: 288.0 * GB,
        multiprocessors: 15,
        pcie: 3,
        share: 0.35,
        source: "NVIDIA, Tesla K40 Active Accelerator board specification (BD-06949): 12 GB, 288 GB/s, 4.29 TFLOP/s at 745 MHz",
    },
    Sheet {
        name: "m40",
        product: "NVIDIA Tesla M40 24 GB",
        memory: Bytes(24 * GIB),
        // AccUDNN §6.1: 128 GB beside each M40.
        host: Bytes(128 * GIB),
        f32_peak: 6.84 * TERA,
        tf32_peak: None,
        bandwidth: 288.0 * GB,
        multiprocessors: 24,
        pcie: 3,
        share: 0.5,
        source: "NVIDIA, Tesla M40 24 GB product brief (PB-08139): 3,072 cores at 1,114 MHz, 288 GB/s",
    },
    Sheet {
        name: "gtx1080ti",
        product: "NVIDIA GeForce GTX 1080 Ti",
        memory: Bytes(11 * GIB),
        // assumed: a workstation of its time.
        host: Bytes(64 * GIB),
        f32_peak: 11.34 * TERA,
        tf32_peak: None,
        bandwidth: 484.0 * GB,
        multiprocessors: 28,
        pcie: 3,
        share: 0.6,
        source: "NVIDIA, GeForce GTX 1080 Ti specifications: 3,584 cores at 1,582 MHz, 11 GB, 484 GB/s",
    },
    Sheet {
        name: "v100",
        product: "NVIDIA Tesla V100 PCIe 16 GB",
        memory: Bytes(16 * GIB),
        // AWS p3.2xlarge: 61 GiB beside one V100.
        host: Bytes(61 * GIB),
        f32_peak: 14.0 * TERA,
        tf32_peak: None,
        bandwidth: 900.0 * GB,
        multiprocessors: 80,
        pcie: 3,
        share: 0.6,
        source: "NVIDIA, Tesla V100 data sheet, V100 PCIe: 14 TFLOP/s f32, 900 GB/s, 16 GB (its tensor cores take f16 only)",
    },
    Sheet {
        name: "a100-40gb",
        product: "NVIDIA A100 40 GB PCIe",
        memory: Bytes(40 * GIB),
        // AWS p4d.24xlarge: 1,152 GiB beside eight A100.
        host: Bytes(144 * GIB),
        f32_peak: 19.5 * TERA,
        tf32_peak: Some(156.0 * TERA),
        bandwidth: 1555.0 * GB,
        multiprocessors: 108,
        pcie: 4,
        share: 0.6,
        source: "NVIDIA, A100 Tensor Core GPU data sheet, A100 40GB PCIe: 19.5 TFLOP/s f32, 156 TF32, 1,555 GB/s, PCIe Gen4",
    },
    Sheet {
        name: "rtx4090",
        product: "NVIDIA GeForce RTX 4090",
        memory: Bytes(24 * GIB),
        // assumed: a workstation of its time.
        host: Bytes(64 * GIB),
        f32_peak: 82.6 * TERA,
        tf32_peak: Some(82.6 * TERA),
        bandwidth: 1008.0 * GB,
        multiprocessors: 128,
        pcie: 4,
        share: 0.6,
        source: "NVIDIA, Ada GPU architecture whitepaper, appendix A: 82.6 TFLOP/s f32 and TF32, 1,008 GB/s, 24 GB, PCIe Gen4",
    },
    Sheet {
        name: "h100",
        product: "NVIDIA H100 SXM5 80 GB",
        memory: Bytes(80 * GIB),
        // AWS p5.48xlarge: 2 TiB beside eight H100.
        host: Bytes(256 * GIB),
        f32_peak: 67.0 * TERA,
        tf32_peak: Some(494.5 * TERA),
        bandwidth: 3350.0 * GB,
        multiprocessors: 132,
        pcie: 5,
        share: 0.6,
        source: "NVIDIA, H100 Tensor Core GPU data sheet, H100 SXM: 67 TFLOP/s f32, 989 TF32 with sparsity, 3.35 TB/s, PCIe Gen5",
    },
    Sheet {
        name: "h200",
        product: "NVIDIA H200 SXM 141 GB",
        memory: Bytes(141_000_000_000),
        // AWS p5e.48xlarge: 2 TiB beside eight H200.
        host: Bytes(256 * GIB),
        f32_peak: 67.0 * TERA,
        tf32_peak: Some(494.5 * TERA),
        bandwidth: 4800.0 * GB,
        multiprocessors: 132,
        pcie: 5,
        share: 0.6,
        source: "NVIDIA, H200 Tensor Core GPU data sheet, H200 SXM: 67 TFLOP/s f32, 989 TF32 with sparsity, 4.8 TB/s, 141 GB",
    },
];

/// What starting an op takes.
pub const LAUNCH: Seconds = Seconds(5e-6);

/// What a product takes longer than its FLOPs at the best rate: x_half over that rate.
pub const RAMP: Seconds = Seconds(10e-6);

/// What of the memory's bandwidth ops get that stream through it.
pub const MEMORY_SHARE: f64 = 0.8;

/// What of the peak products by tensor cores reach.
const TF32_SHARE: f64 = 0.4;

/// The latency of a transfer.
const LATENCY: Seconds = Seconds(10e-6);

/// The share of a PCIe link's rate that transfers of page-locked memory get: 12.2 GB/s of 15.75 GB/s (Euro-Par'20 §6.1).
const PCIE_SHARE: f64 = 12.2 / 15.75;

/// The most workspace that a fast way takes, but for what the weights need.
pub const WORKSPACE_MOST: Bytes = Bytes(1 << 30);

/// The usual way of a convolution that has two.
pub const USUAL: &str = "implicit_gemm";

/// The fast ways, for windows of 3x3 and for larger ones.
pub const FAST: [&str; 2] = ["winograd", "fft"];

/// The sheet of a device.
pub fn sheet(name: &str) -> Option<&'static Sheet> {
    SHEETS.iter().find(|sheet| sheet.name == name)
}

/// The names of all of them, as a sentence lists them.
pub fn names() -> String {
    SHEETS.map(|sheet| sheet.name).join(", ")
}

/// A device of which only the data sheet is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modelled {
    /// What is known.
    pub sheet: &'static Sheet,
    /// Whether products are in TF32, by tensor cores; only where [`Sheet::tf32_peak`] is known.
    pub tf32: bool,
    /// Whether convolutions have a fast way with workspace beside the usual one.
    pub fast_ways: bool,
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arithmetic = if self.tf32 { ", products in TF32" } else { "" };
        write!(f, "modelled: {}{arithmetic}", self.sheet.product)
    }
}

impl Modelled {
    /// A device in f32, with all its ways.
    pub fn new(sheet: &'static Sheet) -> Modelled {
        Modelled { sheet, tf32: false, fast_ways: true }
    }

    /// Its link.
    pub fn link(&self) -> Link {
        // 8, 16, 32 GT/s a lane, 128 of 130 bits of them data.
        let lane = f64::from(1u32 << self.sheet.pcie) * GB * 128.0 / 130.0 / 8.0;
        let rate = BytesPerSecond((PCIE_SHARE * 16.0 * lane / 1e8).round() * 1e8);
        Link { latency_seconds: LATENCY, duplex: Duplex::Full, ..Link::symmetric(rate) }
    }

    /// FLOP/s that products reach.
    fn products(&self) -> f64 {
        match self.sheet.tf32_peak.filter(|_| self.tf32) {
            Some(peak) => peak * TF32_SHARE,
            None => self.sheet.f32_peak * self.sheet.share,
        }
    }

    /// How it runs a call: the usual way first.
    pub fn ways(&self, call: &Call) -> Vec<Way> {
        match self.transformed(call) {
            Some(fast) => {
                let usual = Way { name: USUAL.to_owned(), workspace: Bytes::ZERO };
                vec![usual, Way { name: fast.name.to_owned(), workspace: fast.workspace }]
            }
            None => Way::sole(Bytes::ZERO),
        }
    }

    /// The fast way of a call, where it has one.
    fn transformed(&self, call: &Call) -> Option<Transformed> {
        match call {
            _ if self.tf32 || !self.fast_ways => None,
            Call::ConvForward { shape }
            | Call::ConvBackwardFilter { shape, .. }
            | Call::ConvBackwardData { shape, .. } => Transformed::new(shape),
            _ => None,
        }
    }

    /// The seconds of an op in each of its ways.
    fn seconds(&self, trace: &Trace, regions: &HashMap<Bytes, Bytes>, kernel: &Kernel) -> Vec<Seconds> {
        let memory = self.sheet.bandwidth * MEMORY_SHARE;
        let bytes = touched(trace, regions, kernel);
        let flops = kernel.call.flops() as f64;
        let computing = |flops: f64| if flops > 0.0 { flops / self.products() + RAMP.0 } else { 0.0 };
        let usual = computing(flops).max(bytes / memory);
        let fast = self.transformed(&kernel.call).map(|fast| {
            let products = computing(fast.flops).max(fast.transforms / memory);
            products + (fast.transforms + bytes) / memory
        });
        [Some(usual), fast].into_iter().flatten().map(|seconds| LAUNCH + Seconds(seconds)).collect()
    }

    /// Writes the seconds of every op and of its alternatives into a program's trace. The program was lowered with
    /// [`Modelled::ways`].
    pub fn fill(&self, program: &mut Program) {
        let sizes = program.resident.iter().map(|region| (region.offset, Bytes(4 * region.elements())));
        let regions: HashMap<Bytes, Bytes> = sizes.collect();
        let trace = &program.trace;
        let all: Vec<Vec<Seconds>> =
            program.kernels.iter().map(|kernel| self.seconds(trace, &regions, kernel)).collect();
        for (op, seconds) in program.trace.ops.iter_mut().zip(all) {
            op.seconds = seconds[0];
            op.alternatives.iter_mut().zip(&seconds[1..]).for_each(|(way, seconds)| way.seconds = *seconds);
        }
    }

    /// What a measurement would stand on.
    pub fn machine(&self, plimsoll: &str) -> Machine {
        Machine {
            device: self.to_string(),
            threads: self.sheet.multiprocessors,
            paced: None,
            system: format!("none: a model of the device, from {}", self.sheet.source),
            plimsoll: plimsoll.to_owned(),
            unix_seconds: 0,
            health: None,
            modelled: true,
        }
    }

    /// A profile as if these programs of a network, ascending in batch and filled, had been measured, each op once.
    pub fn profile(
        &self,
        network: &NetworkSpec,
        budget: Bytes,
        programs: &[Program],
        plimsoll: &str,
    ) -> Profile {
        let (out, back) = (self.transfers(Stream::Offload), self.transfers(Stream::Prefetch));
        let link = LinkSamples {
            offload_together: out.clone(),
            prefetch_together: back.clone(),
            offload_alone: out,
            prefetch_alone: back,
            pageable: None,
            beside: None,
        };
        let profile = Profile {
            kind: ProfileKind,
            network: network.clone(),
            machine: self.machine(plimsoll),
            budget_bytes: budget,
            overhead_seconds: Seconds::ZERO,
            link,
            batches: programs.iter().map(|program| samples(&program.trace)).collect(),
        };
        debug_assert!(profile.validate().is_ok());
        profile
    }

    fn transfers(&self, way: Stream) -> Vec<TransferSample> {
        let sample = |power: u32| {
            let bytes = Bytes(1 << power);
            TransferSample { bytes, seconds: self.link().seconds(way, bytes) }
        };
        (16..=28).step_by(2).map(sample).collect()
    }
}

/// One sample of every op.
fn samples(trace: &Trace) -> BatchSamples {
    let ops = trace.ops.iter().map(|op| OpSamples {
        name: op.name.clone(),
        kind: op.kind.clone(),
        phase: op.phase,
        flops: op.flops,
        seconds: vec![op.seconds],
        ways: op
            .alternatives
            .iter()
            .map(|way| WaySamples {
                name: way.name.clone(),
                workspace_bytes: way.workspace_bytes,
                seconds: vec![way.seconds],
            })
            .collect(),
    });
    let ops = ops.collect();
    BatchSamples { iteration_seconds: vec![trace.compute_seconds()], ops, ..BatchSamples::none(trace.batch) }
}

/// The bytes that a kernel reads and writes.
fn touched(trace: &Trace, regions: &HashMap<Bytes, Bytes>, kernel: &Kernel) -> f64 {
    match kernel.call {
        // A part of the tensor, and as much of the other.
        Call::ConcatPart { rows, channels, .. } => return 8.0 * rows as f64 * channels as f64,
        Call::SplitPart { rows, channels, accumulate, .. } => {
            let passes = if accumulate { 3.0 } else { 2.0 };
            return 4.0 * passes * rows as f64 * channels as f64;
        }
        Call::PadPart { rows, channels, accumulate: true, .. } => {
            return 12.0 * rows as f64 * channels as f64;
        }
        _ => {}
    }
    // Statistics need a pass of their own over what is read.
    let reads = match kernel.call {
        Call::BatchNormForward { .. } | Call::BatchNormBackward { .. } => 2.0,
        _ => 1.0,
    };
    let written = match kernel.operands.last() {
        Some(Operand::Tensor(tensor)) => trace.tensors[tensor.index()].bytes,
        _ => Bytes::ZERO,
    };
    let operands = kernel.operands.iter().zip(kernel.call.accesses());
    let bytes = operands.map(|(operand, access)| {
        let bytes = match operand {
            Operand::Tensor(tensor) => trace.tensors[tensor.index()].bytes,
            // Of its table an embedding reads a row for each token, which is what it writes.
            Operand::Resident(_) if matches!(kernel.call, Call::EmbeddingForward { .. }) => written,
            Operand::Resident(offset) => regions.get(offset).copied().unwrap_or_default(),
        };
        bytes.0 as f64
            * match access {
                Access::Read => reads,
                Access::Write => 1.0,
                Access::Update => 2.0,
            }
    });
    bytes.sum()
}

/// A convolution by transforms of its tiles.
struct Transformed {
    name: &'static str,
    /// Of the products of transformed tiles.
    flops: f64,
    /// Bytes of all that is transformed.
    transforms: f64,
    /// What of it is there at once.
    workspace: Bytes,
}

impl Transformed {
    /// None for a window that is small, or that steps or is spread.
    fn new(shape: &ConvShape) -> Option<Transformed> {
        let window = &shape.window;
        let [rows, columns] = window.size;
        let plain = window.stride == [1; 2] && window.dilation == [1; 2];
        if !plain || rows < 3 || columns < 3 || rows > FFT_SIDE / 2 || columns > FFT_SIDE / 2 {
            return None;
        }
        // Outputs of a tile each way, numbers of its transform, FLOPs of the product of two of these.
        let (name, outputs, numbers, flops) = match window.size {
            [3, 3] => (FAST[0], [2, 2], 16, 2.0),
            // Half a spectrum of complex numbers, two numbers each; a product of two takes 8 FLOPs.
            size => (FAST[1], size.map(|n| FFT_SIDE + 1 - n), u64::from(FFT_SIDE * (FFT_SIDE / 2 + 1)), 8.0),
        };
        let tile_bytes = if name == FAST[0] { 4 * numbers } else { 8 * numbers };
        let [down, across] = [0, 1].map(|d| u64::from(shape.output[d].div_ceil(outputs[d])));
        let tiles = shape.batch * down * across;
        let (input, output) = (u64::from(shape.in_channels), u64::from(shape.out_channels));
        let pairs = input / u64::from(shape.groups) * output;
        let maps = |tiles: u64| tile_bytes.saturating_mul(tiles).saturating_mul(input + output);
        let at_once = maps(tiles).min(WORKSPACE_MOST.0.max(maps(1)));
        Some(Transformed {
            name,
            flops: flops * numbers as f64 * tiles as f64 * pairs as f64,
            transforms: (maps(tiles) + tile_bytes * pairs) as f64,
            workspace: Bytes(at_once + tile_bytes * pairs),
        })
    }
}

/// Rows and columns of a tile of `fft`.
const FFT_SIDE: u32 = 32;
