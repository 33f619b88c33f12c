//! Each algorithm of cuDNN, run once before it is offered.
//!
//! cuDNN may list an algorithm and refuse to run it: this GPU cannot load its kernels, or the heuristic does not know a case.
//! That would end whatever it was chosen for, a profile of minutes or a training. So the first question about a shape runs
//! every algorithm for a single sample, on memory that is given back at once. One that refuses is left out with a warning, at
//! every batch size alike: the same trial comes before the profile, the plan and the run, so all of them have the same
//! alternatives. A broken installation shows itself here, too, and not in the middle of an iteration.
//!
//! Where memory is too short for a trial, the algorithm is offered untried. So a process that finds less memory free than
//! another may offer more than that one, and then a schedule of the other is refused as one for other alternatives.
//!
//! What it deliberately does not do: look at results or times.

use super::super::driver::{Context, CudaStream, DeviceMemory};
use super::super::error::Refusal;
use super::cudnn::{Algorithm, Cudnn, Layout, broken_installation};
use super::kernels::layout::weights;
use super::{Arithmetic, MOST_SCRATCH, Operands, Pass};
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{ConvShape, STORAGE_ALIGNMENT};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What is tried once: a pass, the shape of a single sample, and a layout.
type Tried = (Pass, ConvShape, Layout);

/// What came of the trials in one context.
pub(super) struct Trials {
    /// The names of the algorithms that refused.
    refused: Mutex<HashMap<Tried, Vec<&'static str>>>,
    stream: CudaStream,
    context: Arc<Context>,
}

impl Trials {
    /// None yet.
    pub(super) fn new(context: &Arc<Context>) -> Result<Trials, Refusal> {
        let stream = CudaStream::new(context)?;
        Ok(Trials { refused: Mutex::default(), stream, context: Arc::clone(context) })
    }

    /// The algorithms for a pass at a shape, without those that refuse to run. The handle has no stream afterwards.
    ///
    /// # Errors
    ///
    /// cuDNN's installation is broken, or the device failed.
    pub(super) fn without_refused(
        &self,
        cudnn: &Cudnn,
        mut found: Vec<Algorithm>,
        of: (Pass, &ConvShape, Layout, Arithmetic),
    ) -> Result<Vec<Algorithm>, Refusal> {
        if found.is_empty() {
            return Ok(found);
        }
        let (pass, shape, layout, arithmetic) = of;
        let sample = ConvShape { batch: 1, ..*shape };
        // What it guards is whole at every moment.
        let mut known = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match known.get(&(pass, sample, layout)) {
            Some(refused) => refused,
            None => {
                let refused = self.refused_at(cudnn, pass, &sample, layout, arithmetic)?;
                known.entry((pass, sample, layout)).or_insert(refused)
            }
        };
        found.retain(|algorithm| !refused.contains(&algorithm.name));
        Ok(found)
    }

    fn refused_at(
        &self,
        cudnn: &Cudnn,
        pass: Pass,
        sample: &ConvShape,
        layout: Layout,
        arithmetic: Arithmetic,
    ) -> Result<Vec<&'static str>, Refusal> {
        let listed = match cudnn.algorithms(pass, sample, layout, arithmetic) {
            Ok(listed) => listed,
            Err(refusal) if broken_installation(refusal.code).is_some() => return Err(refusal),
            Err(_) => return Ok(Vec::new()),
        };
        let tried = || listed.iter().filter(|algorithm| algorithm.workspace <= MOST_SCRATCH);
        let float = arithmetic.factors();
        let image = |channels: u32, [height, width]: [u32; 2]| {
            let numbers =
                [height, width].map(u64::from).into_iter().fold(u64::from(channels), u64::saturating_mul);
            Bytes(numbers.saturating_mul(float.bytes()))
        };
        let parts = [
            image(sample.in_channels, sample.input),
            weights(sample, float),
            image(sample.out_channels, sample.output),
            tried().map(|algorithm| algorithm.workspace).max().unwrap_or_default(),
        ];
        let mut end = Bytes::ZERO;
        let [x, w, y, scratch] = parts.map(|bytes| {
            let start = end;
            end = (end + bytes).round_up(STORAGE_ALIGNMENT);
            start
        });
        let bytes = usize::try_from(end.0.max(1)).unwrap_or(usize::MAX);
        let memory = match DeviceMemory::allocate(&self.context, bytes) {
            Ok(memory) => memory,
            Err(refusal) => {
                tracing::debug!("{pass:?} of {sample:?} is not tried: {refusal}");
                return Ok(Vec::new());
            }
        };
        let [x, w, y, scratch] = [x, w, y, scratch].map(|part| memory.address() + part.0);
        cudnn.set_stream(Some(&self.stream))?;
        let mut refused = Vec::new();
        let mut broken = None;
        for algorithm in tried() {
            // SAFETY: the operands are of the algorithm's shape, one sample, and lie with the largest scratch that any of them
            // asks for in memory that lives until the stream is idle.
            let ran = unsafe { cudnn.enqueue(algorithm, Operands { x, w, y, accumulate: false }, scratch) };
            match ran {
                Ok(()) => {}
                Err(refusal) if is_short_of_memory(refusal.code) => {
                    tracing::debug!("{} is not tried for {pass:?} of {sample:?}: {refusal}", algorithm.name);
                }
                Err(refusal) if broken_installation(refusal.code).is_some() => {
                    broken = Some(cudnn.explained(refusal));
                    break;
                }
                Err(refusal) => {
                    tracing::warn!("{} is left out for {pass:?} of {sample:?}: {refusal}", algorithm.name);
                    refused.push(algorithm.name);
                }
            }
        }
        // The memory is given back behind all that ran, and the handle keeps no stream that may end before it.
        let ended = self.stream.synchronise();
        cudnn.set_stream(None)?;
        ended?;
        broken.map_or(Ok(refused), Err)
    }
}

/// Whether cuDNN says that the host or the device has no memory for it.
fn is_short_of_memory(code: u32) -> bool {
    matches!(code, 4003 | 4004)
}
