//! What each worker has of a state whose momenta are sharded, as files of its own, from which the whole is put together. Where
//! they are not, the share of one worker is the whole state.
//!
//! Where a worker is lost, nobody can gather the state any more. Each of the others then keeps its share in a file: the pieces
//! that it owns and the copies that it has, of the last two states, and the running statistics. The file is a checkpoint whose
//! regions are pieces, named `<iterations>/<first number>/<name of the region>`.
//!
//! What it deliberately does not do: decide where the files lie, or when they are of no more use.

use super::Trainer;
use super::owner::momenta_of;
use crate::checkpoint::{Checkpoint, Progress, SavedRegion};
use crate::state::saved_name;
use bytemuck::cast_slice;
use plimsoll_ir::exchange::updates;
use plimsoll_ir::program::{Program, Region, Role};
use plimsoll_ir::{Bytes, Optimizer};
use std::collections::{BTreeSet, HashMap};

impl Trainer {
    /// What this worker has of the last states, from which [`Checkpoint::put_together`] makes a whole one with those of others;
    /// none where momenta are not sharded.
    pub fn share_of_state(&self) -> Option<Checkpoint> {
        let share = self.share.as_ref()?;
        let pieces = share.owner.as_ref()?.share(&share.statistics).into_iter();
        let regions: Vec<SavedRegion> = pieces
            .filter_map(|(step, region, from, numbers)| {
                let name = format!("{step}/{from}/{}", saved_name(&region)?);
                Some(SavedRegion { name, shape: vec![numbers.len()], data: cast_slice(numbers).to_vec() })
            })
            .collect();
        (!regions.is_empty()).then(|| Checkpoint::new(self.progress(self.step()), regions))
    }

    /// The bytes of its numbers at most; none where another worker that is lost takes nothing along.
    pub fn bytes_of_share(&self) -> Option<Bytes> {
        let share = self.share.as_ref().filter(|share| share.group.facts().workers > 1)?;
        let statistics: Bytes = share.statistics.iter().map(Region::bytes).sum();
        Some(share.owner.as_ref()?.bytes_of_share() + statistics + statistics)
    }
}

impl Checkpoint {
    /// A whole state as a share, which needs no other one.
    #[must_use]
    pub fn as_share(mut self) -> Checkpoint {
        let step = self.progress.step;
        self.regions.iter_mut().for_each(|region| region.name = format!("{step}/0/{}", region.name));
        self
    }

    /// The newest whole state that is in the shares of some workers of one training ([`Trainer::share_of_state`]), for its
    /// program, whose momenta may be on the device again; none where none is whole. Shares of another training than that of the
    /// newest one are left out.
    pub fn put_together(
        shares: &[Checkpoint],
        program: &Program,
        optimizer: Optimizer,
    ) -> Option<Checkpoint> {
        let newest = shares.iter().max_by_key(|share| share.progress.step)?;
        // Others may be left from before.
        let is_same = |share: &&Checkpoint| {
            let (one, other) = (&share.progress, &newest.progress);
            (&one.plan, &one.data) == (&other.plan, &other.data)
        };
        let mut pieces: HashMap<(u64, &str), Vec<Piece<'_>>> = HashMap::new();
        for region in shares.iter().filter(is_same).flat_map(|share| &share.regions) {
            let (step, rest) = region.name.split_once('/')?;
            let (from, name) = rest.split_once('/')?;
            let place = pieces.entry((step.parse().ok()?, name)).or_default();
            place.push((from.parse().ok()?, &region.data));
        }
        let steps: BTreeSet<u64> = pieces.keys().map(|(step, _)| *step).collect();
        let wanted: Vec<(String, Region)> = regions_of(program, optimizer)
            .filter_map(|region| Some((saved_name(&region)?, region)))
            .collect();
        steps.into_iter().rev().find_map(|step| {
            let regions: Option<Vec<SavedRegion>> = wanted
                .iter()
                .map(|(name, region)| {
                    let data = whole(pieces.get(&(step, name.as_str())), region.bytes().0 as usize)?;
                    let shape = region.shape.iter().map(|d| *d as usize).collect();
                    Some(SavedRegion { name: name.clone(), shape, data })
                })
                .collect();
            let Progress { plan, data, .. } = newest.progress.clone();
            let per_epoch = data.as_ref().map_or(1, |data| data.samples / plan.samples_of_update());
            Some(Checkpoint::new(Progress::new(step, per_epoch, plan, data), regions?))
        })
    }
}

/// A part of a region: from which of its numbers on, and their bytes.
type Piece<'a> = (usize, &'a [u8]);

/// What is resident, and the momenta of its parameters.
fn regions_of(program: &Program, optimizer: Optimizer) -> impl Iterator<Item = Region> {
    let kept = if updates(program) { &[] } else { Role::kept_by(optimizer) };
    let is_parameter = |region: &&Region| matches!(region.role, Role::Parameter(_));
    let momenta = momenta_of(kept, move || program.resident.iter().filter(is_parameter));
    program.resident.iter().cloned().chain(momenta)
}

/// A region of so many bytes from pieces that begin at some of its numbers; none where they do not cover it.
fn whole(pieces: Option<&Vec<Piece<'_>>>, bytes: usize) -> Option<Vec<u8>> {
    let mut pieces = pieces.cloned().unwrap_or_default();
    pieces.sort_unstable_by_key(|(from, _)| *from);
    let mut data = vec![0; bytes];
    let mut covered = 0;
    for (from, piece) in pieces {
        let begin = from.checked_mul(4).filter(|begin| *begin <= covered)?;
        let end = begin + piece.len();
        data.get_mut(begin..end)?.copy_from_slice(piece);
        covered = covered.max(end);
    }
    (covered == bytes).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_whole_where_its_pieces_leave_no_gap() {
        let (first, second) = ([1; 8], [2; 12]);
        let of = |pieces: &[(usize, &'static [u8])]| whole(Some(&pieces.to_vec()), 20);
        assert_eq!(of(&[(2, &[2; 12]), (0, &[1; 8])]), Some([&first[..], &second].concat()));
        assert_eq!(of(&[(2, &[2; 12])]), None);
        assert_eq!(of(&[(0, &[1; 8])]), None);
        assert_eq!(of(&[(0, &[1; 8]), (3, &[2; 8])]), None, "a gap");
        assert_eq!(of(&[(0, &[1; 8]), (2, &[2; 16])]), None, "past its end");
        assert_eq!(of(&[(0, &[1; 8]), (0, &[1; 8]), (2, &[2; 12])]), Some([&first[..], &second].concat()));
        assert_eq!(whole(None, 4), None);
        assert_eq!(whole(None, 0), Some(Vec::new()));
    }
}
