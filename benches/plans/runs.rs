//! Every plan that a table needs, made once, judged at once, and kept.

use super::referee::Referee;
use super::subjects::{FRACTIONS, Subject};
use plimsoll::ir::check::check;
use plimsoll::ir::schedule::{Duplex, Link, Schedule};
use plimsoll::ir::simulate::simulate;
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, BytesPerSecond};
use plimsoll::tuner::bound::lower_bound;
use plimsoll::tuner::policies::suggested_evaluations;
use plimsoll::tuner::state_copy::{place_of_copy, places_of_copy};
use plimsoll::tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, Trick, plan};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Link rate of the papers' PCIe, each way.
pub const RATE: BytesPerSecond = RATES[0];

/// That rate, and the faster rates of PCIe 4 and 5.
pub const RATES: [BytesPerSecond; 3] = [BytesPerSecond(12.2e9), BytesPerSecond(25e9), BytesPerSecond(50e9)];

/// Means that a plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Means {
    SwapAndRecompute,
    OffloadOnly,
    RecomputeOnly,
}

impl Means {
    pub fn allow(self) -> Allow {
        let (recompute, swap) = (self != Means::OffloadOnly, self != Means::RecomputeOnly);
        Allow { recompute, swap, ..Allow::default() }
    }
}

/// One plan to be made: subject and fraction are positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    pub subject: usize,
    pub fraction: usize,
    pub means: Means,
    /// Position of the link's rate.
    pub rate: usize,
    /// `true` if both directions share the link.
    pub half: bool,
    pub policy: Policy,
    /// Multiple of the usual evaluations.
    pub effort: u64,
    /// Trick that is left out.
    pub without: Option<Trick>,
}

/// Result of planning a case.
pub struct Made {
    /// Wall-clock seconds of `plan`, on two otherwise idle cores.
    pub seconds: f64,
    /// Lower bound of the makespan for these means.
    pub bound: f64,
    pub found: Found,
}

pub enum Found {
    Schedule(Measures),
    /// No plan: the witness.
    None(String),
    /// A bug of Plimsoll, or a schedule that a judge refuses.
    Fault(String),
}

#[derive(Clone, Copy)]
pub struct Measures {
    pub makespan: f64,
    /// Bytes moved in both directions together.
    pub moved: u64,
    pub pool: u64,
    /// Most bytes in open buffers at once.
    pub alive: u64,
    /// Makespan of an iteration with a copy of the state: before all offloads, after all of them, and at the best place, with
    /// the share of the iteration after which the copy is complete there.
    pub copied: Option<[f64; 4]>,
    /// `true` if the referee was available to judge the plan.
    pub refereed: bool,
}

impl Made {
    pub fn measures(&self) -> Option<&Measures> {
        match &self.found {
            Found::Schedule(measures) => Some(measures),
            _ => None,
        }
    }

    pub fn makespan(&self) -> Option<f64> {
        self.measures().map(|measures| measures.makespan)
    }
}

/// The subjects and all plans made for them.
pub struct Runs {
    pub subjects: Vec<Subject>,
    /// Positions of the fractions that are planned.
    pub fractions: Vec<usize>,
    pub made: HashMap<Case, Made>,
    /// Time after which no further plan is begun.
    pub end: Instant,
    /// Plans skipped for lack of time.
    pub left_out: HashSet<Case>,
    /// Evaluations of each plan; `None` leaves the number to the planner.
    pub evaluations: Option<u64>,
    /// `true` to make every plan, however long it takes; otherwise some of the slowest are skipped.
    pub thorough: bool,
    /// `true` if the traces were named.
    pub selected: bool,
}

/// Ops above which a trace counts as large, and takes longest.
const LARGE: usize = 2_000;

/// Positions of the fractions at which large traces are planned all the same.
pub const FOR_LARGE: [usize; 2] = [1, 3];

impl Runs {
    pub fn new(subjects: Vec<Subject>, fractions: Vec<usize>, time: Duration) -> Runs {
        let end = Instant::now() + time;
        let made = HashMap::new();
        let left_out = HashSet::new();
        let (evaluations, thorough, selected) = (None, true, false);
        Runs { subjects, fractions, made, end, left_out, evaluations, thorough, selected }
    }

    /// Returns the cases of one policy at every subject and fraction.
    pub fn cases(&self, means: Means, half: bool, policy: Policy) -> Vec<Case> {
        let case = |subject, fraction| Case {
            subject,
            fraction,
            means,
            rate: 0,
            half,
            policy,
            effort: 1,
            without: None,
        };
        let subjects = 0..self.subjects.len();
        subjects.flat_map(|s| self.fractions.iter().map(move |f| case(s, *f))).collect()
    }

    pub fn get(&self, case: Case) -> Option<&Made> {
        self.made.get(&case)
    }

