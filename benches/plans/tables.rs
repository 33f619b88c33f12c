//! The tables of plans at fractions between floor and peak.
//!
//! A table prints its targets next to the results, and below it the rows that miss them. `-` means no plan; `?` a plan skipped
//! for lack of time.

use super::runs::{Case, Found, Made, Means, Runs};
use super::subjects::{FRACTIONS, USUAL};
use plimsoll::tuner::Policy;
use std::collections::BTreeMap;

/// Threads that plan different traces at once, if nothing is timed.
pub const THREADS: usize = 2;

/// Share within which makespans count as equal.
const SAME: f64 = 1e-6;

/// A heading and rows of cells, printed as a Markdown table.
pub struct Grid(Vec<Vec<String>>);

impl Grid {
    pub fn new(heading: impl IntoIterator<Item = String>) -> Grid {
        let heading: Vec<String> = heading.into_iter().collect();
        let rule = heading.iter().map(|_| "---".to_owned()).collect();
        Grid(vec![heading, rule])
    }

    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        self.0.push(std::iter::once(name.into()).chain(cells).collect());
    }

    pub fn print(&self, title: &str) {
        println!("{title}\n");
        for row in &self.0 {
            println!("| {} |", row.join(" | "));
        }
        println!();
    }
}

/// Statistics over several values.
#[derive(Default)]
pub struct Several(Vec<f64>);

impl Several {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn mean(&self) -> Option<f64> {
        let logarithms = self.0.iter().map(|value| value.ln()).sum::<f64>();
        (!self.0.is_empty()).then(|| (logarithms / self.0.len() as f64).exp())
    }

