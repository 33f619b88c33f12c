//! Shares of their device's data sheet that kernels reach, by generation, and the error of the model based on them.
//!
//! A generation has two numbers, each a share of a number of the sheet. They are fitted to the published throughputs of three
//! networks that stress different ones: `resnet50` (memory), `vgg16` (convolutions), `bert-large` (products of matrices). All
//! other networks are held out, and give the error. Rows, addresses and the fit are in `benches/devices`; `tests/modelled.rs`
//! checks that the numbers here are its result. `cargo bench --bench devices -- fit` computes them again.

/// Shares of their device's data sheet that kernels reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Products of matrices and direct convolutions, of the f32 peak.
    pub products: f64,
    /// Products by tensor cores in TF32, of their peak; `None` if they have no TF32. Far below `products`: operands stay 4 bytes
    /// long, so that the caches deliver only a fraction of the tensor cores' demand.
    pub tf32: Option<f64>,
    /// Bytes of ops that stream through memory, of its bandwidth. Refreshing, turning around and error correction take 10 to 20 %
    /// of it; the rest is data that frameworks' kernels read and write more often than their operands require.
    pub memory: f64,
}

/// Generation of devices: the kernels that libraries have for it are the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    pub name: &'static str,
    /// Shares that its kernels reach.
    pub reach: Reach,
    /// Distance of nine of ten published iterations from the model, as a share, in f32 and in TF32: of the networks that it was
    /// not fitted to. If fewer than [`ENOUGH`] were published, that of all generations together, if that is more; if none was,
    /// the largest of any generation.
    pub errors: [f64; 2],
}

/// Number of held-out throughputs that suffice for a generation's own error.
pub const ENOUGH: usize = 6;

/// Tesla K40. Its one fitted row does not determine the memory share, so that is Maxwell's. Products reach little: a
/// multiprocessor has registers and schedulers for two thirds of its lanes.
pub const KEPLER: Generation = Generation {
    name: "Kepler",
    reach: Reach { products: 0.32, tf32: None, memory: MAXWELL.reach.memory },
    errors: [0.37; 2],
};

/// Tesla M40, GTX Titan X. The error is large because the rows scatter: one chip trains VGG-16 at 47 to 83 images/s by library,
/// and ResNets under Caffe at half the speed of Torch.
pub const MAXWELL: Generation = Generation {
    name: "Maxwell",
    reach: Reach { products: 0.79, tf32: None, memory: 0.39 },
    errors: [0.65; 2],
};

/// GTX 1080 Ti, Titan Xp.
pub const PASCAL: Generation = Generation {
    name: "Pascal",
    reach: Reach { products: 0.63, tf32: None, memory: 0.57 },
    errors: [0.22; 2],
};

/// Tesla V100, Titan V.
pub const VOLTA: Generation = Generation {
    name: "Volta",
    reach: Reach { products: 0.67, tf32: None, memory: 0.71 },
    errors: [0.21; 2],
};

/// A100. The rows have no throughput in f32: its f32 kernels are assumed to be Volta's.
pub const AMPERE: Generation = Generation {
    name: "Ampere",
    reach: Reach { products: VOLTA.reach.products, tf32: Some(0.41), memory: 0.63 },
    errors: [0.65, 0.37],
};

/// RTX 4090; and RTX 3090, whose multiprocessors compute at the same rate per clock. Both have one peak in f32 and in TF32, and
/// were reported to reach the same share of it (github.com/NVIDIA/cutlass/discussions/390): TF32 gains nothing.
pub const ADA: Generation = Generation {
    name: "Ada",
    reach: Reach { products: 0.56, tf32: Some(0.56), memory: 0.80 },
    errors: [0.65, 0.37],
};

/// H100, H200. In f32 as Ampere.
pub const HOPPER: Generation = Generation {
    name: "Hopper",
    reach: Reach { products: VOLTA.reach.products, tf32: Some(0.37), memory: 0.53 },
    errors: [0.65, 0.37],
};

/// All generations, in the order of their years.
pub const GENERATIONS: [Generation; 7] = [KEPLER, MAXWELL, PASCAL, VOLTA, AMPERE, ADA, HOPPER];
