//! A stand-in of the CUDA driver, of NVRTC, cuBLAS, cuDNN, NCCL, NVML and NVTX, for tests on machines without a GPU.
//!
//! The device `cuda` loads this library where it would load `libcuda.so.1`, `libnvrtc.so` and the others, and does not know
//! the difference. Memory is host memory at addresses that the host cannot use; streams are threads with queues, as late as a
//! seed says, or take turns in the order that is worst for a schedule with a fault; events, captures and graphs order them by
//! the driver's rules and by nothing else; kernels are the device's own text, compiled by the machine's C compiler, and the
//! libraries' sums are plain loops. So a wait that is missing shows as other bits, and a call that breaks a rule as the error
//! that the driver gives.
//!
//! Every call is counted by name, and any one call can be answered without being made (`control.rs`), which is how a test
//! plants the fault of a device that forgets it, or of a driver that refuses it.
//!
//! What it deliberately does not do: take the time that a GPU takes, check what a kernel does within its allocations,
//! or offer a call that the device does not make. Like the driver's interface it trusts the pointers that its callers
//! give it for results.

/// Defines calls of a library that gives its status as a number, 0 for success; each is counted, and may be answered without
/// being made.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> u32 {
            if let Some(code) = crate::control::enter(stringify!($name)) {
                return code;
            }
            let call = move || -> Result<(), u32> { $body };
            call().err().unwrap_or_default()
        }
    )*};
}

mod control;
mod cublas;
mod cudnn;
mod delays;
mod driver;
mod graph;
mod kernels;
mod link;
mod memory;
mod nccl;
mod numbers;
mod nvml;
mod nvrtc;
mod nvtx;
mod state;
mod status;
mod stream;
mod sums;
mod turns;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex here guards plain values that are whole at every moment, so a panic elsewhere spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
