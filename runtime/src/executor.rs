//! The executor: turns a checked schedule once into the commands of three streams, and enqueues them at every iteration.
//!
//! Loading a schedule fixes everything: addresses, events, and the few waits that cross streams (a stream itself is in
//! order). An iteration only enqueues and synchronises, and allocates nothing. On a half-duplex link a transfer also waits
//! for the previous transfer in list order, as formats.md requires.
//!
//! Iterations that copy a training's state are in `executor/keeping.rs`, those in two parts in `executor/apart.rs`, and
//! timed ones in `executor/timing.rs`.
//!
//! Deliberately does not run a schedule that it has not checked itself, or decide anything.

mod apart;
mod feeding;
mod keeping;
mod steps;
mod timing;

use crate::cpu::kernels::rounded;
use crate::device::{Begun, Device, IterationId, MemoryLayout, Room};
use crate::error::{Error, Kind};
use crate::host::host_slab;
use crate::state::{Half, StateCopies};
use crate::waits::crossing_waits;
pub(crate) use apart::Part;
use feeding::Slots;
use plimsoll_ir::check::locate;
use plimsoll_ir::health::Health;
use plimsoll_ir::program::{Operand, OperandSpec, Program, Region, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::{Command, Schedule, Stream};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, Float, Seconds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use steps::{Builder, Step};
use timing::Joined;

/// A device with its memory, ready to run loaded programs: one allocation for everything, three streams, and the commands of
/// schedules with addresses computed once.
///
/// ```
/// use plimsoll_ir::network::NetworkSpec;
/// use plimsoll_ir::program::KernelAlternative;
/// use plimsoll_ir::schedule::Link;
/// use plimsoll_ir::{Bytes, BytesPerSecond};
/// use plimsoll_networks::{LowerOptions, build, lower};
/// use plimsoll_runtime::cpu::kernels::workspace_bytes;
/// use plimsoll_runtime::{Cpu, CpuOptions, Executor, MemoryLayout};
/// use plimsoll_tuner::{PlanRequest, Policy, plan};
///
/// let spec = NetworkSpec { name: "mlp".into(), image: [8, 8], channels: 1, classes: 10 };
/// let alternatives = |call: &_| KernelAlternative::sole(workspace_bytes(call, 1));
/// let program = lower(&build(&spec)?, 8, &LowerOptions { alternatives: &alternatives, ..LowerOptions::default() })?;
/// let link = Link::symmetric(BytesPerSecond(10e9));
/// let planned = plan(&program.trace, &PlanRequest::new(Bytes(1 << 20), link, Policy::Plimsoll))?;
/// let schedule = &planned.plan().ok_or("a mebibyte is enough")?.schedule;
///
/// let layout = MemoryLayout::of(&program, schedule);
/// let mut executor = Executor::new(Box::new(Cpu::new(CpuOptions::default())), layout)?;
/// let loaded = executor.load(&program, schedule)?;
/// executor.run(&loaded)?;
/// let timeline = executor.run_timed(&loaded)?;
/// println!("an iteration within {} took {}", layout.device(), timeline.makespan());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Executor {
    device: Box<dyn Device>,
    layout: MemoryLayout,
    room: Room,
    /// Number of command sequences made.
    sequences: u32,
    /// Images in the device's storage format, if it differs from the host's; the buffer is reused by every iteration.
    rounded: Vec<u8>,
    /// Unique number of the executor.
    id: u64,
}

/// One iteration without timed commands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole {
    /// From the first command to the end of the last, by the host's clock or the device's own.
    pub seconds: Seconds,
    /// Part of that in which compute threads were ready to run while other processes had their processors; 0 if it is not
    /// counted.
    pub waited: Seconds,
}

