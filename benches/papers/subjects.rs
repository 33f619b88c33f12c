//! Subjects of the tables: networks of the zoo, lowered at a batch and timed by a modelled device, and plans for them.
//!
//! Every plan is judged by `check` here, and its makespan worked out by `simulate`, whatever made it. No plan is made twice in
//! one run: several figures of a paper show the same rows.

use plimsoll::ir::check::check;
use plimsoll::ir::network::{Network, NetworkSpec};
use plimsoll::ir::program::{Call, Program};
use plimsoll::ir::schedule::{Command, Link, Schedule};
use plimsoll::ir::simulate::{Timeline, simulate};
use plimsoll::ir::trace::{Phase, Trace};
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::networks::{LowerOptions, ReluStorage, build, lower, usual};
use plimsoll::tuner::model::devices::{Modelled, sheet};
use plimsoll::tuner::{Allow, Limits, Outcome, PlanRequest, Policy, plan};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Evaluations of a plan, at most a fifth of plimsoll's default, so that all tables take minutes: its plans are therefore
/// slightly longer.
pub const EVALUATIONS: u64 = 6000;

/// Memory of a 12 GB GPU.
pub const TWELVE_GB: Bytes = Bytes(12 << 30);

pub struct Scale {
    /// `true` for `cargo test`: one small network per table, and hardly a search.
    pub small: bool,
    kept: Arc<Kept>,
}

/// Results of this run, by their inputs.
#[derive(Default)]
struct Kept {
    plans: Once<Result<Made, Bytes>>,
    batches: Once<Option<u64>>,
}

/// Values that are worked out once each, whichever of two threads asks first: the other waits.
struct Once<T>(Mutex<HashMap<String, Arc<OnceLock<T>>>>);

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once(Mutex::default())
    }
}

impl<T: Copy> Once<T> {
    fn get(&self, key: String, make: impl FnOnce() -> T) -> T {
        let mut known = self.0.lock().expect("no thread panics while it looks here");
        let cell = Arc::clone(known.entry(key).or_default());
        drop(known);
        *cell.get_or_init(make)
    }
}

/// A network on a device.
pub struct Subject {
    pub network: Network,
    pub device: Modelled,
    /// `true` if gradients take the places of activations.
    reuse: bool,
    /// `true` if it belongs to a small table.
    pub small: bool,
    /// Unique key.
    key: String,
    kept: Arc<Kept>,
}

/// A plan that was judged.
#[derive(Clone, Copy)]
pub struct Made {
    pub makespan: Seconds,
    /// Resident bytes and pool. If the plan was made with memory to spare, the pool is spread out.
    pub memory: Bytes,
    /// Resident bytes and most bytes alive at once: the plan's memory if addresses did not matter.
    pub alive: Bytes,
    /// The same, averaged over the ops of the forward and the backward pass.
    pub average: Bytes,
    /// Bytes on the host.
    pub offloaded: Bytes,
}

/// Returns a device of the papers, with the fast alternatives of convolutions, or with the usual one alone.
pub fn device(name: &str, fast_alternatives: bool) -> Modelled {
    Modelled { fast_alternatives, ..Modelled::new(sheet(name).expect("a device that is modelled")) }
}

impl Scale {
    pub fn new(small: bool) -> Scale {
        Scale { small, kept: Arc::default() }
    }

    /// Returns the full list, or the small one.
    pub fn pick<'l, T>(&self, full: &'l [T], small: usize) -> &'l [T] {
        if self.small { &full[..small.min(full.len())] } else { full }
    }

    /// Returns a network of the zoo for images of this side, by default the side that it was made for. A small table uses a
    /// small network instead.
    pub fn subject(&self, name: &str, side: impl Into<Option<u32>>, device: Modelled) -> Subject {
        eprintln!("  {name}");
        let named = if self.small { small_of(name) } else { name };
        let spec = usual(named).expect("a network of the zoo");
        let image = side.into().filter(|_| !self.small).map_or(spec.image, |side| [side; 2]);
        let network = build(&NetworkSpec { image, ..spec }).expect("images that are large enough");
        let key = format!("{named} {image:?} {device:?}");
        let (small, kept) = (self.small, Arc::clone(&self.kept));
        Subject { network, device, reuse: true, small, key, kept }
    }
}

