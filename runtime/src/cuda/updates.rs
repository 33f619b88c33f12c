//! One launch that updates all parameters.
//!
//! A network has an update for each parameter, most of them of a few numbers, and each launch takes longer than that work.
//! Their parameters lie side by side, and so do the gradients and the momenta, in the same order
//! (`networks/src/lower/resident.rs`). So the updates that follow one another on the compute stream are held back and joined
//! into one, over the whole range; the device launches it before anything else happens on that stream. Every number is
//! computed as by an update of its own: the same bits. The few bytes between two regions are zeros, and an update of zeros
//! leaves zeros.
//!
//! What it deliberately does not do: join what does not adjoin, what decays otherwise, or idle updates, which have no gradient.
//! Timed iterations join them, too: the executor asks which launches are joined (`executor/timing.rs`).

use crate::device::Launch;
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{Call, STORAGE_ALIGNMENT};

/// An update of adjoining parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// Where hyper-parameters, parameters, gradients and momenta start, in the order of the call's operands.
    offsets: [Bytes; 4],
    elements: u64,
    decay: bool,
}

impl Update {
    /// The update that a launch is; none where it is another call, or one without a gradient.
    pub(super) fn of(launch: &Launch) -> Option<Update> {
        match *launch.call() {
            Call::Sgd { elements, decay, idle: false } => {
                let offsets = launch.offsets().try_into().ok()?;
                Some(Update { offsets, elements, decay })
            }
            _ => None,
        }
    }

    /// Both as one; none where the next does not adjoin.
    pub(super) fn joined(self, next: &Update) -> Option<Update> {
        let [hyper, regions @ ..] = self.offsets;
        let [next_hyper, next_regions @ ..] = next.offsets;
        // From the start of a region to that of the next.
        let step = Bytes(self.elements.checked_mul(4)?).round_up(STORAGE_ALIGNMENT);
        let adjoins = regions.into_iter().zip(next_regions).all(|(region, next)| region + step == next);
        let elements = (step.0 / 4).checked_add(next.elements)?;
        (adjoins && hyper == next_hyper && self.decay == next.decay).then_some(Update { elements, ..self })
    }

    /// The call that it is.
    pub(super) fn call(&self) -> Call {
        Call::Sgd { elements: self.elements, decay: self.decay, idle: false }
    }

    /// Where the call's operands lie.
    pub(super) fn offsets(&self) -> &[Bytes] {
        &self.offsets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An update of so many numbers from here on, with gradients and momenta 10 and 20 KiB behind.
    fn update(parameter: u64, elements: u64) -> Update {
        let offsets = [0, parameter, parameter + 10_240, parameter + 20_480].map(Bytes);
        Update { offsets, elements, decay: true }
    }

    #[test]
    fn what_adjoins_is_one_update_with_the_gap_between() {
        let all = [update(256, 3), update(512, 65), update(1024, 64), update(1280, 1)];
        let joined = all[1..].iter().try_fold(all[0], Update::joined);
        assert_eq!(joined, Some(update(256, (1280 - 256) / 4 + 1)));
        let call = joined.expect("they adjoin").call();
        assert_eq!(call, Call::Sgd { elements: 257, decay: true, idle: false });
        assert_eq!(call.operands().len(), 4);
    }

    #[test]
    fn what_does_not_adjoin_is_not_joined() {
        let first = update(256, 64);
        assert!(first.joined(&update(512, 1)).is_some());
        assert_eq!(first.joined(&update(768, 1)), None, "a gap");
        assert_eq!(first.joined(&update(256, 64)), None, "the same once more");
        assert_eq!(update(512, 1).joined(&first), None, "the other way round");
        assert_eq!(first.joined(&Update { decay: false, ..update(512, 1) }), None);
        for operand in [0, 2, 3] {
            let mut elsewhere = update(512, 1);
            elsewhere.offsets[operand] += Bytes(256);
            assert_eq!(first.joined(&elsewhere), None, "operand {operand}");
        }
    }
}
