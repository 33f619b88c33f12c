//! AccUDNN (arXiv 1901.06773), eq. (9): the learning rate at a different batch, compared with the only rate that the paper
//! gives.
//!
//! The paper does not say how its c was chosen. Ours (`tuner/src/rate.rs`) is not fitted to that rate, here or there: a single
//! number cannot distinguish the rules, and c is no property of a network that one could measure.

use crate::plot::Plot;
use crate::subjects::Scale;
use crate::table::{Table, cells, claim, note, percent};
use plimsoll::ir::config::LearningRateRule::{self, Accudnn, Linear, SquareRoot};
use plimsoll::tuner::rate::{CEILING_IN_BASE_RATES, default_convexity, learning_rate};

/// Base point of the rates: the usual batch and rate of residual networks on ImageNet. The paper gives neither.
const BASE: (u64, f64) = (256, 0.1);

/// §6.3 D: eight workers of 74 images each, and their rate.
const PUBLISHED: (u64, f64) = (592, 0.22);

/// Half a unit of the last published digit.
const ROUNDING: f64 = 0.005;

/// Batches besides the published one, for the plot.
const BATCHES: [u64; 6] = [256, 592, 1024, 2048, 4096, 8192];

fn at(rule: LearningRateRule, batch: u64) -> f64 {
    learning_rate(rule, BASE.0, BASE.1, batch).expect("a sound base point")
}

/// Returns the c at which eq. (9) gives this rate at the published batch: a larger c gives a lower rate.
fn convexity_for(rate: f64) -> f64 {
    let (mut low, mut high) = (1e-6, (1.0 - 1e-6) / BASE.1);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if at(Accudnn { convexity: middle }, PUBLISHED.0) > rate { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

pub fn rates(_: &Scale) -> Table {
    let plot = Plot::new("Learning rates from 0.1 at batch 256", "batch", "learning rate");
    let mut table = Table::new(
        format!(
            "AccUDNN §4.2, eq. (9), and §6.3 D: ResNet-101 on eight workers, \"{}\" at a batch of {}. The paper does not say \
             from which rate at which batch; taken is the usual {} at {}, so q = {:.4}.",
            PUBLISHED.1,
            PUBLISHED.0,
            BASE.1,
            BASE.0,
            PUBLISHED.0 as f64 / BASE.0 as f64
        ),
        "rule | c | ceiling 1 / c | rate at 592 | off the published 0.22 | rate at 8192",
        plot,
    );
    table.published = true;
    let default = default_convexity(BASE.1);
    let solved = convexity_for(PUBLISHED.1);
    let rules = [
        ("linear", Linear),
        ("square root", SquareRoot),
        ("eq. (9), default", Accudnn { convexity: default }),
        ("eq. (9), c that gives 0.22", Accudnn { convexity: solved }),
    ];
    for (name, rule) in rules {
        for batch in BATCHES {
            table.plot.add(name, batch as f64, at(rule, batch));
        }
        let c = if let Accudnn { convexity } = rule { Some(convexity) } else { None };
        let ceiling = c.map(|c| format!("{:.2}", 1.0 / c));
        let rate = at(rule, PUBLISHED.0);
        table.row(cells![name, c.map(|c| format!("{c:.4}")), ceiling, format!("{rate:.4}"), percent(rate / PUBLISHED.1 - 1.0);
            format!("{:.4}", at(rule, BATCHES[BATCHES.len() - 1]))]);
    }
    table.plot.published("eq. (9), default", PUBLISHED.0 as f64, PUBLISHED.1);
    let ours = at(Accudnn { convexity: default }, PUBLISHED.0);
    claim!(table.claims; "Eq. (9) gives 0.22 at a batch of 592, to its two digits (§6.3 D)";
        "the default c ({ours:.4})"; (ours - PUBLISHED.1).abs() <= ROUNDING);
    let [most, least] = [-ROUNDING, ROUNDING].map(|by| convexity_for(PUBLISHED.1 + by));
    note!(table;
        "The default c puts the ceiling at {CEILING_IN_BASE_RATES} base rates and gives {ours:.4}, which rounds to \
         {ours:.2}. c = {solved:.2} would give 0.22, and any c from {least:.2} to {most:.2} rounds to it; that of the \
         paper is not said.");
    note!(table;
        "The default is not fitted to this rate: c = {solved:.2} would put the ceiling at {:.0} base rates, where linear \
         scaling is reported to hold for image classifiers up to {CEILING_IN_BASE_RATES} (`tuner/src/rate.rs`); at the \
         published batch the two are {} apart.", 1.0 / (solved * BASE.1), percent(ours / PUBLISHED.1 - 1.0));
    table
}
