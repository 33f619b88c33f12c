//! The state before an update, on the host: the data that the update of each part has overwritten, and the running
//! statistics.
//!
//! An update that cannot be completed is undone from there. If the device and its memory can be lost, the state before the
//! previous update is also kept until the newer state is whole: once an update was applied, one of the two always is.
//!
//! Deliberately does not copy data that are not overwritten, or data overwritten by an update that is applied between two
//! passes; the state before an earlier update stays then.

use crate::state::of_regions;
use plimsoll_ir::program::Region;
use std::collections::HashMap;

/// States before updates.
pub(super) struct Befores {
    /// One, or two that are written in turn.
    all: Vec<Before>,
    /// Index of the one that is being written, or was written last.
    current: usize,
}

/// The state before an update.
#[derive(Clone, Default)]
pub(super) struct Before {
    /// Iterations done in that state.
    pub(super) step: u64,
    /// Concatenated running statistics.
    pub(super) statistics: Vec<f32>,
    /// By part: the data that its update overwrites, as concatenated regions.
    pub(super) parts: Vec<Vec<u8>>,
    is_whole: bool,
}

impl Befores {
    /// Empty states with this many parts.
    pub(super) fn new(parts: usize, can_be_lost: bool) -> Befores {
        let none = Before { parts: vec![Vec::new(); parts], ..Before::default() };
        Befores { all: vec![none; if can_be_lost { 2 } else { 1 }], current: 0 }
    }

    /// Begins the state after `step` iterations, with these statistics.
    pub(super) fn begin(&mut self, step: u64, statistics: Vec<f32>) {
        if self.all[self.current].is_whole {
            self.current = (self.current + 1) % self.all.len();
        }
        let before = &mut self.all[self.current];
        (before.step, before.statistics, before.is_whole) = (step, statistics, false);
    }

    /// State that was begun last.
    pub(super) fn current(&mut self) -> &mut Before {
        &mut self.all[self.current]
    }

    /// Marks the state that was begun last as whole.
    pub(super) fn end(&mut self) {
        self.current().is_whole = true;
    }

    /// Forgets all states, because the training changes.
    pub(super) fn forget(&mut self) {
        self.all.iter_mut().for_each(|before| before.is_whole = false);
    }

    /// Newest state that is whole.
    pub(super) fn newest(&self) -> Option<&Before> {
        self.all.iter().filter(|before| before.is_whole).max_by_key(|before| before.step)
    }
}

impl Before {
    /// Bytes of each region, by address; `updated` holds the regions of each part's update.
    pub(super) fn regions<'a>(
        &'a self,
        updated: impl Iterator<Item = &'a [Region]>,
        statistics: &'a [Region],
    ) -> HashMap<u64, &'a [u8]> {
        let mut found = HashMap::new();
        let parts = self.parts.iter().map(Vec::as_slice).zip(updated);
        for (data, regions) in parts.chain([(bytemuck::cast_slice(&self.statistics), statistics)]) {
            // A region without bytes has the address of the next region.
            let some = of_regions(regions, data).filter(|(_, own)| !own.is_empty());
            found.extend(some.map(|(region, own)| (region.offset.0, own)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_states_the_whole_one_stays_until_the_other_is() {
        let mut befores = Befores::new(1, true);
        let newest = |befores: &Befores| befores.newest().map(|before| before.step);
        befores.begin(4, Vec::new());
        assert_eq!(newest(&befores), None);
        befores.end();
        for step in [5, 6, 7] {
            // Still the state of the previous update, even after two begins.
            befores.begin(step, Vec::new());
            befores.begin(step, Vec::new());
            assert_eq!(newest(&befores), Some(step - 1));
            befores.end();
            assert_eq!(newest(&befores), Some(step));
        }
        befores.forget();
        assert_eq!(newest(&befores), None);
        let mut alone = Befores::new(1, false);
        alone.begin(4, Vec::new());
        alone.end();
        alone.begin(5, Vec::new());
        assert_eq!(newest(&alone), None);
    }
}
