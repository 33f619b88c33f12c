//! The extension module `plimsoll._core`: Plimsoll's decisions and proofs, for Python.
//!
//! Documents come and leave as JSON text. A `trace::Trace` is validated once, when it is made; a `schedule::Schedule` exists
//! only if `check` passed. Copies between pool and host also run here (`transfers::Transfers`, on two threads without Python;
//! `cuda::CudaTransfers`, on two CUDA streams), as does the whole command line (`program`). This module knows no tensors and no
//! kernels: those are PyTorch's.

mod batches;
mod cuda;
mod exchange;
mod program;
mod report;
mod schedule;
mod signals;
mod trace;
mod transfers;

use plimsoll_ir::BytesPerSecond;
use plimsoll_ir::config::LearningRateRule;
use plimsoll_ir::units::Size;
use pyo3::prelude::*;

mod errors {
    //! The exceptions, which are Python classes.
    pyo3::import_exception!(plimsoll.errors, BadInput);
    pyo3::import_exception!(plimsoll.errors, DeviceError);
    pyo3::import_exception!(plimsoll.errors, HostMemoryError);
    pyo3::import_exception!(plimsoll.errors, NoPlan);
}

/// Bytes of a size such as `22GiB` or `60%` (of `whole`).
#[pyfunction]
fn parse_size(text: &str, whole: u64) -> PyResult<u64> {
    let size: Size = text.parse().map_err(|error| errors::BadInput::new_err(format!("{error}")))?;
    Ok(size.of(plimsoll_ir::Bytes(whole)).0)
}

/// Bytes per second of a rate such as `12GB/s`.
#[pyfunction]
fn parse_rate(text: &str) -> PyResult<f64> {
    let rate: BytesPerSecond = text.parse().map_err(|error| errors::BadInput::new_err(format!("{error}")))?;
    Ok(rate.0)
}

/// Bytes in words: `21.7 MiB`.
#[pyfunction]
fn show_bytes(bytes: u64) -> String {
    plimsoll_ir::Bytes(bytes).to_string()
}

/// Seconds in words: `3.2 ms`.
#[pyfunction]
fn show_seconds(seconds: f64) -> String {
    plimsoll_ir::Seconds(seconds).to_string()
}

/// Learning rate at a batch size, derived from a known one by a rule: `linear` or `square root`.
#[pyfunction]
fn learning_rate(rule: &str, base_batch: u64, base_rate: f64, batch: u64) -> PyResult<f64> {
    let rule = match rule {
        "linear" => LearningRateRule::Linear,
        "square root" => LearningRateRule::SquareRoot,
        _ => return Err(errors::BadInput::new_err(format!("no rule for learning rates is called {rule:?}"))),
    };
    plimsoll_tuner::rate::learning_rate(rule, base_batch, base_rate, batch)
        .map_err(|error| errors::BadInput::new_err(error.to_string()))
}

/// Decides, proves and copies for Plimsoll.
///
/// The module does not need the interpreter's lock: objects that Python holds are immutable, or borrowed by one thread at a
/// time, which is checked at run time; threads that copy never call Python.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ALIGNMENT", plimsoll_ir::program::STORAGE_ALIGNMENT)?;
    module.add_class::<batches::Batches>()?;
    module.add_class::<batches::Candidate>()?;
    module.add_class::<program::Script>()?;
    module.add_class::<trace::Trace>()?;
    module.add_class::<exchange::Exchange>()?;
    module.add_class::<schedule::Schedule>()?;
    module.add_class::<schedule::Compute>()?;
    module.add_class::<transfers::Transfers>()?;
    module.add_class::<cuda::SwapStreams>()?;
    module.add_class::<cuda::PinnedSlab>()?;
    module.add_class::<cuda::CudaTransfers>()?;
    module.add_function(wrap_pyfunction!(cuda::available_host_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(batches::choose, module)?)?;
    module.add_function(wrap_pyfunction!(learning_rate, module)?)?;
    module.add_function(wrap_pyfunction!(program::run_program, module)?)?;
    module.add_function(wrap_pyfunction!(program::script, module)?)?;
    module.add_function(wrap_pyfunction!(report::report_page, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::parse_interconnect, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::show_interconnect, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(parse_rate, module)?)?;
    module.add_function(wrap_pyfunction!(show_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(show_seconds, module)?)?;
    Ok(())
}
