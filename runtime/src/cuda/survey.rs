//! CUDA installation of a machine, for callers that ask before using it.
//!
//! Deliberately does not open a device, or start a library on one.

use super::compile::Compiler;
use super::driver::{Driver, GpuFacts};
use super::health::Management;
use super::libraries::{cublas, cudnn};
use super::nccl;
use super::presence::Search;
use crate::error::Error;
use plimsoll_ir::health::Health;
use std::path::PathBuf;

/// CUDA installation of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// The driver's file.
    pub driver: PathBuf,
    /// Version of CUDA that the driver supports.
    pub version: (u32, u32),
    /// The driver's own version from NVML, such as `580.65.06`, or why it is unknown.
    pub driver_version: Result<String, Error>,
    /// The devices in the driver's order, and the present health of each, as far as NVML reports it.
    pub devices: Vec<(GpuFacts, Health)>,
    /// NVRTC's file and version, or why it is missing.
    pub compiler: Result<(PathBuf, (u32, u32)), Error>,
    /// cuBLAS's file, or why it is missing.
    pub cublas: Result<PathBuf, Error>,
    /// cuDNN's file and version, or why it is missing.
    pub cudnn: Result<(PathBuf, (u32, u32, u32)), Error>,
    /// NCCL's file and version, or why it is missing; only sums by NCCL need it.
    pub nccl: Result<(PathBuf, String), Error>,
}

/// Surveys the installation without using a device.
pub fn survey() -> Result<Survey, Error> {
    let search = Search::new(&[]);
    let driver = Driver::start(&search)?;
    let management = Management::start(&search);
    let health = |gpu: &GpuFacts| management.as_ref().map_or(Health::default(), |nvml| nvml.health(&gpu.bus));
    let device = |number| driver.facts(number).map(|gpu| (gpu.clone(), health(&gpu)));
    let devices = (0..driver.devices()?).map(device).collect::<Result<Vec<_>, _>>()?;
    let driver_version = management.and_then(|nvml| nvml.driver_version());
    let version = driver.version()?;
    let compiler = Compiler::load(&search, version).map(|c| (c.path().to_owned(), c.version()));
    Ok(Survey {
        driver: driver.path().to_owned(),
        version,
        driver_version,
        devices,
        compiler,
        cublas: cublas::look(&search, version),
        cudnn: cudnn::look(&search),
        nccl: nccl::look(&search),
    })
}

/// Number of devices that this process sees.
pub fn visible() -> Result<u32, Error> {
    Ok(Driver::start(&Search::new(&[]))?.devices()?)
}
