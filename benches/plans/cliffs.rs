//! No cliffs: links of different rates, and a check that more means, more memory or a faster link never gave a worse plan.

use super::runs::{Case, Made, Means, RATES, Runs};
use super::subjects::FRACTIONS;
use super::tables::{Grid, Several, THREADS, headings, list, shown};
use plimsoll::tuner::Policy;

/// Ratio above which a plan counts as worse.
const WORSE: f64 = 1.001;

const MEANS: [(Means, &str); 3] = [
    (Means::SwapAndRecompute, "swap and recompute"),
    (Means::OffloadOnly, "offload only"),
    (Means::RecomputeOnly, "recompute only"),
];

/// Returns all plans at all rates, full and half duplex; without swapping the link does not matter.
fn cases(runs: &Runs) -> Vec<Case> {
    let mut cases = Vec::new();
    for (means, _) in MEANS {
        for (rate, half) in (0..RATES.len()).flat_map(|rate| [(rate, false), (rate, true)]) {
            if means != Means::RecomputeOnly || (rate, half) == (0, false) {
                let of = runs.cases(means, half, Policy::Plimsoll);
                cases.extend(of.into_iter().map(|case| Case { rate, ..case }));
            }
        }
    }
    cases
}

pub fn table(runs: &mut Runs) {
    let cases = cases(runs);
    runs.make(cases.iter().copied(), THREADS);
    links(runs, &cases);
    let mut grid =
        Grid::new(["over", "plans", "mean", "worst", "worse by more than 0.1 %"].map(str::to_owned));
    let mut worse = Vec::new();
    for (name, other) in OTHERS {
        let mut ratios = Several::default();
        let mut count = 0;
        for case in &cases {
            let Some(ours) = runs.get(*case).and_then(Made::makespan) else { continue };
            for other in other(runs, *case) {
                let Some(theirs) = runs.get(other).and_then(Made::makespan) else { continue };
                let ratio = ours / theirs;
                ratios.add(ratio);
                if ratio > WORSE {
                    count += 1;
                    worse.push(format!("{} over {name}: {ratio:.4}", said(runs, *case)));
                }
            }
        }
        let cells = [ratios.count().to_string(), shown(ratios.mean(), 4), shown(ratios.worst(), 4)];
        grid.row(name, cells.into_iter().chain([count.to_string()]));
    }
    grid.print("### A plan over those with fewer means, less memory and a slower link");
    println!("worse: {}\n", list(&worse));
}

/// Returns the cases that a case must not be worse than.
type Others = fn(&Runs, Case) -> Vec<Case>;

const OTHERS: [(&str, Others); 4] = [
    ("fewer means", |_, case| match case.means {
        Means::SwapAndRecompute => vec![
            Case { means: Means::OffloadOnly, ..case },
            Case { means: Means::RecomputeOnly, rate: 0, half: false, ..case },
        ],
        _ => Vec::new(),
    }),
    ("less memory", |runs, case| {
        let less = runs.fractions.iter().rev().find(|fraction| **fraction < case.fraction);
        less.map(|fraction| Case { fraction: *fraction, ..case }).into_iter().collect()
    }),
    ("a slower link", |_, case| {
        case.rate.checked_sub(1).map(|rate| Case { rate, ..case }).into_iter().collect()
    }),
    ("half duplex", |_, case| if case.half { Vec::new() } else { vec![Case { half: true, ..case }] }),
];

fn said(runs: &Runs, case: Case) -> String {
    let means = MEANS.iter().find(|(means, _)| *means == case.means).map_or("", |(_, name)| name);
    let (subject, f) = (&runs.subjects[case.subject].name, FRACTIONS[case.fraction]);
    let duplex = if case.half { "half" } else { "full" };
    format!("{subject} at {f}, {means}, {} {duplex} duplex", RATES[case.rate])
}

/// Prints makespan over bound by rate and duplex.
fn links(runs: &Runs, cases: &[Case]) {
    let mut grid = Grid::new(headings(runs, &["means", "link", "no plan"]));
    for (means, name) in MEANS {
        for (rate, half) in (0..RATES.len()).flat_map(|rate| [(rate, false), (rate, true)]) {
            let of = |case: &&Case| (case.means, case.rate, case.half) == (means, rate, half);
            let of: Vec<&Case> = cases.iter().filter(of).collect();
            if of.is_empty() {
                continue;
            }
            let none =
                of.iter().filter(|case| runs.get(***case).is_some_and(|made| made.makespan().is_none()));
            let head = [
                format!("{}, {} duplex", RATES[rate], if half { "half" } else { "full" }),
                none.count().to_string(),
            ];
            let cell = |fraction: &usize| {
                let mut sum = Several::default();
                for made in
                    of.iter().filter(|case| case.fraction == *fraction).filter_map(|case| runs.get(**case))
                {
                    made.makespan().into_iter().for_each(|makespan| sum.add(makespan / made.bound));
                }
                format!("{} ({})", shown(sum.mean(), 4), shown(sum.worst(), 4))
            };
            let cells: Vec<String> = runs.fractions.iter().map(cell).collect();
            grid.row(name, head.into_iter().chain(cells));
        }
    }
    grid.print("### Makespan over the lower bound: geometric mean (worst)");
}
