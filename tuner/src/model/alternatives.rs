//! Seconds of an op's alternatives: the op's own seconds times a ratio, between the batch sizes at which both were measured.
//!
//! An alternative computes the same, on the same machine: noise, caches and the layer's type affect it like the usual
//! alternative, and the op's own prediction includes these effects from more repetitions. The ratio is taken from medians,
//! straight between measured batch sizes in logarithms, and constant beyond them. The other possibility, an alternative as an op
//! with a separate curve, lost: on samples with noise it misses left-out batch sizes by more (`tests.rs` checks that).
//!
//! This file deliberately does not reject unmeasured alternatives. An alternative whose scratch never fitted while measuring, or
//! that a newer library has added, stays in the trace, since a schedule names alternatives by their position; it only counts as
//! slow.

use plimsoll_ir::Seconds;
use plimsoll_ir::profile::OpSamples;
use serde::Serialize;
use std::collections::BTreeMap;

/// Ratio to the usual alternative for one that was not measured.
pub(super) const UNMEASURED: f64 = 1000.0;

/// Ratio of an alternative's seconds to those of the usual alternative, over the batch size.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Ratios {
    /// (ln batch, ln ratio), ascending.
    logs: Vec<(f64, f64)>,
}

impl Ratios {
    /// Returns the ratio at a batch size; at least one was measured.
    pub fn at(&self, batch: f64) -> f64 {
        super::along(&self.logs, batch.ln()).map_or(UNMEASURED, f64::exp)
    }
}

fn middle<'a>(seconds: impl Iterator<Item = &'a Seconds>) -> Option<f64> {
    let mut seconds: Vec<f64> = seconds.map(|s| s.0).filter(|s| s.is_finite() && *s >= 0.0).collect();
    (!seconds.is_empty()).then(|| super::median(&mut seconds).max(super::TICK))
}

/// Returns the median of an alternative over all samples of an op at a batch size.
fn of_alternative(samples: &[&OpSamples], name: &str) -> Option<f64> {
    middle(
        samples
            .iter()
            .flat_map(|op| &op.alternatives)
            .filter(|alternative| alternative.name == name)
            .flat_map(|alternative| &alternative.seconds),
    )
}

/// Returns the ratios of an op's alternatives, by name, from its samples at each batch size, ascending.
pub(super) fn ratios<'a>(
    batches: impl Iterator<Item = (u64, Vec<&'a OpSamples>)>,
) -> BTreeMap<String, Ratios> {
    let mut all: BTreeMap<String, Ratios> = BTreeMap::new();
    for (batch, samples) in batches {
        let Some(usual) = middle(samples.iter().flat_map(|op| &op.seconds)) else { continue };
        let names: Vec<&String> =
            samples.iter().flat_map(|op| &op.alternatives).map(|alternative| &alternative.name).collect();
        for name in names {
            let ratios = all.entry(name.clone()).or_default();
            let x = (batch as f64).ln();
            if ratios.logs.last().is_none_or(|last| last.0 < x)
                && let Some(seconds) = of_alternative(&samples, name)
            {
                ratios.logs.push((x, (seconds / usual).ln()));
            }
        }
    }
    all.retain(|_, ratios| !ratios.logs.is_empty());
    all
}

/// Estimates the usual alternative where only others ran: the alternative with the most samples, over its ratio at other batch
/// sizes. If no batch size has both, that alternative's time stands for it.
pub(super) fn usual_of_others<'a>(
    batch: u64,
    samples: impl Iterator<Item = &'a OpSamples>,
    known: &BTreeMap<String, Ratios>,
) -> Option<f64> {
    let samples: Vec<&OpSamples> = samples.collect();
    let alternatives = samples.iter().flat_map(|op| &op.alternatives);
    let most = alternatives
        .max_by_key(|alternative| (known.contains_key(&alternative.name), alternative.seconds.len()))?;
    let ratio = known.get(&most.name).map_or(1.0, |ratios| ratios.at(batch as f64));
    Some(of_alternative(&samples, &most.name)? / ratio)
}
