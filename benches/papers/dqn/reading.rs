//! Text on the rows of DQN's figure 5, and the paper's claims that they contradict. Every number, and every ranking, is worked
//! out from the rows.

use super::{KMEANS, LSTM, Row, STOCHASTIC, SYSTEMS};
use crate::claims::Claims;
use crate::table::{Table, at_most, claim, note, percent};
use crate::vdnn::mean;

/// Value of a row in one column.
type Column = fn(&Row) -> Option<f64>;

const OTHERS: [(&str, Column); 5] = [
    ("memonger", |row| row.theirs[0]),
    ("superneurons", |row| row.theirs[1..4].iter().flatten().copied().reduce(f64::min)),
    ("tflms", |row| row.theirs[4]),
    ("random", |row| row.random.median()),
    ("annealing", |row| row.annealing.median()),
];

/// Returns `true` if the first overhead is no longer than the second, to 0.1 % of the iteration.
fn no_longer(one: f64, other: f64) -> bool {
    at_most(1.0 + one, 1.0 + other)
}

impl Row {
    pub(super) fn name(&self) -> String {
        format!("{} at {:.0} % saved", self.of, 100.0 * self.saved)
    }

    fn dqn(&self) -> Option<f64> {
        self.best.median()
    }
}

/// Returns the rows in which both columns have a plan, with both values.
fn both(rows: &[Row], one: Column, other: Column) -> Vec<(&Row, f64, f64)> {
    rows.iter().filter_map(|row| Some((row, one(row)?, other(row)?))).collect()
}

/// Returns "in x of y": of the rows of `both`, those in which the first is no longer.
fn shorter(both: &[(&Row, f64, f64)]) -> String {
    let shorter = both.iter().filter(|(_, one, other)| no_longer(*one, *other)).count();
    format!("in {shorter} of {}", both.len())
}

/// Adds notes and claims.
pub(super) fn read(table: &mut Table, rows: &[Row]) {
    let all: Vec<String> =
        OTHERS.iter().map(|(name, of)| format!("{name} {}", shorter(&both(rows, Row::dqn, *of)))).collect();
    note!(table;
        "Rows in which dqn is as fast (to 0.1 %) or faster, where both have a plan (superneurons in its fastest mode): \
         {}.", all.join(", "));
    let [memonger, superneurons, ..] = OTHERS;
    table.notes.push(order(rows, superneurons, memonger));
    table.notes.push(weakest(rows));
    behind(table, rows, superneurons, memonger);
    table.notes.push(modes(rows));
    let late = both(rows, |row| row.last.median(), Row::dqn);
    let far = late.iter().filter(|(_, last, best)| last - best > 0.05).count();
    note!(table;
        "The last policy is more than 5 points behind the best plan found in {far} of {} rows: whether the paper's \
         algorithm 1 is taken, which returns the last set of actions, or its figure 3, which has the best found, makes \
         that difference.", late.len());
    claims(&mut table.claims, rows);
}

/// Returns the workloads, in the order of their rows.
fn workloads(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = rows.iter().map(|row| &*row.of).collect();
    names.dedup();
    names
}

/// Describes by workload how often the paper's order holds, and by how much it fails.
fn order(rows: &[Row], first: (&str, Column), second: (&str, Column)) -> String {
    let all_three = |row: &Row| Some((row.dqn()?, first.1(row)?, second.1(row)?));
    let (mut ordered, mut count, mut words) = (0, 0, Vec::new());
    for name in workloads(rows) {
        let found: Vec<(f64, f64, f64)> =
            rows.iter().filter(|row| row.of == name).filter_map(all_three).collect();
        if found.is_empty() {
            continue;
        }
        let holds = found.iter().filter(|(a, b, c)| no_longer(*a, *b) && no_longer(*b, *c)).count();
        let most = |behind: &dyn Fn(&(f64, f64, f64)) -> f64| found.iter().map(behind).fold(0.0, f64::max);
        let fails =
            [("dqn", first.0, most(&|row| row.0 - row.1)), (first.0, second.0, most(&|row| row.1 - row.2))];
        let fails: Vec<String> = fails
            .into_iter()
            .filter(|(_, _, points)| !no_longer(*points, 0.0))
            .map(|(one, other, points)| format!("{one} up to {:.1} points behind {other}", 100.0 * points))
            .collect();
        let fails = if fails.is_empty() { String::new() } else { format!(" ({})", fails.join(", ")) };
        words.push(format!("{name} {holds} of {}{fails}", found.len()));
        (ordered, count) = (ordered + holds, count + found.len());
    }
    format!(
        "The paper's order is dqn, {}, {}. It holds in {ordered} of {count} rows in which all three have a plan: {}.",
        first.0,
        second.0,
        words.join("; ")
    )
}

