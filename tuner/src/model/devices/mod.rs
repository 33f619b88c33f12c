//! Devices that are not present: times of ops on them, from their vendors' data sheets.
//!
//! ```text
//! seconds of an op = LAUNCH + max(FLOPs / (peak * reach) + RAMP, bytes / (bandwidth * reach))
//! ```
//!
//! a roofline. The shares of the peak and of the bandwidth that kernels reach are known by generation (`reach.rs`), from
//! published throughputs, and so is the error of the model ([`Modelled::error`]). Only products (convolutions, fully connected
//! layers, attention) are bound by arithmetic. Their curve saturates as AccUDNN's does (Fig. 5: FLOPs / (FLOPs + x_half)), where
//! x_half is the number of FLOPs that the device computes in [`RAMP`]. Bytes are those of all operands, weights included.
//!
//! **Kernels.** A convolution with a window of 3x3 or more that steps by 1 has two alternatives: `implicit_gemm`, the usual one,
//! direct and without workspace, and a fast one with workspace, `winograd` (F(4x4, 3x3), 36 products instead of 144) for 3x3,
//! `fft` (tiles of 32x32) for larger windows: its products in f32 at the rate of direct ones, and all transformed data written
//! and read once. The workspace is the transformed data, at most [`WORKSPACE_MOST`] at once, in parts of the batch if that is
//! less. Winograd's kernels that transform on the fly, without workspace, are left out: fitted together with these two they came
//! out no faster than direct products.
//!
//! **TF32** allows tensor cores, and forbids no other kernel: products take the better rate, alternatives are the same. So it is
//! never slower.
//!
//! **bf16** halves the bytes of activations, and products are tensor cores', whose bf16 peak is twice that of TF32 or more. The
//! published rows have no throughput in bf16: products are assumed to reach the same share of that peak as of the TF32 peak,
//! since operands are half as long where tensor cores are twice as fast. Fast alternatives, whose products are f32, are left out.
//!
//! Links are PCIe. Of the rate of a x16 link of the device's generation, the plan gets the share that Euro-Par'20 measured (§6.1:
//! 12.2 GB/s of 15.75), in each direction, since all of these devices have two copy engines.
//!
//! This module deliberately models no falling clocks, other kernels' fusions, caches, or effects of transfers on ops. None of its
//! numbers is a measurement, and a profile made of it states that ([`Machine::modelled`]).

mod reach;
mod sheets;

pub use reach::{ENOUGH, GENERATIONS, Generation, Reach};
use sheets::GB;
pub use sheets::{SHEETS, SIBLINGS, Sheet};

use plimsoll_ir::document::Document;
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::{
    AlternativeSamples, BatchSamples, LinkSamples, Machine, OpSamples, Profile, ProfileKind, TransferSample,
};
use plimsoll_ir::program::{
    Access, AttentionShape, Call, ConvShape, Kernel, KernelAlternative, Operand, Program,
};
use plimsoll_ir::schedule::{Duplex, Link, Stream};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Float, Precision, Seconds};
use std::collections::HashMap;
use std::fmt;

/// Seconds to start an op: from one kernel's end to the next one's begin in a stream that is never empty.
pub const LAUNCH: Seconds = Seconds(5e-6);

/// Additional seconds of a product beyond its FLOPs at the best rate: until all multiprocessors are busy, and while the last ones
/// are.
pub const RAMP: Seconds = Seconds(10e-6);

/// Kernels compute products in tiles with sides of a multiple of this: a product with fewer rows or columns leaves the rest idle.
const TILE: u64 = 32;

/// Latency of a transfer.
const LATENCY: Seconds = Seconds(10e-6);

/// The share of a PCIe link's rate that transfers of page-locked memory get: 12.2 GB/s of 15.75 GB/s (Euro-Par'20 §6.1).
const PCIE_SHARE: f64 = 12.2 / 15.75;

/// Maximum workspace of a fast alternative, except for the part that the weights need.
pub const WORKSPACE_MOST: Bytes = Bytes(1 << 30);

/// Usual alternative of a convolution that has two.
pub const USUAL: &str = "implicit_gemm";

/// Fast alternatives, for windows of 3x3 and for larger ones.
pub const FAST: [&str; 2] = ["winograd", "fft"];

/// Returns the sheet of a device.
pub fn sheet(name: &str) -> Option<&'static Sheet> {
    SHEETS.iter().find(|sheet| sheet.name == name)
}

