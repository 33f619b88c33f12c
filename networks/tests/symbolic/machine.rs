//! Runs a program's kernels on terms, and checks that each kernel does only what its documentation allows.

use crate::symbolic::terms::{TermId, Terms};
use plimsoll_ir::program::{Access, Call, FusedRelu, Operand, Program, Region, Role};
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
    let named: &[(&str, &str)] = match *call {
        Call::ReluForward { .. }
        | Call::ReluMaskForward { .. }
        | Call::ActivationForward { .. }
        | Call::DropoutForward { .. }
        | Call::RotaryForward { .. }
        | Call::BiasForward { .. }
        | Call::RmsNormForward { .. }
        | Call::LayerNormForward { .. }
        | Call::BatchNormInference { .. } => &[("x", "y")],
        Call::BatchNormForward { then, .. } if then.add => &[("r", "y")],
        Call::BatchNormBackward { then, .. } if then.add => &[("dy", "dr")],
        Call::BatchNormBackward { accumulate: false, .. }
        | Call::LayerNormBackward { accumulate: false, .. }
        | Call::RmsNormBackward { accumulate: false, .. }
        | Call::ReluBackward { accumulate: false, .. }
        | Call::ReluMaskBackward { accumulate: false, .. }
        | Call::ActivationBackward { accumulate: false, .. }
        | Call::DropoutBackward { accumulate: false, .. }
        | Call::RotaryBackward { accumulate: false, .. } => &[("dy", "dx")],
        Call::Multiply { accumulate: false, .. } | Call::Add { .. } => &[("a", "y")],
        Call::LstmForward { .. } => &[("gates", "activated")],
        Call::LstmBackward { .. } => &[("activated", "dgates"), ("dcell", "dprevious")],
        Call::SoftmaxCrossEntropyForward { .. } => &[("logits", "differences")],
        Call::SoftmaxCrossEntropyBackward { .. } => &[("differences", "dlogits")],
        _ => &[],
    };
    let operands = call.operands();
    let pair = |(a, b): &(&str, &str)| Some((operands.position(a)?, operands.position(b)?));
    named.iter().filter_map(pair).collect()
}

/// Returns the operands that a call writes, with their terms. `get` returns an operand's contents, and is called for those
/// that the call reads.
fn evaluate(terms: &mut Terms, call: &Call, get: &mut dyn FnMut(usize) -> TermId) -> Vec<(usize, TermId)> {
    let operands = call.operands();
    let mut get = |name: &str| get(operands.index(name));
    let written = match *call {
        Call::BatchNormForward { .. }
        | Call::BatchNormRunning { .. }
        | Call::BatchNormInference { .. }
        | Call::BatchNormBackward { .. }
        | Call::LayerNormForward { .. }
        | Call::LayerNormBackward { .. }
        | Call::RmsNormForward { .. }
        | Call::RmsNormBackward { .. } => evaluate_norm(terms, call, &mut get),
        Call::LstmForward { .. } | Call::LstmBackward { .. } => evaluate_memory(terms, call, &mut get),
        Call::Sgd { .. } | Call::Adamw { .. } => evaluate_update(terms, call, &mut get),
        _ => evaluate_other(terms, call, &mut get),
    };
    let sum = |(name, term): (&str, TermId)| {
        // An op that accumulates adds to what it finds.
        let adds = operands[operands.index(name)].access == Access::Update && accumulates(call);
        (operands.index(name), if adds { terms.sum(get(name), term) } else { term })
    };
    written.into_iter().map(sum).collect()
}

/// Returns `true` if the call updates its operands by adding to them.
fn accumulates(call: &Call) -> bool {
    use Call::{Adamw, BatchNormRunning, ConcatPart, Sgd};
    !matches!(call, BatchNormRunning { .. } | Sgd { .. } | Adamw { .. } | ConcatPart { .. })
}