/// Describes in how many rows each mode of superneurons has a plan, and in how many it is the fastest of them.
fn modes(rows: &[Row]) -> String {
    let [_, (_, fastest), ..] = OTHERS;
    let of = |at: usize| {
        let there = both(rows, fastest, fastest).len();
        let made = rows.iter().filter_map(|row| Some((row.theirs[at]?, fastest(row)?)));
        let (count, best) = made.fold((0, 0), |(count, best), (one, fastest)| {
            (count + 1, best + usize::from(no_longer(one, fastest)))
        });
        format!("{} has a plan in {count} of {there} rows and is the fastest in {best}", SYSTEMS[at].0)
    };
    format!("Modes of superneurons, where any has a plan: {}.", [1, 2, 3].map(of).join("; "))
}

/// Lists the workloads by dqn's overhead, the largest first.
fn weakest(rows: &[Row]) -> String {
    let of = |name: &str| {
        let found: Vec<f64> = rows.iter().filter(|row| row.of == name).filter_map(Row::dqn).collect();
        (!found.is_empty()).then(|| (mean(&found), found.len()))
    };
    let mean = |name| of(name).map(|(mean, count)| (name, mean, count));
    let mut means: Vec<(&str, f64, usize)> = workloads(rows).into_iter().filter_map(mean).collect();
    means.sort_by(|a, b| b.1.total_cmp(&a.1));
    let list: Vec<String> =
        means.iter().map(|(name, mean, count)| format!("{name} {} ({count} rows)", percent(*mean))).collect();
    let place = means.iter().position(|(name, ..)| name.starts_with(STOCHASTIC));
    let stochastic = match place {
        Some(0) => "stochastic depth is the weakest, as in the paper".to_owned(),
        Some(place) => format!(
            "stochastic depth, the paper's weakest, is number {} of {} here, since each draw has a plan of its own",
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

/// Explains the rows in which others are ahead, with the largest lead.
fn behind(table: &mut Table, rows: &[Row], superneurons: (&str, Column), memonger: (&str, Column)) {
    let ahead: Vec<String> = [superneurons, memonger]
        .into_iter()
        .filter_map(|(name, of)| {
            let mut ahead = both(rows, Row::dqn, of);
            ahead.retain(|(_, dqn, other)| !no_longer(*dqn, *other));
            let (row, dqn, other) = ahead.iter().max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)))?;
            let most = 100.0 * (dqn - other);
            Some(format!("{name} in {} rows, by {most:.0} points at most ({})", ahead.len(), row.name()))
        })
        .collect();
    if !ahead.is_empty() {
        note!(table;
            "Ahead of dqn are {}. What is cheap to recompute is a rule of theirs from the start; dqn must learn it in \
             its episodes, and so that swapping no longer pays once the link is full. Equation (3) cannot say that: the \
             graph's state adds the same to the value of every action.", ahead.join("; "));
    }
}

/// Checks the claims of §5.1 and §5.2 against the rows.
fn claims(claims: &mut Claims, rows: &[Row]) {
    for (name, of) in &OTHERS[..3] {
        for (row, dqn, other) in both(rows, Row::dqn, *of) {
            let numbers = format!("{} ({} over {})", row.name(), percent(dqn), percent(other));
            claims.hold(&format!("DQN takes less time than {name} (§5.1)"), numbers, no_longer(dqn, other));
        }
    }
    for (of, what) in [(KMEANS, "K-means"), (STOCHASTIC, "ResNet with stochastic depth")] {
        for row in rows.iter().filter(|row| row.of.starts_with(of) && row.dqn().is_some()) {
            let words = format!("Of these four only DQN supports {what} (§5.1)");
            claims.hold(&words, row.name(), row.theirs.iter().all(Option::is_none));
        }
    }
    for row in rows.iter().filter(|row| row.of.starts_with(LSTM) && row.dqn().is_some()) {
        let words = "Of these four only TFLMS and DQN work on LSTM (§5.1)";
        let [theirs @ .., tflms] = &row.theirs;
        claims.hold(words, row.name(), tflms.is_some() && theirs.iter().all(Option::is_none));
    }
    for row in rows.iter().filter(|row| row.theirs.iter().any(Option::is_some)) {
        let words = "DQN saves as much memory as any of the other three (§5.1)";
        claims.hold(words, row.name(), row.dqn().is_some());
    }
    let weak = ["unet", LSTM, STOCHASTIC];
    let is_weak = |row: &Row| weak.iter().any(|name| row.of.starts_with(name));
    let is_strong = |row: &Row| !is_weak(row) && !row.of.starts_with(KMEANS);
    for row in rows.iter().filter(|row| is_weak(row)) {
        let strong = rows.iter().filter(|other| is_strong(other) && other.saved == row.saved);
        let strong: Vec<f64> = strong.filter_map(Row::dqn).collect();
        if let (Some(dqn), false) = (row.dqn(), strong.is_empty()) {
            let mean = mean(&strong);
            claim!(claims;
                "DQN costs more time on U-Net, LSTM and stochastic depth than on ResNet and VGG, their mean (§5.2)";
                "{} ({} over {})", row.name(), percent(dqn), percent(mean); no_longer(mean, dqn));
        }
    }
}
