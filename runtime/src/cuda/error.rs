//! Refusals of the driver and its libraries, and their remedies.
//!
//! Each error is one message: the thing sought, the place, and the remedy. Nothing here panics: a machine without CUDA is
//! the usual case.

use crate::error::{Error, Kind};
use cudarc::driver::sys::cudaError_enum as Of;
use std::path::Path;

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

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        refused(&refusal, &refusal)
    }
}

/// A refusal as an error, in these words.
pub(super) fn refused(refusal: &Refusal, why: impl std::fmt::Display) -> Error {
    let kind = if refusal.is(Of::CUDA_ERROR_OUT_OF_MEMORY) { Kind::Full } else { Kind::Device };
    Error::new(kind, format!("the driver refused {why}; {}", refusal.advice()))
}

/// Remedies for refusals of the driver. The bindings' values are compared with the headers (`headers.rs`).
const ADVICE: [(Of, &str); 16] = [
    (
        Of::CUDA_ERROR_OUT_OF_MEMORY,
        "lower the budget, or end what else uses the device (`nvidia-smi` lists it)",
    ),
    (
        Of::CUDA_ERROR_STUB_LIBRARY,
        "it is a stub for linking; take its folder out of LD_LIBRARY_PATH so that the driver's own library is found",
    ),
    (
        Of::CUDA_ERROR_DEVICE_UNAVAILABLE,
        "another process has it for itself (`nvidia-smi` lists it); wait for it, or take another device",
    ),
    (Of::CUDA_ERROR_NO_BINARY_FOR_GPU, OLD_DRIVER),
    (Of::CUDA_ERROR_INVALID_PTX, OLD_DRIVER),
    (Of::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, OLD_DRIVER),
    (
        Of::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        "libnvidia-ptxjitcompiler.so.1 belongs to the driver and is not there; install the whole driver",
    ),
    (
        Of::CUDA_ERROR_ECC_UNCORRECTABLE,
        "the device's memory is faulty; start again from the checkpoint on another device",
    ),
    (Of::CUDA_ERROR_OPERATING_SYSTEM, NO_ACCESS),
    (Of::CUDA_ERROR_UNKNOWN, NO_ACCESS),
    (Of::CUDA_ERROR_ILLEGAL_ADDRESS, KERNEL_FAILED),
    (Of::CUDA_ERROR_LAUNCH_FAILED, KERNEL_FAILED),
    (
        Of::CUDA_ERROR_LAUNCH_TIMEOUT,
        "the device also serves a display, which ends kernels that run for seconds; lower the batch",
    ),
    (
        Of::CUDA_ERROR_SYSTEM_NOT_READY,
        "the fabric manager or another service of the driver is not running; start it",
    ),
    (
        Of::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        "the driver's library and its kernel module are of different versions; restart the machine after the update",
    ),
    (
        Of::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        "a compatibility libcuda is found first and this device cannot use it; take its folder out of LD_LIBRARY_PATH",
    ),
];

const OLD_DRIVER: &str = "most likely the driver is older than NVRTC: update the driver, or put an NVRTC of the driver's own \
                          CUDA version first with PLIMSOLL_CUDA_LIBRARIES=FOLDER";
const NO_ACCESS: &str =
    "see whether `nvidia-smi` works, the module nvidia_uvm is loaded, and /dev/nvidia* may be opened";
const KERNEL_FAILED: &str = "a kernel failed and the device's state is lost: start again, from the checkpoint where there is \
                             one; please report it";

impl Refusal {
    /// Converts the status of a call to a result, with its name and the library's text on it.
    pub(super) fn check(
        call: &'static str,
        code: u32,
        words: impl FnOnce() -> [Option<String>; 2],
    ) -> Result<(), Refusal> {
        if code == 0 {
            return Ok(());
        }
        let or_number = |words: Option<String>| {
            words.filter(|words| !words.is_empty()).unwrap_or_else(|| format!("status {code}"))
        };
        let [name, text] = words().map(or_number);
        // The functions of later versions have a suffix.
        Err(Refusal { call: call.trim_end_matches("_v2"), code, name, text })
    }

    /// Returns `true` if the driver returned this status.
    pub(super) fn is(&self, status: Of) -> bool {
        self.code == status as u32
    }

    /// Error of a library, found at `path`, that does not start on the device.
    pub(super) fn at_start(&self, path: &Path, what_to_do: &str) -> Error {
        Error::device(format!("the library `{}` does not start: {self}; {what_to_do}", path.display()))
    }

    /// Remedy for a refusal by the driver.
    pub(super) fn advice(&self) -> &'static str {
        ADVICE.iter().find(|(status, _)| self.is(*status)).map_or(
            "start again, from the checkpoint where there is one; `plimsoll doctor` shows driver and device",
            |(_, advice)| advice,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_and_what_to_do() {
        let check = |status: Of, kind, parts: &[&str]| {
            let (call, name, text) = ("cuInit", format!("{status:?}"), "no such thing".to_owned());
            let error = Error::from(Refusal { call, code: status as u32, name, text });
            assert!(error.kind == kind && !error.message.contains('\n'), "{error:?}");
            for part in parts {
                assert!(error.message.contains(part), "`{part}` in: {error}");
            }
        };
        let unavailable = ["CUDA_ERROR_DEVICE_UNAVAILABLE", "another process", "nvidia-smi"];
        check(Of::CUDA_ERROR_DEVICE_UNAVAILABLE, Kind::Device, &unavailable);
        check(Of::CUDA_ERROR_ILLEGAL_ADDRESS, Kind::Device, &["CUDA_ERROR_ILLEGAL_ADDRESS", "checkpoint"]);
        check(Of::CUDA_ERROR_OUT_OF_MEMORY, Kind::Full, &["cuInit: no such thing", "lower the budget"]);
        check(Of::CUDA_ERROR_NOT_READY, Kind::Device, &["plimsoll doctor"]);
    }
}
