//! What exporters make of embeddings, GELU and attention, put together again; rotary embeddings are in `rotary.rs`.
//!
//! Attention is found from the inside: the product of two outputs are scores, a number or a mask makes scores of scores,
//! softmax shares of them, and shares times a third output is an [`Attention`](LayerKind::Attention) layer, if queries,
//! keys and values lie as its heads do. Keys and values that several heads share are repeated for each of them in the file, and
//! not in the layer. Whatever departs from that on the way is named.

use super::constant::Constant;
use super::error::{OnnxError, broken};
use super::fold::scalar;
use super::graph::{float, int, label};
use super::import::{Import, unsupported};
use super::layout::{axis, common};
use super::operators::small;
use super::proto::NodeProto;
use super::source::Source;
use super::value::{Flow, Root, Scores, Stage, Value};
use super::view::{Atom, Axis, View, size, whole};
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Function, LayerKind};
use std::rc::Rc;

/// How far a number of the file may be from the one that our layer has: exporters write them in 32 bits.
const TOLERANCE: f64 = 1e-4;

/// What is added to a score to hide it is this or less.
const HIDDEN: f64 = -1e4;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE * b.abs()
}

impl Import<'_> {
    /// Rows of a table by token.
    pub fn embedding(
        &mut self,
        node: &NodeProto,
        table: &Constant,
        tokens: &Flow,
    ) -> Result<Flow, OnnxError> {
        let place = label(node);
        let images = self.builder.images();
        let shape = self.builder.shape(images);
        let [vocabulary, width] = table.dims[..] else {
            return Err(unsupported(node, format!("Gather from a weight of {:?}", table.dims)));
        };
        let view = &tokens.view;
        let positions: Vec<&Atom> =
            view.dims.iter().flatten().filter(|atom| atom.axis == Axis::Row).collect();
        let in_order = positions.len() < 2 && positions.iter().all(|atom| atom.stride == 1);
        let as_they_are = matches!(tokens.stage, Stage::Output) && tokens.factor == 1.0;
        if !self.is_tokens(tokens) || !as_they_are || int(node, "axis", 0)? != 0 || !in_order {
            return Err(unsupported(node, "Gather from a weight by something else than tokens of the input"));
        }
        let length = positions.first().map_or(1, |atom| atom.size);
        let kind = LayerKind::Embedding {
            vocabulary: small(&place, "its number of rows", i64::try_from(vocabulary).unwrap_or(-1))?,
            width: small(&place, "its number of columns", i64::try_from(width).unwrap_or(-1))?,
            first: u32::try_from(view.row).unwrap_or(u32::MAX),
            length: u32::try_from(length.min(u64::from(shape.height))).unwrap_or(u32::MAX),
        };
        let layer = self.weighted(node, kind, images, table, (false, None))?;
        self.sources.push(Source::in_order(layer, "weight", table));
        let mut dims = view.dims.clone();
        dims.push(whole(Axis::Channel, width));
        Ok(Flow::output(View::of(layer, dims)))
    }

    /// Adds or multiplies by a number, or masks; none where the constant is a weight.
    pub fn number(
        &mut self,
        node: &NodeProto,
        x: &Flow,
        constant: &Constant,
    ) -> Result<Option<Flow>, OnnxError> {
        if constant.dims.len() > x.view.dims.len() {
            let why = format!("{} of a constant with more dimensions", node.op_type);
            return Err(unsupported(node, why));
        }
        if self.is_tokens(x) {
            return Err(unsupported(node, format!("{} of tokens", node.op_type)));
        }
        if let (Stage::Scores(scores), "Add") = (&x.stage, node.op_type.as_str()) {
            let hides = |number: f64| match number {
                0.0 => Some(false),
                hidden if hidden <= HIDDEN => Some(true),
                _ => None,
            };
            let causal = self.mask(node, x, constant, &hides)?;
            return Ok(Some(with_mask(x, scores, causal)));
        }
        let Some(number) = scalar_of_one(self, node, constant)? else { return Ok(None) };
        let flow = |factor: f64, stage: Stage| Ok(Some(Flow { factor, stage, ..x.clone() }));
        match (node.op_type.as_str(), &x.stage) {
            // Both may have been multiplied already: what counts is that they were by the same number.
            ("Add", Stage::Root(root)) if root.epsilon.is_none() && !root.rooted && number > 0.0 => {
                let root = Root { epsilon: Some(number), ..(**root).clone() };
                flow(x.factor, Stage::Root(Rc::new(root)))
            }
            (op, Stage::Square | Stage::Root(_) | Stage::Unit(_)) => {
                Err(unsupported(node, format!("{op} of the number {number} {}", x.nature())))
            }
            ("Add", Stage::Erf) if near(number, x.factor) => flow(x.factor, Stage::ErfAndOne),
            ("Mul", Stage::TwiceGelu) if near(number * x.factor, 0.5) => self.gelu(node, x).map(Some),
            ("Div", Stage::TwiceGelu) if near(x.factor / number, 0.5) => self.gelu(node, x).map(Some),
            ("Mul", stage) => flow(x.factor * number, stage.clone()),
            ("Div", stage) if number != 0.0 => flow(x.factor / number, stage.clone()),
            (op, _) => Err(unsupported(node, format!("{op} of the number {number}"))),
        }
    }

    /// The error function, which GELU has.
    pub fn erf(&self, node: &NodeProto, x: &Flow) -> Result<Flow, OnnxError> {
        let inner = Flow { factor: 1.0, ..x.clone() };
        self.whole(node, &inner)?;
        if !near(x.factor, std::f64::consts::FRAC_1_SQRT_2) {
            return Err(unsupported(node, "Erf of something else than x / sqrt(2), which GELU has"));
        }
        Ok(Flow { stage: Stage::Erf, ..inner })
    }

    /// A product of two values, element by element: one in which a value gates itself, as GELU and its kin do, or any other.
    pub fn gated(&mut self, node: &NodeProto, x: &Flow, y: &Flow) -> Result<Flow, OnnxError> {
        if let [(Stage::Output, Stage::Gate(gate)), _] | [_, (Stage::Output, Stage::Gate(gate))] =
            [(&x.stage, &y.stage), (&y.stage, &x.stage)]
            && x.view == y.view
        {
            let function = if *gate == Function::HardSigmoid { Function::HardSwish } else { Function::Silu };
            return self.each(node, &Flow { stage: Stage::Output, ..x.clone() }, function.layer());
        }
        if let [(Stage::Output, Stage::Root(root)), _] | [_, (Stage::Output, Stage::Root(root))] =
            [(&x.stage, &y.stage), (&y.stage, &x.stage)]
        {
            let value = if matches!(x.stage, Stage::Output) { x } else { y };
            return match root.epsilon {
                Some(epsilon) if root.inverted && root.of == value.view && value.factor == 1.0 => {
                    Ok(Flow { stage: Stage::Unit(epsilon), ..value.clone() })
                }
                _ => {
                    Err(unsupported(node, "Mul by a mean square that is no root of it, or of something else"))
                }
            };
        }
        if matches!((&x.stage, &y.stage), (Stage::Output, Stage::Output)) {
            return self.multiplied(node, x, y);
        }
        let (x, gate) = if matches!(x.stage, Stage::ErfAndOne) { (y, x) } else { (x, y) };
        let gelu =
            matches!((&x.stage, &gate.stage), (Stage::Output, Stage::ErfAndOne)) && x.view == gate.view;
        if !gelu {
            return Err(unsupported(node, "Mul of two values, which is no GELU"));
        }
        let twice = Flow { factor: x.factor * gate.factor, stage: Stage::TwiceGelu, ..x.clone() };
        if near(twice.factor, 0.5) { self.gelu(node, &twice) } else { Ok(twice) }
    }

    fn gelu(&mut self, node: &NodeProto, x: &Flow) -> Result<Flow, OnnxError> {
        self.each(node, &Flow::output(x.view.clone()), LayerKind::GELU)
    }

    /// The square of a value, which a normalisation by its root has.
    pub fn square(&self, node: &NodeProto, x: &Flow, power: &Constant) -> Result<Flow, OnnxError> {
        self.whole(node, x)?;
        match scalar(&self.numbers, &label(node), power)? {
            Some(2.0) => Ok(Flow { stage: Stage::Square, ..x.clone() }),
            _ => Err(unsupported(node, "Pow with another power than 2")),
        }
    }

    /// The mean of squares over channels.
    pub fn mean_square(&self, node: &NodeProto, x: &Flow, axes: Option<&Value>) -> Result<Flow, OnnxError> {
        let rank = x.view.dims.len();
        let over = self.reduced(node, rank, axes)?;
        let [dim] = over[..] else { return Err(unsupported(node, format!("ReduceMean {}", x.nature()))) };
        if !self.over_channels(&x.view, dim) || int(node, "keepdims", 1)? == 0 {
            return Err(unsupported(node, format!("ReduceMean {}", x.nature())));
        }
        let root = Root { of: x.view.clone(), epsilon: None, rooted: false, inverted: false };
        let mut view = x.view.clone();
        view.dims[dim] = Vec::new();
        Ok(Flow { view, factor: 1.0, stage: Stage::Root(Rc::new(root)) })
    }

    /// The root of a mean square, and 1 over it.
    pub fn root(&self, node: &NodeProto, x: &Flow) -> Result<Flow, OnnxError> {
        let op = node.op_type.as_str();
        let root = match (&x.stage, op) {
            (Stage::Root(root), "Sqrt") if root.epsilon.is_some() && !root.rooted => {
                Root { rooted: true, ..(**root).clone() }
            }
            (Stage::Root(root), "Reciprocal") if root.rooted && !root.inverted => {
                Root { inverted: true, ..(**root).clone() }
            }
            _ => return Err(unsupported(node, format!("{op} of what depends on the input"))),
        };
        Ok(Flow { stage: Stage::Root(Rc::new(root)), ..x.clone() })
    }

    /// A value over the root of its mean square, with a scale of each channel: the layer.
    pub fn normalised_by_root(
        &mut self,
        node: &NodeProto,
        x: &Flow,
        scale: &Constant,
        epsilon: f64,
    ) -> Result<Flow, OnnxError> {
        let view = x.view.clone();
        let channels = u64::from(self.builder.shape(view.layer).channels);
        let last = view.dims.len().saturating_sub(1);
        let fits = scale.dims == [channels] && self.over_channels(&view, last);
        if node.op_type != "Mul" || !fits || scale.initialiser.is_none() || x.factor != 1.0 {
            return Err(unsupported(node, format!("{} {}", node.op_type, x.nature())));
        }
        self.take(scale);
        let name = self.name(node, Some(scale));
        let kind = LayerKind::RmsNorm { epsilon: epsilon as f32 };
        let layer = self.layer(&name, kind, &[view.layer], None)?;
        self.sources.push(Source::in_order(layer, "weight", scale));
        Ok(Flow::output(view.with_layer(layer)))
    }

    /// The same as one operator.
    pub fn rms_norm(&mut self, node: &NodeProto, x: &Flow, scale: &Constant) -> Result<Flow, OnnxError> {
        let view = self.whole(node, x)?.clone();
        let over = axis(node, int(node, "axis", -1)?, view.dims.len())?;
        let channels = u64::from(self.builder.shape(view.layer).channels);
        if over + 1 != view.dims.len() || !self.over_channels(&view, over) || scale.dims != [channels] {
            return Err(unsupported(node, "RMSNormalization over something else than channels"));
        }
        self.take(scale);
        let name = self.name(node, Some(scale));
        let kind = LayerKind::RmsNorm { epsilon: float(node, "epsilon", 1e-5)? };
        let layer = self.layer(&name, kind, &[view.layer], None)?;
        self.sources.push(Source::in_order(layer, "weight", scale));
        Ok(Flow::output(view.with_layer(layer)))
    }

    /// The product of two values, which must be one of the two in attention.
    pub fn attention(&mut self, node: &NodeProto, x: &Flow, y: &Flow) -> Result<Flow, OnnxError> {
        match (&x.stage, &y.stage) {
            (Stage::Output, Stage::Output) => self.scores(node, x, y),
            (Stage::Shares(scores), Stage::Output) => self.attend(node, x, scores, y),
            _ => Err(unsupported(node, "MatMul of two values, which is no attention")),
        }
    }

    /// Queries times keys.
    fn scores(&self, node: &NodeProto, x: &Flow, y: &Flow) -> Result<Flow, OnnxError> {
        let no = || unsupported(node, "MatMul of two values, which is no attention");
        let rank = x.view.dims.len();
        if rank < 2 || y.view.dims.len() != rank {
            return Err(no());
        }
        let mut turned: Vec<usize> = (0..rank).collect();
        turned.swap(rank - 2, rank - 1);
        let (query, key) = (x.view.clone(), y.view.transpose(&turned));
        let row = |atom: &Atom| atom.axis == Axis::Row && atom.stride == 1;
        let heads = ungrouped(&key).filter(|(heads, _)| query.dims[..rank - 2] == heads.dims[..rank - 2]);
        if heads.is_none()
            || query.dims[rank - 1] != key.dims[rank - 1]
            || !key.dims[rank - 2].iter().all(row)
        {
            return Err(no());
        }
        let mut dims = query.dims.clone();
        dims[rank - 1] = key.dims[rank - 2].iter().map(|atom| Atom { axis: Axis::Key, ..*atom }).collect();
        let view = View { dims, ..query.clone() };
        let scores = Scores { query, key, causal: false };
        Ok(Flow { view, factor: x.factor * y.factor, stage: Stage::Scores(Rc::new(scores)) })
    }

    /// Shares times values: the layer.
    fn attend(&mut self, node: &NodeProto, x: &Flow, scores: &Scores, y: &Flow) -> Result<Flow, OnnxError> {
        let Scores { query, key, causal } = scores;
        let (shares, value) = (&x.view, &y.view);
        let rank = shares.dims.len();
        let of_keys = ungrouped(key);
        let of_values = ungrouped(value).filter(|(heads, group)| {
            heads.dims.len() == rank
                && rank >= 2
                && heads.dims[..rank - 2] == shares.dims[..rank - 2]
                && of_keys.as_ref().is_some_and(|of_keys| of_keys.1 == *group)
        });
        let alike = x.factor == 1.0
            && y.factor == 1.0
            && of_values.is_some()
            && value.dims[rank - 2]
                .iter()
                .map(|atom| Atom { axis: Axis::Key, ..*atom })
                .eq(shares.dims[rank - 1].iter().copied());
        let (Some((key_heads, group)), Some((value_heads, _)), true) = (of_keys, of_values, alike) else {
            return Err(unsupported(
                node,
                "MatMul of shares and values that do not lie alike, which is no attention",
            ));
        };
        let heads = self.heads(node, query)?;
        let (parts, of_heads) = ([query, key, value], [query, &key_heads, &value_heads]);
        let shapes = parts.map(|view| self.builder.shape(view.layer));
        let width = heads.iter().product::<u64>();
        let same_heads = |view: &&View| {
            let mut all = [query, *view].map(channels);
            all[0].sort_by_key(|atom| std::cmp::Reverse(atom.stride));
            all[1].sort_by_key(|atom| std::cmp::Reverse(atom.stride));
            all[0] == all[1]
        };
        let positions = |view: &&View| {
            let over = |axis: Axis| view.dims.iter().flatten().filter(move |atom| atom.axis == axis);
            view.row == 0
                && over(Axis::Row).map(|atom| atom.size).product::<u64>() == u64::from(shapes[0].height)
                && over(Axis::Batch).map(|atom| atom.size).product::<u64>() == self.batch
        };
        let one_width = shapes.iter().all(|s| s.width == 1 && s.height == shapes[0].height);
        if !one_width || !of_heads.iter().all(same_heads) || !parts.iter().all(positions) {
            return Err(unsupported(
                node,
                "attention whose queries, keys and values are not of the same positions and heads",
            ));
        }
        if size(&key.dims[rank - 2]) != u64::from(shapes[1].height) {
            let why = "attention within windows: here each position sees all of its sample, or all before it";
            return Err(unsupported(node, why));
        }
        let input = self.side_by_side(node, parts, [width, width / group, width / group])?;
        let [heads, kv_heads] = [heads[0], heads[0] / group].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let kind = LayerKind::Attention { heads, kv_heads, causal: *causal };
        let layer = self.layer(&self.name(node, None), kind, &[input], None)?;
        let mut dims = shares.dims.clone();
        dims[rank - 1].clone_from(&value.dims[rank - 1]);
        Ok(Flow::output(View::of(layer, dims)))
    }

    /// Heads and channels of each, of queries that lie with heads outside and channels inside.
    fn heads(&self, node: &NodeProto, query: &View) -> Result<[u64; 2], OnnxError> {
        let mut atoms = channels(query);
        let inner = query.dims.last().cloned().unwrap_or_default();
        atoms.sort_by_key(|atom| std::cmp::Reverse(atom.stride));
        match (&atoms[..], &inner[..]) {
            ([all], [last]) if all == last && all.stride == 1 => Ok([1, all.size]),
            ([outer, each], [last]) if each == last && each.stride == 1 && outer.stride == each.size => {
                Ok([outer.size, each.size])
            }
            // Heads of a single channel.
            ([outer], []) if outer.stride == 1 => Ok([outer.size, 1]),
            _ => Err(unsupported(node, "attention whose heads do not lie side by side")),
        }
    }

    /// The layer that gives queries, keys and values side by side: the one that they are parts of, or one that joins them.
    fn side_by_side(
        &mut self,
        node: &NodeProto,
        parts: [&View; 3],
        widths: [u64; 3],
    ) -> Result<LayerId, OnnxError> {
        let [width, shared, _] = widths;
        let all = u64::from(self.builder.shape(parts[0].layer).channels);
        let one = parts.iter().all(|view| view.layer == parts[0].layer) && all == widths.iter().sum::<u64>();
        if one && parts.map(|view| view.channel) == [0, width, width + shared] {
            return Ok(parts[0].layer);
        }
        let mut layers = Vec::new();
        for (view, width) in parts.into_iter().zip(widths) {
            let mut once = view.clone();
            once.dims.iter_mut().for_each(|dim| dim.retain(|atom| atom.axis != Axis::Repeat));
            let own = self.settled(node, &Flow::output(once))?.view;
            if own.channel != 0 || u64::from(self.builder.shape(own.layer).channels) != width {
                let why = "attention whose queries, keys and values are not as wide as their heads";
                return Err(unsupported(node, why));
            }
            layers.push(own.layer);
        }
        let name = format!("{}.qkv", self.name(node, None));
        let kind = LayerKind::Concat { along: plimsoll_ir::network::Axis::Channels };
        self.layer(&name, kind, &layers, None)
    }

    /// Where shares are no numbers: of positions that see nothing, which our masks do not leave.
    pub fn no_shares(&self, node: &NodeProto, x: &Flow) -> Result<Flow, OnnxError> {
        match &x.stage {
            Stage::Shares(_) => Ok(Flow { stage: Stage::NoShares, ..x.clone() }),
            _ => Err(unsupported(node, "IsNaN of what depends on the input")),
        }
    }

    /// Scores of which a mask hides some: a constant picks between them and a number that hides.
    pub fn masked(&mut self, node: &NodeProto, inputs: &[Option<Value>]) -> Result<Flow, OnnxError> {
        let no = || unsupported(node, "Where of what depends on the input, which is no mask of attention");
        if let [Some(Value::Flow(none)), Some(Value::Constant(zero)), Some(Value::Flow(x))] = inputs
            && matches!((&none.stage, &x.stage), (Stage::NoShares, Stage::Shares(_)))
            && none.view == x.view
            && scalar(&self.numbers, &label(node), zero)? == Some(0.0)
        {
            return Ok(x.clone());
        }
        let [Some(Value::Constant(which)), Some(yes), Some(no_value)] = inputs else { return Err(no()) };
        let (x, hidden, when) = match (yes, no_value) {
            (Value::Flow(x), Value::Constant(hidden)) => (x, hidden, 0.0),
            (Value::Constant(hidden), Value::Flow(x)) => (x, hidden, 1.0),
            _ => return Err(no()),
        };
        let Stage::Scores(scores) = &x.stage else { return Err(no()) };
        if scalar(&self.numbers, &label(node), hidden)?.is_none_or(|number| number > HIDDEN) {
            return Err(no());
        }
        let hides = |number: f64| Some(f64::from(number != 0.0) == when);
        let causal = self.mask(node, x, which, &hides)?;
        Ok(with_mask(x, scores, causal))
    }

    /// Whether a mask over scores hides all that comes later; a mask that hides nothing is none, and others are no layer.
    fn mask(
        &self,
        node: &NodeProto,
        x: &Flow,
        mask: &Constant,
        hides: &dyn Fn(f64) -> Option<bool>,
    ) -> Result<bool, OnnxError> {
        let no =
            || unsupported(node, "attention with a mask that hides something else than all that comes later");
        let rank = x.view.dims.len();
        let over = |dim: usize, axis: Axis| {
            x.view.dims[dim].iter().all(|atom| atom.axis == axis && atom.stride == 1)
        };
        if rank < 2 || !over(rank - 2, Axis::Row) || !over(rank - 1, Axis::Key) {
            return Err(no());
        }
        let sizes = x.view.sizes();
        if common(&label(node), &sizes, &mask.dims)? != sizes {
            return Err(no());
        }
        let (rows, keys) = (sizes[rank - 2] as usize, sizes[rank - 1] as usize);
        let lead = mask.dims.len().saturating_sub(2);
        let matrix = [rows as u64, keys as u64] == mask.dims[lead..];
        let numbers = self.numbers.of(&label(node), mask)?;
        let hidden =
            numbers.iter().map(|number| hides(*number)).collect::<Option<Vec<bool>>>().ok_or_else(no)?;
        if hidden.iter().all(|hidden| !hidden) {
            return Ok(false);
        }
        // What is still to be multiplied makes what is added neither small nor positive.
        if x.factor <= 0.0 || x.factor > 1.0 + TOLERANCE {
            let why = format!(
                "a mask over scores that are multiplied by {}, not by a number from 0 to 1",
                x.factor
            );
            return Err(unsupported(node, why));
        }
        let later = |at: usize| at % keys > at / keys % rows;
        if matrix && hidden.iter().enumerate().all(|(at, hidden)| *hidden == later(at)) {
            return Ok(true);
        }
        Err(no())
    }

    /// Softmax: of scores, or of the logits, where the loss has it already.
    pub fn softmax(&mut self, node: &NodeProto, x: &Flow) -> Result<Flow, OnnxError> {
        let rank = x.view.dims.len();
        let default = if self.graph.opset < 13 { 1 } else { -1 };
        let along = axis(node, int(node, "axis", default)?, rank)?;
        if let (Stage::Scores(scores), "Softmax") = (&x.stage, node.op_type.as_str()) {
            let width =
                scores.query.dims.last().map_or(1, |dim| dim.iter().map(|atom| atom.size).product::<u64>());
            let wanted = (width as f64).sqrt().recip();
            if along + 1 != rank || x.view.dims[along].iter().any(|atom| atom.axis != Axis::Key) {
                return Err(unsupported(node, "Softmax over something else than keys"));
            }
            if !near(x.factor, wanted) {
                let why = format!(
                    "attention whose scores are multiplied by {}, not by {wanted:.5}, 1 / sqrt(channels of a head)",
                    x.factor
                );
                return Err(unsupported(node, why));
            }
            return Ok(Flow { factor: 1.0, stage: Stage::Shares(Rc::clone(scores)), ..x.clone() });
        }
        self.whole(node, x)?;
        if self.graph.opset < 13 && x.view.dims[along + 1..].iter().any(|dim| !dim.is_empty()) {
            let why = format!(
                "{} over all dimensions from {along} on, which it is before version 13 of the operators",
                node.op_type
            );
            return Err(unsupported(node, why));
        }
        if node.output.first() == Some(&self.graph.output) && self.over_channels(&x.view, along) {
            self.notes.push(format!("the {} at the end is left out: the loss has it", node.op_type));
            return Ok(x.clone());
        }
        Err(unsupported(node, format!("{} elsewhere than in attention or at the end", node.op_type)))
    }

    /// Shares of attention that would be dropped, as they are.
    pub fn dropped_shares(&mut self, x: &Flow) -> Option<Flow> {
        if !matches!(x.stage, Stage::Shares(_)) {
            return None;
        }
        self.note("the dropout within attention is left out: no layer of Plimsoll's has it");
        Some(x.clone())
    }
}

