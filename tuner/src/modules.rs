//! Which modules of a model to wrap, where a tool cannot follow a plan but can free what whole modules save: the choice, and
//! the iteration that comes of it.
//!
//! A module is what layers' names have in common before a dot: `layer1.0` is one, of `layer1.0.conv1` and others. PyTorch frees
//! in two ways what a module saves for its backward pass ([`Means`]), and both give it back when that pass begins. So while a
//! layer is in its backward pass, there is as much less in use as the wrapped modules before it have freed. Going through the
//! layers in order, `choose` keeps every set of modules so far that frees more than all that take less time: a dynamic
//! program, exact up to `GRAIN`. What the chosen set takes is then read off the iteration as the tool would run it
//! (`modules/rewrite.rs`). Where that is more than the budget, since modules far apart share tensors, it is chosen again, for
//! less.
//!
//! What it deliberately does not do: overlap copies with ops, free a part of what a module saves, or move what is in the
//! backward pass itself, which these tools cannot.

mod rewrite;

use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use rewrite::Saved;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use thiserror::Error;

/// How a tool frees what a module saves for its backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Means {
    /// It keeps the module's inputs alone, and runs its ops again before its backward pass.
    Recompute,
    /// It copies each saved tensor to the host, and back before the layer's backward pass; nothing computes meanwhile.
    Offload(Link),
}

/// Modules to wrap, and what comes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrapping {
    /// Their names in the order of the forward pass; none where the iteration fits as it is.
    pub modules: Vec<String>,
    /// The iteration as the tool runs it: recomputed ops and copies are ops of it.
    pub trace: Trace,
}

/// Why no modules can be wrapped so that an iteration fits.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WrapError {
    /// No name of a layer has a module in it that holds several layers side by side.
    #[error("no layers of {0} are in a module together, by their names")]
    NoModules(String),
    /// Whatever is wrapped, it takes more than the budget.
    #[error(
        "whichever modules are wrapped, an iteration of batch {batch} takes at least {least}, more than {budget}"
    )]
    TooLarge {
        /// Samples in the iteration.
        batch: u64,
        /// The least peak that was found.
        least: Bytes,
        /// What the device may hold.
        budget: Bytes,
        /// The batch that would take about the budget.
        fits: u64,
    },
}

/// Sets of modules whose freed bytes differ by less than this share of what is to be freed count as alike.
const GRAIN: f64 = 1.0 / 65_536.0;

/// Halvings of the interval in which the least peak is looked for.
const HALVINGS: u32 = 12;

/// The most bytes in use; every trace has an op.
fn peak(trace: &Trace) -> Bytes {
    trace.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes)
}

impl Wrapping {
    /// The most bytes in use during the iteration.
    pub fn peak(&self) -> Bytes {
        peak(&self.trace)
    }

    /// How long the iteration takes: its ops one after the other, each in its fastest alternative, and copies among them.
    pub fn seconds(&self) -> Seconds {
        self.trace.fastest_seconds()
    }
}

/// The modules whose wrapping fits an iteration into the budget in the least time.
pub fn wrap(trace: &Trace, budget: Bytes, means: Means) -> Result<Wrapping, WrapError> {
    let whole = peak(trace);
    if whole <= budget {
        return Ok(Wrapping { modules: Vec::new(), trace: trace.clone() });
    }
    let saved = Saved::of(trace);
    let modules = modules(&saved.layers);
    if modules.is_empty() {
        return Err(WrapError::NoModules(trace.name.clone()));
    }
    let candidates: Vec<Candidate> =
        modules.iter().map(|module| Candidate::new(module, &saved, means)).collect();
    let needs = most_in_use(trace, &saved.layers);
    let made = |room: Bytes| {
        let chosen = choose(&candidates, &needs, room)?;
        let spans: Vec<Range<usize>> = chosen.iter().map(|at| modules[*at].layers.clone()).collect();
        let names = chosen.iter().map(|at| modules[*at].name.to_owned()).collect();
        Some(Wrapping { modules: names, trace: saved.rewritten(&spans, means) })
    };
    let mut room = budget;
    while let Some(wrapping) = made(room) {
        let over = wrapping.peak().saturating_sub(budget);
        if over == Bytes::ZERO {
            return Ok(wrapping);
        }
        if over >= room {
            break;
        }
        room -= over;
    }
    // Between a room for which nothing can be chosen and one for which all may stay.
    let (mut below, mut above, mut least) = (Bytes::ZERO, whole, whole);
    for _ in 0..HALVINGS {
        let middle = Bytes(u64::midpoint(below.0, above.0));
        match made(middle) {
            Some(wrapping) => (above, least) = (middle, least.min(wrapping.peak())),
            None => below = middle,
        }
    }
    let (resident, batch) = (trace.resident_bytes, trace.batch);
    let share = budget.saturating_sub(resident).to_f64() / least.saturating_sub(resident).to_f64();
    Err(WrapError::TooLarge { batch, least, budget, fits: (batch as f64 * share) as u64 })
}

/// A module, and its layers by their positions.
#[derive(Debug, PartialEq)]
struct Module<'a> {
    name: &'a str,
    layers: Range<usize>,
}

