//! Data sheets of the modelled devices, and of other devices of their generations whose throughputs were published.
//!
//! This file deliberately does not state the shares of a sheet's numbers that kernels reach; these are known by generation
//! (`reach.rs`).

use super::reach::{ADA, AMPERE, Generation, HOPPER, KEPLER, MAXWELL, PASCAL, VOLTA};
use plimsoll_ir::Bytes;

/// Vendor's data sheet of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sheet {
    /// Name on the command line.
    pub name: &'static str,
    /// Product name.
    pub product: &'static str,
    /// Device memory.
    pub memory: Bytes,
    /// Host memory of a machine in which the device is common: the whole share of one such device. Each number has its source
    /// next to it.
    pub host: Bytes,
    /// Peak f32 FLOP/s, without tensor cores.
    pub f32_peak: f64,
    /// Peak TF32 FLOP/s of its tensor cores, without sparsity; `None` if they have no TF32.
    pub tf32_peak: Option<f64>,
    /// Peak bf16 FLOP/s of its tensor cores with sums in f32, without sparsity; `None` if they have no bf16.
    pub bf16_peak: Option<f64>,
    /// Bytes per second between processors and memory.
    pub bandwidth: f64,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Generation of its PCIe link, which is 16 lanes wide.
    pub pcie: u32,
    /// Generation, with the shares of these numbers that its kernels reach.
    pub generation: &'static Generation,
    /// Source of the numbers.
    pub source: &'static str,
}

pub(super) const GB: f64 = 1e9;
const TERA: f64 = 1e12;
const GIB: u64 = 1 << 30;

/// Modelled devices, in the order of their years.
pub const SHEETS: [Sheet; 8] = [
    Sheet {
        name: "k40",
        product: "NVIDIA Tesla K40",
        memory: Bytes(12 * GIB),
        // Layrub §5.1: the machine of its K40M has 256 GB.
        host: Bytes(256 * GIB),
        f32_peak: 4.29 * TERA,
        tf32_peak: None,
        bf16_peak: None,
        bandwidth: 288.0 * GB,
        multiprocessors: 15,
        pcie: 3,
        generation: &KEPLER,
        source: "NVIDIA, Tesla K40 Active Accelerator board specification (BD-06949): 12 GB, 288 GB/s, 4.29 TFLOP/s at 745 MHz",
    },
    Sheet {
        name: "m40",
        product: "NVIDIA Tesla M40 24 GB",
        memory: Bytes(24 * GIB),
        // AccUDNN §6.1: 128 GB per M40.
        host: Bytes(128 * GIB),
        f32_peak: 6.84 * TERA,
        tf32_peak: None,
        bf16_peak: None,
        bandwidth: 288.0 * GB,
        multiprocessors: 24,
        pcie: 3,
        generation: &MAXWELL,
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
        bf16_peak: None,
        bandwidth: 484.0 * GB,
        multiprocessors: 28,
        pcie: 3,
        generation: &PASCAL,
        source: "NVIDIA, GeForce GTX 1080 Ti specifications: 3,584 cores at 1,582 MHz, 11 GB, 484 GB/s",
    },
    Sheet {
        name: "v100",
        product: "NVIDIA Tesla V100 PCIe 16 GB",
        memory: Bytes(16 * GIB),
        // AWS p3.2xlarge: 61 GiB for one V100.
        host: Bytes(61 * GIB),
        f32_peak: 14.0 * TERA,
        tf32_peak: None,
        bf16_peak: None,
        bandwidth: 900.0 * GB,
        multiprocessors: 80,
        pcie: 3,
        generation: &VOLTA,
        source: "NVIDIA, Tesla V100 data sheet, V100 PCIe: 14 TFLOP/s f32, 900 GB/s, 16 GB (its tensor cores take f16 only)",
    },
    Sheet {
        name: "a100-40gb",
        product: "NVIDIA A100 40 GB PCIe",
        memory: Bytes(40 * GIB),
        // AWS p4d.24xlarge: 1,152 GiB for eight A100.
        host: Bytes(144 * GIB),
        f32_peak: 19.5 * TERA,
        tf32_peak: Some(156.0 * TERA),
        bf16_peak: Some(312.0 * TERA),
        bandwidth: 1555.0 * GB,
        multiprocessors: 108,
        pcie: 4,
        generation: &AMPERE,
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
        bf16_peak: Some(165.2 * TERA),
        bandwidth: 1008.0 * GB,
        multiprocessors: 128,
        pcie: 4,
        generation: &ADA,
        source: "NVIDIA, Ada GPU architecture whitepaper, appendix A: 82.6 TFLOP/s f32 and TF32, 1,008 GB/s, 24 GB, PCIe Gen4",
    },
    Sheet {
        name: "h100",
        product: "NVIDIA H100 SXM5 80 GB",
        memory: Bytes(80 * GIB),
        // AWS p5.48xlarge: 2 TiB for eight H100.
        host: Bytes(256 * GIB),
        f32_peak: 67.0 * TERA,
        tf32_peak: Some(494.5 * TERA),
        bf16_peak: Some(989.5 * TERA),
        bandwidth: 3350.0 * GB,
        multiprocessors: 132,
        pcie: 5,
        generation: &HOPPER,
        source: "NVIDIA, H100 Tensor Core GPU data sheet, H100 SXM: 67 TFLOP/s f32, 989 TF32 with sparsity, 3.35 \
                 TB/s, PCIe Gen5",
    },
    Sheet {
        name: "h200",
        product: "NVIDIA H200 SXM 141 GB",
        memory: Bytes(141_000_000_000),
        // AWS p5e.48xlarge: 2 TiB for eight H200.
        host: Bytes(256 * GIB),
        f32_peak: 67.0 * TERA,
        tf32_peak: Some(494.5 * TERA),
        bf16_peak: Some(989.5 * TERA),
        bandwidth: 4800.0 * GB,
        multiprocessors: 132,
        pcie: 5,
        generation: &HOPPER,
        source: "NVIDIA, H200 Tensor Core GPU data sheet, H200 SXM: 67 TFLOP/s f32, 989 TF32 with sparsity, 4.8 TB/s, 141 GB",
    },
];