/// Iterations of a loaded program, and parts of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iteration {
    /// The schedule's commands.
    Plain,
    /// The same, timed.
    Timed,
    /// With the next input from this slot.
    Feeding(Half),
    /// With a copy of the state to this half and, if there are slots, the next input from the slot of that half.
    Copying(Half),
    /// Nothing but a copy of the state to this half.
    StateAlone(Half),
    /// The pass, without the update, which brings the next input if a slot is given.
    Pass(Option<Half>),
    /// The update after a pass.
    Update,
}

/// A program under a schedule, bound to one executor's memory.
#[derive(Clone, Debug)]
pub struct Loaded {
    program: Arc<Program>,
    schedule: Arc<Schedule>,
    images: Input,
    labels: Input,
    /// Source of later inputs; `None` if each input is written before its iteration.
    slots: Option<Slots>,
    sequences: Vec<(Iteration, Enqueued)>,
    /// Commands that are timed as one.
    joined: Vec<Joined>,
    /// Places of the state's copies, if they are kept.
    copies: Option<StateCopies>,
    /// Parts that workers sum, if the pass and the update can be run one by one.
    parts: Vec<Part>,
    executor: u64,
}

/// Pieces of a tensor that the host writes before each iteration.
#[derive(Clone, Debug)]
struct Input {
    bytes: Bytes,
    /// `true` if the host's f32 numbers are rounded to bf16.
    rounds: bool,
    /// Address in the allocation, first byte of the tensor, number of bytes.
    pieces: Vec<(Bytes, Bytes, Bytes)>,
}

impl Input {
    /// Bytes that the host's data take in the tensor; an error if they exceed it. A tensor's size is rounded up to the
    /// storage alignment.
    fn fits(&self, what: &str, data: &[u8]) -> Result<Bytes, Error> {
        let found = Bytes(data.len() as u64 / if self.rounds { 2 } else { 1 });
        let what = format_args!("bytes of the {what} of a batch");
        Error::unless(found <= self.bytes, what, self.bytes, found).map(|()| found)
    }

    /// Writes the host's data in the device's format, in as many bytes as [`Input::fits`] returns.
    fn store(&self, data: &[u8], to: &mut [u8]) {
        if !self.rounds {
            return to.copy_from_slice(data);
        }
        for (to, from) in to.as_chunks_mut::<2>().0.iter_mut().zip(data.as_chunks::<4>().0) {
            *to = rounded(f32::from_le_bytes(*from)).to_le_bytes();
        }
    }
}

/// Commands of an iteration in the order of enqueueing.
#[derive(Clone, Debug)]
struct Enqueued {
    id: IterationId,
    steps: Vec<Step>,
}

impl MemoryLayout {
    /// Exact memory that a program under a schedule needs. The schedule must be valid for the program's trace.
    pub fn of(program: &Program, schedule: &Schedule) -> MemoryLayout {
        MemoryLayout {
            resident: program.trace.resident_bytes,
            pool: schedule.pool_bytes,
            host: host_slab(&program.trace, schedule).bytes(),
            state: Bytes::ZERO,
            input: Bytes::ZERO,
        }
    }
}

