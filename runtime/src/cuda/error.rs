//! Reasons why there is no device `cuda`, split by what the user can do; and the driver's refusals as errors of a device.
//!
//! Each is one message: the thing sought, the place, and the remedy. Nothing here panics: a machine without CUDA is the
//! usual case.

use crate::device::DeviceError;
use plimsoll_ir::Precision;
use std::path::PathBuf;

/// Reason why a device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// A library was not found.
    #[error("{library} is not on this machine: looked for {files} {places}; {what_to_do}")]
    Missing {
        /// Its description.
        library: &'static str,
        /// Its file names, separated by commas.
        files: String,
        /// Places searched.
        places: String,
        /// Remedy.
        what_to_do: &'static str,
        /// Substitute, if any.
        instead: Option<Instead>,
    },
    /// A library exists, but the system cannot load it.
    #[error("`{}` cannot be loaded: {why}; mend it, or remove its folder from where libraries are searched", path.display())]
    Unloadable {
        /// The library's file.
        path: PathBuf,
        /// The system's message.
        why: String,
    },
    /// A library lacks a function: it is older than Plimsoll needs.
    #[error("`{}` is too old: it has no `{symbol}`; {what_to_do}", path.display())]
    TooOld {
        /// The library's file.
        path: PathBuf,
        /// The missing function.
        symbol: &'static str,
        /// Remedy.
        what_to_do: &'static str,
        /// Substitute, if any.
        instead: Option<Instead>,
    },
    /// `CUDA_VISIBLE_DEVICES` leaves no device.
    #[error(
        "CUDA_VISIBLE_DEVICES is `{value}`, which leaves no device to see; unset it, or name devices that `nvidia-smi -L` \
         lists, such as CUDA_VISIBLE_DEVICES=0"
    )]
    Visible {
        /// Value of the variable.
        value: String,
    },
    /// The driver works but sees no device.
    #[error(
        "the driver `{}` sees no CUDA device; `nvidia-smi -L` lists those of the machine, and a container must be given them",
        path.display()
    )]
    NoDevice {
        /// The driver's file.
        path: PathBuf,
    },
    /// There are devices, but not this one.
    #[error("there is no device cuda:{ordinal}: {}", range(*devices))]
    Ordinal {
        /// The requested device.
        ordinal: u32,
        /// Number of devices, at least 1.
        devices: u32,
    },
    /// The driver's kernel module, permissions or version prevent its start.
    #[error("the driver `{}` does not start: {refusal}; {what_to_do}", path.display())]
    Start {
        /// The driver's file.
        path: PathBuf,
        /// The driver's answer.
        refusal: Refusal,
        /// Remedy.
        what_to_do: &'static str,
    },
    /// Another process uses the device exclusively, or it cannot be used.
    #[error("cuda:{ordinal} cannot be used: {refusal}; {what_to_do}")]
    Device {
        /// Index of the device.
        ordinal: u32,
        /// The driver's answer.
        refusal: Refusal,
        /// Remedy.
        what_to_do: &'static str,
    },
    /// NVRTC cannot compile for a device as old as this.
    #[error(
        "NVRTC `{}` makes code for compute capability {least} at least, and {device} has {capability}; put an older NVRTC \
         first with PLIMSOLL_CUDA_LIBRARIES=FOLDER", path.display()
    )]
    Capability {
        /// NVRTC's file.
        path: PathBuf,
        /// Least capability that it supports.
        least: Capability,
        /// The device's name.
        device: String,
        /// The device's capability.
        capability: Capability,
    },
    /// The device does not support the requested precision.
    #[error(
        "{device} has compute capability {capability}, and no tensor cores for {precision}, which came with 8.0; compute in \
         f32, as is the default there"
    )]
    Precision {
        /// The device's name.
        device: String,
        /// The device's capability.
        capability: Capability,
        /// The requested precision.
        precision: Precision,
    },
    /// The kernels do not compile: a bug of ours, or an NVRTC that reads them differently.
    #[error("the kernels do not compile with NVRTC `{}`: {log}", path.display())]
    Compile {
        /// NVRTC's file.
        path: PathBuf,
        /// Its log, or its status code.
        log: String,
    },
    /// The driver does not load the compiled kernels.
    #[error("the driver does not load the kernels: {refusal}; {what_to_do}")]
    Load {
        /// The driver's answer.
        refusal: Refusal,
        /// Remedy.
        what_to_do: &'static str,
    },
    /// NVML is installed but does not start.
    #[error("NVML `{}` does not start: {why}; see whether `nvidia-smi` works", path.display())]
    Management {
        /// The library's file.
        path: PathBuf,
        /// NVML's message.
        why: String,
    },
    /// A library does not start on the device.
    #[error("the library `{}` does not start: {refusal}; {what_to_do}", path.display())]
    Library {
        /// The library's file.
        path: PathBuf,
        /// The library's answer.
        refusal: Refusal,
        /// Remedy.
        what_to_do: &'static str,
    },
    /// Any other call refused by the driver.
    #[error("the driver refused {0}")]
    Driver(#[from] Refusal),
}