/// Returns the names of all devices, as a sentence lists them.
pub fn names() -> String {
    SHEETS.map(|sheet| sheet.name).join(", ")
}

/// Device of which only the data sheet is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modelled {
    /// Data sheet of the device.
    pub sheet: &'static Sheet,
    /// Shares of the sheet's numbers that its generation's kernels reach.
    pub reach: Reach,
    /// Input precision of convolutions and matrix products; TF32 or bf16 only if the sheet has that peak.
    pub precision: Precision,
    /// `true` if convolutions have a fast alternative with workspace next to the usual one; in bf16 none has.
    pub fast_alternatives: bool,
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arithmetic = match self.precision {
            Precision::F32 => "",
            Precision::Tf32Convolutions => ", convolutions in TF32",
            Precision::Tf32 => ", products in TF32",
            Precision::Bf16 => ", in bf16",
        };
        write!(f, "modelled: {}{arithmetic}", self.sheet.product)
    }
}

impl Modelled {
    /// Returns a device in f32, with all alternatives.
    pub fn new(sheet: &'static Sheet) -> Modelled {
        Modelled { sheet, reach: sheet.generation.reach, precision: Precision::F32, fast_alternatives: true }
    }

    /// Returns its link.
    pub fn link(&self) -> Link {
        // 8, 16, 32 GT/s a lane, 128 of 130 bits of them data.
        let lane = f64::from(1u32 << self.sheet.pcie) * GB * 128.0 / 130.0 / 8.0;
        let rate = BytesPerSecond((PCIE_SHARE * 16.0 * lane / 1e8).round() * 1e8);
        Link { latency_seconds: LATENCY, duplex: Duplex::Full, ..Link::symmetric(rate) }
    }

    /// Returns the error of its times as a share: nine of ten are off by no more.
    pub fn error(&self) -> f64 {
        let [in_f32, in_tf32] = self.sheet.generation.errors;
        match self.precision {
            Precision::F32 => in_f32,
            // Nothing was published about it: the larger of the two.
            Precision::Tf32Convolutions => in_f32.max(in_tf32),
            Precision::Tf32 => in_tf32,
            // Nor about bf16, for any generation.
            Precision::Bf16 => GENERATIONS.iter().flat_map(|of| of.errors).fold(0.0, f64::max),
        }
    }

    /// Returns the FLOP/s that products reach without tensor cores.
    fn f32_products(&self) -> f64 {
        self.sheet.f32_peak * self.reach.products
    }

    /// Returns the FLOP/s that the products of a call reach: of tensor cores if they are allowed and faster.
    fn products(&self, call: &Call) -> f64 {
        let f32 = self.f32_products();
        // Attention multiplies matrices.
        let in_tf32 = convolution(call)
            .map_or(self.precision == Precision::Tf32, |shape| self.precision.is_tf32(shape));
        let peak = match self.precision {
            Precision::Bf16 => self.sheet.bf16_peak,
            _ => self.sheet.tf32_peak.filter(|_| in_tf32),
        };
        match (peak, self.reach.tf32) {
            (Some(peak), Some(reach)) => f32.max(peak * reach),
            _ => f32,
        }
    }

    /// Returns the compute seconds of the usual alternative of a call.
    fn computing(&self, call: &Call) -> f64 {
        filled(call).map_or(0.0, |filled| call.flops() as f64 / (self.products(call) * filled) + RAMP.0)
    }

