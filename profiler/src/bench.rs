//! The seam between the measuring rounds and what they measure: a device in earnest, a made-up machine in tests.

use crate::Watch;
use crate::error::ProfileError;
use plimsoll_ir::Seconds;
use plimsoll_ir::health::Health;
use plimsoll_ir::profile::{BatchSamples, LinkSamples};
use plimsoll_runtime::Whole;

/// Something whose iterations and link can be timed. The order of calls is: `calibrate` or not, `prepare`, then the others.
pub(crate) trait Bench {
    /// What timing one op costs by itself.
    fn calibrate(&mut self) -> Result<Seconds, ProfileError>;

    /// Readies the given batch sizes; `overhead` is to be taken off every op's time.
    fn prepare(&mut self, batches: &[u64], overhead: Seconds) -> Result<(), ProfileError>;

    /// Measures the four rates.
    fn link(&mut self, watch: &mut Watch<'_>) -> Result<LinkSamples, ProfileError>;

    /// Runs one iteration that does not count, and tells how the device was meanwhile; none where there is nobody to tell.
    fn warm_up(&mut self, position: usize, alternative: Option<u32>) -> Result<Option<Health>, ProfileError>;

    /// The alternatives that can be measured at the batch size of this position, by number.
    fn alternatives(&self, position: usize) -> Vec<u32>;

    /// Runs one iteration of the batch size at this position as training does, with nothing timed inside.
    fn whole(&mut self, position: usize) -> Result<Whole, ProfileError>;

    /// Runs one iteration of the batch size at this position of those prepared: one sample of the iteration and of each op.
    /// With a number, ops run in their alternatives of this number, where they have one.
    fn iterate(&mut self, position: usize, alternative: Option<u32>) -> Result<BatchSamples, ProfileError>;
}