/// A call refused by the driver or a library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {text} ({name})")]
pub struct Refusal {
    /// The function.
    pub call: &'static str,
    /// Status returned.
    pub code: u32,
    /// Name of the status, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// Description by the driver or library.
    pub text: String,
}

/// A compute capability, such as 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// Number before the point.
    pub major: u32,
    /// Number after the point.
    pub minor: u32,
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl From<Refusal> for DeviceError {
    fn from(refusal: Refusal) -> DeviceError {
        refused(&refusal, refusal.to_string())
    }
}

/// A refusal as an error of a device, in these words.
pub(super) fn refused(refusal: &Refusal, why: String) -> DeviceError {
    match refusal.code {
        code::OUT_OF_MEMORY => DeviceError::Full { why },
        code => DeviceError::Driver { why, what_to_do: advice(code) },
    }
}

/// Substitute for a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The device `cpu`.
    Cpu,
    /// Sums by the hosts of the workers.
    Hosts,
}

impl CudaError {
    /// Substitute for a library that is missing or too old; `None` if there is no substitute, or something else is wrong.
    pub fn instead(&self) -> Option<Instead> {
        match self {
            CudaError::Missing { instead, .. } | CudaError::TooOld { instead, .. } => *instead,
            _ => None,
        }
    }
}

fn range(devices: u32) -> String {
    match devices {
        1 => "the only one is cuda:0".to_owned(),
        n => format!("they are cuda:0 to cuda:{}", n - 1),
    }
}

/// The driver's statuses that are matched by name. The bindings' values are compared with the headers (`headers.rs`).
pub(super) mod code {
    use cudarc::driver::sys::cudaError_enum as Of;

    pub(crate) const OUT_OF_MEMORY: u32 = Of::CUDA_ERROR_OUT_OF_MEMORY as u32;
    pub(crate) const STUB_LIBRARY: u32 = Of::CUDA_ERROR_STUB_LIBRARY as u32;
    pub(crate) const DEVICE_UNAVAILABLE: u32 = Of::CUDA_ERROR_DEVICE_UNAVAILABLE as u32;
    pub(crate) const NO_DEVICE: u32 = Of::CUDA_ERROR_NO_DEVICE as u32;
    pub(crate) const INVALID_DEVICE: u32 = Of::CUDA_ERROR_INVALID_DEVICE as u32;
    pub(crate) const NOT_READY: u32 = Of::CUDA_ERROR_NOT_READY as u32;
    pub(crate) const NO_BINARY_FOR_GPU: u32 = Of::CUDA_ERROR_NO_BINARY_FOR_GPU as u32;
    pub(crate) const ECC_UNCORRECTABLE: u32 = Of::CUDA_ERROR_ECC_UNCORRECTABLE as u32;
    pub(crate) const INVALID_PTX: u32 = Of::CUDA_ERROR_INVALID_PTX as u32;
    pub(crate) const JIT_COMPILER_NOT_FOUND: u32 = Of::CUDA_ERROR_JIT_COMPILER_NOT_FOUND as u32;
    pub(crate) const UNSUPPORTED_PTX_VERSION: u32 = Of::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32;
    pub(crate) const OPERATING_SYSTEM: u32 = Of::CUDA_ERROR_OPERATING_SYSTEM as u32;
    pub(crate) const ILLEGAL_ADDRESS: u32 = Of::CUDA_ERROR_ILLEGAL_ADDRESS as u32;
    pub(crate) const LAUNCH_TIMEOUT: u32 = Of::CUDA_ERROR_LAUNCH_TIMEOUT as u32;
    pub(crate) const LAUNCH_FAILED: u32 = Of::CUDA_ERROR_LAUNCH_FAILED as u32;
    pub(crate) const SYSTEM_NOT_READY: u32 = Of::CUDA_ERROR_SYSTEM_NOT_READY as u32;
    pub(crate) const SYSTEM_DRIVER_MISMATCH: u32 = Of::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH as u32;
    pub(crate) const COMPAT_NOT_SUPPORTED_ON_DEVICE: u32 =
        Of::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE as u32;
    pub(crate) const UNKNOWN: u32 = Of::CUDA_ERROR_UNKNOWN as u32;
}

