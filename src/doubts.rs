//! What makes the times of a run doubtful, said once each on stderr: who else computes on the device, and what slows it down.

use plimsoll_ir::health::Health;
use plimsoll_runtime::Device;

/// What was said so far.
#[derive(Default)]
pub struct Doubts {
    known: Health,
}

impl Doubts {
    /// Looks how the device is, and says what is new.
    pub fn look(&mut self, device: &dyn Device) {
        let Some(now) = device.health() else { return };
        now.warnings(&self.known).iter().for_each(|warning| tracing::warn!("{warning}"));
        self.known = std::mem::take(&mut self.known).then(now);
    }
}
