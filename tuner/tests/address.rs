//! Addresses: no two items that are there at the same time share a byte, whatever the limit and the work; what is known
//! to fit without any slack is found.

use plimsoll_ir::testing::Random;
use plimsoll_tuner::address::{Block, Item, assign, most_alive};
use std::ops::Range;
use std::path::Path;

fn items(random: &mut Random, count: u64) -> Vec<Item> {
    let item = |random: &mut Random| {
        let start = random.below(60) as u32;
        let longest = if random.percent(30) { 40 } else { 5 };
        let life = 1 + random.below(longest) as u32;
        let size = 1 + random.below(5000) * if random.percent(20) { 256 } else { 1 };
        let hull = Block { slots: start..start + life, bytes: 0..size };
        // A piece that is away for a while: what stays, and the piece before and after.
        let split = random.percent(30) && life > 4 && size > 10;
        let blocks = if split {
            let piece = 1 + random.below(size - 1);
            let piece_during = |slots| Block { slots, bytes: 0..piece };
            let rest = Block { slots: hull.slots.clone(), bytes: piece..size };
            vec![rest, piece_during(start..start + 2), piece_during(start + life - 2..start + life)]
        } else {
            Vec::new()
        };
        Item { hull, blocks }
    };
    (0..count).map(|_| item(random)).collect()
}

fn parts(item: &Item) -> &[Block] {
    if item.blocks.is_empty() { std::slice::from_ref(&item.hull) } else { &item.blocks }
}

/// Assigns twice, and compares every pair of blocks. Gives the height.
fn check(items: &[Item], limit: u64, alignment: u64, work: u64, seed: u64) -> u64 {
    let found = assign(items, limit, alignment, work, seed);
    assert_eq!(found, assign(items, limit, alignment, work, seed), "seed {seed}: it is deterministic");
    assert!(found.height >= most_alive(items));
    for (i, a) in items.iter().enumerate() {
        assert!(found.offsets[i].is_multiple_of(a.alignment(alignment)), "seed {seed}: {i} is aligned");
        assert!(found.offsets[i] + a.hull.bytes.end <= found.height, "seed {seed}: {i} is in the pool");
        for (j, b) in items.iter().enumerate().skip(i + 1) {
            let apart = |x: &Block, y: &Block| {
                let (p, q) = (found.offsets[i], found.offsets[j]);
                x.slots.end <= y.slots.start
                    || y.slots.end <= x.slots.start
                    || p + x.bytes.end <= q + y.bytes.start
                    || q + y.bytes.end <= p + x.bytes.start
            };
            assert!(parts(a).iter().all(|x| parts(b).iter().all(|y| apart(x, y))), "seed {seed}: {i}, {j}");
        }
    }
    found.height
}

#[test]
fn nothing_overlaps() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let count = random.below(80);
        let items = items(&mut random, count);
        let least = most_alive(&items);
        for (limit, alignment, work) in [
            (least, 1, 300_000),
            (0, 256, 0),
            (u64::MAX, 1, 1000),
            (least, 256, 5000),
            (least, 16, 2_000_000),
        ] {
            check(&items, limit, alignment, work, seed);
        }
    }
}

/// Cuts a rectangle of bytes and time into pieces, across the longer side as a rule.
fn cut(random: &mut Random, slots: Range<u32>, bytes: Range<u64>, pieces: u64, into: &mut Vec<Item>) {
    let (life, size) = (slots.end - slots.start, bytes.end - bytes.start);
    if pieces < 2 || life < 2 || size < 2 {
        into.push(Item { hull: Block { slots, bytes: 0..size }, blocks: Vec::new() });
        return;
    }
    let half = 1 + random.below(pieces - 1);
    if random.percent(50) {
        let at = slots.start + 1 + random.below(u64::from(life) - 1) as u32;
        cut(random, slots.start..at, bytes.clone(), half, into);
        cut(random, at..slots.end, bytes, pieces - half, into);
    } else {
        let at = bytes.start + 1 + random.below(size - 1);
        cut(random, slots.clone(), bytes.start..at, half, into);
        cut(random, slots, at..bytes.end, pieces - half, into);
    }
}

#[test]
fn what_fills_the_pool_at_every_instant_is_found() {
    for seed in 0..40 {
        let mut items = Vec::new();
        cut(&mut Random::new(seed), 0..400, 0..1 << 20, 60, &mut items);
        assert_eq!(most_alive(&items), 1 << 20);
        assert_eq!(check(&items, 1 << 20, 1, 100_000_000, 1), 1 << 20, "seed {seed}: {} pieces", items.len());
    }
}

#[test]
fn odd_small_tensors_cost_little() {
    // A thousand statistics of 4 to 400 bytes beside large tensors.
    let mut random = Random::new(3);
    let size =
        |i: u64, random: &mut Random| if i.is_multiple_of(5) { 1 << 20 } else { 4 + 4 * random.below(100) };
    let items: Vec<Item> = (0..1000)
        .map(|i| Block { slots: i..i + 50, bytes: 0..size(u64::from(i), &mut random) })
        .map(|hull| Item { hull, blocks: Vec::new() })
        .collect();
    let least = most_alive(&items);
    let height = check(&items, least + least / 500, 256, 3_000_000, 0);
    assert!(height <= least + least / 500, "{height} of {least}");
}

#[test]
fn the_instances_of_minimalloc_are_solved_at_their_capacity() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/minimalloc"));
    // I takes some seconds: see the bench `addresses`.
    for name in ["A", "B", "C", "D", "E", "F", "G", "H", "J", "K"] {
        let path = folder.join(format!("{name}.1048576.csv"));
        let Ok(text) = std::fs::read_to_string(&path) else {
            println!("skipped: there is no {}", path.display());
            continue;
        };
        let number = |field: &str| field.trim().parse::<u64>().expect("a number");
        let item = |line: &str| {
            let fields: Vec<u64> = line.split(',').map(number).collect();
            let [_, lower, upper, size] = fields[..] else { panic!("{name}: {line}") };
            Item { hull: Block { slots: lower as u32..upper as u32, bytes: 0..size }, blocks: Vec::new() }
        };
        let items: Vec<Item> = text.lines().skip(1).map(item).collect();
        assert!(check(&items, 1 << 20, 1, 2_000_000_000, 1) <= 1 << 20, "{name}");
    }
}
