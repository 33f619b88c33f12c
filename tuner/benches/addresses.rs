//! Time to find addresses without slack: MiniMalloc's public instances at their capacity, and generated perfect packings.
//!
//! `cargo bench -p plimsoll-tuner --bench addresses -- [SEED] [TRICK...]`, without the named tricks, such as `tree`
//!
//! Next to each time is that of MiniMalloc with all its switches on, as it publishes them: its command line tool at commit
//! 9f5cf81, built with -O3, user seconds on the 2-core machine of the same day (2026-11-20). The instances are in
//! `tests/data/minimalloc`. Times are printed, never asserted.

use plimsoll_testing::Random;
use plimsoll_tuner::address::{Block, Item, ItemId, Slot, Work, assign, most_alive};
use plimsoll_tuner::{Trick, Tricks};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;
use typed_index_collections::{TiSlice, TiVec};

/// Name and MiniMalloc's seconds.
const INSTANCES: [(&str, f64); 11] = [
    ("A", 4.680),
    ("B", 3.572),
    ("C", 0.617),
    ("D", 2.487),
    ("E", 3.587),
    ("F", 4.853),
    ("G", 1.060),
    ("H", 1.611),
    ("I", 3.561),
    ("J", 0.804),
    ("K", 0.544),
];

const CAPACITY: u64 = 1 << 20;

/// Looks that suffice for every instance; some minutes if they do not.
const LOOKS: u64 = 20_000_000_000;

fn main() {
    let seed = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(1);
    let without: Tricks = std::env::args().filter_map(|a| a.parse::<Trick>().ok()).collect();
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/minimalloc"));
    println!(
        "{:10} {:>8} {:>9} {:>10} {:>9} {:>11}",
        "instance", "items", "alive", "height", "seconds", "MiniMalloc"
    );
    for (name, theirs) in INSTANCES {
        let path = folder.join(format!("{name}.1048576.csv"));
        let text = std::fs::read_to_string(&path).expect("an instance");
        row(name, &items(&text), (seed, without), Some(theirs));
    }
    for (pieces, seed_of_cut) in [(50, 1), (100, 2), (200, 3), (400, 4)] {
        let mut items = TiVec::new();
        cut(&mut Random::new(seed_of_cut), [0, 2000], [0, CAPACITY], pieces, &mut items);
        row(&format!("cut {pieces}"), &items, (seed, without), None);
    }
}

fn row(name: &str, items: &TiSlice<ItemId, Item>, (seed, without): (u64, Tricks), theirs: Option<f64>) {
    let began = Instant::now();
    let work = Work { looks: LOOKS, expired: None, without };
    let found = assign(items, CAPACITY, 1, work, seed);
    let took = began.elapsed().as_secs_f64();
    let theirs = theirs.map_or(String::from("-"), |seconds| format!("{seconds:.3}"));
    let (count, alive, height) = (items.len(), most_alive(items), found.height);
    println!("{name:10} {count:>8} {alive:>9} {height:>10} {took:>9.3} {theirs:>11}");
}

/// Line of an instance: `id,lower,upper,size`.
fn items(text: &str) -> TiVec<ItemId, Item> {
    let number = |field: &str| field.trim().parse::<u64>().expect("a number");
    let item = |line: &str| {
        let fields: Vec<u64> = line.split(',').map(number).collect();
        let [_, lower, upper, size] = fields[..] else { panic!("four fields, not {line}") };
        Item { hull: Block { slots: slots(lower as u32..upper as u32), bytes: 0..size }, blocks: Vec::new() }
    };
    text.lines().skip(1).map(item).collect()
}

fn slots(range: Range<u32>) -> Range<Slot> {
    Slot(range.start)..Slot(range.end)
}

/// Cuts a rectangle of time and bytes into this many pieces, which fill it without a gap.
fn cut(random: &mut Random, during: [u64; 2], bytes: [u64; 2], pieces: u64, into: &mut TiVec<ItemId, Item>) {
    let [life, size] = [during, bytes].map(|[start, end]| end - start);
    if pieces < 2 || life < 2 || size < 2 {
        let hull = Block { slots: slots(during[0] as u32..during[1] as u32), bytes: 0..size };
        into.push(Item { hull, blocks: Vec::new() });
        return;
    }
    let half = 1 + random.below(pieces - 1);
    if random.percent(50) {
        let at = during[0] + 1 + random.below(life - 1);
        cut(random, [during[0], at], bytes, half, into);
        cut(random, [at, during[1]], bytes, pieces - half, into);
    } else {
        let at = bytes[0] + 1 + random.below(size - 1);
        cut(random, during, [bytes[0], at], half, into);
        cut(random, during, [at, bytes[1]], pieces - half, into);
    }
}