/// Returns the network that replaces a network in a small table.
fn small_of(name: &str) -> &'static str {
    if name.starts_with("vgg") || name == "alexnet" || name == "overfeat" { "lenet" } else { "resnet20" }
}

impl Subject {
    /// Returns the same subject as the papers' frameworks train it, with no gradient in the place of an activation: ReLUs keep
    /// their outputs, neuron gradients come before parameter gradients, and those of normalisations have separate tensors.
    pub fn without_reuse(mut self) -> Subject {
        self.key = format!("{} without reuse", self.key);
        self.reuse = false;
        self
    }

    /// Returns the same subject with a different network, which no other subject has.
    pub fn changed(mut self, change: impl FnOnce(&mut Network)) -> Subject {
        change(&mut self.network);
        self.key = format!("{} {:?}", self.key, self.network.layers);
        self
    }

    /// Returns one iteration with the device's seconds.
    pub fn trace(&self, batch: u64) -> Trace {
        self.program(batch).trace
    }

    /// Returns the same, with each op's computation.
    pub fn program(&self, batch: u64) -> Program {
        let alternatives = |call: &Call| self.device.alternatives(call);
        let relu = if self.reuse { ReluStorage::Auto } else { ReluStorage::Output };
        let options = LowerOptions {
            relu,
            intra_layer_reuse: self.reuse,
            alternatives: &alternatives,
            ..LowerOptions::default()
        };
        let mut program = lower(&self.network, batch, &options).expect("a batch that can be counted with");
        self.device.fill(&mut program);
        program
    }

    pub fn link(&self) -> Link {
        self.device.link()
    }

    /// Returns a policy's plan, with everything that is allowed by default.
    pub fn plan(&self, trace: &Trace, policy: Policy, budget: Bytes) -> Option<Made> {
        self.outcome(trace, &self.request(policy, budget)).ok()
    }

