//! Euro-Par'20 (Beaumont, Eyraud-Dubois, Shilova) on a V100, over memory limits: makespan over the paper's lower bound (Fig. 5
//! to 12), and images a second of the same rows (Fig. 13 to 19).
//!
//! The paper measured its chains with PyTorch and simulated the schedules. Here our lowering gives the ops, the device's model
//! their times, and the policies that need a chain group the trace into one (`tuner/src/policies/papers/chain.rs`). The link
//! carries one transfer at a time (assumption B).

use crate::claims::Claims;
use crate::plot::Plot;
use crate::subjects::{MOVING, Made, Scale, device, floor, peak};
use crate::table::{SAME, Table, at_most, claim, gb, in_gb, note, or_dash, percent};
use crate::vdnn::mean;
use plimsoll::ir::schedule::{Duplex, Link};
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::tuner::bound::least_moved;
use plimsoll::tuner::{PlanRequest, Policy};

/// Network, side, batch.
type Case = (&'static str, u32, u64);

/// Policies of the paper's figures; the first two are its own.
const POLICIES: [Policy; 5] =
    [Policy::Greedy, Policy::DynProg, Policy::VdnnRatio, Policy::Tflms, Policy::AutoSwap];

/// Memory limits between the smallest feasible budget (0) and keeping everything (1).
const LIMITS: [f64; 8] = [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0];

/// Limits at which batches other than a figure's own are planned.
const OF_OTHER_BATCHES: [f64; 3] = [0.25, 0.5, 0.75];

/// Lowest of the high limits, at which the paper finds TFLMS optimal.
const HIGHEST: f64 = 0.75;

const RESNETS: &[&str] = &["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"];
const DENSENETS: &[&str] = &["densenet121", "densenet161", "densenet169", "densenet201"];

/// Returns the title of a figure of ratios, and its networks.
fn cases(figure: u32) -> (&'static str, Vec<Case>) {
    let all = |names: &[&'static str], side, batch| names.iter().map(|name| (*name, side, batch)).collect();
    match figure {
        5 => {
            let mut cases: Vec<Case> = all(&["resnet50", "resnet101", "densenet121"], 224, 32);
            cases.push(("inception_v3", 299, 32));
            ("a selection, 224x224, batch 32", cases)
        }
        6 => ("ResNet, 224x224, batch 32", all(RESNETS, 224, 32)),
        7 => ("ResNet, 500x500, batch 16", all(RESNETS, 500, 16)),
        8 => ("ResNet, 1000x1000, batch 4", all(RESNETS, 1000, 4)),
        9 => ("DenseNet, 224x224, batch 32", all(DENSENETS, 224, 32)),
        10 => ("DenseNet, 500x500, batch 8", all(DENSENETS, 500, 8)),
        11 => ("DenseNet, 1000x1000, batch 4", all(DENSENETS, 1000, 4)),
        _ => {
            let sides = [(299, 32), (500, 16), (1000, 4)].map(|(side, batch)| ("inception_v3", side, batch));
            ("Inception v3, 299x299, 500x500 and 1000x1000", sides.to_vec())
        }
    }
}

/// Returns LB of Proposition 3: max(all ops, 2 (M_peak - M) / β).
fn lower_bound(trace: &Trace, budget: Bytes, link: &Link) -> Seconds {
    let moving = least_moved(trace, budget).0 as f64 / link.offload_bytes_per_second.0;
    Seconds(moving).max(trace.fastest_seconds())
}

/// A network at one limit.
struct Row {
    /// Network and side.
    network: (&'static str, u32),
    /// Network, side, batch.
    of: String,
    /// Images of an iteration.
    batch: u64,
    f: f64,
    budget: Bytes,
    bound: Seconds,
    /// Seconds of an iteration if nothing waits for a transfer.
    compute: Seconds,
    /// `true` if its batch is the figure's own, and not half or double of it.
    own_batch: bool,
    /// Plans of each policy, of plimsoll that only moves, and of plimsoll; the last two are missing if the row shows only the
    /// policies. `None` means no plan.
    plans: Vec<Option<Made>>,
}

impl Row {
    /// Returns each makespan over the bound.
    fn ratios(&self) -> impl Iterator<Item = Option<f64>> + '_ {
        self.plans.iter().map(|made| made.as_ref().map(|made| made.makespan / self.bound))
    }

    fn plan(&self, policy: Policy) -> Option<&Made> {
        let at = POLICIES.iter().position(|known| *known == policy).expect("it is shown");
        self.plans[at].as_ref()
    }

    /// Returns the ratio of a policy.
    fn ratio(&self, policy: Policy) -> Option<f64> {
        Some(self.plan(policy)?.makespan / self.bound)
    }
}

/// Returns the rows of a figure with ratios. The paper's figure 5 is of one batch.
fn rows(scale: &Scale, figure: u32, cases: &[Case]) -> Vec<Row> {
    let all_batches = figure > 5 && !scale.small;
    let batches = |batch| if all_batches { vec![batch / 2, batch, batch * 2] } else { vec![batch] };
    let cases = scale.pick(cases, 1).iter();
    let cases = cases.flat_map(|(name, side, batch)| {
        batches(*batch).into_iter().map(move |at| (*name, *side, at, at == *batch))
    });
    cases.flat_map(|(name, side, at, own_batch)| rows_of(scale, (name, side, at), own_batch)).collect()
}

/// Returns the rows of a network at one batch.
fn rows_of(scale: &Scale, (name, side, batch): Case, own_batch: bool) -> Vec<Row> {
    let subject = scale.subject(name, Some(side), device("v100", false));
    let trace = subject.trace(batch);
    let link = Link { duplex: Duplex::Half, ..subject.link() };
    let (floor, peak) = (floor(&trace), peak(&trace));
    let row = |f: &f64| {
        let budget = floor + Bytes((f * (peak - floor).0 as f64) as u64);
        let plan =
            |request: PlanRequest<'static>| subject.outcome(&trace, &PlanRequest { link, ..request }).ok();
        let mut plans: Vec<Option<Made>> =
            POLICIES.iter().map(|policy| plan(subject.request(*policy, budget))).collect();
        if own_batch {
            let ours = subject.request(Policy::Plimsoll, budget);
            plans.push(plan(PlanRequest { allow: MOVING, ..ours }));
            plans.push(plan(ours));
        }
        let (bound, compute) = (lower_bound(&trace, budget, &link), trace.fastest_seconds());
        let of = format!("{name}, {side} ({batch})");
        Row { network: (name, side), of, batch, f: *f, budget, bound, compute, own_batch, plans }
    };
    let limits = if own_batch { &LIMITS[..] } else { &OF_OTHER_BATCHES };
    scale.pick(limits, 3).iter().map(row).collect()
}

/// Returns the columns' names, in the order of a row's makespans.
fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|policy| policy.name()).chain(["plimsoll, moving", "plimsoll"])
}