    pub fn worst(&self) -> Option<f64> {
        self.0.iter().copied().max_by(f64::total_cmp)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Formats a number with this many decimals, or a dash.
pub fn shown(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

pub fn headings(runs: &Runs, first: &[&str]) -> Vec<String> {
    let fractions = runs.fractions.iter().map(|f| format!("f = {}", FRACTIONS[*f]));
    first.iter().map(|word| (*word).to_owned()).chain(fractions).collect()
}

/// Limits of planning time in seconds, each for up to this many ops.
const LIMITS: [(usize, f64); 3] = [(500, 1.0), (1500, 4.0), (usize::MAX, 20.0)];

fn limit(ops: usize) -> f64 {
    LIMITS.iter().find(|(most, _)| ops <= *most).map_or(0.0, |(_, seconds)| *seconds)
}

/// Prints seconds of planning, one plan at a time; in a bench of everything, only at the first two fractions, and only with all
/// means.
pub fn time(runs: &mut Runs) {
    for (means, _, name, _) in [MODES[0], MODES[2]] {
        if means == Means::SwapAndRecompute || runs.thorough {
            time_of(runs, means, name);
        }
    }
}

fn time_of(runs: &mut Runs, means: Means, name: &str) {
    let cases = runs.cases(means, false, Policy::Plimsoll);
    let alone = |case: &Case| runs.thorough || runs.fractions.iter().take(2).any(|f| *f == case.fraction);
    let alone: Vec<Case> = cases.iter().copied().filter(alone).collect();
    runs.make(alone, 1);
    runs.make(cases.iter().copied(), THREADS);
    let mut grid = Grid::new(headings(runs, &["trace", "ops", "limit"]));
    let mut over = 0;
    for rows in cases.chunks(runs.fractions.len()) {
        let subject = &runs.subjects[rows[0].subject];
        let limit = limit(subject.ops());
        let cell =
            |case: &Case| runs.get(*case).map_or("?".to_owned(), |made| format!("{:.2}", made.seconds));
        over += rows.iter().filter(|case| runs.get(**case).is_some_and(|made| made.seconds > limit)).count();
        let head = [subject.ops().to_string(), format!("{limit}")];
        grid.row(&subject.name, head.into_iter().chain(rows.iter().map(cell)));
    }
    for (number, (most, limit)) in LIMITS.into_iter().enumerate() {
        let least = number.checked_sub(1).map_or(0, |before| LIMITS[before].0);
        let longest = |f: &usize| {
            let within = |case: &&Case| (least + 1..=most).contains(&runs.subjects[case.subject].ops());
            let of = cases.iter().filter(within).filter(|case| case.fraction == *f);
            let seconds = of.filter_map(|case| runs.get(*case)).map(|made| made.seconds);
            shown(seconds.max_by(f64::total_cmp), 2)
        };
        let ops = if most == usize::MAX { format!("over {least}") } else { format!("up to {most}") };
        let head = [ops, format!("{limit}")];
        grid.row("**longest**", head.into_iter().chain(runs.fractions.iter().map(longest)));
    }
    grid.print(&format!(
        "### Planning time, {name}: seconds by the clock, two cores, one plan at a time; bound, search, addresses, \
         lowering and check included"
    ));
    let note = if runs.thorough { "" } else { "; beyond the first two fractions beside another thread" };
    let made = cases.iter().filter(|case| runs.get(**case).is_some()).count();
    println!("over the limit: {over} of {made}{note}\n");
}

/// Target mean and worst ratio, by fraction.
type Targets = [[f64; 2]; FRACTIONS.len()];

const HYBRID: Targets =
    [[1.015, 1.05], [1.009, 1.05], [1.005, 1.05], [1.003, 1.05], [1.003, 1.05], [1.003, 1.05]];
const OFFLOAD: Targets = [[1.005, 1.04]; FRACTIONS.len()];

/// Target worst ratio if a tensor takes more than a sixth of the pool.
const COARSE: f64 = 1.10;

pub fn hybrid(runs: &mut Runs) {
    let title =
        "Swapping and recomputing, full duplex: makespan / compute, bound / compute, makespan / bound";
    ratios(runs, title, Means::SwapAndRecompute, false, Some(&HYBRID));
    let title = "Swapping and recomputing, half duplex (no target)";
    ratios(runs, title, Means::SwapAndRecompute, true, None);
}

pub fn offload(runs: &mut Runs) {
    for (half, duplex) in [(false, "full"), (true, "half")] {
        let title = format!(
            "Offloading only, {duplex} duplex: makespan / compute, bound / compute, makespan / bound"
        );
        ratios(runs, &title, Means::OffloadOnly, half, Some(&OFFLOAD));
    }
}

/// Returns the bound that a plan is judged by: the bound that came with the trace for these means, if any, else ours.
fn judged_by(runs: &Runs, case: Case, made: &Made) -> f64 {
    let subject = &runs.subjects[case.subject];
    let given = subject.given[case.fraction].filter(|_| case.means == Means::SwapAndRecompute && !case.half);
    given.map_or(made.bound, |ratio| ratio * subject.compute)
}

fn ratios(runs: &mut Runs, title: &str, means: Means, half: bool, targets: Option<&Targets>) {
    let cases = runs.cases(means, half, Policy::Plimsoll);
    runs.make(cases.iter().copied(), THREADS);
    if cases.iter().all(|case| runs.get(*case).is_none()) {
        println!("left out for want of time: {title}\n");
        return;
    }
    let mut grid = Grid::new(headings(runs, &["trace"]));
    let mut sums: BTreeMap<usize, [Several; 4]> = BTreeMap::new();
    let mut weak = Vec::new();
    for rows in cases.chunks(runs.fractions.len()) {
        let subject = &runs.subjects[rows[0].subject];
        let mut cells = Vec::new();
        for case in rows {
            let Some(made) = runs.get(*case) else {
                cells.push("?".to_owned());
                continue;
            };
            let bound = judged_by(runs, *case, made);
            let Some(makespan) = made.makespan() else {
                cells.push(format!("- / {:.4}", bound / subject.compute));
                weak.push(format!("{} at {}: no plan", subject.name, FRACTIONS[case.fraction]));
                continue;
            };
            let values = [
                makespan / subject.compute,
                bound / subject.compute,
                makespan / bound,
                makespan / made.bound,
            ];
            cells.push(format!("{:.4} / {:.4} = {:.4}", values[0], values[1], values[2]));
            let sums = sums.entry(case.fraction).or_default();
            sums.iter_mut().zip(values).for_each(|(sum, value)| sum.add(value));
            let coarse = subject.is_coarse(FRACTIONS[case.fraction]);
            let worst = |targets: &Targets| if coarse { COARSE } else { targets[case.fraction][1] };
            if targets.is_some_and(|targets| values[2] > worst(targets)) {
                weak.push(format!("{} at {}: {:.4}", subject.name, FRACTIONS[case.fraction], values[2]));
            }
        }
        grid.row(&subject.name, cells);
    }
    let of = |f: &usize, show: &dyn Fn(&[Several; 4]) -> String| sums.get(f).map_or("?".to_owned(), show);
    let mean = |sums: &[Several; 4]| {
        let [makespan, bound, ratio, _] = sums.each_ref().map(|sum| shown(sum.mean(), 4));
        format!("{makespan} / {bound} = {ratio}")
    };
    let fractions = runs.fractions.clone();
    grid.row("**geometric mean**", fractions.iter().map(|f| of(f, &mean)));
    grid.row("**worst**", fractions.iter().map(|f| of(f, &|sums| shown(sums[2].worst(), 4))));
    if let Some(targets) = targets {
        let target = |f: &usize| {
            let [mean, worst] = targets[*f];
            format!("mean {mean}, worst {worst}; {COARSE} where coarse")
        };
        grid.row("**target**", fractions.iter().map(target));
    }
    let ours = |sums: &[Several; 4]| shown(sums[3].mean(), 4);
    grid.row("mean over our own bound", fractions.iter().map(|f| of(f, &ours)));
    grid.print(&format!("### {title}"));
    if targets.is_some() {
        println!("worse than the worst target: {}\n", list(&weak));
    }
}

pub fn list(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join("; ") }
}

const MODES: [(Means, bool, &str, [f64; 2]); 4] = [
    (Means::SwapAndRecompute, false, "swap and recompute, full duplex", [1.002, 1.01]),
    (Means::SwapAndRecompute, true, "swap and recompute, half duplex", [1.002, 1.01]),
    (Means::OffloadOnly, false, "offload only, full duplex", [1.02, 1.06]),
    (Means::OffloadOnly, true, "offload only, half duplex", [1.02, 1.06]),
];

/// Prints the pool over the most bytes in open buffers at once.
pub fn pool(runs: &mut Runs) {
    let mut grid = Grid::new(headings(runs, &["", "target", "all"]));
    let mut weak = Vec::new();
    for (means, half, name, [target, worst]) in MODES {
        let cases = runs.cases(means, half, Policy::Plimsoll);
        runs.make(cases.iter().copied(), THREADS);
        let mut sums: BTreeMap<usize, Several> = BTreeMap::new();
        let mut all = Several::default();
        for case in cases {
            let Some(measures) = runs.get(case).and_then(Made::measures) else { continue };
            let ratio = measures.pool as f64 / measures.alive.max(1) as f64;
            sums.entry(case.fraction).or_default().add(ratio);
            all.add(ratio);
            if ratio > worst {
                let subject = &runs.subjects[case.subject].name;
                weak.push(format!("{subject} at {}, {name}: {ratio:.4}", FRACTIONS[case.fraction]));
            }
        }
        let cell = |sum: &Several| format!("{}, worst {}", shown(sum.mean(), 4), shown(sum.worst(), 4));
        let by_fraction = runs.fractions.iter().map(|f| sums.get(f).map_or("?".to_owned(), cell));
        let head = [format!("{target}, worst {worst}"), cell(&all)];
        grid.row(name, head.into_iter().chain(by_fraction));
    }
    grid.print("### Pool over most bytes alive: geometric mean, worst");
    println!("worse than the worst target: {}\n", list(&weak));
}

/// Prints the cost of copying the state to the host during every iteration.
pub fn state(runs: &mut Runs) {
    let cases = runs.cases(Means::SwapAndRecompute, false, Policy::Plimsoll);
    runs.make(cases.iter().copied(), THREADS);
    let mut grid = Grid::new(headings(runs, &["trace"]));
    let mut all: [Several; 3] = Default::default();
    for (at, subject) in runs.subjects.iter().enumerate() {
        let cells = cases.iter().filter(|case| case.subject == at).map(|case| {
            let Some(measures) = runs.get(*case).and_then(Made::measures) else { return "?".to_owned() };
            let Some([first, last, best, whole]) = measures.copied else { return "-".to_owned() };
            let ratios = [first, last, best].map(|makespan| makespan / measures.makespan);
            all.iter_mut().zip(ratios).for_each(|(several, ratio)| several.add(ratio));
            let [first, last, best] = ratios.map(|ratio| shown(Some(ratio), 4));
            format!("{first}, {last}, {best} at {}", shown(Some(whole), 2))
        });
        let cells: Vec<String> = cells.collect();
        grid.row(subject.name.clone(), cells);
    }
    grid.print(
        "### With a copy of the state / without: before all that is swapped out, behind it, at the best place, whole \
         after this share",
    );
    let [first, last, best] = all.map(|s| format!("{}, worst {}", shown(s.mean(), 4), shown(s.worst(), 4)));
    println!("geometric means: before {first}; behind {last}; best {best}\n");
}

/// Compares every policy with `plimsoll` with the same means.
pub fn best(runs: &mut Runs) {
    let mut heading = vec!["policy".to_owned()];
    heading.extend(MODES.map(|mode| mode.2.to_owned()));
    let mut grid = Grid::new(heading);
    let mut worse = Vec::new();
    let all = MODES.iter().flat_map(|mode| runs.cases(mode.0, mode.1, Policy::Plimsoll)).collect::<Vec<_>>();
    runs.make(all, THREADS);
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Plimsoll) {
        let recomputes = matches!(policy, Policy::SuperNeurons | Policy::Memonger { .. });
        let mut cells = Vec::new();
        for (means, half, name, _) in MODES {
            // Without its means such a policy only keeps everything, or only swaps. A policy that does not use these means is
            // unchanged.
            if recomputes && means == Means::OffloadOnly {
                cells.push(String::new());
                continue;
            }
            let theirs = if recomputes { means } else { Means::OffloadOnly };
            let cases = runs.cases(theirs, half, policy);
            runs.make(cases.iter().copied(), THREADS);
            let mut sum = Several::default();
            let mut without = 0;
            for case in cases {
                let ours = Case { policy: Policy::Plimsoll, means, ..case };
                let (Some(made), Some(ours)) = (runs.get(case), runs.get(ours)) else { continue };
                let Some(theirs) = made.makespan() else {
                    without += 1;
                    continue;
                };
                let ratio = ours.makespan().map(|ours| theirs / ours);
                ratio.into_iter().for_each(|ratio| sum.add(ratio));
                if ratio.is_none_or(|ratio| ratio < 1.0 - SAME) {
                    let subject = &runs.subjects[case.subject].name;
                    let f = FRACTIONS[case.fraction];
                    worse.push(format!("{subject} at {f}, {name}, {policy}: {}", shown(ratio, 5)));
                }
            }
            cells.push(format!("{} ({} of {})", shown(sum.mean(), 3), sum.count(), sum.count() + without));
        }
        grid.row(policy.name(), cells);
    }
    grid.print("### Makespan of every policy over that of `plimsoll`: geometric mean (plans that it has)");
    println!("`plimsoll` is worse: {}\n", list(&worse));
}

/// Prints the gain from ten times the evaluations, on traces that are small enough to wait for.
pub fn effort(runs: &mut Runs) {
    // In a bench of everything, only one fraction is planned.
    let few = if runs.thorough { &USUAL[..] } else { &USUAL[..1] };
    let small = |case: &Case| runs.subjects[case.subject].ops() <= 500 && few.contains(&case.fraction);
    let cases = runs.cases(Means::SwapAndRecompute, false, Policy::Plimsoll);
    let cases: Vec<Case> = cases.into_iter().filter(small).collect();
    runs.make(cases.iter().copied(), THREADS);
    runs.make(cases.iter().map(|case| Case { effort: 10, ..*case }), THREADS);
    let columns =
        ["trace", "f", "makespan / bound", "with 10 x the evaluations", "gain", "seconds", "seconds"];
    let mut grid = Grid::new(columns.map(str::to_owned));
    let mut gains = Several::default();
    let mut weak = Vec::new();
    for case in cases {
        let pair = (runs.get(case), runs.get(Case { effort: 10, ..case }));
        let (Some(once), Some(ten)) = pair else { continue };
        let (Some(usual), Some(more)) = (once.makespan(), ten.makespan()) else { continue };
        let (subject, f) = (&runs.subjects[case.subject].name, FRACTIONS[case.fraction]);
        let gain = usual / more;
        gains.add(gain);
        if gain > 1.005 {
            weak.push(format!("{subject} at {f}: {gain:.4}"));
        }
        let cells = [
            f.to_string(),
            format!("{:.4}", usual / once.bound),
            format!("{:.4}", more / ten.bound),
            format!("{gain:.4}"),
            format!("{:.2}", once.seconds),
            format!("{:.2}", ten.seconds),
        ];
        grid.row(subject, cells);
    }
    grid.print("### What ten times the evaluations find (at most 0.5 % is to be gained)");
    println!("mean gain {}, more than 0.5 %: {}\n", shown(gains.mean(), 4), list(&weak));
}

/// Returns plans that a judge refuses, and errors of the planner.
pub fn faults(runs: &Runs) -> Vec<String> {
    let fault = |(case, made): (&Case, &Made)| {
        let Found::Fault(why) = &made.found else { return None };
        let (subject, f) = (&runs.subjects[case.subject].name, FRACTIONS[case.fraction]);
        let duplex = if case.half { "half" } else { "full" };
        let without = case.without.map_or(String::new(), |trick| format!(" without {trick}"));
        Some(format!("{subject} at {f}, {:?}, {duplex} duplex, {}{without}: {why}", case.means, case.policy))
    };
    let mut faults: Vec<String> = runs.made.iter().filter_map(fault).collect();
    faults.sort();
    faults
}

/// Prints how many of all plans are valid.
pub fn valid(runs: &mut Runs) {
    let mut grid = Grid::new(headings(runs, &["plans of `plimsoll`"]));
    let ours =
        |f: usize| runs.made.iter().filter(move |(c, _)| c.fraction == f && c.policy == Policy::Plimsoll);
    let mut row = |name: &str, is: &dyn Fn(&Made) -> bool| {
        let count = |f: &usize| ours(*f).filter(|(_, made)| is(made)).count().to_string();
        grid.row(name, runs.fractions.iter().map(count));
    };
    row("asked for", &|_| true);
    row("valid, says `check`", &|made| made.measures().is_some());
    row("judged by the referee too, and valid", &|made| made.measures().is_some_and(|m| m.refereed));
    row("no plan found", &|made| matches!(made.found, Found::None(_)));
    row("refused, or an error", &|made| matches!(made.found, Found::Fault(_)));
    grid.print("### Validity");
    if !runs.made.values().any(|made| made.measures().is_some_and(|m| m.refereed)) {
        println!("skipped: there is no ../shared/tools/referee.py, or no python3; only `check` judged\n");
    }
    for (case, made) in runs.made.iter().filter(|(case, _)| case.policy == Policy::Plimsoll) {
        if let Found::None(witness) = &made.found {
            let (subject, f) = (&runs.subjects[case.subject].name, FRACTIONS[case.fraction]);
            println!("no plan: {subject} at {f}, {:?}: {witness}", case.means);
        }
    }
    faults(runs).iter().for_each(|fault| println!("FAULT: {fault}"));
}
