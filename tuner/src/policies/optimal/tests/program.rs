//! The same space as a mixed-integer program.
//!
//! # The variables
//!
//! The *steps* of compute are in one order: stage after stage, the ops that may be recomputed before the op of the stage. A step
//! runs or not, in one of its alternatives; its start is a time. A *stay* is a value on the device without a break: from the
//! start, from a step that makes it, or from a prefetch, of which there may be one for each value and each stage that reads it.
//! Every read of a step that runs is *served* by one stay. Each version may be offloaded once, from one stay.
//!
//! # Memory
//!
//! Memory use grows only when a step or a prefetch starts, so it is constrained only then: a stay counts unless it begins later,
//! or all steps that it serves, and its offload, have ended. Choices encode the order of two times; rows with the known makespan
//! as the large number, which is as small as possible, bind them to the times.
//!
//! # Purpose
//!
//! The program states the space in rows for a solver, shares no idea with the search, and must give the same minimum makespan. It
//! takes far longer: microlp, the solver in Rust, takes a second for some hundred choices (a dozen ops that are only swapped, or
//! half a dozen of which some are recomputed).

use super::super::space::{OpAlternative, Space, ValueId, holds, members, only};
use crate::numbers::real;
use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolutionStatus, SolverModel, Variable,
    constraint, microlp, variable,
};
use plimsoll_ir::{Bytes, OpId};

/// Step of compute.
struct Step {
    stage: OpId,
    op: OpId,
    /// By alternative of the op: 1 if it runs in it.
    alternatives: Vec<Variable>,
    start: Variable,
}

/// Beginning of a stay.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Start,
    Step(usize),
    /// Prefetch: its start, and a choice that is 1 if it takes place.
    Fetch {
        stage: OpId,
        start: Variable,
        takes: Variable,
    },
}

/// Value on the device without a break.
struct Stay {
    value: ValueId,
    from: From,
    /// Steps that it may serve, each with a choice that is 1 if it does.
    serves: Vec<(usize, Variable)>,
    /// Choice that is 1 if the offload of the value is from here; `None` if it cannot be.
    leaves: Option<Variable>,
}

/// Offload of a value: a choice that is 1 if it takes place, and its end.
struct Offload {
    value: ValueId,
    takes: Variable,
    end: Variable,
}

/// Program under construction.
struct Program<'a> {
    space: &'a Space,
    variables: ProblemVariables,
    rows: Vec<good_lp::Constraint>,
    /// Upper limit of all times.
    latest: f64,
    choices: usize,
    makespan: Variable,
    steps: Vec<Step>,
    stays: Vec<Stay>,
    offloads: Vec<Offload>,
}

/// Result of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Solved {
    /// Minimum makespan.
    Least(f64),
    /// There is no iteration within the requested time.
    Nothing,
    /// The program has more choices than were allowed, or the solver gave up.
    Open,
}

