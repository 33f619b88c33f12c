//! The seam between the measuring rounds and the measured machine: a real device, or a made-up machine in tests.

use crate::Watch;
use crate::error::ProfileError;
use plimsoll_ir::Seconds;
use plimsoll_ir::health::Health;
use plimsoll_ir::profile::{BatchSamples, LinkSamples};
use plimsoll_runtime::Whole;

/// A machine whose iterations and link can be timed. The order of calls is: `calibrate` or not, `prepare`, then the others.
pub(crate) trait Bench {
    /// Measures the cost of timing one op.
    fn calibrate(&mut self) -> Result<Seconds, ProfileError>;

    /// Prepares the given batch sizes; `overhead` is subtracted from every op's time.
    fn prepare(&mut self, batches: &[u64], overhead: Seconds) -> Result<(), ProfileError>;

    /// Measures the four rates.
    fn link(&mut self, watch: &mut Watch<'_>) -> Result<LinkSamples, ProfileError>;

    /// Runs one iteration that does not count, and returns the device's health during it; `None` if nothing reports it.
    fn warm_up(&mut self, position: usize, alternative: Option<u32>) -> Result<Option<Health>, ProfileError>;

    /// Returns the numbers of the alternatives that can be measured at the batch size of this position.
    fn alternatives(&self, position: usize) -> Vec<u32>;

    /// Runs one iteration of the batch size at this position as in training, without timed ops.
    fn whole(&mut self, position: usize) -> Result<Whole, ProfileError>;

    /// Runs one iteration of the prepared batch size at this position: one sample of the iteration and of each op. With a
    /// number, ops run in their alternatives of this number, if they have one.
    fn iterate(&mut self, position: usize, alternative: Option<u32>) -> Result<BatchSamples, ProfileError>;
}
