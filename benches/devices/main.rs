//! Accuracy of the model of an absent device: every published throughput compared with the model's, and the error on rows
//! outside the fit.
//!
//! Nothing is timed. `cargo bench --bench devices` prints the table; `-- fit` fits anew the shares that each generation's
//! kernels reach, and prints them next to the model's.

mod fit;
mod published;

use plimsoll::tuner::model::devices::GENERATIONS;
use published::{Judged, Spread, held_out, judged, sources, spread, to_state};

fn main() {
    let asked: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if asked.iter().any(|word| word == "fit") {
        return fitted();
    }
    let all = judged();
    rows(&all);
    println!();
    sources().iter().for_each(|(key, address)| println!("- {key}: {address}"));
    println!();
    summary(&all);
}

/// Prints every row.
fn rows(all: &[Judged]) {
    println!(
        "| generation | device | network | batch | products | published, samples/s | model / published | | source |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for generation in GENERATIONS {
        for Judged { row, ratio } in all.iter().filter(|one| one.row.sheet.generation.name == generation.name)
        {
            let length = row.length.map_or_else(String::new, |length| format!(", length {length}"));
            println!(
                "| {} | {} | {}{length} | {} | {} | {:.1} | {ratio:.2} | {} | {} |",
                generation.name,
                row.sheet.name,
                row.network,
                row.batch,
                if row.tf32 { "TF32" } else { "f32" },
                row.batch as f64 / row.seconds,
                if row.is_fitted() { "fitted" } else { "held out" },
                row.source,
            );
        }
    }
}

/// Prints every generation, in each arithmetic.
fn summary(all: &[Judged]) {
    println!(
        "| generation | products | fitted: rows, mean, worst | held out: rows, mean, worst | stated error |"
    );
    println!("|---|---|---|---|---|");
    let cell = |spread: Option<Spread>| match spread {
        Some(Spread { count, mean, worst, .. }) => format!("{count}, {mean:.2}, {worst:.2}"),
        None => "none".to_owned(),
    };
    for generation in &GENERATIONS {
        let states = to_state(all, generation);
        for tf32 in [false, true].into_iter().filter(|tf32| !tf32 || generation.reach.tf32.is_some()) {
            let of = |one: &&Judged| one.row.sheet.generation.name == generation.name && one.row.tf32 == tf32;
            let fitted = spread(all.iter().filter(of).filter(|one| one.row.is_fitted()));
            println!(
                "| {} | {} | {} | {} | {:.0} % |",
                generation.name,
                if tf32 { "TF32" } else { "f32" },
                cell(fitted),
                cell(spread(held_out(all, generation, tf32))),
                states[usize::from(tf32)] * 100.0,
            );
        }
    }
    let held = spread(all.iter().filter(|one| !one.row.is_fitted()));
    let fitted = spread(all.iter().filter(|one| one.row.is_fitted()));
    println!("| all | | {} | {} | |", cell(fitted), cell(held));
}

/// Prints the shares that each generation reaches, fitted anew.
fn fitted() {
    for generation in &GENERATIONS {
        println!("{}: has {:?}", generation.name, generation.reach);
        let (best, [least, has]) = fit::fit(generation);
        println!("{}: finds {best:?}, misses {least:.4} where it had {has:.4}", generation.name);
    }
}