/// Returns the minimum makespan that is no later than `within`, if the program has at most this many choices.
pub(super) fn least(space: &Space, within: f64, most_choices: usize) -> Solved {
    let mut variables = ProblemVariables::new();
    let within = within.min(one_by_one(space));
    let makespan = variables.add(variable().bounds(0.0..=within));
    let (rows, steps, stays, offloads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut program =
        Program { space, variables, rows, latest: within, choices: 0, makespan, steps, stays, offloads };
    program.add_steps();
    program.add_stays();
    program.serve();
    program.add_offloads();
    if program.choices > most_choices {
        return Solved::Open;
    }
    program.order_links();
    program.add_memory();
    if program.choices > most_choices {
        return Solved::Open;
    }
    let Program { variables, rows, .. } = program;
    let mut model = variables.minimise(makespan).using(microlp);
    for row in rows {
        model = model.with(row);
    }
    match model.solve() {
        Ok(solution) if matches!(solution.status(), SolutionStatus::Optimal) => {
            Solved::Least(solution.value(makespan))
        }
        Err(ResolutionError::Infeasible) => Solved::Nothing,
        _ => Solved::Open,
    }
}

/// Returns the seconds of everything that may be done, one after the other.
fn one_by_one(space: &Space) -> f64 {
    let stages = real(space.jobs.len());
    let longest = |alternatives: &[OpAlternative]| {
        alternatives.iter().map(|alternative| alternative.seconds).fold(0.0, f64::max)
    };
    let compute: f64 = space.jobs.iter().map(|job| longest(&job.alternatives)).sum();
    let link: f64 = space.values.iter().map(|value| value.out + stages * value.back).sum();
    stages * compute + link
}

fn sum(of: &[Variable]) -> Expression {
    of.iter().copied().map(Expression::from).sum()
}

impl Program<'_> {
    fn time(&mut self) -> Variable {
        self.variables.add(variable().bounds(0.0..=self.latest))
    }

    fn choice(&mut self) -> Variable {
        self.choices += 1;
        self.variables.add(variable().binary())
    }

    /// Returns a variable from 0 to 1 that is large if something counts.
    fn share(&mut self) -> Variable {
        self.variables.add(variable().bounds(0.0..=1.0))
    }

    fn row(&mut self, row: good_lp::Constraint) {
        self.rows.push(row);
    }

    /// Constrains `a` to be this many seconds before `b` if all of the choices are 1.
    fn order(
        &mut self,
        a: impl Into<Expression>,
        seconds: f64,
        b: impl Into<Expression>,
        choices: &[Expression],
    ) {
        let most = self.latest + seconds;
        let slack: Expression = choices.iter().map(|choice| (1.0 - choice.clone()) * most).sum();
        self.rows.push(constraint!(a.into() + seconds <= b.into() + slack));
    }

    fn runs(&self, step: usize) -> Expression {
        sum(&self.steps[step].alternatives)
    }

    fn end(&self, step: usize) -> Expression {
        let Step { op, alternatives, start, .. } = &self.steps[step];
        let seconds = self.space.jobs[*op].alternatives.iter().map(|alternative| alternative.seconds);
        alternatives
            .iter()
            .zip(seconds)
            .map(|(alternative, seconds)| seconds * *alternative)
            .sum::<Expression>()
            + *start
    }

    fn reads(&self, step: usize, value: ValueId) -> bool {
        holds(self.space.jobs[self.steps[step].op].reads, value)
    }

    fn makes(&self, step: usize, value: ValueId) -> bool {
        holds(self.space.jobs[self.steps[step].op].writes, value)
    }

    fn add_steps(&mut self) {
        let space = self.space;
        for (stage, job) in space.jobs.iter_enumerated() {
            // Inputs that the op may lack, directly and indirectly.
            let (mut lacks, mut again) = (job.reads, Vec::new());
            for k in OpId::each(OpId(0)..stage).rev().filter(|_| stage < space.final_stage) {
                if space.jobs[k].again && space.jobs[k].writes & lacks != 0 {
                    lacks |= space.jobs[k].reads;
                    again.push(k);
                }
            }
            for op in again.into_iter().rev().chain([stage]) {
                let alternatives = (0..space.jobs[op].alternatives.len()).map(|_| self.choice()).collect();
                let start = self.time();
                self.steps.push(Step { stage, op, alternatives, start });
                let at = self.steps.len() - 1;
                let runs = self.runs(at);
                let must = f64::from(u8::from(op == stage));
                self.row(constraint!(runs.clone() <= 1.0));
                self.row(constraint!(runs >= must));
                if at > 0 {
                    let (before, start) = (self.end(at - 1), self.steps[at].start);
                    self.order(before, 0.0, start, &[]);
                }
            }
        }
        let (end, makespan) = (self.end(self.steps.len() - 1), self.makespan);
        self.order(end, 0.0, makespan, &[]);
    }

    fn add_stays(&mut self) {
        let space = self.space;
        for v in space.values.keys() {
            if holds(space.start, v) {
                self.stays.push(Stay { value: v, from: From::Start, serves: Vec::new(), leaves: None });
            }
            for step in (0..self.steps.len()).filter(|s| self.makes(*s, v)).collect::<Vec<usize>>() {
                self.stays.push(Stay { value: v, from: From::Step(step), serves: Vec::new(), leaves: None });
            }
            let maker = space.values[v].maker;
            let made = maker.map_or(OpId(0), OpId::next);
            let recomputes = space.jobs.iter().any(|job| job.again);
            for stage in OpId::each(made..space.jobs.next_key()).filter(|_| space.machine.swap) {
                let readers = |s: &Step| s.stage == stage && holds(space.jobs[s.op].reads, v);
                // Without recomputing, values are away only where memory is short.
                let read = OpId::each(made..stage).rev().find(|q| holds(space.jobs[*q].reads, v));
                let last = read.or(maker).unwrap_or(OpId(0));
                let short = OpId::each(last..stage)
                    .any(|q| space.press[q].away > 0 && holds(space.press[q].across, v));
                if self.steps.iter().any(readers) && (short || recomputes) {
                    let (start, takes) = (self.time(), self.choice());
                    let from = From::Fetch { stage, start, takes };
                    self.stays.push(Stay { value: v, from, serves: Vec::new(), leaves: None });
                }
            }
        }
    }

    /// Constrains every read of a step that runs to be served by one stay.
    fn serve(&mut self) {
        for step in 0..self.steps.len() {
            for v in members(self.space.jobs[self.steps[step].op].reads) {
                let mut servers = Vec::new();
                for k in 0..self.stays.len() {
                    let can = match self.stays[k].from {
                        From::Start => true,
                        From::Step(made) => made < step,
                        From::Fetch { stage, .. } => stage <= self.steps[step].stage,
                    };
                    if self.stays[k].value == v && can {
                        let serves = self.choice();
                        self.stays[k].serves.push((step, serves));
                        servers.push(serves);
                        self.bind_server(k, step, serves);
                    }
                }
                let runs = self.runs(step);
                self.row(constraint!(sum(&servers) == runs));
            }
        }
        self.forbid_waste();
    }

    fn bind_server(&mut self, stay: usize, step: usize, serves: Variable) {
        let value = self.stays[stay].value;
        match self.stays[stay].from {
            From::Start => {}
            From::Step(made) => {
                let runs = self.runs(made);
                self.row(constraint!(serves <= runs));
            }
            From::Fetch { start, takes, .. } => {
                self.row(constraint!(serves <= takes));
                let begins = self.steps[step].start;
                self.order(start, self.space.values[value].back, begins, &[serves.into()]);
            }
        }
        // A value that is updated in place serves nothing later.
        let consumed = |s: usize| holds(self.space.jobs[self.steps[s].op].consumed, value);
        let before: Vec<Variable> =
            self.stays[stay].serves.iter().filter(|(s, _)| *s < step && consumed(*s)).map(|s| s.1).collect();
        for other in before {
            self.row(constraint!(other + serves <= 1.0));
        }
    }

    /// Constrains recomputed values to serve their own stage, and fetched values the stage that they are fetched for.
    fn forbid_waste(&mut self) {
        let mut used: Vec<Expression> = vec![Expression::from(0.0); self.steps.len()];
        let mut rows = Vec::new();
        for stay in &self.stays {
            let of_stage = |stage: OpId| -> Expression {
                let here = stay.serves.iter().filter(|(s, _)| self.steps[*s].stage == stage);
                here.map(|(_, serves)| Expression::from(*serves)).sum()
            };
            match stay.from {
                From::Start => {}
                From::Step(made) => used[made] += of_stage(self.steps[made].stage),
                From::Fetch { stage, takes, .. } => rows.push(constraint!(of_stage(stage) >= takes)),
            }
        }
        for (s, used) in used.into_iter().enumerate() {
            if self.steps[s].op != self.steps[s].stage {
                rows.push(constraint!(used >= self.runs(s)));
            }
        }
        self.rows.extend(rows);
    }

    fn add_offloads(&mut self) {
        for v in self.space.values.keys() {
            let fetches: Vec<(Variable, Variable)> = self
                .stays
                .iter()
                .filter(|stay| stay.value == v)
                .filter_map(|stay| match stay.from {
                    From::Fetch { start, takes, .. } => Some((start, takes)),
                    _ => None,
                })
                .collect();
            if fetches.is_empty() {
                continue;
            }
            let (takes, end) = (self.choice(), self.time());
            for (start, fetched) in fetches {
                self.row(constraint!(fetched <= takes));
                self.order(end, 0.0, start, &[fetched.into()]);
            }
            let mut from = Vec::new();
            for k in 0..self.stays.len() {
                if self.stays[k].value != v {
                    continue;
                }
                let out = self.space.values[v].out;
                let earliest = match self.stays[k].from {
                    From::Start => Expression::from(0.0),
                    From::Step(made) => self.end(made),
                    From::Fetch { .. } => continue,
                };
                let leaves = self.choice();
                if let From::Step(made) = self.stays[k].from {
                    let runs = self.runs(made);
                    self.row(constraint!(leaves <= runs));
                }
                self.order(earliest, out, end, &[leaves.into()]);
                self.stays[k].leaves = Some(leaves);
                from.push(leaves);
            }
            self.row(constraint!(sum(&from) == takes));
            self.offloads.push(Offload { value: v, takes, end });
        }
        self.fit_host();
    }

    /// Constrains offloaded values to fit the host: a tensor has one place there for all of its versions.
    fn fit_host(&mut self) {
        let space = self.space;
        let Some(host) = space.machine.host else { return };
        let mut taken = Expression::from(0.0);
        for v in space.values.keys() {
            let of: Vec<Variable> =
                self.offloads.iter().filter(|o| holds(space.versions[v], o.value)).map(|o| o.takes).collect();
            if !space.is_first(v) || of.is_empty() {
                continue;
            }
            let placed = self.share();
            of.into_iter().for_each(|takes| self.row(constraint!(takes <= placed)));
            taken += Bytes(space.on_host(only(v))).to_f64() / Bytes(host.max(1)).to_f64() * placed;
        }
        self.row(constraint!(taken <= 1.0));
    }

    /// Constrains transfers to one at a time on a link, and the host to one version of a tensor.
    fn order_links(&mut self) {
        let space = self.space;
        // Start, seconds, choice that it takes place, `true` for an offload, value.
        let mut jobs: Vec<(Expression, f64, Variable, bool, ValueId)> = Vec::new();
        for Offload { value, takes, end } in &self.offloads {
            let out = space.values[*value].out;
            jobs.push((*end - out, out, *takes, true, *value));
        }
        for stay in &self.stays {
            if let From::Fetch { start, takes, .. } = stay.from {
                jobs.push((start.into(), space.values[stay.value].back, takes, false, stay.value));
            }
        }
        for (i, a) in jobs.iter().enumerate() {
            for b in &jobs[i + 1..] {
                let versions = holds(space.versions[a.4], b.4);
                if a.3 == b.3 || space.machine.half || versions && a.4 != b.4 {
                    let first: Expression = self.choice().into();
                    let both = [Expression::from(a.2), Expression::from(b.2)];
                    let with = |choice: Expression| [both[0].clone(), both[1].clone(), choice];
                    self.order(a.0.clone(), a.1, b.0.clone(), &with(first.clone()));
                    self.order(b.0.clone(), b.1, a.0.clone(), &with(1.0 - first));
                }
            }
        }
        self.keep_versions(&jobs);
    }

    /// Constrains a fetched version to be the last one that was offloaded.
    fn keep_versions(&mut self, jobs: &[(Expression, f64, Variable, bool, ValueId)]) {
        for fetch in jobs.iter().filter(|job| !job.3) {
            let own = self.offloads.iter().position(|offload| offload.value == fetch.4);
            let Some(own) = own.map(|own| (self.offloads[own].end, self.space.values[fetch.4].out)) else {
                continue;
            };
            for other in jobs.iter().filter(|job| job.3 && job.4 != fetch.4) {
                if holds(self.space.versions[fetch.4], other.4) {
                    let before: Expression = self.choice().into();
                    let both = [Expression::from(fetch.2), Expression::from(other.2)];
                    let with = |choice: Expression| [both[0].clone(), both[1].clone(), choice];
                    self.order(other.0.clone(), other.1, own.0 - own.1, &with(before.clone()));
                    self.order(fetch.0.clone(), fetch.1, other.0.clone(), &with(1.0 - before));
                }
            }
        }
    }

    /// Constrains memory to fit the pool when a step starts, and when a prefetch does.
    fn add_memory(&mut self) {
        // By fetch: its stay, and its positions among the steps.
        let fetches: Vec<usize> =
            (0..self.stays.len()).filter(|k| matches!(self.stays[*k].from, From::Fetch { .. })).collect();
        let positions: Vec<Vec<[Variable; 2]>> = fetches.iter().map(|k| self.positions(*k)).collect();
        for step in 0..self.steps.len() {
            self.memory_at_step(step, &fetches, &positions);
        }
        for at in 0..fetches.len() {
            self.memory_at_fetch(at, &fetches, &positions);
        }
    }

    /// By step: a choice that is 1 if a fetch starts at or after the step's start, and one for the step's end.
    fn positions(&mut self, stay: usize) -> Vec<[Variable; 2]> {
        let From::Fetch { start, .. } = self.stays[stay].from else { return Vec::new() };
        let mut positions: Vec<[Variable; 2]> = Vec::new();
        for step in 0..self.steps.len() {
            let pair = [self.choice(), self.choice()];
            let times = [Expression::from(self.steps[step].start), self.end(step)];
            for (choice, time) in pair.into_iter().zip(times) {
                self.order(time.clone(), 0.0, start, &[choice.into()]);
                self.order(start, 0.0, time, &[1.0 - choice]);
            }
            self.row(constraint!(pair[1] <= pair[0]));
            if let Some(before) = positions.last().copied() {
                self.row(constraint!(pair[0] <= before[1]));
            }
            positions.push(pair);
        }
        positions
    }

    /// Returns a choice that can be 1 only if the value's offload has ended at a time.
    fn gone(&mut self, value: ValueId, time: Expression) -> Variable {
        let end = self.offloads.iter().find(|offload| offload.value == value).map(|offload| offload.end);
        let gone = self.choice();
        if let Some(end) = end {
            self.order(end, 0.0, time, &[gone.into()]);
        }
        gone
    }

    fn memory_at_step(&mut self, step: usize, fetches: &[usize], positions: &[Vec<[Variable; 2]>]) {
        let space = self.space;
        let op = self.steps[step].op;
        let need = space.jobs[op].fresh;
        let alternatives = self.steps[step].alternatives.iter().zip(&space.jobs[op].alternatives);
        let mut used: Expression =
            alternatives.map(|(alternative, of)| Bytes(need + of.workspace).to_f64() * *alternative).sum();
        for k in 0..self.stays.len() {
            let (later, value) = match self.stays[k].from {
                From::Step(made) if made >= step => continue,
                From::Fetch { .. } => {
                    let at = fetches.iter().position(|f| *f == k).unwrap_or_default();
                    (Some(positions[at][step][0]), self.stays[k].value)
                }
                _ => (None, self.stays[k].value),
            };
            let serves: Vec<Variable> =
                self.stays[k].serves.iter().filter(|s| s.0 >= step).map(|s| s.1).collect();
            let leaves = self.stays[k].leaves;
            if serves.is_empty() && leaves.is_none() {
                continue;
            }
            let there = self.share();
            for serves in serves {
                let late = later.map_or(Expression::from(0.0), Expression::from);
                self.row(constraint!(there >= serves - late));
            }
            if let Some(leaves) = leaves {
                let start = self.steps[step].start.into();
                let gone = self.gone(value, start);
                self.row(constraint!(there >= leaves - gone));
                // It is not updated in place while it leaves.
                if self.space.jobs[op].consumed & self.space.versions[value] != 0 && self.reads(step, value) {
                    let own: Vec<Variable> =
                        self.stays[k].serves.iter().filter(|s| s.0 == step).map(|s| s.1).collect();
                    own.into_iter().for_each(|own| self.row(constraint!(gone >= leaves + own - 1.0)));
                }
            }
            used += Bytes(space.values[value].bytes).to_f64() * there;
        }
        self.fits(used);
    }

    fn memory_at_fetch(&mut self, at: usize, fetches: &[usize], positions: &[Vec<[Variable; 2]>]) {
        let space = self.space;
        let own = fetches[at];
        let From::Fetch { start, takes, .. } = self.stays[own].from else { return };
        let mut used: Expression = Bytes(space.values[self.stays[own].value].bytes).to_f64() * takes;
        for (step, &[begun, ended]) in positions[at].iter().enumerate() {
            let op = self.steps[step].op;
            let alternatives: Vec<(Variable, u64)> = self.steps[step]
                .alternatives
                .iter()
                .copied()
                .zip(space.jobs[op].alternatives.iter().map(|w| w.workspace))
                .collect();
            for (alternative, workspace) in alternatives {
                let bytes = space.jobs[op].fresh + workspace;
                if bytes > 0 {
                    let runs = self.share();
                    self.row(constraint!(runs >= alternative + begun + takes - ended - 2.0));
                    used += Bytes(bytes).to_f64() * runs;
                }
            }
        }
        for k in (0..self.stays.len()).filter(|k| *k != own) {
            let value = self.stays[k].value;
            // 1 if this begins after that fetch starts.
            let later: Expression = match self.stays[k].from {
                From::Start => 0.0.into(),
                From::Step(made) => 1.0 - positions[at][made][1],
                From::Fetch { start: other, .. } => {
                    let later = self.choice();
                    self.order(start, 0.0, other, &[later.into()]);
                    later.into()
                }
            };
            let there = self.share();
            for (step, serves) in self.stays[k].serves.clone() {
                let over = positions[at][step][1];
                self.row(constraint!(there >= serves + takes - later.clone() - over - 1.0));
            }
            if let Some(leaves) = self.stays[k].leaves {
                let gone = self.gone(value, start.into());
                self.row(constraint!(there >= leaves + takes - later.clone() - gone - 1.0));
            }
            used += Bytes(space.values[value].bytes).to_f64() * there;
        }
        self.fits(used);
    }

    /// Constrains `used`, counted in pools, so that the solver meets no large numbers.
    fn fits(&mut self, used: Expression) {
        let pool = Bytes(self.space.machine.pool.max(1)).to_f64();
        self.rows.push(constraint!(used * (1.0 / pool) <= 1.0));
    }
}