/// Makes a figure of makespans over the bound.
pub fn ratios(scale: &Scale, figure: u32) -> Table {
    let (what, cases) = cases(figure);
    let (x, y) = ("memory limit between floor (0) and peak (1)", "makespan over lower bound, geometric mean");
    let plot = Plot::new(&format!("Euro-Par'20, Fig. {figure}: {what}, V100"), x, y);
    let heading = ["network, side (batch)", "f"].into_iter().chain(names()).collect::<Vec<_>>().join(" | ");
    let mut table = Table::new(
        format!(
            "Euro-Par'20 §6, Fig. {figure}: {what}; NVIDIA V100 PCIe, 12.2 GB/s, one transfer at a time. Makespan over the \
             paper's lower bound (Proposition 3) at memory limits f: 0 is the least that any plan needs, 1 is M_peak. \
             `plimsoll, moving` may not run ops again, which the bound supposes; with it, plimsoll may go below the bound."
        ),
        &heading,
        plot,
    );
    let rows = rows(scale, figure, &cases);
    for row in &rows {
        let all: Vec<Option<f64>> = row.ratios().collect();
        let cells = all.iter().map(|ratio| or_dash(*ratio, |ratio| format!("{ratio:.3}")));
        let cells = filled(cells);
        table.alone([row.of.clone(), row.f.to_string()].into_iter().chain(cells).collect());
        claims(row, &mut table.claims);
        let best = all[..2].iter().flatten().copied().reduce(f64::min);
        if let (Some(best), Some([Some(moving), Some(both)])) = (best, all.get(POLICIES.len()..)) {
            let of = format!("{}, f = {}", row.of, row.f);
            table.advantage(format!("{of}, moving"), best / moving);
            table.advantage(of, best / both);
        }
    }
    for (at, name) in names().enumerate() {
        for f in LIMITS {
            let at_limit = rows.iter().filter(|row| row.f == f && row.own_batch);
            let found: Vec<f64> =
                at_limit.filter_map(|row| row.ratios().nth(at).flatten().map(f64::ln)).collect();
            if !found.is_empty() {
                table.plot.add(name, f, (found.iter().sum::<f64>() / found.len() as f64).exp());
            }
        }
    }
    explain(&rows, &mut table.claims);
    note!(table;
        "Published: the figures are not legible in the text, so that no number of them stands here; what the text says \
         of them is below.");
    note!(table;
        "The plot has, of each policy, the geometric mean over the networks for which it has a plan at that limit, at \
         the middle batch.");
    table.notes.push(limits_shown(&rows));
    other_batches(&rows).into_iter().for_each(|words| table.notes.push(words));
    note!(table; "`-`: no plan within the limit; the paper's 0 % is what the chain needs, which is more than the floor here.");
    table
}

