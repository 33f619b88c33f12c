//! Fits the shares of peak that each generation's kernels reach, so that the model is nearest to the fitted rows.
//!
//! A share is fitted only if rows determine it. Kepler has one fitted row, so its memory share is Maxwell's. Ampere and Hopper
//! have no rows in f32, so their f32 kernels are Volta's. Ada's f32 peak is also its TF32 peak on GeForce cards, where both
//! were reported to run at one rate (github.com/NVIDIA/cutlass/discussions/390), so one share serves both. The search is a
//! deterministic coordinate descent, also along pairs of coordinates, in ever smaller steps.

use super::published::{Row, rows};
use plimsoll::ir::program::Program;
use plimsoll::tuner::model::devices::{Generation, Modelled, Reach};

/// Limits of every share.
const RANGE: [f64; 2] = [0.05, 0.95];

/// First and last step, as shares.
const STEPS: [f64; 2] = [0.1, 0.001];

/// Multiplies a share of a [`Reach`] by a factor, and returns the new share.
type Share = fn(&mut Reach, f64) -> f64;

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

/// Returns the shares of a generation that its rows determine.
fn shares(generation: &str) -> &'static [Share] {
    match generation {
        "Kepler" => &[products],
        "Ampere" | "Hopper" => &[tf32, memory],
        "Ada" => &[both, memory],
        _ => &[products, memory],
    }
}

/// Fits a generation's shares to its fitted rows, starting from its current shares. Also returns the sum of squared logarithms
/// of the misses, with the fitted shares and with the current ones.
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
                // Alone, and with a second share in the opposite direction, since one's gain can offset the other's loss.
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