/// Remedy for a refusal.
pub(super) fn advice(number: u32) -> &'static str {
    match number {
        code::OUT_OF_MEMORY => "lower the budget, or end what else uses the device (`nvidia-smi` lists it)",
        code::STUB_LIBRARY => {
            "it is a stub for linking; take its folder out of LD_LIBRARY_PATH so that the driver's own library is found"
        }
        code::DEVICE_UNAVAILABLE => {
            "another process has it for itself (`nvidia-smi` lists it); wait for it, or take another device"
        }
        code::NO_BINARY_FOR_GPU | code::INVALID_PTX | code::UNSUPPORTED_PTX_VERSION => {
            "most likely the driver is older than NVRTC: update the driver, or put an NVRTC of the driver's own CUDA version \
             first with PLIMSOLL_CUDA_LIBRARIES=FOLDER"
        }
        code::JIT_COMPILER_NOT_FOUND => {
            "libnvidia-ptxjitcompiler.so.1 belongs to the driver and is not there; install the whole driver"
        }
        code::ECC_UNCORRECTABLE => {
            "the device's memory is faulty; start again from the checkpoint on another device"
        }
        code::OPERATING_SYSTEM | code::UNKNOWN => {
            "see whether `nvidia-smi` works, the module nvidia_uvm is loaded, and /dev/nvidia* may be opened"
        }
        code::ILLEGAL_ADDRESS | code::LAUNCH_FAILED => {
            "a kernel failed and the device's state is lost: start again, from the checkpoint where there is one; \
             please report it"
        }
        code::LAUNCH_TIMEOUT => {
            "the device also serves a display, which ends kernels that run for seconds; lower the batch"
        }
        code::SYSTEM_NOT_READY => {
            "the fabric manager or another service of the driver is not running; start it"
        }
        code::SYSTEM_DRIVER_MISMATCH => {
            "the driver's library and its kernel module are of different versions; restart the machine after the update"
        }
        code::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "a compatibility libcuda is found first and this device cannot use it; take its folder out of LD_LIBRARY_PATH"
        }
        _ => "start again, from the checkpoint where there is one; `plimsoll doctor` shows driver and device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_says_what_where_and_what_to_do() {
        let refusal = |code, name: &str| Refusal {
            call: "cuInit",
            code,
            name: name.into(),
            text: "no such thing".into(),
        };
        let check = |error: CudaError, parts: &[&str]| {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            for part in parts {
                assert!(text.contains(part), "`{part}` in: {text}");
            }
        };
        check(CudaError::Visible { value: String::new() }, &["CUDA_VISIBLE_DEVICES is ``", "unset it"]);
        check(CudaError::Ordinal { ordinal: 3, devices: 1 }, &["cuda:3", "the only one is cuda:0"]);
        check(CudaError::Ordinal { ordinal: 3, devices: 2 }, &["cuda:0 to cuda:1"]);
        let device = CudaError::Device {
            ordinal: 1,
            refusal: refusal(code::DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
            what_to_do: advice(code::DEVICE_UNAVAILABLE),
        };
        check(device, &["cuda:1", "CUDA_ERROR_DEVICE_UNAVAILABLE", "another process", "nvidia-smi"]);
        let lost = DeviceError::from(refusal(code::ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert!(lost.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{lost}");
        assert!(lost.to_string().contains("checkpoint"), "{lost}");
    }
}
