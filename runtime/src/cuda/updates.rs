//! One launch that updates all parameters.
//!
//! A network has an update for each parameter, most of them of a few numbers, and each launch takes longer than that work.
//! Their parameters are adjacent, and so are the gradients and each part of the optimizer state, in the same order
//! (`networks/src/lower/resident.rs`). So successive updates on the compute stream are held back and joined into one, over
//! the whole range; the device launches it before anything else on that stream. Every number has the same bits as by a
//! separate update. The few bytes between two regions are zeros, and an update of zeros leaves zeros (AdamW divides by
//! epsilon, which is above 0).
//!
//! Deliberately does not join updates that are not adjacent or differ in kind, or idle updates, which have no gradient.
//! Timed iterations join them too: the executor asks which launches are joined (`executor/timing.rs`).

use crate::device::Launch;
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{Call, STORAGE_ALIGNMENT};

/// An update of adjoining parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Update {
    kind: Kind,
    /// Start of hyper-parameters, parameters, gradients and optimizer states, in the order of the call's operands; 0 for
    /// absent ones.
    offsets: [Bytes; MOST],
    elements: u64,
}

/// Update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sgd { decay: bool },
    Adamw,
}

/// Most operands of an update.
const MOST: usize = 5;

impl Update {
    /// The update of a launch; `None` for other calls, and for an update without a gradient.
    pub(super) fn of(launch: &Launch) -> Option<Update> {
        let (kind, elements) = match *launch.call() {
            Call::Sgd { elements, decay } => (Kind::Sgd { decay }, elements),
            Call::Adamw { elements } => (Kind::Adamw, elements),
            _ => return None,
        };
        let mut offsets = [Bytes::ZERO; MOST];
        offsets.get_mut(..launch.offsets().len())?.copy_from_slice(launch.offsets());
        Some(Update { kind, offsets, elements })
    }

    /// Joins two updates; `None` if the next is not adjacent.
    pub(super) fn joined(self, next: &Update) -> Option<Update> {
        let (&[hyper, ref regions @ ..], &[next_hyper, ref next_regions @ ..]) =
            (self.offsets(), next.offsets())
        else {
            return None;
        };
        // From the start of a region to that of the next.
        let step = Bytes(self.elements.checked_mul(4)?).round_up(STORAGE_ALIGNMENT);
        let adjoins = regions.iter().zip(next_regions).all(|(region, next)| *region + step == *next);
        let elements = (step.0 / 4).checked_add(next.elements)?;
        (adjoins && hyper == next_hyper && self.kind == next.kind).then_some(Update { elements, ..self })
    }

    /// The joined update as a call.
    pub(super) fn call(&self) -> Call {
        let elements = self.elements;
        match self.kind {
            Kind::Sgd { decay } => Call::Sgd { elements, decay },
            Kind::Adamw => Call::Adamw { elements },
        }
    }

    /// Offsets of the call's operands.
    pub(super) fn offsets(&self) -> &[Bytes] {
        let count = match self.kind {
            Kind::Sgd { .. } => 4,
            Kind::Adamw => 5,
        };
        &self.offsets[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGD: Kind = Kind::Sgd { decay: true };

    /// An update of so many numbers at `parameter`, with gradients and states 10, 20 and 30 KiB behind.
    fn update(kind: Kind, parameter: u64, elements: u64) -> Update {
        let offsets = match kind {
            Kind::Sgd { .. } => [0, parameter, parameter + 10_240, parameter + 20_480, 0],
            Kind::Adamw => [0, 1, 2, 3, 4].map(|n| if n == 0 { 0 } else { parameter + (n - 1) * 10_240 }),
        };
        Update { kind, offsets: offsets.map(Bytes), elements }
    }

    #[test]
    fn what_adjoins_is_one_update_with_the_gap_between() {
        for (kind, expected) in
            [(SGD, Call::Sgd { elements: 257, decay: true }), (Kind::Adamw, Call::Adamw { elements: 257 })]
        {
            let all = [(256, 3), (512, 65), (1024, 64), (1280, 1)].map(|(start, n)| update(kind, start, n));
            let joined = all[1..].iter().try_fold(all[0], Update::joined);
            assert_eq!(joined, Some(update(kind, 256, (1280 - 256) / 4 + 1)));
            let joined = joined.expect("they adjoin");
            assert_eq!(joined.call(), expected);
            assert_eq!(joined.offsets().len(), expected.operands().len());
        }
    }

    #[test]
    fn what_does_not_adjoin_is_not_joined() {
        for kind in [SGD, Kind::Adamw] {
            let update = |parameter, elements| update(kind, parameter, elements);
            let first = update(256, 64);
            assert!(first.joined(&update(512, 1)).is_some());
            assert_eq!(first.joined(&update(768, 1)), None, "a gap");
            assert_eq!(first.joined(&update(256, 64)), None, "the same once more");
            assert_eq!(update(512, 1).joined(&first), None, "the other way round");
            let other = Kind::Sgd { decay: false };
            assert_eq!(first.joined(&Update { kind: other, ..update(512, 1) }), None);
            for operand in (0..first.offsets().len()).filter(|operand| *operand != 1) {
                let mut elsewhere = update(512, 1);
                elsewhere.offsets[operand] += Bytes(256);
                assert_eq!(first.joined(&elsewhere), None, "operand {operand}");
            }
        }
    }
}
