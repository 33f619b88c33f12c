//! Memonger (Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174): of n layers, the output of the last
//! layer of each segment is kept, and the rest of the segment is recomputed, at once, when the backward pass comes to it. Nothing
//! is swapped.
//!
//! - `memonger`, as the papers that Plimsoll follows compare with it: sqrt(n) segments, evenly divided.
//! - `memonger-search`: the paper's search over budgets. Its Algorithm 3 ends a segment with the layer that makes the segment's
//!   outputs exceed b bytes. It is run for every b of a grid in steps of sqrt(2), the step by which the paper brackets the best
//!   b, from all outputs together (nothing is recomputed) down to the smallest output. The paper takes the division that needs
//!   least memory; here it is the fastest that fits.
//!
//! Layers are the stages of `chain.rs`, and an output is the tensors that a stage keeps for the backward pass. A segment's
//! boundary is the tensors that a later segment's forward ops read; if such an op updates one in place, its result. Tensors that
//! cannot be recomputed, such as the mask of a dropout, stay, and so does the last segment, with which the backward pass begins.

use super::chain::{Stage, chain};
use super::keep::keep;
use super::recomputing::{GivenUp, Unrolled, keep_in_stead, restrict};
use crate::decide::placement::Slot;
use crate::iteration::uses::Uses;
use crate::numbers::real;
use crate::place::realise::{Attempt, Case, GIVEN, Realised};
use crate::request::{Error, Witness};
use plimsoll_ir::{Bytes, Seconds};

/// Nothing is swapped, so that pool and windows do not matter.
const ATTEMPTS: [Attempt; 2] = [GIVEN[1], GIVEN[9]];

/// `memonger`.
pub(crate) fn realise(case: &Case<'_>) -> Result<Realised, Error> {
    let layers = Layers::of(case);
    let count = layers.stages.len();
    let segments = real(count).sqrt().round().max(1.0) as usize;
    let evenly: Vec<usize> = (0..count).map(|layer| layer * segments / count).collect();
    match layers.unrolled(&evenly) {
        Some(unrolled) => case.realise_unrolled(&unrolled, false, &ATTEMPTS),
        None => keep(case, case.thorough()),
    }
}

/// `memonger-search`.
pub(crate) fn searched(case: &Case<'_>) -> Result<Realised, Error> {
    let layers = Layers::of(case);
    let unrolled = layers.divisions().into_iter().filter_map(|division| layers.unrolled(&division));
    let mut found: Vec<(Seconds, Unrolled)> =
        unrolled.map(|unrolled| (unrolled.trace.fastest_seconds(), unrolled)).collect();
    found.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
    let mut nearest: Option<Witness> = None;
    for (_, unrolled) in &found {
        match case.realise_unrolled(unrolled, false, &ATTEMPTS)? {
            Realised::Short(short) => {
                if nearest.as_ref().is_none_or(|than| short.distance() < than.distance()) {
                    nearest = Some(short);
                }
            }
            found => return Ok(found),
        }
    }
    match nearest {
        Some(short) => Ok(Realised::Short(short)),
        None => keep(case, case.thorough()),
    }
}

/// Layers to divide into segments.
struct Layers<'a> {
    case: &'a Case<'a>,
    uses: Uses,
    stages: Vec<Stage>,
}

impl<'a> Layers<'a> {
    fn of(case: &'a Case<'a>) -> Layers<'a> {
        let gaps = case.gaps();
        Layers { case, uses: Uses::of(case.trace), stages: chain(case.trace, &gaps) }
    }

    /// By layer: its segment. Algorithm 3 for all budgets of the grid, each division once.
    fn divisions(&self) -> Vec<Vec<usize>> {
        let outputs = || self.stages.iter().map(|stage| Bytes(stage.bytes).to_f64());
        let least = outputs().filter(|bytes| *bytes > 0.0).fold(f64::INFINITY, f64::min);
        let mut divisions: Vec<Vec<usize>> = Vec::new();
        let all = outputs().sum::<f64>();
        // Every second step halves b, exactly to the bit.
        let budgets = (0..).map(|step| all / (f64::from(step) / 2.0).exp2());
        for budget in budgets.take_while(|budget| *budget >= least) {
            let (mut segment, mut sum) = (0, 0.0);
            let division = outputs().map(|bytes| {
                let here = segment;
                sum += bytes;
                if sum > budget {
                    (segment, sum) = (segment + 1, 0.0);
                }
                here
            });
            let division = division.collect();
            if divisions.last() != Some(&division) {
                divisions.push(division);
            }
        }
        divisions
    }

    /// Returns the iteration with these segments; `None` if it is too large to count.
    fn unrolled(&self, segment_of: &[usize]) -> Option<Unrolled> {
        let Layers { case, uses, stages } = self;
        let last = segment_of.last().copied().unwrap_or(0);
        let mut by_op = Vec::new();
        for (stage, segment) in stages.iter().zip(segment_of) {
            by_op.extend(Slot::each(stage.forward.slots.clone()).map(|_| *segment));
        }
        let mut given_up: GivenUp = vec![None; uses.tensor.len()].into();
        for (made, segment) in uses.writes.iter().zip(&by_op) {
            made.iter().for_each(|v| given_up[*v] = Some(*segment).filter(|segment| *segment < last));
        }
        for (read, segment) in uses.reads.iter().zip(&by_op) {
            read.iter().for_each(|v| given_up[*v] = given_up[*v].filter(|of| of == segment));
        }
        keep_in_stead(uses, by_op.len(), &mut given_up);
        restrict(case.trace, uses, &mut given_up);
        Unrolled::new(case.trace, uses, &given_up)
    }
}
