//! One launch that updates all parameters.
//!
//! A network has an update for each parameter, most of them of a few numbers, and each launch takes longer than that work.
//! Their parameters are adjacent, and so are the gradients and each part of the optimizer state, in the same order
//! (`networks/src/lower/resident.rs`). So successive updates on the compute stream are held back and joined into one, over
//! the whole range; the device launches it before anything else on that stream. Every number has the same bits as by a
//! separate update. The few bytes between two regions are zeros, and an update of zeros leaves zeros (AdamW divides by
//! epsilon, which is above 0).
//!
//! Deliberately does not join updates that are not adjacent or differ in kind.
//! Timed iterations join them too: the executor asks which launches are joined (`executor/timing.rs`).

use crate::device::Launch;
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{Call, STORAGE_ALIGNMENT};

/// An update of adjoining parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Update {
    call: Call,
    /// Start of hyper-parameters, parameters, gradients and optimizer states, in the order of the call's operands; 0 for
    /// absent ones.
    offsets: [Bytes; MOST],
}

/// Most operands of an update.
const MOST: usize = 5;

/// Elements of an update; `None` for other calls, and for an update without a gradient.
fn elements(call: &mut Call) -> Option<&mut u64> {
    match call {
        Call::Sgd { elements, .. } | Call::Adamw { elements } => Some(elements),
        _ => None,
    }
}

impl Update {
    /// The update of a launch; `None` for other calls, and for an update without a gradient.
    pub(super) fn of(launch: &Launch) -> Option<Update> {
        let (mut call, mut offsets) = (launch.call, [Bytes::ZERO; MOST]);
        elements(&mut call)?;
        offsets.get_mut(..launch.offsets.len())?.copy_from_slice(&launch.offsets);
        Some(Update { call, offsets })
    }

    /// Joins two updates; `None` if the next is not adjacent.
    pub(super) fn joined(mut self, next: &Update) -> Option<Update> {
        let (mut call, regions) = (next.call, 1..self.offsets().len());
        let (own, others) = (elements(&mut self.call)?, elements(&mut call)?);
        // From the start of a region to that of the next.
        let step = Bytes(own.checked_mul(4)?).round_up(STORAGE_ALIGNMENT);
        *others = others.checked_add(step.0 / 4)?;
        *own = *others;
        let adjoins = regions.into_iter().all(|region| self.offsets[region] + step == next.offsets[region]);
        (adjoins && self.offsets[0] == next.offsets[0] && self.call == call).then_some(self)
    }

    /// The joined update as a call.
    pub(super) fn call(&self) -> Call {
        self.call
    }

    /// Offsets of the call's operands.
    pub(super) fn offsets(&self) -> &[Bytes] {
        &self.offsets[..if matches!(self.call, Call::Sgd { .. }) { 4 } else { 5 }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGD: Call = Call::Sgd { elements: 0, decay: true };
    const ADAMW: Call = Call::Adamw { elements: 0 };

    /// The call of this many numbers.
    fn of(mut call: Call, numbers: u64) -> Call {
        *elements(&mut call).expect("it is an update") = numbers;
        call
    }

    /// An update of so many numbers at `parameter`, with gradients and states 10, 20 and 30 KiB behind.
    fn update(kind: Call, parameter: u64, elements: u64) -> Update {
        let offsets = [0, 1, 2, 3, 4].map(|n| match (n, kind) {
            (0, _) | (4, Call::Sgd { .. }) => Bytes(0),
            _ => Bytes(parameter + (n - 1) * 10_240),
        });
        Update { call: of(kind, elements), offsets }
    }

    #[test]
    fn what_adjoins_is_one_update_with_the_gap_between() {
        for kind in [SGD, ADAMW] {
            let all = [(256, 3), (512, 65), (1024, 64), (1280, 1)].map(|(start, n)| update(kind, start, n));
            let joined = all[1..].iter().try_fold(all[0], Update::joined);
            assert_eq!(joined, Some(update(kind, 256, (1280 - 256) / 4 + 1)));
            let joined = joined.expect("they adjoin");
            assert_eq!(joined.call(), of(kind, 257));
            assert_eq!(joined.offsets().len(), joined.call().operands().len());
        }
    }

    #[test]
    fn what_does_not_adjoin_is_not_joined() {
        for kind in [SGD, ADAMW] {
            let update = |parameter, elements| update(kind, parameter, elements);
            let first = update(256, 64);
            assert!(first.joined(&update(512, 1)).is_some());
            assert_eq!(first.joined(&update(768, 1)), None, "a gap");
            assert_eq!(first.joined(&update(256, 64)), None, "the same once more");
            assert_eq!(update(512, 1).joined(&first), None, "the other way round");
            let other = Call::Sgd { elements: 1, decay: false };
            assert_eq!(first.joined(&Update { call: other, ..update(512, 1) }), None);
            for operand in (0..first.offsets().len()).filter(|operand| *operand != 1) {
                let mut elsewhere = update(512, 1);
                elsewhere.offsets[operand] += Bytes(256);
                assert_eq!(first.joined(&elsewhere), None, "operand {operand}");
            }
        }
    }
}
