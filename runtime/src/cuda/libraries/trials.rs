//! A trial run of each of cuDNN's algorithms before it is offered.
//!
//! cuDNN may list an algorithm and refuse to run it: this GPU cannot load its kernels, or the heuristic misses a case. That
//! would end the profile of minutes, or the training, for which it was chosen. So the first query of a shape runs every
//! algorithm for a single sample, in memory that is freed at once. One that refuses is left out with a warning, for every
//! batch size: the same trial precedes the profile, the plan and the run, so all have the same alternatives. A broken
//! installation also shows itself here, and not in the middle of an iteration.
//!
//! If memory is too short for a trial, the algorithm is offered untried. So a process with less free memory may offer more
//! algorithms than another, and a schedule of one is then refused by the other, since its alternatives differ.
//!
//! Deliberately does not look at results or times.

use super::super::driver::{Context, CudaStream, DeviceMemory};
use super::super::error::Refusal;
use super::cudnn::{Algorithm, Cudnn, Layout, broken_installation};
use super::kernels::layout::weights;
use super::{Arithmetic, MOST_SCRATCH, Operands, Pass};
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{ConvShape, STORAGE_ALIGNMENT};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Subject of one trial: a pass, the shape of a single sample, and a layout.
type Tried = (Pass, ConvShape, Layout);

/// Results of the trials in one context.
pub(super) struct Trials {
    /// Names of the algorithms that refused.
    refused: Mutex<HashMap<Tried, Vec<&'static str>>>,
    stream: CudaStream,
    context: Arc<Context>,
}

impl Trials {
    /// No trials yet.
    pub(super) fn new(context: &Arc<Context>) -> Result<Trials, Refusal> {
        let stream = CudaStream::new(context)?;
        Ok(Trials { refused: Mutex::default(), stream, context: Arc::clone(context) })
    }

    /// Algorithms for a pass at a shape, without those that refuse to run. The handle has no stream afterwards.
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
        // The guarded value is consistent at every moment.
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
            // SAFETY: the operands have the algorithm's shape with one sample, and lie, with the largest scratch of any
            // algorithm, in memory that lives until the stream is idle.
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
        // The memory is freed only after all trials have ended, and the handle keeps no stream that may end earlier.
        let ended = self.stream.synchronise();
        cudnn.set_stream(None)?;
        ended?;
        broken.map_or(Ok(refused), Err)
    }
}

/// Returns `true` if cuDNN reports that host or device memory is too short.
fn is_short_of_memory(code: u32) -> bool {
    matches!(code, 4003 | 4004)
}
