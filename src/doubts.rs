//! What makes the times of a run doubtful, said once each on stderr: who else computes on the device, and what slows it down.

use plimsoll_ir::health::Health;

/// What was said so far.
#[derive(Default)]
pub struct Doubts {
    known: Health,
}

impl Doubts {
    /// Says what is new in how the device is, where that is told.
    pub fn say(&mut self, now: Option<Health>) {
        let Some(now) = now else { return };
        now.warnings(&self.known).iter().for_each(|warning| tracing::warn!("{warning}"));
        self.known = std::mem::take(&mut self.known).then(now);
    }
}