    pub fn request(&self, policy: Policy, budget: Bytes) -> PlanRequest<'static> {
        let evaluations = Some(if self.small { 20 } else { EVALUATIONS });
        let limits = Limits { evaluations, expired: None };
        PlanRequest { limits, ..PlanRequest::new(budget, self.link(), policy) }
    }

    /// Returns a plan for one of this subject's traces; fails with the bytes that would be needed.
    pub fn outcome(&self, trace: &Trace, request: &PlanRequest<'_>) -> Result<Made, Bytes> {
        assert!(request.from.is_none() && request.limits.expired.is_none(), "the key would not tell");
        let PlanRequest { budget, link, policy, allow, seed, limits, .. } = request;
        let search = (seed, limits.evaluations);
        let key = format!("{} {} {budget:?} {link:?} {policy:?} {allow:?} {search:?}", self.key, trace.batch);
        self.kept.plans.get(key, || self.scheduled(trace, request).map(|(made, _)| made))
    }

    /// Returns the same, with the schedule; always plans.
    pub fn scheduled(&self, trace: &Trace, request: &PlanRequest<'_>) -> Result<(Made, Schedule), Bytes> {
        match plan(trace, request).expect("a sound request") {
            Outcome::Infeasible(witness) => Err(witness.needs),
            Outcome::Planned(plan) => {
                check(trace, &plan.schedule).expect("a schedule that the planner hands out is valid");
                let timeline = simulate(trace, &plan.schedule);
                let (makespan, alive) = (timeline.makespan(), timeline.peak(trace, &plan.schedule));
                let alive = trace.resident_bytes + alive;
                let average = trace.resident_bytes + average(trace, &plan.schedule, &timeline);
                let offloaded = plan.schedule.host_bytes(trace);
                let memory = trace.resident_bytes + plan.schedule.pool_bytes;
                assert!(memory <= request.budget, "{memory} of {}", request.budget);
                Ok((Made { makespan, memory, alive, average, offloaded }, plan.schedule))
            }
        }
    }

    /// Returns a batch of this subject within a budget: the result of an earlier search, or of `search`.
    pub fn batch_once(&self, what: &str, budget: Bytes, search: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let key = format!("{what} {} {budget:?}", self.key);
        self.kept.batches.get(key, search)
    }

    /// Returns a policy's plan within the least memory, as the policy's own witnesses state it.
    pub fn leanest(&self, trace: &Trace, policy: Policy) -> Option<Made> {
        self.leanest_of(trace, |budget| self.request(policy, budget))
    }

    /// Returns the least memory alone: a test for any plan, however good, takes hardly a search.
    pub fn least_memory(&self, trace: &Trace, policy: Policy) -> Option<Bytes> {
        self.leanest_of(trace, |budget| self.glance(policy, budget)).map(|made| made.memory)
    }

    /// Returns a request that tests if there is a plan, however good.
    pub fn glance(&self, policy: Policy, budget: Bytes) -> PlanRequest<'static> {
        let limits = Limits { evaluations: Some(50), expired: None };
        PlanRequest { limits, ..self.request(policy, budget) }
    }

    fn leanest_of(&self, trace: &Trace, request: impl Fn(Bytes) -> PlanRequest<'static>) -> Option<Made> {
        let mut budget = floor(trace);
        for _ in 0..40 {
            match self.outcome(trace, &request(budget)) {
                Ok(made) => return Some(made),
                // A little more each time: addresses may need it.
                Err(needs) => budget = Bytes(needs.0.max(budget.0 + budget.0 / 500)),
            }
        }
        None
    }

    /// Returns the largest batch, up to `most`, with a property that smaller ones share; 0 if there is none.
    pub fn largest(&self, most: u64, fits: &mut dyn FnMut(&Trace) -> bool) -> u64 {
        let most = if self.small { most.min(64) } else { most };
        let found = plimsoll::tuner::search::largest(most, &mut |batch| {
            Ok::<_, std::convert::Infallible>(fits(&self.trace(batch)))
        });
        let Ok(found) = found;
        found.unwrap_or(0)
    }

    /// Returns images per second.
    pub fn rate(&self, trace: &Trace, makespan: Seconds) -> f64 {
        trace.batch as f64 / makespan.0
    }
}

/// Returns the most pool bytes alive during an op, averaged over the ops of the forward and the backward pass.
fn average(trace: &Trace, schedule: &Schedule, timeline: &Timeline) -> Bytes {
    let steps = timeline.pool_bytes_over_time(trace, schedule);
    let (mut at, mut sum, mut count) = (0, 0.0, 0.0);
    for (command, span) in schedule.commands.iter().zip(&timeline.spans) {
        let Command::Compute { op, .. } = command else { continue };
        if trace.ops[op.index()].phase == Phase::Update {
            continue;
        }
        // Buffers that are open when it starts, and that open before it ends.
        while steps.get(at + 1).is_some_and(|next| next.from.0 <= span.start.0) {
            at += 1;
        }
        let during = steps[at..].iter().take_while(|step| step.from.0 < span.end.0);
        sum += during.map(|step| step.bytes.to_f64()).fold(0.0, f64::max);
        count += 1.0;
    }
    Bytes((sum / f64::max(count, 1.0)) as u64)
}

/// Returns the smallest feasible budget.
pub fn floor(trace: &Trace) -> Bytes {
    trace.memory().floor().map_or(Bytes::ZERO, |(_, bytes)| bytes)
}

/// Returns the memory that keeps everything, if dead tensors are freed at once.
pub fn peak(trace: &Trace) -> Bytes {
    trace.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes)
}

/// Only moving, no recomputing: the means of the papers on offloading.
pub const MOVING: Allow = Allow { recompute: false, ..Allow::ALL };

/// Unlimited memory.
pub const ALL: Bytes = Bytes(1 << 50);
