//! Memonger (Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174), as the papers of this house
//! compare with it: of n layers, what every sqrt(n)-th leaves is kept, and the rest of a segment is recomputed, at once,
//! when the backward pass comes to it. Nothing is swapped.
//!
//! Layers are the stages of `chain.rs`, evenly divided. A segment's boundary is what a later segment's forward ops
//! read; where such an op updates it in place, what it makes of it. What cannot be recomputed, such as the mask of a
//! dropout, stays, and so does the last segment, with which the backward pass begins. The paper's search for a division
//! that fits a budget (its Algorithm 3) is not here: sqrt(n) is what it is known and compared for.

use super::chain::chain;
use super::keep::keep;
use super::recomputing::{GivenUp, Unrolled, keep_in_stead, restrict};
use crate::decide::gaps::{Alternatives, Gaps};
use crate::decide::placement::Slot;
use crate::iteration::uses::Uses;
use crate::numbers::real;
use crate::place::realise::{Case, GIVEN, Realised};
use crate::request::PlanError;
use plimsoll_ir::Bytes;

pub(crate) fn realise(case: &Case<'_>) -> Result<Realised, PlanError> {
    let uses = Uses::of(case.trace);
    let mut given_up = segments(case, &uses);
    restrict(case.trace, &uses, &mut given_up);
    let Some(unrolled) = Unrolled::new(case.trace, &uses, &given_up) else {
        return keep(case, case.thorough());
    };
    case.realise_unrolled(&unrolled, false, &[GIVEN[1], GIVEN[9]])
}

/// By value: the segment with which it is recomputed.
fn segments(case: &Case<'_>, uses: &Uses) -> GivenUp {
    let gaps = Gaps::new(case.trace, Bytes(case.pool), Alternatives::BesideOwn, &|_| 1);
    let stages = chain(case.trace, &gaps);
    let count = real(stages.len()).sqrt().round().max(1.0) as usize;
    let mut segment_of = Vec::new();
    for (i, stage) in stages.iter().enumerate() {
        let segment = i * count / stages.len();
        segment_of.extend(Slot::each(stage.forward_slots.clone()).map(|_| segment));
    }
    let mut given_up: GivenUp = vec![None; uses.tensor.len()].into();
    for (made, segment) in uses.writes.iter().zip(&segment_of) {
        made.iter().for_each(|v| given_up[*v] = Some(*segment).filter(|s| *s + 1 < count));
    }
    for (read, segment) in uses.reads.iter().zip(&segment_of) {
        read.iter().for_each(|v| given_up[*v] = given_up[*v].filter(|of| of == segment));
    }
    keep_in_stead(uses, segment_of.len(), &mut given_up);
    given_up
}
