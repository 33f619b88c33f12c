//! The group of one worker: nothing is exchanged. An update of several virtual workers on it is accumulation.

use super::tree::TreeSum;
use super::{Group, GroupError, GroupFacts, Piece};
use std::collections::HashMap;

/// Group of one worker.
pub fn alone() -> Box<dyn Group> {
    Box::new(Alone::default())
}

#[derive(Default)]
struct Alone {
    /// Sums of the started pieces, by number.
    started: HashMap<u32, Vec<f32>>,
    spare: Vec<Vec<f32>>,
}

impl Group for Alone {
    fn facts(&self) -> GroupFacts {
        GroupFacts { engine: "alone", rank: 0, workers: 1 }
    }

    fn start(&mut self, piece: &Piece, mine: &TreeSum) -> Result<(), GroupError> {
        let mut sum = self.spare.pop().unwrap_or_default();
        sum.clear();
        sum.extend_from_slice(&mine.root().expect("one worker has all leaves")[piece.elements.clone()]);
        self.started.insert(piece.number, sum);
        Ok(())
    }

    fn finish(&mut self, piece: &Piece, sum: &mut [f32]) -> Result<(), GroupError> {
        let own = self.started.remove(&piece.number).expect("it was started");
        sum.copy_from_slice(&own);
        self.spare.push(own);
        Ok(())
    }

    fn advance(&mut self) -> Result<(), GroupError> {
        Ok(())
    }

    fn look(&mut self) -> Result<(), GroupError> {
        Ok(())
    }

    fn forget(&mut self) {
        self.spare.extend(self.started.drain().map(|(_, sum)| sum));
    }

    fn agree(&mut self, mine: &[u32]) -> Result<Vec<Vec<u32>>, GroupError> {
        Ok(vec![mine.to_vec()])
    }

    fn broadcast(&mut self, _: &mut Vec<u32>) -> Result<(), GroupError> {
        Ok(())
    }
}