/// Terms by the names of the operands that hold them.
type Written = Vec<(&'static str, TermId)>;

/// Calls [`evaluate`] for all calls but those of normalisations and of memories.
fn evaluate_other(terms: &mut Terms, call: &Call, get: &mut dyn FnMut(&str) -> TermId) -> Written {
    // Function, operands that it takes, and the operand that it makes.
    let (function, taken, made): (String, &[&str], &'static str) = match *call {
        Call::ConvForward { shape } => {
            let taken: &[&str] = if shape.bias { &["x", "weight", "bias"] } else { &["x", "weight"] };
            (format!("conv {shape:?}"), taken, "y")
        }
        Call::ConvBackwardFilter { shape, .. } => {
            let (x, dy) = (get("x"), get("dy"));
            let mut written = vec![("dweight", terms.apply(&format!("dweight {shape:?}"), &[x, dy]))];
            written.extend(shape.bias.then(|| ("dbias", terms.apply("dbias", &[dy]))));
            return written;
        }
        Call::ConvBackwardData { shape, .. } => (format!("conv dx {shape:?}"), &["dy", "weight"], "dx"),
        Call::ReluForward { ceiling, .. } => (format!("relu {ceiling}"), &["x"], "y"),
        Call::ReluMaskForward { ceiling, .. } => {
            let x = get("x");
            let mask = terms.apply(&format!("passes {ceiling}"), &[x]);
            return vec![("y", terms.apply(&format!("relu {ceiling}"), &[x])), ("mask", mask)];
        }
        Call::ReluBackward { ceiling, .. } => {
            let given = [terms.argument_of(&format!("relu {ceiling}"), get("y")), get("dy")];
            return vec![("dx", terms.apply(&format!("relu dx {ceiling}"), &given))];
        }
        Call::ReluMaskBackward { .. } => {
            let (ceiling, x) = terms.constant_and_argument_of("passes ", get("mask"));
            return vec![("dx", terms.apply(&format!("relu dx {ceiling}"), &[x, get("dy")]))];
        }
        Call::ActivationForward { function, .. } => (function.name().to_owned(), &["x"], "y"),
        Call::ActivationBackward { function, .. } => (format!("{} dx", function.name()), &["x", "dy"], "dx"),
        Call::Multiply { .. } => ("product".to_owned(), &["a", "b"], "y"),
        Call::Add { .. } => {
            let (a, b) = (get("a"), get("b"));
            return vec![("y", terms.sum(a, b))];
        }
        Call::MaxPoolForward { shape } => {
            let x = get("x");
            let places = terms.apply(&format!("places {shape:?}"), &[x]);
            return vec![("y", terms.apply(&format!("max {shape:?}"), &[x])), ("places", places)];
        }
        Call::MaxPoolBackward { shape, .. } => {
            let given = [terms.argument_of(&format!("places {shape:?}"), get("places")), get("dy")];
            return vec![("dx", terms.apply(&format!("max dx {shape:?}"), &given))];
        }
        Call::AvgPoolForward { shape } => (format!("mean {shape:?}"), &["x"], "y"),
        Call::AvgPoolBackward { shape, .. } => (format!("mean dx {shape:?}"), &["dy"], "dx"),
        Call::DropoutForward { probability, stream, .. } => {
            (format!("dropout {probability} {stream}"), &["hyper", "x"], "y")
        }
        Call::DropoutBackward { probability, stream, .. } => {
            (format!("dropout dx {probability} {stream}"), &["hyper", "dy"], "dx")
        }
        Call::BiasForward { shape } => (format!("biased by {}", shape.channels), &["x", "bias"], "y"),
        Call::BiasBackward { shape, .. } => (format!("dbias of {}", shape.channels), &["dy"], "dbias"),
        Call::EmbeddingForward { shape } => (format!("looked up {shape:?}"), &["tokens", "weight"], "y"),
        Call::EmbeddingBackward { shape, .. } => (format!("dtable {shape:?}"), &["tokens", "dy"], "dweight"),
        Call::AttentionForward { shape } => {
            let qkv = get("qkv");
            let stats = terms.apply(&format!("sums of exponentials {shape:?}"), &[qkv]);
            return vec![("y", terms.apply(&format!("attention {shape:?}"), &[qkv])), ("stats", stats)];
        }
        Call::AttentionBackward { shape, .. } => {
            let of = terms.argument_of(&format!("sums of exponentials {shape:?}"), get("stats"));
            assert_eq!(of, get("qkv"), "the sums are of these scores");
            (format!("dqkv {shape:?}"), &["qkv", "dy"], "dqkv")
        }
        Call::RotaryForward { shape, base } => (format!("turned {shape:?} {base}"), &["x"], "y"),
        Call::RotaryBackward { shape, base, .. } => (format!("turned back {shape:?} {base}"), &["dy"], "dx"),
        Call::ConcatPart { first: 0, .. } => ("part from 0".to_owned(), &["x"], "y"),
        Call::ConcatPart { first, .. } => (format!("part from {first}"), &["x", "y"], "y"),
        Call::SplitPart { channels, first, .. } => (format!("split {channels} from {first}"), &["dy"], "dx"),
        Call::LrnForward { size, alpha, beta, bias, .. } => {
            (format!("lrn {size} {alpha} {beta} {bias}"), &["x"], "y")
        }
        Call::LrnBackward { size, alpha, beta, bias, .. } => {
            (format!("lrn dx {size} {alpha} {beta} {bias}"), &["x", "dy"], "dx")
        }
        Call::SoftmaxCrossEntropyForward { .. } => {
            let given = ["logits", "labels"].map(get);
            let metrics = terms.apply("metrics", &given);
            return vec![("differences", terms.apply("softmax - one-hot", &given)), ("metrics", metrics)];
        }
        Call::SoftmaxCrossEntropyBackward { .. } => {
            ("dlogits".to_owned(), &["differences", "labels"], "dlogits")
        }
        _ => unreachable!("{} is handled elsewhere", call.name()),
    };
    let given: Vec<TermId> = taken.iter().map(|name| get(name)).collect();
    vec![(made, terms.apply(&function, &given))]
}

/// Calls [`evaluate`] for updates of parameters.
fn evaluate_update(terms: &mut Terms, call: &Call, get: &mut dyn FnMut(&str) -> TermId) -> Written {
    match *call {
        Call::Sgd { decay, .. } => {
            let given = ["hyper", "parameter", "gradient", "momentum"].map(get);
            let made = [("parameter", format!("sgd {decay}")), ("momentum", format!("sgd momentum {decay}"))];
            made.map(|(at, function)| (at, terms.apply(&function, &given))).into()
        }
        Call::Adamw { .. } => {
            let given = ["hyper", "parameter", "gradient", "first moment", "second moment"].map(get);
            let made = [
                ("parameter", "adamw"),
                ("first moment", "adamw first moment"),
                ("second moment", "adamw second moment"),
            ];
            made.map(|(at, function)| (at, terms.apply(function, &given))).into()
        }
        _ => unreachable!("{} is no update", call.name()),
    }
}

/// Calls [`evaluate`] for a step of a memory.
fn evaluate_memory(terms: &mut Terms, call: &Call, get: &mut dyn FnMut(&str) -> TermId) -> Written {
    match *call {
        Call::LstmForward { first, .. } => {
            let gates = get("gates");
            let activated = terms.apply("activated", &[gates]);
            let given: Vec<TermId> = [gates].into_iter().chain((!first).then(|| get("previous"))).collect();
            vec![
                ("h", terms.apply("h", &given)),
                ("cell", terms.apply("cell", &given)),
                ("activated", activated),
            ]
        }
        Call::LstmBackward { first, last, .. } => {
            let mut given = vec![terms.argument_of("activated", get("activated"))];
            given.extend((!first).then(|| get("previous")));
            // The cell state must come from these gates and that previous cell.
            assert_eq!(get("cell"), terms.apply("cell", &given), "the cell state is of this step");
            given.push(get("dh"));
            given.extend((!last).then(|| get("dcell")));
            let mut written = vec![("dgates", terms.apply("dgates", &given))];
            written.extend((!first).then(|| ("dprevious", terms.apply("dcell", &given))));
            written
        }
        _ => unreachable!("{} is no step of a memory", call.name()),
    }
}

/// Calls [`evaluate`] for normalisations.
fn evaluate_norm(terms: &mut Terms, call: &Call, get: &mut dyn FnMut(&str) -> TermId) -> Written {
    match *call {
        Call::BatchNormForward { epsilon, then, .. } => {
            let given = ["x", "gamma", "beta"].map(&mut *get);
            let mut y = terms.apply(&format!("bn {epsilon}"), &given);
            let mut written = vec![("stats", terms.apply(&format!("stats {epsilon}"), &given[..1]))];
            if then.add {
                y = terms.sum(y, get("r"));
            }
            if let Some(FusedRelu { ceiling, mask }) = then.relu {
                written.extend(mask.then(|| ("mask", terms.apply(&format!("passes {ceiling}"), &[y]))));
                y = terms.apply(&format!("relu {ceiling}"), &[y]);
            }
            written.push(("y", y));
            written
        }
        Call::BatchNormRunning { epsilon, momentum, .. } => {
            let x = terms.argument_of(&format!("stats {epsilon}"), get("stats"));
            let mut moved = |name| (name, terms.apply(&format!("{name} {momentum}"), &[x, get(name)]));
            vec![moved("running mean"), moved("running variance")]
        }
        Call::BatchNormInference { epsilon, .. } => {
            let given = ["x", "gamma", "beta", "running mean", "running variance"].map(get);
            vec![("y", terms.apply(&format!("bn inference {epsilon}"), &given))]
        }
        Call::BatchNormBackward { then, .. } => {
            let [x, mut dy, gamma, stats] = ["x", "dy", "gamma", "stats"].map(&mut *get);
            if let Some(FusedRelu { ceiling, mask }) = then.relu {
                let of = if mask { "passes" } else { "relu" };
                let before = terms.argument_of(&format!("{of} {ceiling}"), get("kept"));
                dy = terms.apply(&format!("relu dx {ceiling}"), &[before, dy]);
            }
            let dx = terms.apply("bn dx", &[x, dy, gamma, stats]);
            let dgamma = terms.apply("dgamma", &[x, dy, stats]);
            let mut written = vec![("dx", dx), ("dgamma", dgamma), ("dbeta", terms.apply("dbeta", &[dy]))];
            written.extend(then.add.then_some(("dr", dy)));
            written
        }
        Call::LayerNormForward { epsilon, .. } => {
            let given = ["x", "gamma", "beta"].map(get);
            let stats = terms.apply(&format!("row stats {epsilon}"), &given[..1]);
            vec![("y", terms.apply(&format!("ln {epsilon}"), &given)), ("stats", stats)]
        }
        Call::RmsNormForward { epsilon, .. } => {
            let given = ["x", "gamma"].map(get);
            let stats = terms.apply(&format!("roots {epsilon}"), &given[..1]);
            vec![("y", terms.apply(&format!("rms {epsilon}"), &given)), ("stats", stats)]
        }
        Call::LayerNormBackward { .. } | Call::RmsNormBackward { .. } => {
            let (name, shifts) = match call {
                Call::LayerNormBackward { .. } => ("ln", true),
                _ => ("rms", false),
            };
            let [x, dy, gamma, stats] = ["x", "dy", "gamma", "stats"].map(get);
            let dx = terms.apply(&format!("{name} dx"), &[x, dy, gamma, stats]);
            let dgamma = terms.apply(&format!("{name} dgamma"), &[x, dy, stats]);
            let mut written = vec![("dx", dx), ("dgamma", dgamma)];
            written.extend(shifts.then(|| ("dbeta", terms.apply("dbeta", &[dy]))));
            written
        }
        _ => unreachable!("{} is no normalisation", call.name()),
    }
}
