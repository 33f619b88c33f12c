//! What the rows of DQN's figure 5 show, in words, and what of the paper's claims they contradict. Every number, and who is
//! ahead, is worked out from the rows.

use super::{Row, STOCHASTIC};
use crate::claims::Claims;
use crate::table::{Table, at_most, percent};

/// What a row has of one column.
type Column = fn(&Row) -> Option<f64>;

const OTHERS: [(&str, Column); 5] = [
    ("memonger", |row| row.theirs[0]),
    ("superneurons", |row| row.theirs[1]),
    ("tflms", |row| row.theirs[2]),
    ("random", |row| row.random.median()),
    ("annealing", |row| row.annealing.median()),
];

/// Overheads of which the one is no longer than the other, to 0.1 % of the iteration.
fn no_longer(one: f64, other: f64) -> bool {
    at_most(1.0 + one, 1.0 + other)
}

impl Row {
    fn name(&self) -> String {
        format!("{} at {:.0} % saved", self.of, 100.0 * self.saved)
    }

    fn dqn(&self) -> Option<f64> {
        self.best.median()
    }
}

/// The rows in which both columns have a plan, with both.
fn both(rows: &[Row], one: Column, other: Column) -> Vec<(&Row, f64, f64)> {
    rows.iter().filter_map(|row| Some((row, one(row)?, other(row)?))).collect()
}

/// "in x of y", of the rows of `both` in which the first is no longer.
fn shorter(both: &[(&Row, f64, f64)]) -> String {
    let shorter = both.iter().filter(|(_, one, other)| no_longer(*one, *other)).count();
    format!("in {shorter} of {}", both.len())
}

/// Adds notes and claims.
pub(super) fn read(table: &mut Table, rows: &[Row]) {
    let all: Vec<String> =
        OTHERS.iter().map(|(name, of)| format!("{name} {}", shorter(&both(rows, Row::dqn, *of)))).collect();
    table.note(format!(
        "Rows in which dqn is as fast (to 0.1 %) or faster, where both have a plan: {}.",
        all.join(", ")
    ));
    let [(_, memonger), (_, superneurons), ..] = OTHERS;
    table.note(format!(
        "The paper's order is dqn, superneurons, memonger. superneurons is as fast as memonger or faster {} rows in which both \
         have a plan; all three are in that order {} rows in which all have one.",
        shorter(&both(rows, superneurons, memonger)),
        ordered(rows, superneurons, memonger),
    ));
    table.note(weakest(rows));
    behind(table, rows, superneurons);
    let late = both(rows, |row| row.last.median(), Row::dqn);
    let far = late.iter().filter(|(_, last, best)| last - best > 0.05).count();
    table.note(format!(
        "The last policy is more than 5 points behind the best plan found in {far} of {} rows: whether the paper's algorithm 1 \
         is taken, which returns the last set of actions, or its figure 3, which has the best found, makes that difference.",
        late.len()
    ));
    claims(&mut table.claims, rows);
}

/// "in x of y", of the rows in which dqn, the first and the second follow one another.
fn ordered(rows: &[Row], first: Column, second: Column) -> String {
    let all: Vec<(f64, f64, f64)> =
        rows.iter().filter_map(|row| Some((row.dqn()?, first(row)?, second(row)?))).collect();
    let ordered = all.iter().filter(|(a, b, c)| no_longer(*a, *b) && no_longer(*b, *c)).count();
    format!("in {ordered} of {}", all.len())
}

/// The networks by what dqn costs there, the most first.
fn weakest(rows: &[Row]) -> String {
    let mut names: Vec<&str> = Vec::new();
    rows.iter().for_each(|row| {
        if !names.contains(&&*row.of) {
            names.push(&row.of);
        }
    });
    let of = |name: &str| {
        let found: Vec<f64> = rows.iter().filter(|row| row.of == name).filter_map(Row::dqn).collect();
        (found.iter().sum::<f64>() / found.len().max(1) as f64, found.len())
    };
    let mut means: Vec<(&str, f64, usize)> =
        names.into_iter().map(|name| (name, of(name).0, of(name).1)).filter(|mean| mean.2 > 0).collect();
    means.sort_by(|a, b| b.1.total_cmp(&a.1));
    let list: Vec<String> =
        means.iter().map(|(name, mean, count)| format!("{name} {} ({count} rows)", percent(*mean))).collect();
    let place = means.iter().position(|(name, ..)| name.starts_with(STOCHASTIC));
    let stochastic = match place {
        Some(0) => "stochastic depth is the weakest, as in the paper".to_owned(),
        Some(place) => format!(
            "stochastic depth, the paper's weakest, is number {} of {} here: each draw has a plan of its own",
            place + 1,
            means.len()
        ),
        None => "stochastic depth is not among them".to_owned(),
    };
    format!(
        "What dqn costs on average where it has a plan, the most first: {}; {stochastic}.",
        list.join(", ")
    )
}

/// Where superneurons is ahead, by how much at most, and why.
fn behind(table: &mut Table, rows: &[Row], superneurons: Column) {
    let both = both(rows, Row::dqn, superneurons);
    let ahead = || both.iter().filter(|(_, dqn, other)| !no_longer(*dqn, *other));
    let Some((row, dqn, other)) = ahead().max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2))) else { return };
    table.note(format!(
        "superneurons is ahead of dqn in {} rows, by {:.0} points at most ({}). What is cheap to recompute is a rule of \
         superneurons' from the start; dqn must learn it in its episodes, and so that swapping no longer pays once the link is \
         full. Equation (3) cannot say that: the graph's state adds the same to the value of every action.",
        ahead().count(),
        100.0 * (dqn - other),
        row.name(),
    ));
}

/// What §5.1 and §5.2 say, held against the rows.
fn claims(claims: &mut Claims, rows: &[Row]) {
    for (name, of) in &OTHERS[..3] {
        for (row, dqn, other) in both(rows, Row::dqn, *of) {
            let numbers = format!("{} ({} over {})", row.name(), percent(dqn), percent(other));
            claims.hold(&format!("DQN takes less time than {name} (§5.1)"), numbers, no_longer(dqn, other));
        }
    }
    for row in rows.iter().filter(|row| row.theirs.iter().any(Option::is_some)) {
        let words = "DQN saves as much memory as any of the other three (§5.1)";
        claims.hold(words, row.name(), row.dqn().is_some());
    }
    let weak = ["unet", "lstm", STOCHASTIC];
    let is_weak = |row: &Row| weak.iter().any(|name| row.of.starts_with(name));
    for row in rows.iter().filter(|row| is_weak(row)) {
        let strong = rows.iter().filter(|other| !is_weak(other) && other.saved == row.saved);
        let strong: Vec<f64> = strong.filter_map(Row::dqn).collect();
        if let (Some(dqn), false) = (row.dqn(), strong.is_empty()) {
            let mean = strong.iter().sum::<f64>() / strong.len() as f64;
            claims.hold(
                "DQN costs more time on U-Net, LSTM and stochastic depth than on ResNet and VGG, their mean (§5.2)",
                format!("{} ({} over {})", row.name(), percent(dqn), percent(mean)),
                no_longer(mean, dqn),
            );
        }
    }
}
