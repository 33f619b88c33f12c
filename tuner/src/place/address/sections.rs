//! Items by section: the problem of the tree, without time.
//!
//! Slots with the same items, or with a subset of the items just before or after, form one *section*; the remaining sections are
//! the largest sets of items that meet, in order of time. If no item lies in two neighbouring sections, the problem splits there
//! into independent parts.
//!
//! This file deliberately ignores holes inside an item. In each section, only the lowest and the highest byte of an item count.

use super::{Item, ItemId, end};
use crate::decide::placement::Slot;
use plimsoll_ir::define_id;
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// Section of a problem.
    SectionId, "section");
define_id!(
    /// Shape of a problem.
    ShapeId, "shape");

/// Some bytes of an item in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<Of> {
    /// Section, if the list belongs to a shape; shape, if it belongs to a section.
    pub of: Of,
    /// First byte of the item.
    pub low: u64,
    /// End byte, exclusive.
    pub high: u64,
}

impl<Of> Part<Of> {
    /// Size of its range of addresses.
    pub fn bytes(&self) -> u64 {
        self.high - self.low
    }
}

/// An item's parts in the sections of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub item: ItemId,
    /// Parts by section, in order of time; not empty.
    pub parts: Vec<Part<SectionId>>,
    /// Bytes from its first to its last.
    pub size: u64,
}

impl Shape {
    /// First of its sections.
    pub fn first(&self) -> SectionId {
        self.parts[0].of
    }

    /// Last of its sections.
    pub fn last(&self) -> SectionId {
        self.parts[self.parts.len() - 1].of
    }

    /// Returns the sections that it is in together with the next one.
    pub fn crosses(&self) -> Range<SectionId> {
        self.first()..self.last()
    }
}

/// Items that meet, directly or through others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Problem {
    pub shapes: TiVec<ShapeId, Shape>,
    /// By section: parts present in it.
    pub sections: TiVec<SectionId, Vec<Part<ShapeId>>>,
}

/// Returns the independent problems of the items, in order of time.
pub(super) fn problems(items: &TiSlice<ItemId, Item>) -> Vec<Problem> {
    let slots = section_slots(items);
    let shapes: Vec<Shape> = items.iter_enumerated().map(|(i, item)| shape(i, item, &slots)).collect();
    // By section: `true` if an item is in it and in the previous one.
    let mut crossed: TiVec<SectionId, bool> = vec![false; slots.len()].into();
    for shape in &shapes {
        crossed[shape.first().next()..shape.last().next()].fill(true);
    }
    // By section: its problem and its position there.
    let mut problems: Vec<Problem> = Vec::new();
    let mut places: TiVec<SectionId, (usize, SectionId)> = TiVec::new();
    for crossed in crossed {
        if !crossed {
            problems.push(Problem::default());
        }
        let at = problems.len() - 1;
        places.push((at, problems[at].sections.push_and_get_key(Vec::new())));
    }
    for mut shape in shapes {
        let problem = &mut problems[places[shape.first()].0];
        let of = problem.shapes.next_key();
        for part in &mut shape.parts {
            part.of = places[part.of].1;
            let Part { low, high, .. } = *part;
            problem.sections[part.of].push(Part { of, low, high });
        }
        problem.shapes.push(shape);
    }
    problems
}

/// Returns the number of items of the largest problem.
pub(super) fn largest_problem(items: &TiSlice<ItemId, Item>) -> usize {
    let mut lives: Vec<(Slot, Slot)> = items.iter().map(|i| (i.hull.slots.start, i.hull.slots.end)).collect();
    lives.sort_unstable();
    let (mut until, mut count, mut largest) = (Slot::START, 0, 0);
    for (start, end) in lives {
        count = if start < until { count + 1 } else { 1 };
        until = until.max(end);
        largest = largest.max(count);
    }
    largest
}

/// Returns one slot of each section: an item has come since the last one, and an item goes next.
fn section_slots(items: &TiSlice<ItemId, Item>) -> TiVec<SectionId, Slot> {
    let end = end(items);
    let mut comes: TiVec<Slot, bool> = vec![false; end.index() + 1].into();
    let mut goes = comes.clone();
    for block in items.iter().flat_map(Item::parts) {
        comes[block.slots.start] = true;
        goes[block.slots.end] = true;
    }
    let mut slots = TiVec::new();
    let mut gone = true;
    for slot in Slot::each(Slot::START..end) {
        gone |= goes[slot];
        if comes[slot] {
            if !gone {
                slots.pop();
            }
            slots.push(slot);
            gone = false;
        }
    }
    slots
}

fn shape(item: ItemId, of: &Item, slots: &TiSlice<SectionId, Slot>) -> Shape {
    let mut parts: Vec<Part<SectionId>> = Vec::new();
    for block in of.parts() {
        let from = slots.partition_point(|slot| *slot < block.slots.start);
        let until = slots.partition_point(|slot| *slot < block.slots.end);
        let (low, high) = (block.bytes.start, block.bytes.end);
        parts.extend((from.0..until.0).map(|section| Part { of: SectionId(section), low, high }));
    }
    parts.sort_unstable_by_key(|part| part.of);
    parts.dedup_by(|part, kept| {
        let same = part.of == kept.of;
        if same {
            (kept.low, kept.high) = (kept.low.min(part.low), kept.high.max(part.high));
        }
        same
    });
    Shape { item, parts, size: of.size() }
}
