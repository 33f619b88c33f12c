//! The predicted duration of an update of all workers.
//!
//! The schedule's three streams and the pieces of the gradients share four servers, each of which does one thing at a time:
//! the kernels, the link out, the link in and the interconnect. Pushes and kept bytes share the link out with the swap-out
//! stream, pulls the link in with the swap-in stream. A free server takes the next ready job: a command of the schedule
//! before a piece, a piece whose sum is needed sooner before one needed later. Iterations are simulated until they repeat,
//! since a sum that only the next forward pass needs may still be in transit when an iteration ends.
//!
//! Without pieces the times are those of [`simulate`], to the bit.
//!
//! The model deliberately does not interrupt a transfer, or let two transfers share a server at half its rate.

use super::{Exchange, Piece};
use crate::ids::CommandId;
use crate::schedule::{Command, Duplex, Schedule, Stream};
use crate::simulate::{Span, Timeline, duration, simulate};
use crate::trace::{Phase, Trace};
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// An iteration with its exchange, once iterations repeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Spans of the schedule's commands, from the start of the iteration.
    pub timeline: Timeline,
    /// Stages of each piece, from the start of the same iteration; the last ones may lie after its end.
    pub pieces: Vec<[Span; STAGES.len()]>,
    /// Period of the repetition in iterations, over which `seconds` is the mean; `None` if there is none within 64.
    pub repeats: Option<usize>,
    /// Time from one update to the next: all of the worker's passes.
    pub seconds: Seconds,
    /// Time that the exchange adds to the passes and the update alone.
    pub exposed: Seconds,
}

/// The stages of a piece, in their order, with the server of each.
const STAGES: [Server; 5] = [Server::Out, Server::Wire, Server::Wire, Server::Out, Server::In];

/// A resource that does one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Compute,
    Out,
    In,
    Wire,
}

/// Limit of simulated iterations, after which those that do not repeat are taken as they are.
const ITERATIONS: usize = 64;

/// Predicts an update: the schedule with the exchange next to it. Both must have passed [`Exchange::check`].
pub fn simulate_update(trace: &Trace, schedule: &Schedule, exchange: &Exchange) -> Update {
    let alone = simulate(trace, schedule);
    let mut run = Run::new(trace, schedule, exchange);
    let mut paces = Vec::new();
    let mut states = vec![run.state(Seconds::ZERO)];
    let pass = pass_seconds(trace, schedule, exchange);
    // Of several passes the first waits for the carried pieces, and the last completes the sums; those between exchange
    // nothing, and leave the same state behind.
    let first_waits = has_first(exchange);
    let plain = pass * (exchange.passes - 1 - u64::from(first_waits)) as f64;
    loop {
        let first = if first_waits { run.pass().makespan() } else { Seconds::ZERO };
        let timeline = run.iteration();
        let state = run.state(timeline.makespan());
        let again = states.iter().rposition(|before| same(before, &state, timeline.makespan()));
        paces.push(first + timeline.makespan());
        states.push(state);
        if again.is_none() && paces.len() < ITERATIONS {
            continue;
        }
        let cycle = &paces[again.unwrap_or(ITERATIONS / 2)..];
        // A piece in transit at the end of an iteration has arrived by the end of the next, which waits for it.
        if first_waits {
            run.pass()
        } else {
            run.iteration()
        };
        let pieces = run.spans[run.done % 2].clone();
        let seconds = plain + mean(cycle);
        let passes = if first_waits { pass } else { Seconds::ZERO };
        let exposed = (mean(cycle) - passes - alone.makespan()).max(Seconds::ZERO);
        return Update { timeline, pieces, repeats: again.map(|_| cycle.len()), seconds, exposed };
    }
}

/// Returns `true` if an update has a first pass that waits for carried pieces, and a different pass that completes the sums.
fn has_first(exchange: &Exchange) -> bool {
    exchange.passes > 1 && exchange.pieces.iter().any(Piece::carried)
}

fn mean(seconds: &[Seconds]) -> Seconds {
    seconds.iter().copied().sum::<Seconds>() * (1.0 / seconds.len() as f64)
}

/// Returns `true` if two iterations start from the same state, up to rounding.
fn same(a: &[(usize, Seconds)], b: &[(usize, Seconds)], makespan: Seconds) -> bool {
    let near = |a: Seconds, b: Seconds| (a.0 - b.0).abs() <= 1e-9 * makespan.0;
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && near(a.1, b.1))
}

/// Returns the duration of a pass without the update, and without an exchange.
fn pass_seconds(trace: &Trace, schedule: &Schedule, exchange: &Exchange) -> Seconds {
    Run::new(trace, schedule, &without_pieces(exchange)).pass().makespan()
}