/// Returns the cells of a row, with empty ones for plimsoll if the row shows only the policies.
fn filled(cells: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    cells.chain(std::iter::repeat(String::new())).take(names().count())
}

/// Describes the part of the paper's limits that a figure shows.
fn limits_shown(rows: &[Row]) -> String {
    let here = format!("The paper has curves over all limits; here are {}", LIMITS.len());
    if rows.iter().all(|row| row.own_batch) {
        return here + ".";
    }
    format!(
        "{here} at the batch of the title and {} at other batches, where plimsoll's cells are empty: it plans at the batch of \
         the title alone, to stay within minutes.",
        OF_OTHER_BATCHES.len()
    )
}

/// Describes the part of the paper's batches that a figure shows, and the effect of the batch on ratios: those of the paper's
/// own policies at half and at double a network's batch. `None` if the figure has one batch.
fn other_batches(rows: &[Row]) -> Option<String> {
    let mut apart: Vec<f64> = Vec::new();
    for there in rows.iter().filter(|row| !row.own_batch) {
        let same = |row: &&Row| row.own_batch && row.f == there.f && row.network == there.network;
        let here = rows.iter().find(same)?;
        for (here, there) in here.ratios().zip(there.ratios()).take(2) {
            apart.extend(here.zip(there).map(|(here, there)| (there / here - 1.0).abs()));
        }
    }
    if apart.is_empty() {
        return None;
    }
    let most = apart.iter().copied().fold(0.0, f64::max);
    Some(format!(
        "The paper has these curves for several batches, powers of two that the text does not give. Here are half and double \
         of each network's batch at {} limits, where the ratios of greedy and dynprog are {} apart from those at that \
         batch on average, {} at most.",
        OF_OTHER_BATCHES.len(),
        percent(mean(&apart)),
        percent(most)
    ))
}

