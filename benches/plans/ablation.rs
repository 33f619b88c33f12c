//! Value of each trick of the planner's search: everything planned with all tricks, and without each.
//!
//! The subjects are networks of up to some hundred ops, at f = 0.1 and 0.2, and random traces: a trick may help on one kind of
//! trace and hurt on the other. A trick is worth keeping if plans without it take longer, move more, or are found later. One
//! run plans one trace after the other with all variants, so that the machine's load is the same for all; time is wall-clock
//! time.

use super::runs::{Case, Means, Runs};
use super::subjects::{self, Subject, USUAL};
use super::tables::{Grid, Several, THREADS, faults, shown};
use plimsoll::tuner::{Policy, Trick};
use std::path::Path;
use std::time::Instant;

/// Most ops of a network, unless traces are named.
const MOST_OPS: usize = 450;

/// Number of random traces.
const RANDOM: u64 = 24;

pub fn table(runs: &mut Runs) {
    let wanted = |s: &Subject| !runs.selected && s.ops() > MOST_OPS;
    let spared: Vec<usize> = (0..runs.subjects.len()).filter(|s| wanted(&runs.subjects[*s])).collect();
    let usual: Vec<Case> = runs
        .cases(Means::SwapAndRecompute, false, Policy::Plimsoll)
        .into_iter()
        .filter(|case| !spared.contains(&case.subject) && USUAL[..2].contains(&case.fraction))
        .collect();
    make(runs, &usual);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut random = random(runs, folder.path());
    let of_random = random.cases(Means::SwapAndRecompute, false, Policy::Plimsoll);
    make(&mut random, &of_random);

    let heading = ["without", "networks: / bound", "/ all", "moved / all", "time / all"];
    let others = ["random: / bound", "/ all", "moved / all", "time / all", "the trick"];
    let mut grid = Grid::new(heading.into_iter().chain(others).map(str::to_owned));
    for without in variants() {
        let cells = worth(runs, &usual, without).into_iter().chain(worth(&random, &of_random, without));
        let (name, about) = without.map_or(("-", ""), |trick| (trick.name(), trick.about()));
        grid.row(name, cells.chain([about.to_owned()]));
    }
    grid.print("### Without each trick: geometric means of makespan, bytes moved and time");
    println!(
        "{} plans of networks, {} of random traces, each with and without\n",
        usual.len(),
        of_random.len()
    );
    faults(&random).iter().for_each(|fault| println!("FAULT: {fault}"));
}

/// Returns all tricks, and all but each one.
fn variants() -> impl Iterator<Item = Option<Trick>> {
    std::iter::once(None).chain(Trick::of(Policy::Plimsoll).map(Some))
}

fn make(runs: &mut Runs, usual: &[Case]) {
    let with_and_without =
        |case: &Case| variants().map(|without| Case { without, ..*case }).collect::<Vec<_>>();
    runs.make(usual.iter().flat_map(with_and_without), THREADS);
}

/// Returns random traces, with the same settings.
fn random(runs: &Runs, folder: &Path) -> Runs {
    let count = if runs.evaluations.is_none() { RANDOM } else { 2 };
    let time = runs.end.saturating_duration_since(Instant::now());
    let mut random = Runs::new(subjects::random(count, folder), vec![USUAL[1]], time);
    random.evaluations = runs.evaluations;
    random
}

/// Returns makespan over the bound; and makespan, bytes moved and time over those with all tricks.
fn worth(runs: &Runs, usual: &[Case], without: Option<Trick>) -> [String; 4] {
    let mut sums: [Several; 3] = Default::default();
    let mut seconds = [0.0; 2];
    for case in usual {
        let of = |without| runs.get(Case { without, ..*case });
        let pair = (of(None), of(without));
        let (Some(all), Some(less)) = pair else { continue };
        let measured = (all.measures(), less.measures());
        let (Some(with), Some(found)) = measured else { continue };
        sums[0].add(found.makespan / less.bound);
        sums[1].add(found.makespan / with.makespan);
        sums[2].add((1 + found.moved) as f64 / (1 + with.moved) as f64);
        seconds[0] += all.seconds;
        seconds[1] += less.seconds;
    }
    let [bound, all, moved] = sums.map(|sum| sum.mean());
    // Ratio of sums: a single plan is too short for the system's clock.
    let time = (seconds[0] > 0.0).then(|| seconds[1] / seconds[0]);
    [shown(bound, 4), shown(all, 4), shown(moved, 2), shown(time, 2)]
}
