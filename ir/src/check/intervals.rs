//! A map from positions on a line to at most one value each, kept as runs: the last writer of each byte.
//!
//! Setting a range costs a logarithm and, in total, one step for each run that was ever set.

use std::collections::BTreeMap;
use std::ops::Range;

/// Runs by their first position, with their end.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals<V> {
    runs: BTreeMap<u64, (u64, V)>,
    /// Reused between calls to save allocations.
    stale: Vec<u64>,
}

impl<V: Copy> Intervals<V> {
    pub(super) fn new() -> Intervals<V> {
        Intervals { runs: BTreeMap::new(), stale: Vec::new() }
    }

    /// Returns the runs that share a position with `range`, clipped to it, in order.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, V)> + '_ {
        let before = self
            .runs
            .range(..range.start)
            .next_back()
            .filter(|(_, (end, _))| *end > range.start && !range.is_empty());
        let rest = self.runs.range(range.start..range.end.max(range.start));
        before
            .into_iter()
            .chain(rest)
            .map(move |(start, (end, value))| ((*start).max(range.start)..(*end).min(range.end), *value))
    }

    /// Puts `value` at every position of `range`.
    pub(super) fn set(&mut self, range: Range<u64>, value: V) {
        self.replace(range, value, |_, _| {});
    }

    /// Puts `value` at every position of `range`, and passes each replaced run to `old`, clipped to the range, in order.
    pub(super) fn replace(&mut self, range: Range<u64>, value: V, mut old: impl FnMut(Range<u64>, V)) {
        if range.is_empty() {
            return;
        }
        let mut rest = None;
        if let Some((_, run)) = self.runs.range_mut(..range.start).next_back()
            && run.0 > range.start
        {
            let (end, before) = *run;
            run.0 = range.start;
            old(range.start..end.min(range.end), before);
            rest = Some((end, before));
        }
        self.stale.clear();
        for (&start, &(end, before)) in self.runs.range(range.clone()) {
            old(start..end.min(range.end), before);
            rest = Some((end, before));
            self.stale.push(start);
        }
        for start in self.stale.drain(..).filter(|start| *start != range.start) {
            self.runs.remove(&start);
        }
        if let Some(rest) = rest.filter(|(end, _)| *end > range.end) {
            self.runs.insert(range.end, rest);
        }
        self.runs.insert(range.start, (range.end, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::philox4x32;

    /// Compares the runs with an array of cells.
    #[test]
    fn runs_are_what_an_array_of_cells_would_be() {
        let mut runs = Intervals::new();
        let mut cells = [None; 40];
        for step in 0..2000 {
            let [a, b, c, d] = philox4x32(7, [step, 0, 0, 0]).map(|word| u64::from(word) % 41);
            let (set, seen) = (a.min(b)..a.max(b), c.min(d)..c.max(d));
            runs.set(set.clone(), step);
            cells[set.start as usize..set.end as usize].fill(Some(step));
            let mut found = [None; 40];
            for (range, value) in runs.within(seen.clone()) {
                assert!(!range.is_empty());
                found[range.start as usize..range.end as usize].fill(Some(value));
            }
            let (from, to) = (seen.start as usize, seen.end as usize);
            assert_eq!(found[from..to], cells[from..to], "step {step}");
            assert!(found[..from].iter().chain(&found[to..]).all(Option::is_none), "step {step}");
        }
    }
}
