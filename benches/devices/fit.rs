//! Finds what each generation's kernels reach: the shares with which the model is nearest to the fitted rows.
//!
//! A share is fitted only where rows tell it. Kepler has one fitted row, so it takes what Maxwell reaches of memory; Ampere
//! and Hopper have no rows in f32, so their f32 kernels are Volta's; Ada's f32 peak is also its TF32 peak on GeForce cards,
//! where both were reported to run at one rate (github.com/NVIDIA/cutlass/discussions/390), so one share serves both. The
//! search goes down coordinate by coordinate, and along pairs of them, in ever smaller steps, the same way every time.

use super::published::{Row, rows};
use plimsoll::ir::program::Program;
use plimsoll::tuner::model::devices::{Generation, Modelled, Reach};

/// No kernel reaches less or more than this.
const RANGE: [f64; 2] = [0.05, 0.95];

/// The first step and the last one, as shares.
const STEPS: [f64; 2] = [0.1, 0.001];

/// What moves: a share, and what it is in a [`Reach`].
type Share = fn(&mut Reach, f64) -> f64;

/// Changes products by a factor.
fn products(reach: &mut Reach, by: f64) -> f64 {
    reach.products *= by;
    reach.products
}

fn tf32(reach: &mut Reach, by: f64) -> f64 {
    reach.tf32 = reach.tf32.map(|share| share * by);
    reach.tf32.unwrap_or(RANGE[0])
}

fn both(reach: &mut Reach, by: f64) -> f64 {
    reach.products *= by;
    reach.tf32 = Some(reach.products);
    reach.products
}

fn memory(reach: &mut Reach, by: f64) -> f64 {
    reach.memory *= by;
    reach.memory
}

/// The shares of a generation that its rows tell.
fn shares(generation: &str) -> &'static [Share] {
    match generation {
        "Kepler" => &[products],
        "Ampere" | "Hopper" => &[tf32, memory],
        "Ada" => &[both, memory],
        _ => &[products, memory],
    }
}

/// What a generation reaches, from its fitted rows, starting from what it is said to reach; and the sum of the squares of
/// their logarithms' misses, with that and with what it is said to reach.
pub fn fit(generation: &Generation) -> (Reach, [f64; 2]) {
    let of = |row: &Row| row.sheet.generation.name == generation.name && row.is_fitted();
    let mut subjects: Vec<(Row, Program)> =
        rows().into_iter().filter(of).map(|row| (row.clone(), row.program())).collect();
    let mut miss = |reach: Reach| -> f64 {
        let off = subjects.iter_mut().map(|(row, program)| {
            let device = Modelled { reach, ..row.device() };
            (row.modelled(program, &device) / row.seconds).ln()
        });
        off.map(|log| log * log).sum()
    };
    let mut best = generation.reach;
    let has = miss(best);
    let mut least = has;
    let mut step = STEPS[0];
    while step >= STEPS[1] {
        let mut moved = false;
        for share in shares(generation.name) {
            for by in [1.0 + step, 1.0 / (1.0 + step)] {
                // Alone; and with another share that goes the other way, since what one gains the other can lose.
                for other in [None].into_iter().chain(shares(generation.name).iter().map(Some)) {
                    let mut tried = best;
                    let mut inside = (RANGE[0]..=RANGE[1]).contains(&share(&mut tried, by));
                    if let Some(other) = other {
                        inside &= (RANGE[0]..=RANGE[1]).contains(&other(&mut tried, 1.0 / by));
                    }
                    let found = miss(tried);
                    if inside && found < least * (1.0 - 1e-9) {
                        (best, least, moved) = (tried, found, true);
                    }
                }
            }
        }
        if !moved {
            step /= 2.0;
        }
    }
    (best, [least, has])
}
