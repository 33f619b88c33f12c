//! Reused message buffers. The allocator returns long blocks to the system, and the system clears each page before it gives
//! the page out again: clearing takes longer than filling the buffer.
//!
//! Deliberately does not keep short buffers, or more than [`KEPT`] words. The oldest buffer goes first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Words of the shortest buffer that is kept (16 KiB), and the limit for all buffers together (256 MiB).
const LONG: usize = 1 << 12;
const KEPT: usize = 1 << 26;

/// Buffers of one process that wait for reuse.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// In the order of last use, newest last.
    rooms: VecDeque<Vec<u32>>,
    /// Capacity of all buffers.
    words: usize,
}

impl Rooms {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty buffer with room for this many words.
    pub(super) fn empty(&self, words: usize) -> Vec<u32> {
        let mut room = self.any(words);
        room.clear();
        room
    }

    /// A buffer of this many words, whose contents are those of an earlier message or 0.
    pub(super) fn filled(&self, words: usize) -> Vec<u32> {
        let mut room = self.any(words);
        room.resize(words, 0);
        room
    }

    /// A buffer with a copy of these words.
    pub(super) fn copy(&self, words: &[u32]) -> Vec<u32> {
        let mut room = self.empty(words.len());
        room.extend_from_slice(words);
        room
    }

    /// Takes back a buffer that is no longer used.
    pub(super) fn keep(&self, room: Vec<u32>) {
        if !(LONG..=KEPT).contains(&room.capacity()) {
            return;
        }
        let mut kept = self.kept();
        kept.words += room.capacity();
        kept.rooms.push_back(room);
        while kept.words > KEPT {
            let first = kept.rooms.pop_front().expect("they have these words");
            kept.words -= first.capacity();
        }
    }

    /// The buffer that was used last among those that are long enough, else a new one.
    fn any(&self, words: usize) -> Vec<u32> {
        if words >= LONG {
            let mut kept = self.kept();
            // A much longer buffer would be missing where its length is needed.
            let fits = |room: &Vec<u32>| (words..=2 * words).contains(&room.capacity());
            if let Some(room) = kept.rooms.iter().rposition(fits).and_then(|place| kept.rooms.remove(place)) {
                kept.words -= room.capacity();
                return room;
            }
        }
        Vec::with_capacity(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_used_again_where_it_fits() {
        let rooms = Rooms::default();
        [vec![1; LONG - 1], vec![2; LONG + 8]].into_iter().for_each(|room| rooms.keep(room));
        assert_eq!(rooms.filled(LONG + 9), [0; LONG + 9], "what is there is too short");
        assert_eq!(rooms.filled(LONG - 1), [0; LONG - 1], "what is short is not kept");
        let again = rooms.filled(LONG);
        assert_eq!(again, [2; LONG]);
        assert_eq!(rooms.filled(LONG), [0; LONG], "it is in use");
        rooms.keep(again);
        let copy = rooms.copy(&[3; LONG + 1]);
        assert_eq!(copy, [3; LONG + 1]);
        rooms.keep(copy);
        rooms.keep(vec![0; KEPT + 1]);
        let again = rooms.filled(LONG);
        assert_eq!(again, [3; LONG], "what is too long takes the place of nothing");
        rooms.keep(again);
        rooms.keep(vec![0; KEPT]);
        assert_eq!(rooms.filled(LONG), [0; LONG], "it has gone for what came last");
        assert_eq!(rooms.kept().words, KEPT);
    }
}