/// Devices of the same generations that are not offered: published throughputs of them inform their generation. Numbers that the
/// model does not use (memory, host, link) are those of the device that is offered.
pub const SIBLINGS: [Sheet; 8] = [
    Sheet {
        name: "titan-x-maxwell",
        product: "NVIDIA GeForce GTX Titan X",
        f32_peak: 6.6 * TERA,
        bandwidth: 336.5 * GB,
        source: "NVIDIA, GeForce GTX Titan X specifications: 3,072 cores at 1,075 MHz, 336.5 GB/s",
        ..SHEETS[1]
    },
    Sheet {
        name: "titan-xp",
        product: "NVIDIA Titan Xp",
        f32_peak: 12.15 * TERA,
        bandwidth: 547.6 * GB,
        multiprocessors: 30,
        source: "NVIDIA, Titan Xp specifications: 3,840 cores at 1,582 MHz, 547.6 GB/s",
        ..SHEETS[2]
    },
    Sheet {
        name: "titan-v",
        product: "NVIDIA Titan V",
        f32_peak: 14.9 * TERA,
        bandwidth: 653.0 * GB,
        source: "NVIDIA, Titan V specifications: 5,120 cores at 1,455 MHz, 653 GB/s",
        ..SHEETS[3]
    },
    Sheet {
        name: "v100-sxm",
        product: "NVIDIA Tesla V100 SXM2",
        f32_peak: 15.7 * TERA,
        source: "NVIDIA, Tesla V100 data sheet, V100 SXM2: 15.7 TFLOP/s f32, 900 GB/s",
        ..SHEETS[3]
    },
    Sheet {
        name: "a100-40gb-sxm",
        product: "NVIDIA A100 40 GB SXM4",
        source: "NVIDIA, A100 Tensor Core GPU data sheet: as the PCIe one, with more power",
        ..SHEETS[4]
    },
    Sheet {
        name: "a100-80gb-sxm",
        product: "NVIDIA A100 80 GB SXM4",
        bandwidth: 2039.0 * GB,
        source: "NVIDIA, A100 Tensor Core GPU data sheet, A100 80GB SXM: 2,039 GB/s",
        ..SHEETS[4]
    },
    Sheet {
        name: "rtx3090",
        product: "NVIDIA GeForce RTX 3090",
        f32_peak: 35.6 * TERA,
        tf32_peak: Some(35.6 * TERA),
        bf16_peak: Some(71.0 * TERA),
        bandwidth: 936.0 * GB,
        multiprocessors: 82,
        source: "NVIDIA, Ampere GA102 GPU architecture whitepaper: 35.6 TFLOP/s f32 and TF32, 936 GB/s",
        ..SHEETS[5]
    },
    Sheet {
        name: "h100-pcie",
        product: "NVIDIA H100 PCIe 80 GB",
        f32_peak: 51.0 * TERA,
        tf32_peak: Some(378.0 * TERA),
        bf16_peak: Some(756.5 * TERA),
        bandwidth: 2000.0 * GB,
        multiprocessors: 114,
        source: "NVIDIA, H100 Tensor Core GPU data sheet, H100 PCIe: 51 TFLOP/s f32, 756 TF32 with sparsity, 2 TB/s",
        ..SHEETS[6]
    },
];
