//! An optional id in the space of an id, for tables that a search copies at every step.

use std::marker::PhantomData;

/// An optional id in four bytes; an `Option` of it takes eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compact<Id> {
    /// Position of the id, or [`NO_POSITION`].
    position: u32,
    id: PhantomData<Id>,
}

/// Larger than any id: no table has this many entries.
const NO_POSITION: u32 = u32::MAX;

impl<Id: From<usize>> Compact<Id> {
    /// No id.
    pub const NONE: Compact<Id> = Compact { position: NO_POSITION, id: PhantomData };

    /// Returns the id.
    #[inline]
    pub fn get(self) -> Option<Id> {
        (self.position != NO_POSITION).then(|| Id::from(self.position as usize))
    }
}

impl<Id: Into<usize>> From<Id> for Compact<Id> {
    #[inline]
    fn from(id: Id) -> Compact<Id> {
        let position = u32::try_from(id.into()).ok().filter(|position| *position != NO_POSITION);
        Compact { position: position.expect("a table has fewer than 2^32 - 1 entries"), id: PhantomData }
    }
}

impl<Id: Into<usize> + From<usize>> From<Option<Id>> for Compact<Id> {
    #[inline]
    fn from(id: Option<Id>) -> Compact<Id> {
        id.map_or(Compact::NONE, Compact::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iteration::values::GapId;

    #[test]
    fn an_id_or_none_takes_the_space_of_an_id() {
        assert_eq!(size_of::<Compact<GapId>>(), size_of::<GapId>());
        for id in [None, Some(GapId(0)), Some(GapId(u32::MAX - 1))] {
            assert_eq!(Compact::from(id).get(), id);
        }
    }

    #[test]
    #[should_panic(expected = "fewer than 2^32 - 1 entries")]
    fn the_id_that_none_is_written_as_is_refused() {
        let _ = Compact::from(GapId(u32::MAX));
    }
}