fn without_pieces(exchange: &Exchange) -> Exchange {
    Exchange { pieces: Vec::new(), bytes: Bytes::ZERO, ..exchange.clone() }
}

fn updates(trace: &Trace, command: &Command) -> bool {
    matches!(command, Command::Compute { op, .. } if trace.ops[op.index()].phase == Phase::Update)
}

/// A piece in transit.
struct Job {
    piece: usize,
    stage: usize,
    /// End of the previous stage.
    ready: Seconds,
    spans: [Span; STAGES.len()],
    /// Iteration of the piece.
    iteration: usize,
    /// Time from the start of its iteration to that of the present one.
    since: Seconds,
}

/// The next command or job that can start.
#[derive(Clone, Copy)]
enum Next {
    Command(CommandId),
    Job(usize),
}

/// Simulated iterations, one after the other; all times are from the start of the present one.
struct Run<'a> {
    schedule: &'a Schedule,
    /// Duration by command.
    seconds: Vec<Seconds>,
    /// `true` for commands that update parameters.
    updates: Vec<bool>,
    /// `true` if the present iteration is a pass without the update, which completes nothing.
    is_pass: bool,
    streams: [Vec<CommandId>; 3],
    /// Previous transfer that each command waits for on a half-duplex link.
    transfer_before: Vec<Option<CommandId>>,
    /// Pieces that are ready after each command, and (`needs`) those that it waits for.
    completes: Vec<Vec<usize>>,
    needs: Vec<Vec<usize>>,
    pieces: &'a [Piece],
    /// Duration by piece and stage; `None` for a stage without work.
    stages: Vec<[Option<Seconds>; STAGES.len()]>,
    /// Number of ops after the backward pass until a piece's sum is needed.
    distance: Vec<usize>,
    half: bool,
    /// Time at which each server is free.
    free: [Seconds; 4],
    jobs: Vec<Job>,
    /// Arrival of each piece's sum; `None` while in transit.
    arrived: Vec<Option<Seconds>>,
    /// Spans by iteration modulo 2, and by piece.
    spans: [Vec<[Span; STAGES.len()]>; 2],
    /// Iterations so far.
    done: usize,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace, schedule: &'a Schedule, exchange: &'a Exchange) -> Run<'a> {
        let half = schedule.link.duplex == Duplex::Half;
        let mut streams: [Vec<CommandId>; 3] = Default::default();
        let mut transfer_before = vec![None; schedule.commands.len()];
        let mut last_transfer = None;
        for (id, command) in schedule.numbered_commands() {
            streams[command.stream().index()].push(id);
            if half && command.stream() != Stream::Compute {
                transfer_before[id.index()] = last_transfer.replace(id);
            }
        }
        let command_of = first_commands(trace, schedule);
        let mut completes = vec![Vec::new(); schedule.commands.len()];
        let mut needs = vec![Vec::new(); schedule.commands.len()];
        let (pieces, ops) = (exchange.pieces.as_slice(), trace.ops.len());
        for (number, piece) in pieces.iter().enumerate() {
            completes[command_of[piece.ready.index()].index()].push(number);
            needs[command_of[piece.needed.index()].index()].push(number);
        }
        let distance = pieces
            .iter()
            .map(|p| if p.carried() { ops + p.needed.index() } else { p.needed.index() })
            .collect();
        let seconds = schedule.commands.iter().map(|command| duration(trace, schedule, command)).collect();
        let arrived = pieces.iter().map(|piece| piece.carried().then_some(Seconds::ZERO)).collect();
        let spans = [(); 2].map(|()| vec![[Span::default(); STAGES.len()]; pieces.len()]);
        Run {
            schedule,
            seconds,
            updates: schedule.commands.iter().map(|command| updates(trace, command)).collect(),
            is_pass: false,
            streams,
            transfer_before,
            completes,
            needs,
            pieces,
            stages: pieces.iter().map(|piece| stages(schedule, exchange, piece)).collect(),
            distance,
            half,
            free: [Seconds::ZERO; 4],
            jobs: Vec::new(),
            arrived,
            spans,
            done: 0,
        }
    }

    /// Runs a pass that completes no sum: the commands of an iteration, in which those of the update take no time.
    fn pass(&mut self) -> Timeline {
        self.is_pass = true;
        let timeline = self.iteration();
        self.is_pass = false;
        timeline
    }

    /// Returns `true` for a command of an update that the present iteration does not have.
    fn is_left_out(&self, id: CommandId) -> bool {
        self.is_pass && self.updates[id.index()]
    }

    /// Runs all commands of one iteration, and the stages of pieces that start before the last of them.
    fn iteration(&mut self) -> Timeline {
        let mut spans: Vec<Option<Span>> = vec![None; self.schedule.commands.len()];
        let mut at = [0; 3];
        while let Some((next, start)) = self.next(&spans, at) {
            match next {
                Next::Command(id) => {
                    let stream = self.schedule.commands[id.index()].stream();
                    let seconds = if self.is_left_out(id) { Seconds::ZERO } else { self.seconds[id.index()] };
                    let span = Span { start, end: start + seconds };
                    spans[id.index()] = Some(span);
                    at[stream.index()] += 1;
                    self.free[self.server(server_of(stream))] = span.end;
                    if !self.is_pass {
                        self.begin_pieces(id, span.end);
                    }
                }
                Next::Job(job) => self.run_stage(job, start),
            }
        }
        let timeline =
            Timeline { spans: spans.into_iter().map(|span| span.expect("all have run")).collect() };
        self.next_iteration(timeline.makespan());
        timeline
    }

    /// Returns the next command or job; `None` once all commands have run. A job that starts at the same time as a command
    /// comes after it.
    fn next(&self, spans: &[Option<Span>], at: [usize; 3]) -> Option<(Next, Seconds)> {
        let heads = Stream::ALL.map(|stream| self.streams[stream.index()].get(at[stream.index()]).copied());
        if heads.iter().all(Option::is_none) {
            return None;
        }
        let commands = heads.into_iter().flatten();
        let commands = commands.filter_map(|id| Some((Next::Command(id), self.start_of(id, spans)?)));
        let jobs = self.jobs.iter().enumerate().map(|(number, job)| {
            let server = self.server(STAGES[job.stage]);
            (Next::Job(number), job.ready.max(self.free[server]))
        });
        let order = |next: Next| match next {
            Next::Command(_) => (0, 0, 0, 0),
            Next::Job(job) => {
                let Job { piece, stage, .. } = self.jobs[job];
                (1, self.distance[piece], STAGES.len() - stage, piece)
            }
        };
        commands.chain(jobs).min_by(|a, b| a.1.0.total_cmp(&b.1.0).then_with(|| order(a.0).cmp(&order(b.0))))
    }

    /// Returns the start of a command; `None` while something that it waits for has not started.
    fn start_of(&self, id: CommandId, spans: &[Option<Span>]) -> Option<Seconds> {
        let command = &self.schedule.commands[id.index()];
        let mut start = self.free[self.server(server_of(command.stream()))].max(Seconds::ZERO);
        for wait in command.waits().iter().copied().chain(self.transfer_before[id.index()]) {
            start = start.max(spans[wait.index()]?.end);
        }
        for piece in self.needs[id.index()].iter().filter(|_| !self.is_left_out(id)) {
            start = start.max(self.arrived[*piece]?);
        }
        Some(start)
    }

    /// Starts the pieces that a command completes.
    fn begin_pieces(&mut self, id: CommandId, ready: Seconds) {
        for number in 0..self.completes[id.index()].len() {
            let piece = self.completes[id.index()][number];
            self.arrived[piece] = None;
            let (spans, since, iteration) = ([Span::default(); STAGES.len()], Seconds::ZERO, self.done);
            self.jobs.push(Job { piece, stage: 0, ready, spans, iteration, since });
            self.skip_stages(self.jobs.len() - 1);
        }
    }

    fn run_stage(&mut self, number: usize, start: Seconds) {
        let job = &mut self.jobs[number];
        let end = start + self.stages[job.piece][job.stage].unwrap_or_default();
        job.spans[job.stage] = Span { start, end };
        job.ready = end;
        let server = STAGES[job.stage];
        job.stage += 1;
        let server = self.server(server);
        self.free[server] = end;
        self.skip_stages(number);
    }

    /// Skips stages without work; a piece past its last stage has arrived.
    fn skip_stages(&mut self, number: usize) {
        let job = &mut self.jobs[number];
        while job.stage < STAGES.len() && self.stages[job.piece][job.stage].is_none() {
            job.spans[job.stage] = Span { start: job.ready, end: job.ready };
            job.stage += 1;
        }
        if job.stage == STAGES.len() {
            let job = self.jobs.swap_remove(number);
            self.arrived[job.piece] = Some(job.ready);
            self.spans[job.iteration % 2][job.piece] =
                job.spans.map(|span| Span { start: span.start + job.since, end: span.end + job.since });
        }
    }

    /// Shifts all times to the start of the next iteration, which begins once all commands have ended.
    fn next_iteration(&mut self, makespan: Seconds) {
        self.done += 1;
        for free in &mut self.free {
            *free -= makespan;
        }
        for job in &mut self.jobs {
            job.ready -= makespan;
            job.spans = job.spans.map(|span| Span { start: span.start - makespan, end: span.end - makespan });
            job.since += makespan;
        }
        for (arrived, piece) in self.arrived.iter_mut().zip(self.pieces) {
            *arrived = arrived.filter(|_| piece.carried()).map(|at| at - makespan);
        }
    }

    /// Returns the state at the start of an iteration: when each server is free, when each sum arrived, and the stage of each
    /// piece in transit, which may have started earlier. Times before the last iteration do not matter.
    fn state(&self, last: Seconds) -> Vec<(usize, Seconds)> {
        let free = self.free.iter().map(|free| (0, free.max(last * -1.0)));
        let arrived = self.arrived.iter().map(|at| (STAGES.len(), at.unwrap_or_default().max(Seconds::ZERO)));
        let mut state: Vec<(usize, Seconds)> = free.chain(arrived).collect();
        for job in &self.jobs {
            state[self.free.len() + job.piece] = (job.stage, job.ready);
        }
        state
    }

    /// Returns the number of a server; both directions of a half-duplex link are one.
    fn server(&self, server: Server) -> usize {
        if self.half && server == Server::In { Server::Out as usize } else { server as usize }
    }
}