/// Scores with a mask more.
fn with_mask(x: &Flow, scores: &Scores, causal: bool) -> Flow {
    let scores = Scores { causal: scores.causal || causal, ..scores.clone() };
    Flow { stage: Stage::Scores(Rc::new(scores)), ..x.clone() }
}

/// Keys or values with as many heads as queries have, and how many of those share one; none where they do not lie as heads that
/// stand side by side share them. Positions and channels of a head are the last two dimensions.
fn ungrouped(view: &View) -> Option<(View, u64)> {
    if !view.repeats() {
        return Some((view.clone(), 1));
    }
    let mut heads = view.clone();
    let (outer, [_, each]) = heads.dims.split_last_chunk_mut()?;
    let of_head = size(each);
    let mut repeated = outer.iter_mut().filter(|dim| dim.iter().any(|atom| atom.axis == Axis::Repeat));
    let dim = repeated.next()?;
    let Atom { size: group, .. } = dim.pop().filter(|atom| atom.axis == Axis::Repeat)?;
    let own = dim.pop_if(|atom| atom.axis == Axis::Channel);
    let one = Atom { axis: Axis::Channel, size: 1, stride: of_head };
    let Atom { size, stride, .. } = own.unwrap_or(one);
    dim.push(Atom { axis: Axis::Channel, size: size * group, stride });
    let channels_apart = outer.iter().flatten().filter(|atom| atom.axis == Axis::Channel).count() == 1;
    (channels_apart && stride == of_head && !heads.repeats()).then_some((heads, group))
}

/// The runs over channels of a view.
fn channels(view: &View) -> Vec<Atom> {
    view.dims.iter().flatten().filter(|atom| atom.axis == Axis::Channel).copied().collect()
}

/// The number that a constant holds, if it holds one and is no weight of a single channel.
fn scalar_of_one(
    import: &Import<'_>,
    node: &NodeProto,
    constant: &Constant,
) -> Result<Option<f64>, OnnxError> {
    let place = label(node);
    if constant.elements() != 1 {
        return Ok(None);
    }
    match scalar(&import.numbers, &place, constant)? {
        Some(number) if number.is_finite() => Ok(Some(number)),
        _ => broken(place, "its number is not finite; export the file again"),
    }
}
