//! Timing of the link: transfers of several sizes, in each direction alone, and in each direction while the other runs.
//!
//! Only a checked schedule can reach a device, so the link is timed with one: a program of a single op (a ReLU from tensor A
//! to tensor B, which makes both of them real) and schedules that move A and B over and over.
//!
//! - **alone**: A is offloaded and prefetched in turn, n times. A transfer is timed from the end of the command that it waits
//!   for to the start of the command that waits for it, so that its latency includes the cost of changing streams.
//! - **together**: B is offloaded once; then A is offloaded n times on one stream while B is prefetched n times on the
//!   other. A transfer counts if the other stream is busy for at least 90 % of it; a device that takes turns shows
//!   no such transfer, and the time of the whole run is divided, which halves the rates as a shared link does.
//!
//! - **pageable**: pageable host memory is written to the pool and read back, timed by the host's clock, if the device's own
//!   host memory is pinned. Nothing is planned with it; it shows the benefit of pinning.
//! - **beside**: the op runs over and over from A to B, alone and during continuous offloads of C, prefetches of D, or both.
//!   It reads and writes and computes almost nothing, so it shows the most that transfers slow down ops that are bound by
//!   the device's memory.
//!
//! Small sizes determine the latency, large ones the rate. Sizes grow until one transfer takes [`LONG_ENOUGH`], or the pool
//! is used up.