fn server_of(stream: Stream) -> Server {
    match stream {
        Stream::Compute => Server::Compute,
        Stream::Offload => Server::Out,
        Stream::Prefetch => Server::In,
    }
}

/// Returns, by op, the command that computes it first.
fn first_commands(trace: &Trace, schedule: &Schedule) -> Vec<CommandId> {
    let mut of = vec![None; trace.ops.len()];
    for (id, command) in schedule.numbered_commands() {
        if let Command::Compute { op, again: false, .. } = command {
            of[op.index()] = Some(id);
        }
    }
    of.into_iter().map(|id| id.expect("the schedule passed the check")).collect()
}

/// Returns the durations of a piece's stages; `None` for a stage without work.
fn stages(schedule: &Schedule, exchange: &Exchange, piece: &Piece) -> [Option<Seconds>; STAGES.len()] {
    let over_link = |stream, bytes: Bytes| {
        (exchange.staged && bytes > Bytes::ZERO).then(|| schedule.link.seconds(stream, bytes))
    };
    let [reduce, gather] = exchange.round_seconds(piece).map(Some);
    let [push, keep] = [piece.bytes, piece.kept].map(|bytes| over_link(Stream::Offload, bytes));
    [push, reduce, gather, keep, over_link(Stream::Prefetch, piece.bytes)]
}