impl Executor {
    /// Allocates the memory on the device.
    pub fn new(mut device: Box<dyn Device>, layout: MemoryLayout) -> Result<Executor, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        device.allocate(layout)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Executor { device, layout, room: Room::default(), sequences: 0, rounded: Vec::new(), id })
    }

    /// The device, for its facts and alternatives.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Memory allocated.
    pub fn layout(&self) -> MemoryLayout {
        self.layout
    }

    /// Checks a schedule and prepares it. Several programs with the same resident regions can be loaded, and then run in
    /// turn. If the program trains and the memory has room for inputs ([`MemoryLayout::feeding`]), each iteration of a
    /// [`crate::Trainer`] brings the next one's input.
    ///
    /// Errors: the schedule is not valid for the program's trace; the program's kernels do not fit its trace; the
    /// allocation is too small.
    pub fn load(&mut self, program: &Program, schedule: &Schedule) -> Result<Loaded, Error> {
        self.load_with(program, schedule, |_| Ok(Vec::new()))
    }

    fn load_with(
        &mut self,
        program: &Program,
        schedule: &Schedule,
        more: impl FnOnce(&Builder) -> Result<Vec<(Iteration, Vec<Step>)>, Error>,
    ) -> Result<Loaded, Error> {
        let places = locate(&program.trace, schedule).map_err(|fault| {
            let message = format!("the schedule is not valid for this program: {fault}");
            Error::new(Kind::Verification, message)
        })?;
        check_program(program)?;
        let (stores, precision) = (self.device.stores(program.feature_maps), self.device.facts().precision);
        let found = format_args!("{:?}", program.feature_maps);
        Error::unless(stores, "feature maps", format_args!("those of {precision}"), found)?;
        check_repetitions(program, schedule)?;
        let need = MemoryLayout::of(program, schedule);
        let show =
            |l: MemoryLayout| format!("{} resident, {} pool, {} host", l.resident, l.pool, l.on_host());
        let (fits, what) = (need.union(self.layout) == self.layout, "the executor's memory is too small");
        Error::unless(fits, what, show(need), show(self.layout))?;
        let slab = host_slab(&program.trace, schedule);
        let waits = crossing_waits(schedule);
        let resident = self.layout.resident;
        let slots = Slots::within(program, self.layout);
        let builder =
            Builder { program, schedule, places: &places, slab: &slab, waits: &waits, resident, slots };
        let plain = builder.plain_steps(Vec::new());
        self.check_launches(program, &plain)?;
        let joined = builder.joined(&*self.device);
        let mut all = vec![(Iteration::Plain, plain), (Iteration::Timed, builder.timed_steps(&joined))];
        for slot in slots.map(|_| Half::BOTH).into_iter().flatten() {
            all.push((Iteration::Feeding(slot), builder.plain_steps(builder.next_input(slot))));
        }
        all.extend(more(&builder)?);
        let room = all.iter().map(|(_, steps)| room_of(steps)).fold(self.room, Room::union);
        if room != self.room {
            self.device.reserve(room)?;
            self.room = room;
        }
        let sequences = all.into_iter().map(|(iteration, steps)| {
            let id = IterationId { number: self.sequences, timed: iteration == Iteration::Timed };
            self.sequences += 1;
            (iteration, Enqueued { id, steps })
        });
        let rounds = program.feature_maps == Float::Bf16 && program.vocabulary().is_none();
        Ok(Loaded {
            sequences: sequences.collect(),
            images: Input { rounds, ..builder.input(program.images) },
            labels: builder.input(program.labels),
            slots,
            joined,
            copies: None,
            parts: Vec::new(),
            program: Arc::new(program.clone()),
            schedule: Arc::new(schedule.clone()),
            executor: self.id,
        })
    }

    /// Checks requirements of kernels that no schedule guarantees: aligned operands, an alternative that this device has,
    /// and the scratch that it needs.
    fn check_launches(&self, program: &Program, steps: &[Step]) -> Result<(), Error> {
        for launch in steps.iter().filter_map(Step::launch) {
            let name = &program.trace.ops[launch.op.index()].name;
            let mut addresses = launch.offsets.iter().chain([&launch.workspace]);
            if let Some(odd) = addresses.find(|a| a.0 % STORAGE_ALIGNMENT != 0) {
                let expected = format!("multiples of {STORAGE_ALIGNMENT} bytes");
                return Err(Error::mismatch(format!("addresses of `{name}`"), expected, odd.0));
            }
            let Some(alternative) = self.device.alternative(&launch.call, launch.alternative) else {
                let (what, alternatives) =
                    (format!("alternatives of `{name}`"), self.device.alternatives(&launch.call).len());
                return Err(Error::mismatch(
                    what,
                    alternatives,
                    format!("number {}", launch.alternative + 1),
                ));
            };
            let (needed, there) = (alternative.workspace, launch.workspace_bytes);
            let what = format_args!("workspace of `{name}` by `{}`", alternative.name);
            Error::unless(there >= needed, what, needed, there)?;
        }
        Ok(())
    }

    /// Runs one iteration and waits for its end.
    pub fn run(&mut self, loaded: &Loaded) -> Result<(), Error> {
        self.run_as(loaded, Iteration::Plain)
    }

    /// Runs one iteration as training does, without timed commands, and waits for its end.
    pub fn run_whole(&mut self, loaded: &Loaded) -> Result<Whole, Error> {
        let before = self.device.waited();
        let begun = Instant::now();
        self.run(loaded)?;
        let seconds = Seconds(begun.elapsed().as_secs_f64());
        let seconds = self.device.simulated_seconds().unwrap_or(seconds);
        Ok(Whole { seconds, waited: self.waited_since(before) })
    }

    /// Time since `before` (from [`Device::waited`]) in which compute threads were ready while other processes had their
    /// processors; 0 if it is not counted.
    pub(crate) fn waited_since(&self, before: Option<Seconds>) -> Seconds {
        match (before, self.device.waited()) {
            (Some(before), Some(now)) => Seconds((now.0 - before.0).max(0.0)),
            _ => Seconds::ZERO,
        }
    }

    /// Enqueues one iteration; [`Executor::finish`] must follow. Meanwhile the host is free to prepare the next input.
    pub fn start(&mut self, loaded: &Loaded) {
        self.start_as(loaded, Iteration::Plain);
    }

    /// Waits for the end of the iteration or pass that was started.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.device.synchronise()
    }

    /// Runs one iteration with an event before and after each command, and returns the measured times. Commands that the
    /// device joins to one kernel are timed as that kernel; each gets a share of its time, by the bytes of their operands.
    pub fn run_timed(&mut self, loaded: &Loaded) -> Result<Timeline, Error> {
        self.run_as(loaded, Iteration::Timed)?;
        Ok(timing::timeline(&mut *self.device, loaded))
    }

    /// Enqueues an iteration for which the program was loaded, or a part of one; [`Executor::finish`] must follow.
    pub(crate) fn start_as(&mut self, loaded: &Loaded, iteration: Iteration) {
        // Its addresses belong to one executor's memory and would be wild in another's.
        assert_eq!(loaded.executor, self.id, "a loaded program runs on the executor that loaded it");
        let Enqueued { id, steps } = loaded.sequence(iteration);
        if self.device.begin(*id) == Begun::Enqueue {
            self.enqueue_steps(steps);
        }
    }

    /// Runs an iteration for which the program was loaded, or a part of one.
    pub(crate) fn run_as(&mut self, loaded: &Loaded, iteration: Iteration) -> Result<(), Error> {
        self.start_as(loaded, iteration);
        self.finish()
    }

    /// Enqueues some steps of an iteration that was begun, and lets them start.
    fn enqueue_steps(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Compute(launch) => self.device.compute(launch),
                Step::Copy(transfer) => self.device.copy(*transfer),
                Step::Record(stream, event) => self.device.record(*stream, *event),
                Step::Wait(stream, event) => self.device.wait(*stream, *event),
                Step::Update(_) => {}
            }
        }
        self.device.submit();
    }

    /// Writes the images (f32 `[batch][height][width][channels]`, as bytes) of the next iteration, or its tokens (i32
    /// `[batch][length]`); they do not survive an iteration. A program in bf16 gets rounded images.
    pub fn write_images(&mut self, loaded: &Loaded, data: &[u8]) -> Result<(), Error> {
        self.write_input("images", &loaded.images, data)
    }

    /// Writes the labels (i32 `[batch][height][width]` of the logits' positions, as bytes; -1 for a label that does not
    /// count) of the next iteration.
    pub fn write_labels(&mut self, loaded: &Loaded, data: &[u8]) -> Result<(), Error> {
        self.write_input("labels", &loaded.labels, data)
    }

    fn write_input(&mut self, what: &str, input: &Input, data: &[u8]) -> Result<(), Error> {
        let found = input.fits(what, data)?;
        let mut data = data;
        if input.rounds {
            self.rounded.resize(found.0 as usize, 0);
            input.store(data, &mut self.rounded);
            data = &self.rounded;
        }
        for (address, first, bytes) in &input.pieces {
            let end = (*first + *bytes).min(found);
            if *first < end {
                self.device.write(*address, &data[first.0 as usize..end.0 as usize])?;
            }
        }
        Ok(())
    }

    /// Runs one iteration as a timed one, and returns the device's health during it instead of times.
    pub fn run_watched(&mut self, loaded: &Loaded) -> Result<Option<Health>, Error> {
        self.start_as(loaded, Iteration::Timed);
        let health = self.device.health();
        self.finish()?;
        Ok(health)
    }

    /// Copies plain host memory (neither pinned nor the slab's) to the start of the pool and back, as inputs are written and
    /// results read; returns the seconds of each direction by the host's clock. Between two iterations the pool's contents
    /// are unused.
    pub fn time_plain_copies(&mut self, host: &mut [u8]) -> Result<[Seconds; 2], Error> {
        let begun = Instant::now();
        self.device.write(self.layout.resident, host)?;
        let written = Instant::now();
        self.device.read(self.layout.resident, host)?;
        Ok([written - begun, written.elapsed()].map(|time| Seconds(time.as_secs_f64())))
    }

    /// Writes a resident region; the data must have the region's length.
    pub fn write_region(&mut self, region: &Region, data: &[u8]) -> Result<(), Error> {
        same_length(region, data.len())?;
        self.device.write(region.offset, data)
    }

    /// Reads a resident region; the data must have the region's length.
    pub fn read_region(&mut self, region: &Region, data: &mut [u8]) -> Result<(), Error> {
        same_length(region, data.len())?;
        self.device.read(region.offset, data)
    }
}