use crate::error::ProfileError;
use plimsoll_ir::profile::{LinkSamples, TransferSample};
use plimsoll_ir::program::{Call, Hyper, Kernel, Operand, Program, Region, Role, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::simulate::{Span, Timeline};
use plimsoll_ir::trace::{Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::{Bytes, CommandId, Float, OpId, Seconds, TensorId};
use plimsoll_runtime::{Error, Executor, Loaded};

/// Transfers in each direction in one schedule.
const TRANSFERS: u32 = 6;

/// Timed runs of each schedule, after one warm-up.
pub(crate) const RUNS: usize = 3;

/// Duration of a transfer after which no larger size follows.
const LONG_ENOUGH: Seconds = Seconds(10e-3);

/// Share of a transfer during which the other direction must be busy.
const OVERLAP: f64 = 0.9;

/// Ops of one schedule that are timed during transfers.
const TOUCHES: u32 = 32;

/// Size below which an op is bound by caches and its launch, not by memory.
pub(crate) const LEAST_BESIDE: Bytes = Bytes(1 << 20);

/// Duration of the transfers relative to the ops alone, which they may slow down by as much.
const BESIDE_LONGER: f64 = 2.0;

/// Most transfers during the ops of one schedule.
const MOST_BESIDE: u32 = 64;

const SMALLEST: u64 = 16 << 10;
const LARGEST: u64 = 64 << 20;

pub(crate) fn no_samples() -> LinkSamples {
    LinkSamples {
        offload_alone: Vec::new(),
        prefetch_alone: Vec::new(),
        offload_together: Vec::new(),
        prefetch_together: Vec::new(),
        pageable: None,
        beside: None,
    }
}

/// Returns the sizes to time if the pool holds two tensors of each, ascending by factors of four; the largest that fits is
/// among them.
pub(crate) fn sizes(pool: Bytes) -> Result<Vec<Bytes>, ProfileError> {
    let most = (pool.0 / 2 / STORAGE_ALIGNMENT * STORAGE_ALIGNMENT).min(LARGEST);
    if most == 0 {
        return Err(ProfileError::NoRoom { left: pool });
    }
    let mut sizes: Vec<Bytes> =
        (0..).map(|i| SMALLEST << (2 * i)).take_while(|s| *s < most).map(Bytes).collect();
    sizes.push(Bytes(most));
    Ok(sizes)
}

/// Returns the size of the four tensors of [`Probe::beside`]; `None` if the pool has no room for four large ones.
pub(crate) fn size_beside(pool: Bytes) -> Option<Bytes> {
    let most = (pool.0 / 4 / STORAGE_ALIGNMENT * STORAGE_ALIGNMENT).min(LARGEST);
    Some(Bytes(most)).filter(|size| *size >= LEAST_BESIDE)
}

/// Returns the number of transfers of a size that cover ops of `seconds`, from known transfers in their direction.
pub(crate) fn count_beside(size: Bytes, seconds: Seconds, known: &[TransferSample]) -> u32 {
    let Some(last) = known.last() else { return MOST_BESIDE };
    let each = last.seconds.0 * size.0 as f64 / last.bytes.0 as f64;
    // One passes before the ops begin.
    1 + ((BESIDE_LONGER * seconds.0 / each).ceil() as u32).clamp(2, MOST_BESIDE - 1)
}

/// Returns `true` if larger sizes than one with these times are worth measuring.
pub(crate) fn go_on(samples: &[TransferSample]) -> bool {
    samples.last().is_some_and(|s| s.seconds.0 < LONG_ENOUGH.0)
}

/// A program of one op, and the schedule that moves its tensors.
pub(crate) struct Probe {
    pub program: Program,
    pub schedule: Schedule,
    /// Timed offloads; `prefetches` holds the timed prefetches.
    offloads: Vec<CommandId>,
    prefetches: Vec<CommandId>,
    size: Bytes,
}

const A: TensorId = TensorId(0);
const B: TensorId = TensorId(1);
const C: TensorId = TensorId(2);
const D: TensorId = TensorId(3);

impl Probe {
    /// Returns the probe of each direction alone: A is offloaded and prefetched, over and over, each transfer waiting for the
    /// previous one.
    pub fn alone(size: Bytes, link: Link) -> Probe {
        let mut commands = vec![compute()];
        let mut buffers = vec![buffer(B, size, Some(CommandId(0)), CommandId(0))];
        let (mut offloads, mut prefetches) = (Vec::new(), Vec::new());
        let (mut brought, mut before) = (None, CommandId(0));
        for _ in 0..TRANSFERS {
            let out = CommandId::new(commands.len());
            commands.push(offload(A, vec![before]));
            buffers.push(buffer(A, size, brought, out));
            before = CommandId::new(commands.len());
            commands.push(prefetch(A, vec![out]));
            brought = Some(before);
            offloads.push(out);
            prefetches.push(before);
        }
        buffers.push(buffer(A, size, brought, before));
        Probe::new(program(size, 2, 1), size, link, commands, buffers, offloads, prefetches)
    }

    /// Returns the probe of both directions at once.
    pub fn together(size: Bytes, link: Link) -> Probe {
        let mut commands = vec![compute(), offload(B, vec![CommandId(0)])];
        let saved = CommandId(1);
        let mut offloads = Vec::new();
        let mut prefetches = Vec::new();
        for i in 0..TRANSFERS {
            let waits = if i == 0 { vec![saved] } else { vec![] };
            offloads.push(CommandId::new(commands.len()));
            commands.push(offload(A, vec![]));
            prefetches.push(CommandId::new(commands.len()));
            commands.push(prefetch(B, waits));
        }
        let last = *offloads.last().expect("there are transfers");
        let mut buffers = vec![buffer(A, size, None, last), buffer(B, size, Some(CommandId(0)), saved)];
        buffers.extend(prefetches.iter().map(|id| buffer(B, size, Some(*id), *id)));
        Probe::new(program(size, 2, 1), size, link, commands, buffers, offloads, prefetches)
    }

    /// Returns the probe that repeats the op while C is offloaded and D prefetched this many times each; 0 for never.
    /// [`Probe::touches`] reads its timeline.
    pub fn beside(size: Bytes, link: Link, counts: [u32; 2]) -> Probe {
        let [out, back] = counts;
        let mut commands = vec![compute()];
        if back > 0 {
            commands.push(offload(D, vec![CommandId(0)]));
        }
        let saved = CommandId::new(commands.len() - 1);
        let (mut offloads, mut prefetches) = (Vec::new(), Vec::new());
        for i in 0..out.max(back) {
            if i < out {
                offloads.push(CommandId::new(commands.len()));
                commands.push(offload(C, if i == 0 { vec![CommandId(0)] } else { vec![] }));
            }
            if i < back {
                prefetches.push(CommandId::new(commands.len()));
                commands.push(prefetch(D, if i == 0 { vec![saved] } else { vec![] }));
            }
        }
        // The ops begin when the first transfers are over, so that later ones run from the ops' start.
        let firsts = [&offloads, &prefetches].into_iter().filter_map(|ids| ids.first().copied());
        let mut waits: Vec<CommandId> = firsts.collect();
        for op in 1..=TOUCHES {
            let waits = std::mem::take(&mut waits);
            commands.push(Command::Compute { op: OpId(op), again: false, alternative: None, waits });
        }
        let last = CommandId::new(commands.len() - 1);
        let mut buffers = vec![
            buffer(A, size, None, last),
            buffer(B, size, Some(CommandId(0)), last),
            buffer(C, size, None, offloads.last().copied().unwrap_or(CommandId(0))),
            buffer(D, size, None, saved),
        ];
        buffers.extend(prefetches.iter().map(|id| buffer(D, size, Some(*id), *id)));
        let program = program(size, 4, 1 + TOUCHES);
        Probe::new(program, size, link, commands, buffers, offloads, prefetches)
    }

    /// Returns the seconds of the ops of a run of [`Probe::beside`] during which transfers ran almost all the time; of all
    /// ops, if the schedule has no transfers.
    pub fn touches(&self, timeline: &Timeline, overhead: Seconds) -> Vec<Seconds> {
        let transfers: Vec<Span> =
            self.offloads.iter().chain(&self.prefetches).map(|id| timeline.spans[id.index()]).collect();
        let ops = &timeline.spans[timeline.spans.len() - TOUCHES as usize..];
        let busy = |op: &&Span| transfers.is_empty() || covered(op, &transfers) >= OVERLAP;
        let seconds = ops.iter().filter(busy).map(|op| op.seconds() - overhead);
        seconds.filter(|seconds| *seconds > Seconds::ZERO).collect()
    }

    fn new(
        program: Program,
        size: Bytes,
        link: Link,
        commands: Vec<Command>,
        buffers: Vec<Buffer>,
        offloads: Vec<CommandId>,
        prefetches: Vec<CommandId>,
    ) -> Probe {
        let pool_bytes = size * program.trace.tensors.len() as u64;
        let schedule = Schedule {
            kind: ScheduleKind,
            trace: program.trace.name.clone(),
            batch: program.trace.batch,
            budget_bytes: program.trace.resident_bytes + pool_bytes,
            pool_bytes,
            link,
            commands,
            buffers,
        };
        Probe { program, schedule, offloads, prefetches, size }
    }

    /// Loads the probe, with the op on activations as the device stores them.
    pub fn load(&self, executor: &mut Executor) -> Result<Loaded, Error> {
        let mut program = self.program.clone();
        program.feature_maps = executor.device().facts().precision.feature_maps();
        program.kernels.iter_mut().for_each(|kernel| kernel.call = touch(self.size, program.feature_maps));
        executor.load(&program, &self.schedule)
    }

    /// Returns the timed transfers of a run by direction: offloads, prefetches.
    pub fn samples(&self, timeline: &Timeline, together: bool) -> [Vec<TransferSample>; 2] {
        if together { self.of_both_ways(timeline) } else { self.of_one_way(timeline) }
    }

    fn sample(&self, seconds: Seconds) -> Option<TransferSample> {
        (seconds > Seconds::ZERO).then_some(TransferSample { bytes: self.size, seconds })
    }

    /// Times each transfer from the end of the command that it waited for to the start of the one that waited for it.
    fn of_one_way(&self, timeline: &Timeline) -> [Vec<TransferSample>; 2] {
        let between = |id: &CommandId| {
            let before = timeline.spans[id.index() - 1].end;
            let next = timeline.spans.get(id.index() + 1)?;
            self.sample(next.start - before)
        };
        [&self.offloads, &self.prefetches].map(|ids| ids.iter().filter_map(between).collect())
    }

    /// Returns the transfers that really ran together; if one direction has none, because the device took turns, each
    /// transfer is charged its share of the whole run.
    fn of_both_ways(&self, timeline: &Timeline) -> [Vec<TransferSample>; 2] {
        let spans =
            |ids: &[CommandId]| ids.iter().map(|id| timeline.spans[id.index()]).collect::<Vec<Span>>();
        let (out, back) = (spans(&self.offloads), spans(&self.prefetches));
        let chosen = |own: &[Span], other: &[Span]| -> Vec<TransferSample> {
            let kept = own.iter().filter(|s| overlap(s, other) >= OVERLAP);
            kept.filter_map(|s| self.sample(s.seconds())).collect()
        };
        let each = [chosen(&out, &back), chosen(&back, &out)];
        if each.iter().all(|direction| !direction.is_empty()) {
            return each;
        }
        let all = || out.iter().chain(&back);
        let start = all().map(|s| s.start).fold(Seconds(f64::INFINITY), Seconds::min);
        let end = all().map(|s| s.end).fold(Seconds::ZERO, Seconds::max);
        let share = (end - start) * (1.0 / out.len() as f64);
        [0, 1].map(|_| self.sample(share).into_iter().collect())
    }
}

/// Returns the share of a span during which some of the others run; the others do not overlap each other.
fn overlap(span: &Span, others: &[Span]) -> f64 {
    let shared = |o: &Span| (span.end.0.min(o.end.0) - span.start.0.max(o.start.0)).max(0.0);
    others.iter().map(shared).sum::<f64>() / (span.end.0 - span.start.0)
}

/// Returns the share of a span during which any of the others run; the others may overlap each other.
fn covered(span: &Span, others: &[Span]) -> f64 {
    let mut others = others.to_vec();
    others.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
    let (mut reached, mut sum) = (span.start.0, 0.0);
    for other in others {
        let (start, end) = (other.start.0.max(reached), other.end.0.min(span.end.0));
        if end > start {
            sum += end - start;
            reached = end;
        }
    }
    sum / (span.end.0 - span.start.0)
}

fn compute() -> Command {
    Command::Compute { op: OpId(0), again: false, alternative: None, waits: vec![] }
}

fn offload(tensor: TensorId, waits: Vec<CommandId>) -> Command {
    Command::Offload { tensor, first_byte: None, bytes: None, waits }
}

fn prefetch(tensor: TensorId, waits: Vec<CommandId>) -> Command {
    Command::Prefetch { tensor, first_byte: None, bytes: None, waits }
}

/// Returns a buffer; each tensor has its own place in the pool, in their order.
fn buffer(tensor: TensorId, size: Bytes, opens: Option<CommandId>, closes: CommandId) -> Buffer {
    let offset = size * u64::from(tensor.0);
    Buffer {
        holds: Holds::Tensor { tensor, first_byte: None, bytes: None },
        offset,
        opens,
        closes: vec![closes],
    }
}

/// Returns the op on tensors of this size.
fn touch(size: Bytes, feature_maps: Float) -> Call {
    Call::ReluForward { elements: size.0 / feature_maps.bytes(), ceiling: f32::INFINITY }
}

/// Returns B = relu(A), `ops` times, with the resident regions that every program has. The first op reads all tensors but B.
fn program(size: Bytes, tensors: u32, ops: u32) -> Program {
    let call = touch(size, Float::F32);
    let region = |name: &str, role, offset, words| Region {
        name: name.into(),
        role,
        offset: Bytes(offset),
        shape: vec![words],
    };
    let tensor = |id: u32| Tensor {
        name: format!("t{id}"),
        bytes: size,
        kind: if TensorId(id) == B { TensorKind::Activation } else { TensorKind::Input },
    };
    let op = |number: u32| Op {
        name: format!("touch{number}"),
        layer: "touch".into(),
        kind: "relu".into(),
        phase: Phase::Forward,
        seconds: Seconds::ZERO,
        reads: (0..tensors).map(TensorId).filter(|t| *t == A || (number == 0 && *t != B)).collect(),
        writes: vec![B],
        workspace_bytes: Bytes::ZERO,
        flops: 0,
        recomputable: true,
        alternatives: vec![],
    };
    let trace = Trace {
        kind: TraceKind,
        name: "link".into(),
        batch: 1,
        resident_bytes: Bytes(2 * STORAGE_ALIGNMENT),
        tensors: (0..tensors).map(tensor).collect(),
        ops: (0..ops).map(op).collect(),
    };
    let kernel = Kernel { call, operands: vec![Operand::Tensor(A), Operand::Tensor(B)] };
    Program {
        trace,
        kernels: vec![kernel; ops as usize],
        resident: vec![
            region("hyper", Role::Hyper, 0, Hyper::WORDS),
            region("metrics", Role::Metrics, STORAGE_ALIGNMENT, 3),
        ],
        feature_maps: Float::F32,
        images: A,
        labels: A,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::BytesPerSecond;
    use plimsoll_ir::check::check;

    fn link() -> Link {
        Link::symmetric(BytesPerSecond(1e9))
    }

    #[test]
    fn probes_are_valid_schedules() {
        for size in [256, 1 << 20] {
            for probe in [Probe::alone(Bytes(size), link()), Probe::together(Bytes(size), link())] {
                assert_eq!(check(&probe.program.trace, &probe.schedule), Ok(()));
            }
            for counts in [[0, 0], [3, 0], [0, 5], [4, 3]] {
                let probe = Probe::beside(Bytes(size), link(), counts);
                assert_eq!(check(&probe.program.trace, &probe.schedule), Ok(()), "{counts:?}");
            }
        }
    }

    #[test]
    fn four_large_tensors_or_nothing_is_measured_beside() {
        assert_eq!(size_beside(Bytes(4 << 20)), Some(Bytes(1 << 20)));
        assert_eq!(size_beside(Bytes((4 << 20) - 1)), None);
        assert_eq!(size_beside(Bytes(u64::MAX)), Some(Bytes(LARGEST)));
        let known = [TransferSample { bytes: Bytes(1 << 20), seconds: Seconds(1e-3) }];
        assert_eq!(count_beside(Bytes(2 << 20), Seconds(5e-3), &known), 6);
        assert_eq!(count_beside(Bytes(2 << 20), Seconds(1e-9), &known), 3);
        assert_eq!(count_beside(Bytes(2 << 20), Seconds(9.0), &known), MOST_BESIDE);
    }

    #[test]
    fn only_ops_with_transfers_beside_them_all_the_time_count() {
        let probe = Probe::beside(Bytes(1 << 20), link(), [3, 2]);
        let ops = probe.schedule.commands.len() - TOUCHES as usize;
        // Ops of 1 s each from second 0 on, transfers that cover the first three of them, in overlapping pieces.
        let span = |start: f64, end: f64| Span { start: Seconds(start), end: Seconds(end) };
        let mut timeline = Timeline { spans: vec![span(-1.0, 0.0); ops] };
        timeline.spans.extend((0..TOUCHES).map(|i| span(f64::from(i), f64::from(i + 1))));
        timeline.spans[probe.offloads[1].index()] = span(0.0, 1.5);
        timeline.spans[probe.offloads[2].index()] = span(1.5, 2.2);
        timeline.spans[probe.prefetches[1].index()] = span(1.0, 2.95);
        assert_eq!(probe.touches(&timeline, Seconds(0.25)), [Seconds(0.75); 3]);
        let alone = Probe::beside(Bytes(1 << 20), link(), [0, 0]);
        let timeline = Timeline { spans: vec![span(0.0, 1.0); 1 + TOUCHES as usize] };
        assert_eq!(alone.touches(&timeline, Seconds::ZERO).len(), TOUCHES as usize);
    }

    #[test]
    fn sizes_spread_up_to_half_the_pool() {
        let of = |pool| sizes(Bytes(pool)).map(|s| s.iter().map(|b| b.0).collect::<Vec<_>>());
        assert_eq!(of(512).expect("fits"), [256]);
        assert_eq!(of(1 << 21).expect("fits"), [1 << 14, 1 << 16, 1 << 18, 1 << 20]);
        assert_eq!(of(3_000_001).expect("fits").last(), Some(&1_499_904));
        assert_eq!(of(1 << 40).expect("fits").last(), Some(&LARGEST));
        assert!(matches!(of(511), Err(ProfileError::NoRoom { left: Bytes(511) })));
    }

    #[test]
    fn only_transfers_beside_a_busy_other_way_count_as_together() {
        let probe = Probe::together(Bytes(1024), link());
        // Offloads take 1 s from second 1 on, prefetches 3 s: the last offloads and only the first two prefetches overlap.
        let mut timeline = Timeline { spans: vec![Span { start: Seconds(0.0), end: Seconds(1.0) }; 14] };
        for i in 0..TRANSFERS as usize {
            let at =
                |k: f64| Span { start: Seconds(1.0 + i as f64 * k), end: Seconds(1.0 + (i + 1) as f64 * k) };
            timeline.spans[2 + 2 * i] = at(1.0);
            timeline.spans[3 + 2 * i] = at(3.0);
        }
        let [out, back] = probe.samples(&timeline, true);
        assert_eq!((out.len(), back.len()), (6, 2));
    }

    #[test]
    fn a_transfer_alone_is_timed_from_what_it_waits_for_to_what_waits_for_it() {
        let probe = Probe::alone(Bytes(1024), link());
        // Each command takes 1 s and starts half a second after the previous one has ended.
        let span = |i: usize| Span { start: Seconds(1.5 * i as f64), end: Seconds(1.5 * i as f64 + 1.0) };
        let timeline = Timeline { spans: (0..probe.schedule.commands.len()).map(span).collect() };
        let [out, back] = probe.samples(&timeline, false);
        assert_eq!((out.len(), back.len()), (6, 5), "nothing waits for the last one");
        assert!(out.iter().chain(&back).all(|s| s.seconds == Seconds(2.0)));
    }

    #[test]
    fn transfers_that_take_turns_share_the_time() {
        let probe = Probe::together(Bytes(1024), link());
        let mut timeline = Timeline { spans: vec![Span { start: Seconds(0.0), end: Seconds(1.0) }; 14] };
        for i in 0..2 * TRANSFERS as usize {
            timeline.spans[2 + i] = Span { start: Seconds(1.0 + i as f64), end: Seconds(2.0 + i as f64) };
        }
        let [out, back] = probe.samples(&timeline, true);
        for direction in [out, back] {
            assert_eq!(direction, [TransferSample { bytes: Bytes(1024), seconds: Seconds(2.0) }]);
        }
    }
}
