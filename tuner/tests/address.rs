//! Addresses: no two items that are there at the same time share a byte, whatever the limit and the work.

use plimsoll_ir::testing::Random;
use plimsoll_tuner::address::{Block, Item, assign, most_alive};

fn items(random: &mut Random, count: u64) -> Vec<Item> {
    let item = |random: &mut Random| {
        let start = random.below(60) as u32;
        let longest = if random.percent(30) { 40 } else { 5 };
        let life = 1 + random.below(longest) as u32;
        let size = 1 + random.below(5000);
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

#[test]
fn nothing_overlaps() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let count = random.below(80);
        let items = items(&mut random, count);
        let least = most_alive(&items);
        for (limit, alignment, work) in
            [(least, 1, 300_000), (0, 256, 0), (u64::MAX, 1, 1000), (least, 256, 5000)]
        {
            let found = assign(&items, limit, alignment, work, seed);
            assert!(found.height >= least);
            let aligned = |(item, offset): (&Item, &u64)| offset.is_multiple_of(item.alignment(alignment));
            assert!(items.iter().zip(&found.offsets).all(aligned), "seed {seed}");
            for (i, a) in items.iter().enumerate() {
                assert!(found.offsets[i] + a.hull.bytes.end <= found.height);
                for (j, b) in items.iter().enumerate().skip(i + 1) {
                    let apart = |x: &Block, y: &Block| {
                        let (p, q) = (found.offsets[i], found.offsets[j]);
                        x.slots.end <= y.slots.start
                            || y.slots.end <= x.slots.start
                            || p + x.bytes.end <= q + y.bytes.start
                            || q + y.bytes.end <= p + x.bytes.start
                    };
                    assert!(
                        parts(a).iter().all(|x| parts(b).iter().all(|y| apart(x, y))),
                        "seed {seed}: {i}, {j}"
                    );
                }
            }
        }
    }
}
