//! Items by section: what the tree searches, without the time.
//!
//! Slots during which the same is there, or part of what is there just before or after, make one *section*; what is
//! left are the largest sets of items that meet, in order of time. Where no item lies in two neighbouring sections,
//! the problem falls into parts that have nothing to do with each other.
//!
//! What this file does not do: keep holes inside an item. Of what an item has in a section, the lowest and the highest
//! byte count.

use super::Item;

/// Some bytes of an item in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The section, or the shape, whichever the list is not of.
    pub of: u32,
    /// From this byte of the item,
    pub low: u64,
    /// to this one, half-open.
    pub high: u64,
}

impl Part {
    pub fn bytes(&self) -> u64 {
        self.high - self.low
    }
}

/// What an item is in the sections of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Its position among all items.
    pub item: u32,
    /// What it has in which section, in order of time; not empty.
    pub parts: Vec<Part>,
    /// The bytes from its first to its last.
    pub size: u64,
}

impl Shape {
    pub fn first(&self) -> u32 {
        self.parts[0].of
    }

    pub fn last(&self) -> u32 {
        self.parts[self.parts.len() - 1].of
    }
}

/// Items that meet, directly or by way of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Problem {
    pub shapes: Vec<Shape>,
    /// By section: what is there.
    pub sections: Vec<Vec<Part>>,
}

/// The problems that the items fall into, in order of time.
pub(super) fn problems(items: &[Item]) -> Vec<Problem> {
    let slots = section_slots(items);
    let shapes: Vec<Shape> =
        items.iter().enumerate().map(|(i, item)| shape(i as u32, item, &slots)).collect();
    let mut crossed = vec![false; slots.len() + 1];
    for shape in &shapes {
        crossed[shape.first() as usize + 1..=shape.last() as usize].fill(true);
    }
    // By section: its problem and its place there.
    let mut problems: Vec<Problem> = Vec::new();
    let mut places: Vec<(usize, u32)> = Vec::new();
    for crossed in &crossed[..slots.len()] {
        if !crossed {
            problems.push(Problem::default());
        }
        let at = problems.len() - 1;
        places.push((at, problems[at].sections.len() as u32));
        problems[at].sections.push(Vec::new());
    }
    for mut shape in shapes {
        let problem = &mut problems[places[shape.first() as usize].0];
        for part in &mut shape.parts {
            part.of = places[part.of as usize].1;
            let of = problem.shapes.len() as u32;
            problem.sections[part.of as usize].push(Part { of, ..*part });
        }
        problem.shapes.push(shape);
    }
    problems
}

/// The items of the largest of them.
pub(super) fn largest_problem(items: &[Item]) -> usize {
    let mut lives: Vec<(u32, u32)> = items.iter().map(|i| (i.hull.slots.start, i.hull.slots.end)).collect();
    lives.sort_unstable();
    let (mut until, mut count, mut largest) = (0, 0, 0);
    for (start, end) in lives {
        count = if start < until { count + 1 } else { 1 };
        until = until.max(end);
        largest = largest.max(count);
    }
    largest
}

/// One slot of each section: where something has come since the last one, and something goes next.
fn section_slots(items: &[Item]) -> Vec<u32> {
    let end = items.iter().map(|i| i.hull.slots.end).max().unwrap_or_default() as usize;
    let (mut comes, mut goes) = (vec![false; end + 1], vec![false; end + 1]);
    for block in items.iter().flat_map(Item::parts) {
        comes[block.slots.start as usize] = true;
        goes[block.slots.end as usize] = true;
    }
    let mut slots: Vec<u32> = Vec::new();
    let mut gone = true;
    for slot in 0..end {
        gone |= goes[slot];
        if comes[slot] {
            if !gone {
                slots.pop();
            }
            slots.push(slot as u32);
            gone = false;
        }
    }
    slots
}

fn shape(i: u32, item: &Item, slots: &[u32]) -> Shape {
    let mut parts: Vec<Part> = Vec::new();
    for block in item.parts() {
        let from = slots.partition_point(|slot| *slot < block.slots.start);
        let until = slots.partition_point(|slot| *slot < block.slots.end);
        let (low, high) = (block.bytes.start, block.bytes.end);
        parts.extend((from..until).map(|section| Part { of: section as u32, low, high }));
    }
    parts.sort_unstable_by_key(|part| part.of);
    parts.dedup_by(|part, kept| {
        let same = part.of == kept.of;
        if same {
            (kept.low, kept.high) = (kept.low.min(part.low), kept.high.max(part.high));
        }
        same
    });
    Shape { item: i, parts, size: item.size() }
}