    /// Makes the plans that are missing, the smallest traces first, so that a lack of time costs few rows.
    pub fn make(&mut self, cases: impl IntoIterator<Item = Case>, threads: usize) {
        let wanted = |case: &Case| !self.made.contains_key(case) && !self.is_spared(case);
        let mut cases: Vec<Case> = cases.into_iter().filter(wanted).collect();
        cases.sort_by_key(|case| self.subjects[case.subject].ops() as u64 * case.effort);
        let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            // The referee starts with our first plan, and is then kept, unless there is none.
            let mut referee = None;
            while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                if Instant::now() >= self.end {
                    break;
                }
                let judged = case.policy == Policy::Plimsoll && case.without.is_none();
                let referee = judged.then(|| referee.get_or_insert_with(Referee::start).as_mut()).flatten();
                let one = self.plan(*case, referee);
                made.lock().expect("no thread panics").push((*case, one));
            }
        };
        if threads == 1 {
            work();
        } else {
            std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        }
        let made = made.into_inner().expect("no thread panics");
        self.made.extend(made);
        self.left_out.extend(cases.into_iter().filter(|case| !self.made.contains_key(case)));
    }

    fn is_spared(&self, case: &Case) -> bool {
        let large = self.subjects[case.subject].ops() > LARGE;
        !self.thorough && large && !FOR_LARGE.contains(&case.fraction)
    }

    fn plan(&self, case: Case, referee: Option<&mut Referee>) -> Made {
        let subject = &self.subjects[case.subject];
        let budget = subject.budget(FRACTIONS[case.fraction]);
        let duplex = if case.half { Duplex::Half } else { Duplex::Full };
        let link = Link { duplex, ..Link::symmetric(RATES[case.rate]) };
        let mut request = PlanRequest {
            allow: case.means.allow(),
            limits: Limits { evaluations: self.evaluations, expired: None },
            without: case.without.into_iter().collect(),
            ..PlanRequest::new(budget, link, case.policy)
        };
        if case.effort > 1 {
            let usual = || suggested_evaluations(&subject.trace, &request);
            request.limits.evaluations = Some(case.effort * self.evaluations.unwrap_or_else(usual));
        }
        let start = Instant::now();
        let outcome = plan(&subject.trace, &request);
        let seconds = start.elapsed().as_secs_f64();
        let bound = lower_bound(&subject.trace, budget, &request.link, request.allow).0;
        let found = match outcome {
            Err(fault) => Found::Fault(fault.to_string()),
            Ok(Outcome::Infeasible(witness)) => Found::None(witness.to_string()),
            Ok(Outcome::Planned(plan)) => match measure(subject, budget, bound, &plan, referee) {
                Ok(measures) => Found::Schedule(measures),
                Err(why) => Found::Fault(why),
            },
        };
        Made { seconds, bound, found }
    }
}

/// Measures a plan again, from its schedule alone; fails with the reason if it is invalid.
fn measure(
    subject: &Subject,
    budget: Bytes,
    bound: f64,
    plan: &Plan,
    referee: Option<&mut Referee>,
) -> Result<Measures, String> {
    let Subject { trace, .. } = subject;
    let schedule = &plan.schedule;
    check(trace, schedule).map_err(|violation| format!("check: {violation}"))?;
    let timeline = simulate(trace, schedule);
    let (makespan, alive) = (timeline.makespan().0, timeline.peak(trace, schedule).0);
    let refereed = referee.is_some();
    let verdict = referee.map_or(Ok(makespan), |referee| referee.judge(subject, schedule));
    let theirs = verdict.map_err(|why| format!("referee: {why}"))?;
    let same = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
    if !same(theirs, makespan) || !same(plan.makespan.0, makespan) {
        return Err(format!("{} is said, {makespan} simulated, {theirs} refereed", plan.makespan.0));
    }
    if makespan < bound * (1.0 - 1e-6) {
        return Err(format!("a makespan of {makespan} is below the bound of {bound}"));
    }
    if schedule.budget_bytes != budget || schedule.pool_bytes + trace.resident_bytes > budget {
        return Err(format!("a pool of {} is more than the budget of {budget}", schedule.pool_bytes));
    }
    let (moved, pool, copied) = (plan.moved.0, schedule.pool_bytes.0, copied(trace, schedule));
    Ok(Measures { makespan, moved, pool, alive, copied, refereed })
}

/// Returns the cost of a copy of the state, which is estimated as two thirds of the resident bytes: parameters and momenta, but
/// no gradients.
fn copied(trace: &Trace, schedule: &Schedule) -> Option<[f64; 4]> {
    let state = Bytes(trace.resident_bytes.0 * 2 / 3);
    let places = places_of_copy(trace, schedule, state);
    let best = place_of_copy(trace, schedule, state)?;
    let [first, last] = [places.first()?, places.last()?].map(|place| place.makespan.0);
    Some([first, last, best.makespan.0, best.whole.0 / best.makespan.0])
}
