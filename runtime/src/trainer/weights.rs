//! Numbers that a training starts from in place of drawn ones.
//!
//! What it deliberately does not do: open files. Whoever reads one makes sure that its tensors are those of the network.

use super::Trainer;
use crate::error::RuntimeError;
use crate::state::saved_name;
use std::collections::BTreeMap;

/// Parameters and running statistics to start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// By the name that a checkpoint has for them, such as `parameter/conv1.weight`: f32 as they lie on the device.
    pub regions: BTreeMap<String, Vec<u8>>,
    /// Of all of them, which tells one training from another.
    pub checksum: String,
}

impl Trainer {
    /// Begins with these weights instead of drawn ones. Of several workers only worker 0 does; the others have its state from
    /// it.
    ///
    /// Errors: the plan says other weights, something was trained already, or they are of another network.
    pub fn start_from(&mut self, weights: &Weights) -> Result<(), RuntimeError> {
        if self.plan.weights.as_ref() != Some(&weights.checksum) {
            let planned = self.plan.weights.as_deref().unwrap_or("none");
            return Err(RuntimeError::mismatch("weights of the training plan", planned, &weights.checksum));
        }
        if self.step > 0 {
            return Err(RuntimeError::mismatch("iterations before weights are set", 0, self.step));
        }
        for (name, numbers) in &weights.regions {
            let mut resident = self.train.resident().iter();
            let Some(region) = resident.find(|region| saved_name(region).as_ref() == Some(name)) else {
                return Err(RuntimeError::mismatch(format!("`{name}` of the weights"), "a region", "none"));
            };
            if region.bytes().0 != numbers.len() as u64 {
                let what = format!("bytes of `{name}`");
                return Err(RuntimeError::mismatch(what, region.bytes().0, numbers.len()));
            }
            self.executor.write_region(region, numbers)?;
        }
        Ok(())
    }
}