/// Claims that one policy is no slower than a second (§6.2): words, first, second.
const NO_SLOWER: [(&str, Policy, Policy); 4] = [
    ("Greedy outperforms VDNN in all cases (§6.2)", Policy::Greedy, Policy::VdnnRatio),
    ("DynProg outperforms VDNN in all cases (§6.2)", Policy::DynProg, Policy::VdnnRatio),
    ("DynProg performs better than Greedy (§6.2)", Policy::DynProg, Policy::Greedy),
    (
        "DynProg performs better than AutoSwap, which is \"very inconsistent\" (§6.2)",
        Policy::DynProg,
        Policy::AutoSwap,
    ),
];

const NEAR: &str = "DynProg is \"consistently\" below 1.2 of the bound (§6.2)";
const ON_DENSENET: &str =
    "DynProg is \"almost optimal\" on DenseNet, which is taken as 5 % over the bound (§6.2)";
const TFLMS: &str = "TFLMS is optimal at the highest limits, which are taken as from 0.75 on (§6.2)";
const FAST: &str = "DynProg's throughput is at least 83 % of the highest possible (§6.2)";

/// Checks the paper's claims on its ratios (§6.2) against one row's. Two policies are compared if both have a plan.
fn claims(row: &Row, claims: &mut Claims) {
    let of = format!("{}, f = {}", row.of, row.f);
    for (words, one, other) in NO_SLOWER {
        if let (Some(one), Some(other)) = (row.ratio(one), row.ratio(other)) {
            claims.hold(words, format!("{of} ({one:.3} over {other:.3})"), at_most(one, other));
        }
    }
    if let Some(ratio) = row.ratio(Policy::DynProg) {
        let named = format!("{of} ({ratio:.3})");
        claims.hold(NEAR, named.as_str(), ratio < 1.2);
        if row.of.starts_with("densenet") {
            claims.hold(ON_DENSENET, named, ratio < 1.05);
        }
    }
    if row.f >= HIGHEST {
        let tflms = row.ratio(Policy::Tflms);
        claim!(claims; TFLMS; "{of} ({})", or_dash(tflms, |ratio| format!("{ratio:.3}"));
            tflms.is_some_and(|ratio| ratio <= 1.0 + SAME));
    }
}

/// Explains why rows contradict the paper's claims, as far as they show it.
fn explain(rows: &[Row], claims: &mut Claims) {
    for (words, one, other) in NO_SLOWER {
        claims.explain(words, why_slower(rows, one, other));
    }
    for (words, most) in [(NEAR, 1.2), (FAST, 1.0 / 0.83), (ON_DENSENET, 1.05)] {
        let is_beyond = |row: &&Row| row.ratio(Policy::DynProg).is_some_and(|ratio| ratio >= most);
        let moving = |row: &Row| row.ratios().nth(POLICIES.len()).flatten();
        let found: Vec<f64> = rows.iter().filter(is_beyond).filter_map(moving).collect();
        let least = found.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = found.iter().copied().fold(0.0, f64::max);
        let best = "the best plans that were found without recomputing, plimsoll's";
        let best = format!("; {best}, are at {least:.3} to {greatest:.3} of the bound in such rows");
        claims.explain(words, format!("{DECIDED}{}", if found.is_empty() { "" } else { &best }));
    }
    let highest: Vec<&Row> = rows.iter().filter(|row| row.f >= HIGHEST).collect();
    let without = highest.iter().filter(|row| row.plan(Policy::Tflms).is_none()).count();
    let all = highest.len();
    let waits = "no computation waits for an offload, so that bytes are free only when it is over";
    let addresses = "and its plans need addresses, of which the paper does not speak";
    claims.explain(TFLMS, format!("it has no plan in {without} of {all} rows: {waits}, {addresses}"));
}

/// Assumptions of DynProg.
const DECIDED: &str = "its program counts on transfers that can be interrupted, where here they are whole, and plans for less \
                       memory until addresses fit";