/// The work of each server in an update, regardless of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Busy {
    /// Kernels.
    pub compute: Seconds,
    /// The link, out: swapping, pushes and kept bytes; both directions if it is half duplex.
    pub out: Seconds,
    /// The link, back: swapping and pulls; 0 if it is half duplex.
    pub back: Seconds,
    /// The interconnect.
    pub wire: Seconds,
}

/// Returns the busy time of each server in an update, with all of the worker's passes. Both documents must have passed
/// [`Exchange::check`].
pub fn busy(trace: &Trace, schedule: &Schedule, exchange: &Exchange) -> Busy {
    let last = busy_in_pass(trace, schedule, exchange);
    let plain = busy_in_pass(trace, schedule, &without_pieces(exchange));
    let others = (exchange.passes - 1) as f64;
    Busy {
        compute: last.compute + (plain.compute - of_updates(trace, schedule)) * others,
        out: last.out + plain.out * others,
        back: last.back + plain.back * others,
        wire: last.wire,
    }
}

/// Returns the busy times of the pass that completes the sums, with the update.
fn busy_in_pass(trace: &Trace, schedule: &Schedule, exchange: &Exchange) -> Busy {
    let totals = simulate(trace, schedule).totals(trace, schedule);
    let of_pieces = |stage: usize| -> Seconds {
        exchange.pieces.iter().filter_map(|piece| stages(schedule, exchange, piece)[stage]).sum()
    };
    let of_stream = |stream: Stream| totals.busy[stream.index()];
    let mut busy = Busy {
        compute: of_stream(Stream::Compute),
        out: of_stream(Stream::Offload) + of_pieces(0) + of_pieces(3),
        back: of_stream(Stream::Prefetch) + of_pieces(4),
        wire: of_pieces(1) + of_pieces(2),
    };
    if schedule.link.duplex == Duplex::Half {
        busy.out += std::mem::take(&mut busy.back);
    }
    busy
}