    /// Returns the alternatives of a call, the usual one first.
    pub fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        match self.transformed(call) {
            Some(fast) => {
                let usual = KernelAlternative { name: USUAL.to_owned(), workspace: Bytes::ZERO };
                vec![usual, KernelAlternative { name: fast.name.to_owned(), workspace: fast.workspace }]
            }
            None => KernelAlternative::sole(Bytes::ZERO),
        }
    }

    /// Returns the fast alternative of a call, if it has one.
    fn transformed(&self, call: &Call) -> Option<Transformed> {
        let fast = self.fast_alternatives && self.precision != Precision::Bf16;
        convolution(call).filter(|_| fast).and_then(Transformed::new)
    }

    /// Returns the bytes and seconds of an op in each of its alternatives.
    fn ways(&self, program: &Program, regions: &HashMap<Bytes, Bytes>, kernel: &Kernel) -> Vec<Way> {
        let memory = self.sheet.bandwidth * self.reach.memory;
        let bytes = touched(&program.trace, regions, program.feature_maps, kernel);
        let streaming = bytes / memory;
        let usual = (bytes, self.computing(&kernel.call).max(streaming));
        let fast = self.transformed(&kernel.call).map(|fast| {
            let transforming = fast.transforms / memory;
            // Libraries transform in f32 only.
            let products = (fast.flops / self.f32_products() + RAMP.0).max(transforming);
            // Transformed data is written and read once.
            (bytes + 2.0 * fast.transforms, products + transforming + streaming)
        });
        let way = |(bytes, seconds)| Way { bytes, seconds: LAUNCH + Seconds(seconds) };
        [Some(usual), fast].into_iter().flatten().map(way).collect()
    }

    /// By op of a program: the bytes and seconds of each of its alternatives.
    fn all_ways(&self, program: &Program) -> Vec<Vec<Way>> {
        let sizes = program.resident.iter().map(|region| (region.offset, Bytes(4 * region.elements())));
        let regions: HashMap<Bytes, Bytes> = sizes.collect();
        program.kernels.iter().map(|kernel| self.ways(program, &regions, kernel)).collect()
    }

    /// By op of a program that it has filled: average bytes per second between processors and memory, by its fastest alternative.
    pub fn bandwidths(&self, program: &Program) -> Vec<f64> {
        let fastest = |ways: Vec<Way>| {
            let fastest = ways.into_iter().min_by(|a, b| a.seconds.0.total_cmp(&b.seconds.0));
            fastest.map_or(0.0, |way| way.bytes / way.seconds.0)
        };
        self.all_ways(program).into_iter().map(fastest).collect()
    }

    /// Writes the seconds of every op and of its alternatives into a program's trace. The program was lowered with
    /// [`Modelled::alternatives`].
    pub fn fill(&self, program: &mut Program) {
        let all = self.all_ways(program);
        for (op, ways) in program.trace.ops.iter_mut().zip(all) {
            op.seconds = ways[0].seconds;
            op.alternatives
                .iter_mut()
                .zip(&ways[1..])
                .for_each(|(alternative, way)| alternative.seconds = way.seconds);
        }
    }

    /// Returns the machine that a measurement would name.
    pub fn machine(&self, plimsoll: &str) -> Machine {
        Machine {
            device: self.to_string(),
            threads: self.sheet.multiprocessors,
            paced: None,
            system: format!("none: a model of the device, from {}", self.sheet.source),
            precision: Some(self.precision),
            plimsoll: plimsoll.to_owned(),
            unix_seconds: 0,
            health: None,
            modelled: true,
            modelled_error: Some(self.error()),
        }
    }

    /// Returns a profile as if these programs of a network, ascending in batch and filled, had been measured, each op once.
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
        assert!(profile.validate().is_ok());
        profile
    }

    fn transfers(&self, alternative: Stream) -> Vec<TransferSample> {
        let sample = |power: u32| {
            let bytes = Bytes(1 << power);
            TransferSample { bytes, seconds: self.link().seconds(alternative, bytes) }
        };
        (16..=28).step_by(2).map(sample).collect()
    }
}

/// Cost of one alternative of an op.
struct Way {
    /// Between processors and memory.
    bytes: f64,
    seconds: Seconds,
}

/// Returns one sample of every op.
fn samples(trace: &Trace) -> BatchSamples {
    let ops = trace.ops.iter().map(|op| OpSamples {
        name: op.name.clone(),
        kind: op.kind.clone(),
        phase: op.phase,
        flops: op.flops,
        seconds: vec![op.seconds],
        alternatives: op
            .alternatives
            .iter()
            .map(|alternative| AlternativeSamples {
                name: alternative.name.clone(),
                workspace_bytes: alternative.workspace_bytes,
                seconds: vec![alternative.seconds],
            })
            .collect(),
    });
    let ops = ops.collect();
    BatchSamples { iteration_seconds: vec![trace.compute_seconds()], ops, ..BatchSamples::none(trace.batch) }
}