/// Explains why one policy is slower than a second in some rows: the bytes that they move, and the first one's assumptions.
fn why_slower(rows: &[Row], one: Policy, other: Policy) -> String {
    let both = rows.iter().filter_map(|row| Some((row, row.plan(one)?, row.plan(other)?)));
    let slower =
        both.filter(|(row, one, other)| !at_most(one.makespan / row.bound, other.makespan / row.bound));
    let moves_more: Vec<bool> = slower.map(|(_, one, other)| one.offloaded > other.offloaded).collect();
    let (more, all) = (moves_more.iter().filter(|more| **more).count(), moves_more.len());
    let (name, than) = (one.name(), other.name());
    let granted = match one {
        Policy::Greedy => {
            "it takes whole activations in the network's order, and more of them where a plan finds no addresses, of which \
             the paper does not speak"
        }
        _ => DECIDED,
    };
    let tries = match other {
        Policy::Greedy => String::new(),
        _ => format!("; {than} is the best of many plans by this clock"),
    };
    let rows = match more {
        0 => "none".to_owned(),
        _ if more == all => "all".to_owned(),
        _ => format!("{more}"),
    };
    format!("{name} moves more bytes than {than} in {rows} of them; {granted}{tries}")
}

/// Makes the figure of T = batch / makespan (§6.4) of the rows of a figure of ratios.
pub fn rates(scale: &Scale, beside: u32) -> Table {
    let figure = beside + 7;
    let (what, cases) = cases(beside);
    let title = format!("Euro-Par'20, Fig. {figure}: throughput, the last network of the table, V100");
    let plot = Plot::new(&title, "memory limit, GB", "images/s");
    let names_of_plans: Vec<&str> = names().collect();
    let heading = format!(
        "network, side (batch) | f | limit: GB | {} | no limit | lower bound",
        names_of_plans.join(" | ")
    );
    let mut table = Table::new(
        format!(
            "Euro-Par'20 §6.4, Fig. {figure}: {what}; NVIDIA V100 PCIe, 12.2 GB/s, one transfer at a time. Images a second of \
             the plans of [Fig. {beside}](europar-fig{beside}.md), which has their advantages; with all memory (`no limit`); \
             and at the paper's lower bound of the makespan (Proposition 3), which supposes that nothing is recomputed."
        ),
        &heading,
        plot,
    );
    let rows = rows(scale, beside, &cases);
    let last = rows.iter().rfind(|row| row.own_batch).map(|row| row.of.clone());
    for row in &rows {
        let rate = |seconds: Seconds| row.batch as f64 / seconds.0;
        let cell = |seconds: Option<Seconds>| or_dash(seconds.map(rate), |rate| format!("{rate:.1}"));
        let made = filled(row.plans.iter().map(|made| cell(made.as_ref().map(|made| made.makespan))));
        let ends = [row.compute, row.bound].map(|seconds| cell(Some(seconds)));
        let cells = [row.of.clone(), row.f.to_string(), gb(row.budget)].into_iter().chain(made).chain(ends);
        table.alone(cells.collect());
        if let Some(dynprog) = row.plan(Policy::DynProg) {
            let share = row.bound / dynprog.makespan;
            table.claims.hold(FAST, format!("{}, f = {} ({})", row.of, row.f, percent(share)), share >= 0.83);
        }
        if last.as_ref() == Some(&row.of) {
            for (name, made) in names().zip(&row.plans) {
                made.iter().for_each(|made| table.plot.add(name, in_gb(row.budget), rate(made.makespan)));
            }
            table.plot.add("lower bound", in_gb(row.budget), rate(row.bound));
        }
    }
    explain(&rows, &mut table.claims);
    note!(table; "Published: the figures are not legible in the text, so that no number of them stands here.");
    note!(table;
        "The paper draws these curves for several batches of each network, powers of two that the text does not give; \
         here each has three, of which the plot shows the middle one.");
    table.notes.push(limits_shown(&rows));
    note!(table; "`-`: no plan within the limit; the paper's 0 % is what the chain needs, which is more than the floor here.");
    table
}
