//! Runs a program's kernels on terms, and checks that each kernel does only what its documentation allows.

use crate::symbolic::terms::{TermId, Terms};
use plimsoll_ir::program::{Call, FusedRelu, Operand, Program, Region, Role};
use plimsoll_ir::{Bytes, TensorId};
use std::collections::HashMap;

pub struct Machine<'a> {
    program: &'a Program,
    tensors: Vec<Option<TermId>>,
    resident: HashMap<Bytes, TermId>,
    writes: HashMap<Bytes, u32>,
    /// Terms that the repeatable ops read from tensors and wrote.
    repeatable: Vec<Repeat>,
}

struct Repeat {
    op: usize,
    read: Vec<Option<TermId>>,
    written: Vec<(usize, TermId)>,
}

impl<'a> Machine<'a> {
    pub fn new(terms: &mut Terms, program: &'a Program) -> Machine<'a> {
        let mut tensors = vec![None; program.trace.tensors.len()];
        tensors[program.images.index()] = Some(terms.atom("images"));
        tensors[program.labels.index()] = Some(terms.atom("labels"));
        let mut resident = HashMap::new();
        for region in &program.resident {
            let start = match region.role {
                Role::Parameter(_) | Role::State(_) => region.name.clone(),
                Role::Momentum => format!("momentum of {}", region.name),
                Role::FirstMoment => format!("first moment of {}", region.name),
                Role::SecondMoment => format!("second moment of {}", region.name),
                Role::Hyper => "hyper".to_owned(),
                // These must be written before they are read.
                Role::Gradient | Role::Metrics => continue,
            };
            resident.insert(region.offset, terms.atom(&start));
        }
        Machine { program, tensors, resident, writes: HashMap::new(), repeatable: Vec::new() }
    }

    pub fn resident(&self, offset: Bytes) -> Option<TermId> {
        self.resident.get(&offset).copied()
    }

    pub fn times_written(&self, offset: Bytes) -> u32 {
        self.writes.get(&offset).copied().unwrap_or_default()
    }

    fn held(&self, operand: Operand) -> Option<TermId> {
        match operand {
            Operand::Tensor(tensor) => self.tensors[tensor.index()],
            Operand::Resident(offset) => self.resident(offset),
        }
    }

    pub fn run(&mut self, terms: &mut Terms, index: usize) {
        let op = &self.program.trace.ops[index];
        let kernel = &self.program.kernels[index];
        self.check_operands(index);
        let held: Vec<Option<TermId>> = kernel.operands.iter().map(|o| self.held(*o)).collect();
        let mut used = vec![false; held.len()];
        let written = evaluate(terms, &kernel.call, &mut |i| {
            used[i] = true;
            held[i].unwrap_or_else(|| panic!("{}: operand {i} is read before it is written", op.name))
        });
        let tensors = |which: &dyn Fn(usize) -> bool| {
            let chosen = kernel.operands.iter().enumerate().filter(|(i, _)| which(*i));
            let mut ids: Vec<TensorId> = chosen
                .filter_map(|(_, o)| match o {
                    Operand::Tensor(t) => Some(*t),
                    Operand::Resident(_) => None,
                })
                .collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let sorted = |ids: &[TensorId]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        assert_eq!(sorted(&op.reads), tensors(&|i| used[i]), "{}: the trace says what it reads", op.name);
        let writes = tensors(&|i| written.iter().any(|(w, _)| *w == i));
        assert_eq!(sorted(&op.writes), writes, "{}: the trace says what it writes", op.name);
        for (i, term) in &written {
            match kernel.operands[*i] {
                Operand::Tensor(tensor) => self.tensors[tensor.index()] = Some(*term),
                Operand::Resident(offset) => {
                    self.resident.insert(offset, *term);
                    *self.writes.entry(offset).or_default() += 1;
                }
            }
        }
        if op.recomputable {
            self.repeatable.push(Repeat { op: index, read: held, written });
        }
    }

    /// Reruns every repeatable op on the versions that it read, with the present resident values.
    pub fn check_repeats(&self, terms: &mut Terms) {
        for Repeat { op, read, written } in &self.repeatable {
            let kernel = &self.program.kernels[*op];
            let again = evaluate(terms, &kernel.call, &mut |i| match kernel.operands[i] {
                Operand::Tensor(_) => read[i].expect("it was read before"),
                Operand::Resident(offset) => self.resident[&offset],
            });
            assert_eq!(&again, written, "{} can run again", self.program.trace.ops[*op].name);
        }
    }

    /// Checks that each operand has exactly the bytes that the call takes, and that two are the same only if the call allows
    /// it.
    fn check_operands(&self, index: usize) {
        let name = &self.program.trace.ops[index].name;
        let kernel = &self.program.kernels[index];
        assert_eq!(kernel.call.operands().len(), kernel.operands.len(), "{name}");
        for (operand, spec) in kernel.specified() {
            match operand {
                Operand::Tensor(t) => {
                    let tensor = &self.program.trace.tensors[t.index()];
                    assert_eq!(tensor.bytes, spec.bytes.round_up(256), "{name}: {}", tensor.name);
                }
                Operand::Resident(offset) => {
                    let region = self.program.resident.iter().find(|r| r.offset == offset);
                    assert_eq!(region.map(Region::bytes), Some(spec.bytes), "{name}: {region:?}");
                }
            }
        }
        let allowed = in_place(&kernel.call);
        for (j, b) in kernel.operands.iter().enumerate() {
            for (i, a) in kernel.operands[..j].iter().enumerate() {
                let both_terms =
                    matches!(kernel.call, Call::Add { .. } | Call::Multiply { .. }) && (i, j) == (0, 1);
                let distinct_sum = both_terms && kernel.operands[2] != *a;
                assert!(
                    a != b || allowed.contains(&(i, j)) || distinct_sum,
                    "{name}: operands {i} and {j} are the same"
                );
            }
        }
    }
}

/// Returns the pairs of operands that a call may compute in place, as its documentation says.
fn in_place(call: &Call) -> Vec<(usize, usize)> {
    match call {
        Call::ReluForward { .. } | Call::ReluMaskForward { .. } | Call::ActivationForward { .. } => {
            vec![(0, 1)]
        }
        Call::Multiply { accumulate: false, .. } => vec![(0, 2)],
        Call::LstmBackward { first, last, .. } => {
            let [before, after] = [!*first, !*last].map(usize::from);
            let (dcell, dgates) = (3 + before, 3 + before + after);
            let cells = (before + after == 2).then_some((dcell, dgates + 1));
            [(0, dgates)].into_iter().chain(cells).collect()
        }
        Call::RotaryForward { .. } | Call::RotaryBackward { accumulate: false, .. } => vec![(0, 1)],
        Call::BiasForward { .. } => vec![(0, 2)],
        Call::LstmForward { first, .. } => vec![(0, 4 - usize::from(*first))],
        Call::ReluBackward { accumulate: false, .. }
        | Call::ReluMaskBackward { accumulate: false, .. }
        | Call::ActivationBackward { accumulate: false, .. }
        | Call::DropoutBackward { accumulate: false, .. }
        | Call::DropoutForward { .. } => vec![(1, 2)],
        Call::Add { .. }
        | Call::SoftmaxCrossEntropyForward { .. }
        | Call::SoftmaxCrossEntropyBackward { .. } => vec![(0, 2)],
        Call::BatchNormForward { then, .. } if then.add => vec![(3, 4)],
        Call::BatchNormBackward { then, accumulate, .. } => {
            let dx = 4 + usize::from(then.relu.is_some());
            match (then.add, accumulate) {
                (true, _) => vec![(1, dx + 3)],
                (false, false) => vec![(1, dx)],
                (false, true) => Vec::new(),
            }
        }
        Call::LayerNormBackward { accumulate: false, .. }
        | Call::RmsNormBackward { accumulate: false, .. } => vec![(1, 4)],
        Call::RmsNormForward { .. } => vec![(0, 2)],
        Call::LayerNormForward { .. } => vec![(0, 3)],
        Call::BatchNormInference { .. } => vec![(0, 5)],
        _ => Vec::new(),
    }
}

/// Calls [`evaluate`] for the calls of sequence networks.
fn evaluate_sequence(
    terms: &mut Terms,
    call: &Call,
    get: &mut dyn FnMut(usize) -> TermId,
) -> Vec<(usize, TermId)> {
    match *call {
        Call::LayerNormForward { epsilon, .. } => {
            let (x, gamma, beta) = (get(0), get(1), get(2));
            let y = terms.apply(&format!("ln {epsilon}"), &[x, gamma, beta]);
            vec![(3, y), (4, terms.apply(&format!("row stats {epsilon}"), &[x]))]
        }
        Call::RmsNormForward { epsilon, .. } => {
            let (x, gamma) = (get(0), get(1));
            let y = terms.apply(&format!("rms {epsilon}"), &[x, gamma]);
            vec![(2, y), (3, terms.apply(&format!("roots {epsilon}"), &[x]))]
        }
        Call::RmsNormBackward { accumulate, .. } => {
            let (x, dy, gamma, stats) = (get(0), get(1), get(2), get(3));
            let dx = terms.apply("rms dx", &[x, dy, gamma, stats]);
            let dx = if accumulate { terms.sum(get(4), dx) } else { dx };
            vec![(4, dx), (5, terms.apply("rms dgamma", &[x, dy, stats]))]
        }
        Call::BiasForward { shape } => {
            let inputs = [get(0), get(1)];
            vec![(2, terms.apply(&format!("biased by {}", shape.channels), &inputs))]
        }
        Call::EmbeddingForward { shape } => {
            let inputs = [get(0), get(1)];
            vec![(2, terms.apply(&format!("looked up {shape:?}"), &inputs))]
        }
        Call::AttentionForward { shape } => {
            let qkv = get(0);
            let stats = terms.apply(&format!("sums of exponentials {shape:?}"), &[qkv]);
            vec![(1, terms.apply(&format!("attention {shape:?}"), &[qkv])), (2, stats)]
        }
        Call::LstmForward { first, .. } => {
            let gates = get(0);
            let inputs = if first { vec![gates] } else { vec![gates, get(1)] };
            let names = ["h", "cell", "activated"].into_iter().zip(1 + usize::from(!first)..);
            let of = |(name, i)| {
                let of = if name == "activated" { &inputs[..1] } else { &inputs[..] };
                (i, terms.apply(name, of))
            };
            names.map(of).collect()
        }
        Call::LstmBackward { first, last, .. } => {
            let gates = terms.argument_of("activated", get(0));
            let cell = 1 + usize::from(!first);
            let mut inputs = vec![gates];
            inputs.extend((!first).then(|| get(1)));
            let dh = get(cell + 1);
            // The cell state must come from these gates and that previous cell.
            assert_eq!(get(cell), terms.apply("cell", &inputs), "the cell state is of this step");
            inputs.push(dh);
            inputs.extend((!last).then(|| get(cell + 2)));
            let dgates = cell + 2 + usize::from(!last);
            let mut written = vec![(dgates, terms.apply("dgates", &inputs))];
            if !first {
                written.push((dgates + 1, terms.apply("dcell", &inputs)));
            }
            written
        }
        _ => unreachable!("{} is no call of sequences", call.name()),
    }
}

/// Returns the operands that a call writes, with their terms. `get` returns an operand's contents, and is called for those
/// that the call reads.
fn evaluate(terms: &mut Terms, call: &Call, get: &mut dyn FnMut(usize) -> TermId) -> Vec<(usize, TermId)> {
    if let Some(function) = map(call) {
        let x = get(0);
        return vec![(1, terms.apply(&function, &[x]))];
    }
    match *call {
        Call::ConvForward { shape } => {
            let mut inputs = vec![get(0), get(1)];
            if shape.bias {
                inputs.push(get(2));
            }
            vec![(inputs.len(), terms.apply(&format!("conv {shape:?}"), &inputs))]
        }
        Call::ConvBackwardFilter { shape, accumulate } => {
            let (x, dy) = (get(0), get(1));
            let mut given = vec![(2, terms.apply(&format!("dweight {shape:?}"), &[x, dy]))];
            if shape.bias {
                given.push((3, terms.apply("dbias", &[dy])));
            }
            let mut sum = |(i, term)| (i, if accumulate { terms.sum(get(i), term) } else { term });
            given.into_iter().map(&mut sum).collect()
        }
        Call::LayerNormForward { .. }
        | Call::RmsNormForward { .. }
        | Call::RmsNormBackward { .. }
        | Call::BiasForward { .. }
        | Call::EmbeddingForward { .. }
        | Call::AttentionForward { .. }
        | Call::LstmForward { .. }
        | Call::LstmBackward { .. } => evaluate_sequence(terms, call, get),
        Call::BatchNormForward { .. }
        | Call::BatchNormRunning { .. }
        | Call::BatchNormInference { .. }
        | Call::BatchNormBackward { .. }
        | Call::LayerNormBackward { .. } => evaluate_norm(terms, call, get),
        Call::SoftmaxCrossEntropyForward { .. } | Call::SoftmaxCrossEntropyBackward { .. } => {
            evaluate_loss(terms, call, get)
        }
        Call::ReluMaskForward { ceiling, .. } => {
            let x = get(0);
            let mask = terms.apply(&format!("passes {ceiling}"), &[x]);
            vec![(1, terms.apply(&format!("relu {ceiling}"), &[x])), (2, mask)]
        }
        Call::MaxPoolForward { shape } => {
            let x = get(0);
            let places = terms.apply(&format!("places {shape:?}"), &[x]);
            vec![(1, terms.apply(&format!("max {shape:?}"), &[x])), (2, places)]
        }
        Call::DropoutForward { probability, stream, run, .. } => {
            let inputs = [get(0), get(1)];
            vec![(2, terms.apply(&format!("dropout {probability} {stream} {run}"), &inputs))]
        }
        Call::Add { .. } => {
            let (a, b) = (get(0), get(1));
            vec![(2, terms.sum(a, b))]
        }
        Call::ConcatPart { first, .. } => {
            let mut inputs = vec![get(0)];
            if first > 0 {
                inputs.push(get(1));
            }
            vec![(1, terms.apply(&format!("part from {first}"), &inputs))]
        }
        Call::Sgd { decay, idle, .. } => {
            let momentum = if idle { 2 } else { 3 };
            let gradient = if idle { terms.atom("nothing") } else { get(2) };
            let inputs = [get(0), get(1), gradient, get(momentum)];
            let parameter = terms.apply(&format!("sgd {decay}"), &inputs);
            vec![(1, parameter), (momentum, terms.apply(&format!("sgd momentum {decay}"), &inputs))]
        }
        Call::Adamw { idle, .. } => {
            let first = if idle { 2 } else { 3 };
            let gradient = if idle { terms.atom("nothing") } else { get(2) };
            let inputs = [get(0), get(1), gradient, get(first), get(first + 1)];
            let outputs = [(1, "adamw"), (first, "adamw first moment"), (first + 1, "adamw second moment")];
            outputs.map(|(at, function)| (at, terms.apply(function, &inputs))).into()
        }
        _ => {
            let (accumulate, function, arguments) = input_gradient(terms, call, get);
            let dx = terms.apply(&function, &arguments);
            let at = call.operands().len() - 1;
            vec![(at, if accumulate { terms.sum(get(at), dx) } else { dx })]
        }
    }
}

/// Calls [`evaluate`] for the loss.
fn evaluate_loss(
    terms: &mut Terms,
    call: &Call,
    get: &mut dyn FnMut(usize) -> TermId,
) -> Vec<(usize, TermId)> {
    match *call {
        Call::SoftmaxCrossEntropyForward { .. } => {
            let (logits, labels) = (get(0), get(1));
            let metrics = terms.apply("metrics", &[logits, labels]);
            vec![(2, terms.apply("softmax - one-hot", &[logits, labels])), (3, metrics)]
        }
        Call::SoftmaxCrossEntropyBackward { .. } => {
            let (differences, labels) = (get(0), get(1));
            vec![(2, terms.apply("dlogits", &[differences, labels]))]
        }
        _ => unreachable!("{} is not the loss", call.name()),
    }
}

/// Calls [`evaluate`] for batch normalisation, and for layer normalisation in the backward pass.
fn evaluate_norm(
    terms: &mut Terms,
    call: &Call,
    get: &mut dyn FnMut(usize) -> TermId,
) -> Vec<(usize, TermId)> {
    match *call {
        Call::BatchNormForward { epsilon, then, .. } => {
            let (x, gamma, beta) = (get(0), get(1), get(2));
            let mut y = terms.apply(&format!("bn {epsilon}"), &[x, gamma, beta]);
            let stats = terms.apply(&format!("stats {epsilon}"), &[x]);
            let mut at = 3;
            if then.add {
                y = terms.sum(y, get(3));
                at += 1;
            }
            let mut written = Vec::new();
            if let Some(relu) = then.relu {
                written.extend(
                    relu.mask.then(|| (at + 2, terms.apply(&format!("passes {}", relu.ceiling), &[y]))),
                );
                y = terms.apply(&format!("relu {}", relu.ceiling), &[y]);
            }
            [vec![(at, y), (at + 1, stats)], written].concat()
        }
        Call::BatchNormRunning { epsilon, momentum, branch, .. } => {
            let at = usize::from(branch.is_some());
            let x = terms.argument_of(&format!("stats {epsilon}"), get(at));
            let moved = ["running mean", "running variance"].map(|name| format!("{name} {momentum}"));
            let moved = moved.iter().zip([at + 1, at + 2]);
            moved.map(|(name, at)| (at, terms.apply(name, &[x, get(at)]))).collect()
        }
        Call::BatchNormInference { epsilon, .. } => {
            let inputs = [get(0), get(1), get(2), get(3), get(4)];
            vec![(5, terms.apply(&format!("bn inference {epsilon}"), &inputs))]
        }
        Call::BatchNormBackward { then, accumulate, .. } => {
            let (x, mut dy, gamma, stats) = (get(0), get(1), get(2), get(3));
            let mut at = 4;
            if let Some(FusedRelu { ceiling, mask }) = then.relu {
                let of = if mask { "passes" } else { "relu" };
                let before = terms.argument_of(&format!("{of} {ceiling}"), get(4));
                dy = terms.apply(&format!("relu dx {ceiling}"), &[before, dy]);
                at += 1;
            }
            let dx = terms.apply("bn dx", &[x, dy, gamma, stats]);
            let dx = if accumulate { terms.sum(get(at), dx) } else { dx };
            let dgamma = terms.apply("dgamma", &[x, dy, stats]);
            let mut written = vec![(at, dx), (at + 1, dgamma), (at + 2, terms.apply("dbeta", &[dy]))];
            written.extend(then.add.then_some((at + 3, dy)));
            written
        }
        Call::LayerNormBackward { accumulate, .. } => {
            let (x, dy, gamma, stats) = (get(0), get(1), get(2), get(3));
            let dx = terms.apply("ln dx", &[x, dy, gamma, stats]);
            let dx = if accumulate { terms.sum(get(4), dx) } else { dx };
            vec![(4, dx), (5, terms.apply("ln dgamma", &[x, dy, stats])), (6, terms.apply("dbeta", &[dy]))]
        }
        _ => unreachable!("{} is no normalisation", call.name()),
    }
}

/// Returns the function of a call that makes one tensor from one other.
fn map(call: &Call) -> Option<String> {
    Some(match *call {
        Call::ReluForward { ceiling, .. } => format!("relu {ceiling}"),
        Call::ActivationForward { function, .. } => function.name().to_owned(),
        Call::AvgPoolForward { shape } => format!("mean {shape:?}"),
        Call::RotaryForward { shape, base } => format!("turned {shape:?} {base}"),
        Call::LrnForward { size, alpha, beta, bias, .. } => format!("lrn {size} {alpha} {beta} {bias}"),
        _ => return None,
    })
}

/// Returns the gradient of a call that only computes one, with `true` if the call adds it to the contents of its last
/// operand.
fn input_gradient(
    terms: &Terms,
    call: &Call,
    get: &mut dyn FnMut(usize) -> TermId,
) -> (bool, String, Vec<TermId>) {
    match *call {
        Call::ConvBackwardData { shape, accumulate } => {
            (accumulate, format!("conv dx {shape:?}"), vec![get(0), get(1)])
        }
        Call::ReluBackward { ceiling, accumulate, .. } => {
            let x = terms.argument_of(&format!("relu {ceiling}"), get(0));
            (accumulate, format!("relu dx {ceiling}"), vec![x, get(1)])
        }
        Call::ReluMaskBackward { accumulate, .. } => {
            let (ceiling, x) = terms.constant_and_argument_of("passes ", get(0));
            (accumulate, format!("relu dx {ceiling}"), vec![x, get(1)])
        }
        Call::AttentionBackward { shape, accumulate } => {
            let (qkv, stats) = (get(0), get(1));
            assert_eq!(terms.argument_of(&format!("sums of exponentials {shape:?}"), stats), qkv);
            (accumulate, format!("dqkv {shape:?}"), vec![qkv, get(2)])
        }
        Call::RotaryBackward { shape, base, accumulate } => {
            (accumulate, format!("turned back {shape:?} {base}"), vec![get(0)])
        }
        Call::BiasBackward { shape, accumulate } => {
            (accumulate, format!("dbias of {}", shape.channels), vec![get(0)])
        }
        Call::EmbeddingBackward { shape, accumulate } => {
            (accumulate, format!("dtable {shape:?}"), vec![get(0), get(1)])
        }
        Call::ActivationBackward { function, accumulate, .. } => {
            (accumulate, format!("{} dx", function.name()), vec![get(0), get(1)])
        }
        Call::Multiply { accumulate, .. } => (accumulate, "product".to_owned(), vec![get(0), get(1)]),
        Call::MaxPoolBackward { shape, accumulate } => {
            let x = terms.argument_of(&format!("places {shape:?}"), get(0));
            (accumulate, format!("max dx {shape:?}"), vec![x, get(1)])
        }
        Call::AvgPoolBackward { shape, accumulate } => {
            (accumulate, format!("mean dx {shape:?}"), vec![get(0)])
        }
        Call::DropoutBackward { probability, stream, run, accumulate, .. } => {
            (accumulate, format!("dropout dx {probability} {stream} {run}"), vec![get(0), get(1)])
        }
        Call::SplitPart { channels, first, accumulate, .. } => {
            (accumulate, format!("split {channels} from {first}"), vec![get(0)])
        }
        Call::LrnBackward { size, alpha, beta, bias, accumulate, .. } => {
            (accumulate, format!("lrn dx {size} {alpha} {beta} {bias}"), vec![get(0), get(1)])
        }
        _ => unreachable!("{} gives more than the gradient of its input", call.name()),
    }
}
