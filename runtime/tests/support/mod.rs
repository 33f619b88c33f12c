//! Shared parts of the runtime's tests: small networks that use every kind of layer, and two schedulers that need no tuner.
//!
//! `keep` gives every tensor its own place; `naive` swaps everything and keeps nothing between two ops, in two halves of the
//! pool in turn, so that places are reused while transfers still run.
#![allow(dead_code, reason = "every test binary uses a part")]

pub mod drawn;
pub mod spoilt;

use plimsoll_ir::network::{Function, LayerKind, Network, NetworkSpec, Shape, Window};
use plimsoll_ir::program::{Call, KernelAlternative, Program};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, CommandId, Float, Optimizer, TensorId, UpdateRule};
use plimsoll_networks::{Builder, LowerOptions, Mode, build, lower};
use plimsoll_runtime::data::{Dataset, Input};
use plimsoll_runtime::{
    Cpu, CpuOptions, Device, Error, Executor, LearningRateSchedule, Loaded, MemoryLayout, Trainer,
    TrainingPlan,
};

/// 8x8 grey images in 10 classes: the shape of the digits.
pub fn spec(name: &str) -> NetworkSpec {
    NetworkSpec { name: name.to_owned(), image: [8, 8], channels: 1, classes: 10 }
}

/// A network with every kind of layer, for images of 8x8.
pub fn everything() -> Network {
    let mut b = Builder::new(&spec("everything")).expect("the spec has no zeros");
    let window = Window::square(3, 1, 1);
    let made = (|| {
        let a = b.conv("a", b.images(), 8, window, true)?;
        let n = b.batch_norm("n", a)?;
        let r = b.relu("r", n)?;
        let l = b.add("l", LayerKind::Lrn { size: 3, alpha: 1e-2, beta: 0.75, bias: 1.0 }, &[r])?;
        let grouped = LayerKind::Conv { out_channels: 8, window, groups: 2, bias: false };
        let g = b.add("g", grouped, &[l])?;
        let t = b.layer_norm("t", g)?;
        let u = b.gelu("u", t)?;
        let s = b.add("s", LayerKind::Add, &[u, r])?;
        let q = b.relu("q", s)?;
        let m = b.max_pool("m", q, Window::square(2, 2, 0))?;
        let v = b.add("v", LayerKind::AvgPool { window: Window::square(2, 2, 0) }, &[q])?;
        let c = b.concat("c", &[m, v])?;
        let root = b.add("root", LayerKind::RmsNorm { epsilon: 1e-5 }, &[c])?;
        let f = b.fully_connected("f", root, 32)?;
        let i = b.add("i", Function::Silu.layer(), &[f])?;
        let k = b.add("k", LayerKind::GlobalAvgPool, &[c])?;
        let e = b.fully_connected("e", k, 32)?;
        let y = b.add("y", LayerKind::Multiply, &[i, e])?;
        let h = b.relu("h", y)?;
        let d = b.dropout("d", h, 0.3)?;
        b.fully_connected("o", d, 10)
    })();
    let logits = made.expect("the shapes agree");
    b.finish(logits).expect("every layer is used")
}

/// A network of the zoo for the digits.
pub fn zoo(name: &str) -> Network {
    build(&spec(name)).expect("the zoo has it for 8x8")
}

/// One training iteration, with the workspaces of the device `cpu` on any number of threads up to 2.
pub fn training(network: &Network, batch: u64) -> Program {
    training_in(Float::F32, network, batch)
}

/// The same with activations stored in this format.
pub fn training_in(feature_maps: Float, network: &Network, batch: u64) -> Program {
    lowered(Optimizer::Sgd, network, batch, Mode::Train, feature_maps)
}

/// The same with this optimizer.
pub fn training_by(optimizer: Optimizer, network: &Network, batch: u64) -> Program {
    lowered(optimizer, network, batch, Mode::Train, Float::F32)
}

/// One training iteration, or a forward pass for evaluation.
pub fn lowered(
    optimizer: Optimizer,
    network: &Network,
    batch: u64,
    mode: Mode,
    feature_maps: Float,
) -> Program {
    let alternatives = |call: &Call| {
        let options = [1, 2].map(|threads| CpuOptions { threads, feature_maps, ..CpuOptions::default() });
        let needed =
            options.iter().flat_map(|of| of.alternatives(call)).map(|alternative| alternative.workspace);
        KernelAlternative::sole(needed.fold(Bytes::ZERO, Bytes::max))
    };
    let (fuse, alternatives) = (true, &alternatives);
    let more = LowerOptions::default();
    let options = LowerOptions { mode, optimizer, feature_maps, fuse, alternatives, ..more };
    lower(network, batch, &options).expect("a small network can be lowered")
}

/// The device `cpu` as usual.
pub fn cpu() -> Cpu {
    Cpu::new(CpuOptions::default())
}

