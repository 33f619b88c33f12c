//! First meeting of the workers of a training: they check that they train the same, and take worker 0's state.
//!
//! Deliberately does not look at schedules. Each worker may have its own.

use super::Trainer;
use super::share::{Share, read};
use crate::checkpoint::DataName;
use crate::data::Dataset;
use crate::error::Error;
use crate::group::{GroupError, shares_by_pace};
use crate::state::of_regions;
use crate::training_plan::TrainingPlan;
use bytemuck::cast_slice;
use plimsoll_ir::checksum::Summing;
use plimsoll_ir::program::Region;
use plimsoll_ir::{Precision, Seconds};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Difference between workers of different commits.
const OTHER_VERSION: &str = "version of Plimsoll";

/// Part of [`Training`] that every version can read from every other.
#[derive(Deserialize)]
struct Built {
    version: String,
}

/// Training of a worker, and its program.
#[derive(Serialize, Deserialize)]
struct Training {
    version: String,
    plan: TrainingPlan,
    data: DataName,
    /// Checksum of some samples and their labels.
    samples: String,
    /// Precision of products and stored activations on its device.
    precision: Precision,
    /// `true` if the workers' devices sum by themselves.
    on_devices: bool,
    /// Checksum of the sums, in the order in which this worker's schedule completes them; only if devices sum. Devices tell
    /// sums apart by nothing else.
    order_of_sums: Option<String>,
}

impl Training {
    fn summing(&self) -> &'static str {
        if self.on_devices { "on the devices" } else { "on the hosts" }
    }

    /// First difference from another worker's training: property, value here, value there.
    fn differs(&self, other: &Training) -> Option<(&'static str, String, String)> {
        let shown = |order: &Option<String>| order.clone().unwrap_or_else(|| "none".to_owned());
        let name = |data: &DataName| format!("{} ({} samples)", data.name, data.samples);
        let all = [
            ("data set", name(&self.data), name(&other.data)),
            ("checksum of its data", self.samples.clone(), other.samples.clone()),
            ("way of summing", self.summing().to_owned(), other.summing().to_owned()),
            ("order of sums", shown(&self.order_of_sums), shown(&other.order_of_sums)),
            ("precision", self.precision.to_string(), other.precision.to_string()),
        ];
        // Other differences may follow from the version.
        let version = (OTHER_VERSION, self.version.clone(), other.version.clone());
        let version = Some(version).filter(|(_, here, there)| here != there);
        let plan = || self.plan.differs(&other.plan);
        version.or_else(plan).or_else(|| all.into_iter().find(|(_, here, there)| here != there))
    }
}

/// Number of samples that are compared.
const COMPARED: usize = 16;

impl Trainer {
    /// Sets the version of the program, with its commit if known. Workers of one training have the same version; the default
    /// is the version of this crate.
    pub fn built_as(self, version: String) -> Trainer {
        Trainer { version, ..self }
    }

    /// Sets the duration of a pass of this worker, measured or predicted. Faster workers then make more of the passes of an
    /// update; the results do not change.
    pub fn at_pace(mut self, pass: Seconds) -> Trainer {
        self.share.iter_mut().for_each(|share| share.pass_seconds = Some(pass));
        self
    }

    /// Virtual workers of this worker, once the workers have met; `None` if it shares nothing.
    pub fn virtual_workers(&self) -> Option<Range<u64>> {
        self.share.as_ref().map(|share| share.mine.clone())
    }

    /// Checks that all workers train the same, and gives all of them worker 0's state; does nothing if they have met.
    pub(super) fn meet(&mut self, share: &mut Share, data: &dyn Dataset) -> Result<(), Error> {
        if share.met {
            return Ok(());
        }
        self.compare(share, data)?;
        self.take_state(share)?;
        self.divide(share)?;
        share.join_devices(&mut self.executor)?;
        (share.met, share.has_begun) = (true, true);
        Ok(())
    }