/// Returns the bytes that a kernel of a program with this trace, these regions and these activations reads and writes.
fn touched(trace: &Trace, regions: &HashMap<Bytes, Bytes>, feature_maps: Float, kernel: &Kernel) -> f64 {
    let each = feature_maps.bytes() as f64;
    match kernel.call {
        // A part of the tensor, and as much of the other.
        Call::ConcatPart { rows, channels, .. } => return 2.0 * each * rows as f64 * channels as f64,
        Call::SplitPart { rows, channels, accumulate, .. } => {
            let passes = if accumulate { 3.0 } else { 2.0 };
            return each * passes * rows as f64 * channels as f64;
        }
        _ => {}
    }
    // Products write scores to scratch, which the softmax reads and writes and the next product reads: four passes. Backward
    // writes them again, and their gradient: the softmax reads and writes both, and three products read them: nine passes.
    let scores = match kernel.call {
        Call::AttentionForward { shape } => 4.0 * each * pairs(shape),
        Call::AttentionBackward { shape, .. } => 9.0 * each * pairs(shape),
        _ => 0.0,
    };
    // Statistics need a separate pass over the input.
    let reads = match kernel.call {
        Call::BatchNormForward { .. } | Call::BatchNormBackward { .. } => 2.0,
        _ => 1.0,
    };
    let written = match kernel.operands.last() {
        Some(Operand::Tensor(tensor)) => trace.tensors[tensor.index()].bytes,
        _ => Bytes::ZERO,
    };
    let bytes = kernel.specified().map(|(operand, spec)| {
        let bytes = match operand {
            Operand::Tensor(tensor) => trace.tensors[tensor.index()].bytes,
            // An embedding reads one row of its table per token, as much as it writes.
            Operand::Resident(_) if matches!(kernel.call, Call::EmbeddingForward { .. }) => written,
            Operand::Resident(offset) => regions.get(&offset).copied().unwrap_or_default(),
        };
        bytes.to_f64()
            * match spec.access {
                Access::Read => reads,
                Access::Write => 1.0,
                Access::Update => 2.0,
            }
    });
    bytes.sum::<f64>() + scores
}

/// Returns the number of attention scores.
fn pairs(shape: AttentionShape) -> f64 {
    shape.batch as f64 * shape.heads as f64 * (shape.length as f64).powi(2)
}

/// Returns the shape of a convolution, in any of its three passes.
fn convolution(call: &Call) -> Option<&ConvShape> {
    match call {
        Call::ConvForward { shape }
        | Call::ConvBackwardFilter { shape, .. }
        | Call::ConvBackwardData { shape, .. } => Some(shape),
        _ => None,
    }
}

/// Returns the share of its tiles that a product fills; `None` for a call that is no product.
fn filled(call: &Call) -> Option<f64> {
    let (rows, columns) = match call {
        Call::ConvForward { shape } => (positions(shape), shape.out_channels / shape.groups),
        Call::ConvBackwardData { shape, .. } => (positions(shape), shape.in_channels / shape.groups),
        Call::ConvBackwardFilter { shape, .. } => {
            let [height, width] = shape.window.size.map(u64::from);
            let taps = u64::from(shape.in_channels / shape.groups) * height * width;
            (taps, shape.out_channels / shape.groups)
        }
        Call::AttentionForward { shape } | Call::AttentionBackward { shape, .. } => {
            (shape.length, u32::try_from(shape.width / shape.heads.max(1)).unwrap_or(u32::MAX))
        }
        _ => return None,
    };
    let of = |side: u64| side as f64 / side.max(1).next_multiple_of(TILE) as f64;
    Some(of(rows.max(1)) * of(u64::from(columns.max(1))))
}

/// Returns the outputs of a convolution in one channel.
fn positions(shape: &ConvShape) -> u64 {
    shape.batch * u64::from(shape.output[0]) * u64::from(shape.output[1])
}

/// Returns `true` if a convolution has neither stride nor dilation.
fn plain(shape: &ConvShape) -> bool {
    shape.window.stride == [1; 2] && shape.window.dilation == [1; 2]
}

/// Convolution by transforms of its tiles.
struct Transformed {
    name: &'static str,
    /// FLOPs of the products of transformed tiles.
    flops: f64,
    /// Bytes of all transformed data.
    transforms: f64,
    /// Bytes of it that are present at once.
    workspace: Bytes,
}

impl Transformed {
    /// Returns `None` for a small window, or one with stride or dilation.
    fn new(shape: &ConvShape) -> Option<Transformed> {
        let window = &shape.window;
        let [rows, columns] = window.size;
        if !plain(shape) || rows < 3 || columns < 3 || rows > FFT_SIDE / 2 || columns > FFT_SIDE / 2 {
            return None;
        }
        // Outputs of a tile each way, numbers of its transform, FLOPs of the product of two of these.
        let (name, outputs, numbers, flops) = match window.size {
            [3, 3] => (FAST[0], [4, 4], 36, 2.0),
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
