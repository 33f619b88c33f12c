//! Initial weights of a training in place of drawn ones.
//!
//! Deliberately does not open files. The code that reads a file checks that its tensors match the network.

use super::Trainer;
use crate::error::Error;
use crate::state::saved_name;
use std::collections::BTreeMap;

/// Initial parameters and running statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// By their name in a checkpoint, such as `parameter/conv1.weight`: f32 in the device's layout.
    pub regions: BTreeMap<String, Vec<u8>>,
    /// Checksum of all regions, which distinguishes trainings.
    pub checksum: String,
}

impl Trainer {
    /// Begins with these weights instead of drawn ones. Of several workers only worker 0 does so and sends its state to the
    /// others.
    ///
    /// Errors: the plan names different weights, training has already begun, or they belong to a different network.
    pub fn start_from(&mut self, weights: &Weights) -> Result<(), Error> {
        let (planned, found) = (self.plan.weights.as_deref(), weights.checksum.as_str());
        let (what, expected) = ("weights of the training plan", planned.unwrap_or("none"));
        Error::unless(planned == Some(found), what, expected, found)?;
        Error::unless(self.step == 0, "iterations before weights are set", 0, self.step)?;
        for (name, numbers) in &weights.regions {
            let mut resident = self.train.resident().iter();
            let Some(region) = resident.find(|region| saved_name(region).as_ref() == Some(name)) else {
                return Err(Error::mismatch(format!("`{name}` of the weights"), "a region", "none"));
            };
            let (bytes, found) = (region.bytes().0, numbers.len());
            Error::unless(bytes == found as u64, format_args!("bytes of `{name}`"), bytes, found)?;
            self.executor.write_region(region, numbers)?;
        }
        Ok(())
    }
}