/// Returns a lower bound over all orders of the same stages: the update's own makespan, each server's work, and, for pieces
/// that are ready at the earliest at one time, all of their stages and the least that comes after them.
pub fn bound(trace: &Trace, schedule: &Schedule, exchange: &Exchange) -> Seconds {
    let alone = simulate(trace, schedule);
    let tails = tails(trace, schedule);
    let command_of = first_commands(trace, schedule);
    let stages: Vec<[Seconds; STAGES.len()]> = exchange
        .pieces
        .iter()
        .map(|piece| stages(schedule, exchange, piece).map(Option::unwrap_or_default))
        .collect();
    let Busy { out, back, wire, .. } = busy_in_pass(trace, schedule, exchange);
    let pass = pass_seconds(trace, schedule, exchange);
    let mut least = alone.makespan();
    // If the first pass waits for the pieces that the previous update's last pass completes, both together hold the exchange,
    // and the swapping of both.
    if has_first(exchange) {
        let swaps = busy_in_pass(trace, schedule, &without_pieces(exchange));
        for two in [out + swaps.out, back + swaps.back, wire] {
            least = least.max(two - pass);
        }
    } else {
        least = least.max(out).max(back).max(wire);
    }
    let of_updates = of_updates(trace, schedule);
    for carried in [false, true] {
        for server in [0..1, 1..3, 3..4, 4..5] {
            let windows: Vec<Window> = exchange
                .pieces
                .iter()
                .zip(&stages)
                .filter(|(piece, _)| piece.carried() == carried)
                .map(|(piece, stages)| Window {
                    head: alone.spans[command_of[piece.ready.index()].index()].end
                        + stages[..server.start].iter().copied().sum(),
                    body: stages[server.clone()].iter().copied().sum(),
                    tail: stages[server.end..].iter().copied().sum::<Seconds>()
                        + tails[command_of[piece.needed.index()].index()],
                })
                .collect();
            let held = one_server(&windows);
            least = least.max(match (carried, exchange.passes) {
                (false, _) => held,
                // Two successive iterations hold the carried pieces.
                (true, 1) => held * 0.5,
                // No update follows the first pass.
                (true, _) => held - of_updates - pass,
            });
        }
    }
    least + pass * (exchange.passes - 1) as f64
}

/// Returns the time that the updates of parameters take on the device.
fn of_updates(trace: &Trace, schedule: &Schedule) -> Seconds {
    let all = schedule.commands.iter().filter(|command| updates(trace, command));
    all.map(|command| duration(trace, schedule, command)).sum()
}

/// A job with an earliest start, a duration on one server, and a duration of everything after it.
struct Window {
    head: Seconds,
    body: Seconds,
    tail: Seconds,
}

/// Returns the most, over all sets of windows, of the least head, the sum of bodies and the least tail. Only sets of all
/// windows with a long enough head and tail matter.
fn one_server(windows: &[Window]) -> Seconds {
    let mut by_tail: Vec<&Window> = windows.iter().collect();
    by_tail.sort_by(|a, b| b.tail.0.total_cmp(&a.tail.0));
    let of_head = |head: Seconds| {
        let mut sum = Seconds::ZERO;
        let mut most = Seconds::ZERO;
        for window in by_tail.iter().filter(|window| window.head >= head) {
            sum += window.body;
            most = most.max(head + sum + window.tail);
        }
        most
    };
    windows.iter().map(|window| of_head(window.head)).fold(Seconds::ZERO, Seconds::max)
}

/// Returns, by command, the least time from its start to the end of the iteration.
fn tails(trace: &Trace, schedule: &Schedule) -> Vec<Seconds> {
    let mut tails = vec![Seconds::ZERO; schedule.commands.len()];
    let mut after = [Seconds::ZERO; 3];
    let mut after_transfer = Seconds::ZERO;
    let half = schedule.link.duplex == Duplex::Half;
    for (id, command) in schedule.numbered_commands().collect::<Vec<_>>().into_iter().rev() {
        let stream = command.stream();
        let mut rest = tails[id.index()].max(after[stream.index()]);
        if half && stream != Stream::Compute {
            rest = rest.max(after_transfer);
        }
        let tail = rest + duration(trace, schedule, command);
        tails[id.index()] = tail;
        after[stream.index()] = tail;
        if stream != Stream::Compute {
            after_transfer = tail;
        }
        for wait in command.waits() {
            tails[wait.index()] = tails[wait.index()].max(tail);
        }
    }
    tails
}