/// An executor with memory for this program alone, which it has loaded.
pub fn loaded(device: impl Device + 'static, program: &Program, schedule: &Schedule) -> (Executor, Loaded) {
    let layout = MemoryLayout::of(program, schedule);
    let mut executor = Executor::new(Box::new(device), layout).expect("it is small");
    let loaded = executor.load(program, schedule).expect("the schedule is valid");
    (executor, loaded)
}

/// A link fast enough not to matter.
pub fn link() -> Link {
    Link::symmetric(BytesPerSecond(10e9))
}

/// An empty schedule for a trace, with the budget that its pool will need.
fn empty(trace: &Trace, pool: u64) -> Schedule {
    Schedule {
        kind: ScheduleKind,
        trace: trace.name.clone(),
        batch: trace.batch,
        budget_bytes: trace.resident_bytes + Bytes(pool),
        pool_bytes: Bytes(pool),
        link: link(),
        commands: Vec::new(),
        buffers: Vec::new(),
    }
}

fn buffer(tensor: TensorId, offset: u64, opens: Option<CommandId>, closes: Vec<CommandId>) -> Buffer {
    let holds = Holds::Tensor { tensor, first_byte: None, bytes: None };
    Buffer { holds, offset: Bytes(offset), opens, closes }
}

fn compute(op: usize, waits: Vec<CommandId>) -> Command {
    Command::Compute { op: plimsoll_ir::OpId::new(op), again: false, alternative: None, waits }
}

/// Schedule in which everything stays, each tensor at its own place.
pub fn keep(trace: &Trace) -> Schedule {
    let workspaces = trace.tensors.iter().map(|t| t.bytes.0).sum::<u64>();
    let most = trace.ops.iter().map(|op| op.workspace_bytes.0).max().unwrap_or(0);
    let mut made = empty(trace, workspaces + most);
    let mut offset = 0;
    for (i, (tensor, life)) in trace.tensors.iter().zip(trace.lives()).enumerate() {
        if let (Some(life), true) = (life, tensor.bytes > Bytes::ZERO) {
            let (opens, closes) = (life.born.map(|op| CommandId(op.0)), vec![CommandId(life.dies.0)]);
            made.buffers.push(buffer(TensorId::new(i), offset, opens, closes));
        }
        offset += tensor.bytes.0;
    }
    for (i, op) in trace.ops.iter().enumerate() {
        let command = CommandId::new(i);
        made.commands.push(compute(i, Vec::new()));
        if op.workspace_bytes > Bytes::ZERO {
            let holds = Holds::Workspace { command };
            made.buffers.push(Buffer {
                holds,
                offset: Bytes(offset),
                opens: Some(command),
                closes: vec![command],
            });
        }
    }
    made
}

/// Schedule in which nothing stays from one op to the next.
pub fn naive(trace: &Trace) -> Schedule {
    let half = trace.memory().touched.iter().map(|b| b.0 - trace.resident_bytes.0).max().unwrap_or(0);
    let lives = trace.lives();
    let from_start = |t: usize| lives[t].is_some_and(|l| l.born.is_none()) && trace.tensors[t].bytes.0 > 0;
    let start: u64 = (0..lives.len()).filter(|t| from_start(*t)).map(|t| trace.tensors[t].bytes.0).sum();
    let mut made = empty(trace, 2 * half + start);
    let mut last_offload: Vec<Option<CommandId>> = vec![None; lives.len()];
    let mut offset = 2 * half;
    for t in (0..lives.len()).filter(|t| from_start(*t)) {
        let id = push(&mut made, offload(TensorId::new(t), vec![]));
        made.buffers.push(buffer(TensorId::new(t), offset, None, vec![id]));
        last_offload[t] = Some(id);
        offset += trace.tensors[t].bytes.0;
    }
    let mut tenants: [Vec<CommandId>; 2] = [vec![], vec![]];
    for (i, op) in trace.ops.iter().enumerate() {
        let mut offset = (i % 2) as u64 * half;
        let before = std::mem::take(&mut tenants[i % 2]);
        let (mut waits, mut buffers) = (before.clone(), Vec::new());
        for t in op.touches().filter(|t| trace.tensors[t.index()].bytes.0 > 0) {
            let fetched = op.reads.contains(&t).then(|| {
                let waits = before.iter().copied().chain(last_offload[t.index()]).collect();
                push(&mut made, prefetch(t, waits))
            });
            waits.extend(fetched);
            buffers.push((t, offset, fetched));
            offset += trace.tensors[t.index()].bytes.0;
        }
        let id = push(&mut made, compute(i, waits));
        tenants[i % 2].push(id);
        for (t, offset, fetched) in buffers {
            let again = op.writes.contains(&t) && lives[t.index()].is_some_and(|l| l.dies.index() > i);
            let out = again.then(|| push(&mut made, offload(t, vec![id])));
            last_offload[t.index()] = out.or(last_offload[t.index()]);
            tenants[i % 2].extend(out);
            made.buffers.push(buffer(t, offset, fetched.or(Some(id)), vec![out.unwrap_or(id)]));
        }
        if op.workspace_bytes > Bytes::ZERO {
            let holds = Holds::Workspace { command: id };
            made.buffers.push(Buffer { holds, offset: Bytes(offset), opens: Some(id), closes: vec![id] });
        }
    }
    made
}