/// All modules of several layers that follow one another, whose names can be a PyTorch module's. What holds all layers is left
/// out, since wrapping it frees nothing while it is needed.
fn modules<'a>(layers: &[&'a str]) -> Vec<Module<'a>> {
    let mut spans: BTreeMap<&str, (Range<usize>, usize)> = BTreeMap::new();
    for (at, layer) in layers.iter().enumerate() {
        for (dot, _) in layer.match_indices('.') {
            let (span, count) = spans.entry(&layer[..dot]).or_insert((at..at, 0));
            span.end = at + 1;
            *count += 1;
        }
    }
    let is_named = |name: &str| {
        name.split('.').all(|part| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        })
    };
    let mut modules: Vec<Module<'_>> = spans
        .into_iter()
        .filter(|(name, (span, count))| {
            span.len() == *count && (2..layers.len()).contains(count) && is_named(name)
        })
        .map(|(name, (layers, _))| Module { name, layers })
        .collect();
    modules.sort_by_key(|module| (module.layers.start, module.layers.end));
    modules
}

/// The most in use while the ops of each layer run.
fn most_in_use(trace: &Trace, layers: &[&str]) -> Vec<Bytes> {
    let positions: HashMap<&str, usize> = layers.iter().copied().zip(0..).collect();
    let mut most = vec![Bytes::ZERO; layers.len()];
    for (op, in_use) in trace.ops.iter().zip(trace.memory().in_use) {
        let most = &mut most[positions[op.layer.as_str()]];
        *most = in_use.max(*most);
    }
    most
}

/// A module that may be wrapped.
struct Candidate {
    layers: Range<usize>,
    /// What layers behind it have more.
    frees: Bytes,
    /// What they and its own layers have more besides, where the module that ends in front of it is wrapped.
    shares: Bytes,
    /// The most in use while it runs, with nothing else wrapped.
    needs: Bytes,
    /// What wrapping it takes.
    seconds: Seconds,
}

impl Candidate {
    fn new(module: &Module<'_>, saved: &Saved<'_>, means: Means) -> Candidate {
        let layers = module.layers.clone();
        let alone = saved.rewritten(std::slice::from_ref(&layers), means);
        let needs = most_in_use(&alone, &saved.layers)[layers.clone()].iter().copied().max();
        let [frees, shares] = saved.freed_by(&layers, means);
        Candidate {
            frees,
            shares,
            needs: needs.expect("a module has layers"),
            seconds: alone.fastest_seconds() - saved.trace.fastest_seconds(),
            layers,
        }
    }
}

/// A set of modules up to some layer.
#[derive(Clone, Copy)]
struct Choice {
    freed: Bytes,
    seconds: Seconds,
    /// The module that was taken last, with the choice before it, as a position in the list of all that were taken.
    last: Option<usize>,
}

/// The candidates that free in the least time what every layer needs beyond the room, in order; none where none do.
fn choose(candidates: &[Candidate], needs: &[Bytes], room: Bytes) -> Option<Vec<usize>> {
    let fits = |needs: Bytes| move |choice: &&Choice| needs <= room + choice.freed;
    let most = needs.iter().copied().max().unwrap_or(Bytes::ZERO).saturating_sub(room);
    let layers = needs.len();
    let grain = ((most.to_f64() * GRAIN) as u64).max(1);
    let mut taken: Vec<(usize, Option<usize>)> = Vec::new();
    // At each layer: those whose last module ends elsewhere, and those of which it ends in front of the layer.
    let mut choices: Vec<[Vec<Choice>; 2]> = vec![[Vec::new(), Vec::new()]; layers + 1];
    choices[0][0].push(Choice { freed: Bytes::ZERO, seconds: Seconds::ZERO, last: None });
    let mut next = 0;
    for layer in 0..layers {
        let [apart, behind] = std::mem::take(&mut choices[layer]).map(|choices| best(choices, grain));
        let both = || apart.iter().chain(&behind);
        choices[layer + 1][0].extend(both().filter(fits(needs[layer])));
        while let Some(candidate) = candidates.get(next).filter(|c| c.layers.start == layer) {
            let with = |shares: Bytes| move |choice: &Choice| (*choice, shares);
            let shared = behind.iter().map(with(candidate.shares));
            for (choice, shares) in apart.iter().map(with(Bytes::ZERO)).chain(shared) {
                let freed = choice.freed + shares;
                if candidate.needs > room + freed {
                    continue;
                }
                taken.push((next, choice.last));
                choices[candidate.layers.end][1].push(Choice {
                    freed: (freed + candidate.frees).min(most),
                    seconds: choice.seconds + candidate.seconds,
                    last: Some(taken.len() - 1),
                });
            }
            next += 1;
        }
    }
    let ended = choices.pop()?.into_iter().flatten().collect();
    let shortest = best(ended, grain).first().copied()?;
    let mut chosen = Vec::new();
    let mut last = shortest.last;
    while let Some(at) = last {
        chosen.push(taken[at].0);
        last = taken[at].1;
    }
    chosen.reverse();
    Some(chosen)
}

/// Those that free more than all that take less time, the shortest first.
fn best(mut choices: Vec<Choice>, grain: u64) -> Vec<Choice> {
    choices.sort_by(|a, b| a.seconds.0.total_cmp(&b.seconds.0).then(b.freed.cmp(&a.freed)));
    let mut most = None;
    choices.retain(|choice| {
        let freed = Some(choice.freed.0 / grain);
        let more = freed > most;
        most = most.max(freed);
        more
    });
    choices
}

#[cfg(test)]
mod tests;
