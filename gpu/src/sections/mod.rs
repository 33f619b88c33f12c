//! The sections of a run, as data: what each asks, how long it may take, how it is measured, and what must come of it.
//!
//! What it deliberately does not do: run anything. A section that needs another's numbers measures them itself, so that any
//! of them can be run alone.

mod batches;
mod bits;
mod deep;
mod link;
mod predict;
mod pytorch;
mod step;
mod tests;

use crate::ground::Ground;
use crate::row::{Row, Verdict, number};
use plimsoll::study::Error;

/// One question, and how it is answered.
pub struct Section {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it asks.
    pub asks: &'static str,
    /// Seconds after which it is cut.
    pub seconds: u64,
    /// Whether the section runs only where it is named: it takes long, or needs more memory than most cards have.
    pub by_name_only: bool,
    /// Measures, and gives rows.
    pub run: fn(&Ground) -> Result<(), Error>,
    /// What must come of it.
    pub targets: &'static [Target],
}

/// Something that must be reached.
pub struct Target {
    /// What, in words.
    pub what: &'static str,
    /// Whether missing it means that something is wrong, and not only slow.
    pub verifies: bool,
    /// What the rows say about it; none where they say nothing.
    pub judge: fn(&[Row]) -> Option<Verdict>,
}

/// All of them: what must be right, how fast a step is, how far off predictions are, then the comparisons.
pub const SECTIONS: &[Section] = &[
    tests::SECTION,
    bits::SECTION,
    step::SECTION,
    link::SECTION,
    predict::SECTION,
    batches::F32,
    batches::TF32,
    batches::BF16,
    pytorch::BF16,
    pytorch::TF32,
    pytorch::F32,
    pytorch::COMPILE_BF16,
    pytorch::COMPILE_TF32,
    pytorch::COMPILE_F32,
    deep::SECTION,
];

/// The section of this name.
pub fn find(name: &str) -> Result<&'static Section, Error> {
    SECTIONS.iter().find(|section| section.name == name).ok_or_else(|| {
        let names: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
        Error::usage(format_args!("there is no section `{name}`"))
            .help(format_args!("the sections are {}", names.join(", ")))
    })
}

/// The numbers of this name in all rows that have one.
fn numbers(rows: &[Row], name: &str) -> Vec<f64> {
    rows.iter().filter_map(|row| number(row, name)).collect()
}

/// The largest; none of none.
fn worst(numbers: &[f64]) -> Option<f64> {
    numbers.iter().copied().max_by(f64::total_cmp)
}