    /// Assigns virtual workers to workers by the duration of their passes; as equally as possible if one does not know it.
    fn divide(&self, share: &mut Share) -> Result<(), Error> {
        let mine = share.pass_seconds.unwrap_or_default().0.to_bits();
        let said = share.group.agree(&[mine as u32, (mine >> 32) as u32])?;
        let seconds = said.iter().map(|said| match said[..] {
            [low, high] => f64::from_bits(u64::from(high) << 32 | u64::from(low)),
            _ => 0.0,
        });
        let seconds: Vec<f64> = seconds.collect();
        let (facts, virtual_workers) = (share.group.facts(), self.plan.virtual_workers);
        let are_known = seconds.iter().all(|seconds| *seconds > 0.0);
        if !are_known {
            return Ok(());
        }
        let mut shares = shares_by_pace(facts, &seconds, virtual_workers);
        if facts.rank == 0 && shares[0] != share.mine {
            let passes: Vec<String> = shares.iter().map(|one| (one.end - one.start).to_string()).collect();
            tracing::info!(
                "the workers make {} of the {virtual_workers} passes of an update, by what a pass takes each of them",
                passes.join(", ")
            );
        }
        share.mine = shares.swap_remove(facts.rank);
        Ok(())
    }

    fn compare(&self, share: &mut Share, data: &dyn Dataset) -> Result<(), Error> {
        let mine = Training {
            version: self.version.clone(),
            plan: self.plan.clone(),
            data: DataName { name: data.name().to_owned(), samples: data.len() as u64 },
            samples: checksum(data)?,
            on_devices: share.on_devices,
            precision: self.executor.device().facts().precision,
            order_of_sums: share.on_devices.then(|| share.order_of_sums()),
        };
        let text = serde_json::to_string(&mine).expect("names and finite numbers can be written");
        let mut words = packed(&text);
        share.group.broadcast(&mut words)?;
        let first = unpacked(&words);
        let difference = match serde_json::from_str::<Training>(&first) {
            Ok(first) => first.differs(&mine).map(|(what, first, there)| [what.to_owned(), first, there]),
            Err(_) => Some(match serde_json::from_str::<Built>(&first) {
                Ok(Built { version }) if version != mine.version => {
                    [OTHER_VERSION.to_owned(), version, mine.version]
                }
                _ => ["kind of training".to_owned(), first, text],
            }),
        };
        let told = serde_json::to_string(&difference).expect("texts can be written");
        for (rank, said) in share.group.agree(&packed(&told))?.iter().enumerate() {
            let said: Option<[String; 3]> = serde_json::from_str(&unpacked(said)).unwrap_or_default();
            if let Some([what, first, there]) = said {
                return Err(GroupError::Different { rank, what, there, first }.into());
            }
        }
        Ok(())
    }

    /// Takes worker 0's iteration count, and everything that the next iteration depends on.
    fn take_state(&mut self, share: &mut Share) -> Result<(), Error> {
        let saved: Vec<Region> = self.saved().into_iter().map(|(_, region)| region).collect();
        let mut words = vec![self.step as u32, (self.step >> 32) as u32];
        if share.group.facts().rank == 0 {
            words.extend(read(&mut self.executor, &saved)?.into_iter().map(f32::to_bits));
        }
        share.group.broadcast(&mut words)?;
        let elements: usize = saved.iter().map(|region| region.elements() as usize).sum();
        let found = words.len() - 2;
        Error::unless(found == elements, "numbers of worker 0's state", elements, found)?;
        if share.group.facts().rank == 0 {
            return Ok(());
        }
        self.step = u64::from(words[1]) << 32 | u64::from(words[0]);
        of_regions(&saved, &words[2..])
            .try_for_each(|(region, own)| self.executor.write_region(region, cast_slice(own)))
    }
}

/// Checksum of a few samples from all over a set.
fn checksum(data: &dyn Dataset) -> Result<String, Error> {
    let mut batch = crate::data::Batch::new(COMPARED as u64, data);
    batch.fill(data, (0..COMPARED.min(data.len())).map(|i| i * data.len() / COMPARED.min(data.len())))?;
    let mut sum = Summing::default();
    sum.add(batch.images());
    sum.add(batch.labels());
    Ok(sum.sum().to_string())
}

/// Text as words: its length, then four bytes in each.
fn packed(text: &str) -> Vec<u32> {
    let four = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    [text.len() as u32].into_iter().chain(text.as_bytes().chunks(4).map(four)).collect()
}

/// Text of such words, as far as they are valid.
fn unpacked(words: &[u32]) -> String {
    let Some((length, words)) = words.split_first() else { return String::new() };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(*length as usize).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_unpacked_as_it_was_packed() {
        for text in ["", "a", "abcd", "größer als vier"] {
            assert_eq!(unpacked(&packed(text)), text);
        }
    }
}