fn push(schedule: &mut Schedule, command: Command) -> CommandId {
    schedule.commands.push(command);
    CommandId::new(schedule.commands.len() - 1)
}

fn offload(tensor: TensorId, waits: Vec<CommandId>) -> Command {
    Command::Offload { tensor, first_byte: None, bytes: None, waits }
}

fn prefetch(tensor: TensorId, waits: Vec<CommandId>) -> Command {
    Command::Prefetch { tensor, first_byte: None, bytes: None, waits }
}

/// The same with this optimizer, and a rate that suits it.
pub fn plan_by(optimizer: Optimizer, network: &Network, batch: u64) -> TrainingPlan {
    let sgd = plan(network, batch);
    match optimizer {
        Optimizer::Sgd => sgd,
        Optimizer::Adamw => {
            let rate = LearningRateSchedule { base: 2e-3, ..sgd.rate };
            TrainingPlan { rate, update: UpdateRule::usual(optimizer), ..sgd }
        }
    }
}

/// A plan that sets everything that the results depend on.
pub fn plan(network: &Network, batch: u64) -> TrainingPlan {
    TrainingPlan {
        network: network.spec.clone(),
        batch,
        virtual_workers: 1,
        seed: 11,
        rate: LearningRateSchedule { warmup_iterations: 5, ..LearningRateSchedule::constant(0.02) },
        update: UpdateRule::Sgd { momentum: 0.9, weight_decay: 1e-4 },
        weights: None,
    }
}

/// A trainer on the device `cpu`, with the same kind of schedule for training and evaluation.
pub fn trainer(
    network: &Network,
    batch: u64,
    options: CpuOptions,
    scheduler: &dyn Fn(&Trace) -> Schedule,
) -> Result<Trainer, Error> {
    trainer_by(Optimizer::Sgd, network, batch, options, scheduler)
}

/// The same with this optimizer.
pub fn trainer_by(
    optimizer: Optimizer,
    network: &Network,
    batch: u64,
    options: CpuOptions,
    scheduler: &dyn Fn(&Trace) -> Schedule,
) -> Result<Trainer, Error> {
    let [train, evaluate] = [Mode::Train, Mode::Evaluate]
        .map(|mode| lowered(optimizer, network, batch, mode, options.feature_maps));
    let [train_schedule, evaluate_schedule] = [&train, &evaluate].map(|program| scheduler(&program.trace));
    let layout =
        MemoryLayout::of(&train, &train_schedule).union(MemoryLayout::of(&evaluate, &evaluate_schedule));
    let layout = layout.keeping_state(&train);
    // If nothing in the pool survives an iteration, no iteration can bring the input of the next one.
    let layout = if options.poison { layout } else { layout.feeding(&train) };
    let mut executor = Executor::new(Box::new(Cpu::new(options)), layout)?;
    let train = executor.load_keeping_state(&train, &train_schedule, None)?;
    let evaluate = executor.load(&evaluate, &evaluate_schedule)?;
    Trainer::new(executor, train, Some(evaluate), plan_by(optimizer, network, batch))
}

/// Trains until this many iterations are done.
pub fn advance(trainer: &mut Trainer, until: u64) -> Result<(), Error> {
    let digits = plimsoll_runtime::data::digits();
    trainer.train(&*digits.train, until, &mut |_| {}, &|| false).map(|_| ())
}

/// A data set whose samples are read differently.
pub struct Altered<R> {
    pub data: Box<dyn Dataset>,
    /// Reads a sample of the data set.
    pub read: R,
}

impl<R> Dataset for Altered<R>
where
    R: Fn(&dyn Dataset, usize, &mut [f32], &mut [i32]) -> Result<(), Error> + Send + Sync,
{
    fn name(&self) -> &str {
        self.data.name()
    }

    fn len(&self) -> usize {
        self.data.len()
    }

    fn image(&self) -> Shape {
        self.data.image()
    }

    fn classes(&self) -> u32 {
        self.data.classes()
    }

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), Error> {
        (self.read)(&*self.data, index, input.pixels(), labels)
    }
}

/// Results of some work on each of these, each on its own thread.
pub fn side_by_side<A: Send, T: Send>(all: Vec<A>, work: impl Fn(A) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}