/// Rejects recomputation after the update has begun. Parameters are resident and have no version, so a recomputed op would
/// use new ones; `trace/1` cannot express that, and no check of a schedule sees it.
fn check_repetitions(program: &Program, schedule: &Schedule) -> Result<(), Error> {
    let mut updating = false;
    for command in &schedule.commands {
        let Command::Compute { op, again, .. } = command else { continue };
        let op = &program.trace.ops[op.index()];
        let what = format_args!("recomputation of `{}`", op.name);
        let expected = "before the first update of a parameter";
        Error::unless(!(*again && updating), what, expected, "after it")?;
        updating |= op.phase == Phase::Update;
    }
    Ok(())
}

fn same_length(region: &Region, found: usize) -> Result<(), Error> {
    let (what, bytes) = (format_args!("bytes of region `{}`", region.name), region.bytes().0);
    Error::unless(bytes == found as u64, what, bytes, found)
}

impl Loaded {
    fn sequence(&self, iteration: Iteration) -> &Enqueued {
        let found = self.sequences.iter().find(|(kind, _)| *kind == iteration);
        &found.expect("it was loaded for such iterations").1
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Samples in an iteration.
    pub fn batch(&self) -> u64 {
        self.program.trace.batch
    }

    /// The resident regions.
    pub fn resident(&self) -> &[Region] {
        &self.program.resident
    }

    /// Region to which the hyperparameters are written.
    pub fn hyper(&self) -> &Region {
        self.program.hyper()
    }

    /// Region from which the metrics are read.
    pub fn metrics(&self) -> &Region {
        self.program.metrics()
    }

    /// The schedule that runs.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The trace that the schedule is for.
    pub fn trace(&self) -> &Trace {
        &self.program.trace
    }
}

/// Room that steps need.
fn room_of(steps: &[Step]) -> Room {
    let mut room = Room::default();
    let mut commands = [0; 3];
    for step in steps {
        let stream = match step {
            Step::Compute(_) => Stream::Compute,
            Step::Copy(transfer) => transfer.stream,
            Step::Record(stream, event) => {
                room.events = room.events.max(event.0 + 1);
                *stream
            }
            Step::Wait(stream, _) => *stream,
            Step::Update(_) => continue,
        };
        commands[stream.index()] += 1;
    }
    Room { commands: commands.into_iter().max().unwrap_or_default(), ..room }
}

/// Checks that kernels and trace agree, and that every operand lies whole in its tensor or among the resident bytes.
fn check_program(program: &Program) -> Result<(), Error> {
    let trace = &program.trace;
    let (kernels, ops) = (program.kernels.len(), trace.ops.len());
    Error::unless(kernels == ops, "kernels of the program", ops, kernels)?;
    for region in &program.resident {
        let end = region.offset.0.saturating_add(region.bytes().0);
        let (what, most) = (format_args!("end of region `{}`", region.name), trace.resident_bytes);
        Error::unless(end <= most.0, what, most, end)?;
    }
    for (op, kernel) in trace.ops.iter().zip(&program.kernels) {
        let (count, found) = (kernel.call.operands().len(), kernel.operands.len());
        Error::unless(found == count, format_args!("operands of `{}`", op.name), count, found)?;
        for (i, (operand, spec)) in kernel.specified().enumerate() {
            let OperandSpec { access, .. } = spec;
            let bytes = spec.bytes_in(program.feature_maps);
            let room = match operand {
                Operand::Resident(offset) => trace.resident_bytes.saturating_sub(offset),
                Operand::Tensor(tensor) => {
                    let told = (!access.reads() || op.reads.contains(&tensor))
                        && (!access.writes() || op.writes.contains(&tensor));
                    let what = format_args!("operand {i} of `{}` in its op's reads and writes", op.name);
                    Error::unless(told, what, format_args!("{access:?}"), tensor)?;
                    trace.tensors[tensor.index()].bytes
                }
            };
            let what = format_args!("bytes of operand {i} of `{}`", op.name);
            Error::unless(bytes <= room, what, bytes, room)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::schedule::{Link, ScheduleKind};
    use plimsoll_ir::trace::{Op, TraceKind};
    use plimsoll_ir::{BytesPerSecond, OpId, TensorId};

    fn op(name: &str, phase: Phase) -> Op {
        Op {
            name: name.into(),
            layer: name.into(),
            kind: "x".into(),
            phase,
            seconds: Seconds::ZERO,
            reads: vec![],
            writes: vec![],
            workspace_bytes: Bytes::ZERO,
            flops: 0,
            recomputable: true,
            alternatives: vec![],
        }
    }

    #[test]
    fn nothing_is_run_again_once_parameters_change() {
        let (name, batch, resident_bytes) = ("t".to_owned(), 1, Bytes::ZERO);
        let ops = vec![op("forward", Phase::Forward), op("update", Phase::Update)];
        let trace =
            Trace { kind: TraceKind, name: name.clone(), batch, resident_bytes, tensors: vec![], ops };
        let program = Program {
            trace,
            kernels: vec![],
            resident: vec![],
            feature_maps: Float::F32,
            images: TensorId(0),
            labels: TensorId(0),
        };
        let check = |order: &[(u32, bool)]| {
            let command = |(op, again): &(u32, bool)| Command::Compute {
                op: OpId(*op),
                again: *again,
                alternative: None,
                waits: vec![],
            };
            let (budget_bytes, pool_bytes) = (Bytes::ZERO, Bytes::ZERO);
            let link = Link::symmetric(BytesPerSecond(1.0));
            let (trace, kind) = (name.clone(), ScheduleKind);
            let commands = order.iter().map(command).collect();
            let buffers = vec![];
            let schedule = Schedule { kind, trace, batch, budget_bytes, pool_bytes, link, commands, buffers };
            check_repetitions(&program, &schedule)
        };
        assert!(check(&[(0, false), (0, true), (1, false)]).is_ok());
        let late = check(&[(0, false), (1, false), (0, true)]).expect_err("it computes with new parameters");
        assert!(late.to_string().contains("recomputation of `forward`"), "{late}");
    }
}
