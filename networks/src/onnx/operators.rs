//! The operators that become layers: convolutions, products, normalisations, activations, poolings, sums.
//!
//! What this file does not do: attention, GELU and embeddings (`transformer.rs`).

use super::constant::Constant;
use super::error::{OnnxError, broken, shown};
use super::fold::attribute_or_input;
use super::graph::{attribute, float, int, ints, label};
use super::import::{Import, Owner, picked, unsupported};
use super::layout::{axes, axis};
use super::proto::NodeProto;
use super::source::{Source, runs};
use super::value::{Flow, Stage, Value};
use super::view::{Atom, Axis, View, size, whole};
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Axis as Along, DropUnit, Extent, Function, LayerKind, Window};

impl Import<'_> {
    /// What a node gives of which an input depends on the images or tokens.
    pub fn compute(
        &mut self,
        at: usize,
        node: &NodeProto,
        inputs: &[Option<Value>],
    ) -> Result<Vec<Flow>, OnnxError> {
        if let Some(swapped) = super::rotary::swapped(node, inputs)? {
            return Ok(vec![swapped]);
        }
        let inputs = &self.settle(node, inputs)?[..];
        let first = inputs.first().and_then(Option::as_ref);
        let second = inputs.get(1).and_then(Option::as_ref);
        let one = |flow: Flow| Ok(vec![flow]);
        let Some(Value::Flow(x)) = first else {
            return self.compute_of_weight(node, inputs).map(|flow| vec![flow]);
        };
        match (node.op_type.as_str(), second) {
            ("Conv", Some(Value::Constant(weight))) => one(self.conv(node, x, weight, inputs)?),
            ("Gemm" | "MatMul", Some(Value::Constant(weight))) => {
                one(self.product(at, node, x, weight, inputs.get(2).and_then(Option::as_ref))?)
            }
            ("MatMul", Some(Value::Flow(y))) => one(self.attention(node, x, y)?),
            ("Add" | "Mul" | "Div", Some(Value::Constant(c))) => one(self.with_constant(node, x, c)?),
            ("Add", Some(Value::Flow(y))) => one(self.sum(node, x, y)?),
            ("Mul", Some(Value::Flow(y))) => one(self.gated(node, x, y)?),
            ("Sigmoid", _) => one(self.gate(node, x, Function::Sigmoid)?),
            ("HardSigmoid", _) => one(self.gate(node, x, Function::HardSigmoid)?),
            ("HardSwish", _) => one(self.each(node, x, Function::HardSwish.layer())?),
            ("Swish", _) => one(self.each(node, x, Function::Silu.layer())?),
            ("BatchNormalization", _) => one(self.batch_norm(node, x, inputs)?),
            ("LayerNormalization", _) => one(self.layer_norm(node, x, inputs)?),
            ("RMSNormalization", Some(Value::Constant(scale))) => one(self.rms_norm(node, x, scale)?),
            ("Pow", Some(Value::Constant(power))) => one(self.square(node, x, power)?),
            ("Sqrt" | "Reciprocal", _) => one(self.root(node, x)?),
            ("ReduceMean", _) if matches!(x.stage, Stage::Square) => one(self.mean_square(node, x, second)?),
            ("Neg", _) if matches!(x.stage, Stage::Output) && !self.is_tokens(x) => {
                one(Flow { factor: -x.factor, ..x.clone() })
            }
            ("IsNaN", _) => one(self.no_shares(node, x)?),
            ("Relu", _) => one(self.each(node, x, LayerKind::RELU)?),
            ("Clip", _) => one(self.clip(node, x, inputs)?),
            ("Gelu", _) => one(self.each(node, x, LayerKind::GELU)?),
            ("Erf", _) => one(self.erf(node, x)?),
            ("MaxPool" | "AveragePool", _) => one(self.pool(node, x)?),
            ("GlobalAveragePool", _) => {
                let (layer, _) = self.image(node, x)?;
                let pooled = self.layer(&self.name(node, None), LayerKind::GlobalAvgPool, &[layer], None)?;
                one(self.images(pooled))
            }
            ("ReduceMean", _) => one(self.mean(node, x, second)?),
            ("Dropout", _) => one(self.dropout(node, x, second)?),
            ("Concat", _) => one(self.concat(node, inputs)?),
            ("Gather", Some(Value::Constant(index))) => {
                let positions = self.numbers.of(&label(node), index)?;
                // All elements in their order: strides that exporters write down, and which say nothing.
                let in_order = || positions.iter().zip(0..).all(|(at, i)| *at == f64::from(i));
                if x.view.sizes() == [positions.len() as u64]
                    && in_order()
                    && let Some(view) = x.view.reshape(&index.dims)
                {
                    return one(Flow { view, ..x.clone() });
                }
                one(picked(node, x, index, &positions)?)
            }
            ("Softmax" | "LogSoftmax", _) => one(self.softmax(node, x)?),
            ("LRN", _) => one(self.lrn(node, x)?),
            ("Where", _) => one(self.masked(node, inputs)?),
            (op, _) => Err(unsupported(node, format!("{op} of what depends on the input"))),
        }
    }

    /// The same of a node whose first input is a weight.
    fn compute_of_weight(&mut self, node: &NodeProto, inputs: &[Option<Value>]) -> Result<Flow, OnnxError> {
        let first = inputs.first().and_then(Option::as_ref);
        let second = inputs.get(1).and_then(Option::as_ref);
        match (node.op_type.as_str(), first, second) {
            ("Gather", Some(Value::Constant(table)), Some(Value::Flow(tokens))) => {
                self.embedding(node, table, tokens)
            }
            ("Add" | "Mul", Some(Value::Constant(c)), Some(Value::Flow(x))) => self.with_constant(node, x, c),
            ("Concat", ..) => self.concat(node, inputs),
            ("Where", Some(Value::Constant(_)), _) => self.masked(node, inputs),
            (op, ..) => Err(unsupported(node, format!("{op} of a weight and what depends on the input"))),
        }
    }

    /// The inputs of a node with parts of outputs as layers of their own, but for what attention takes as parts: factors of
    /// products of two outputs, and of numbers.
    fn settle(
        &mut self,
        node: &NodeProto,
        inputs: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>, OnnxError> {
        let flows = inputs.iter().flatten().filter(|input| matches!(input, Value::Flow(_))).count();
        let parts = match node.op_type.as_str() {
            "MatMul" => flows > 1,
            "Add" | "Mul" | "Div" => flows < 2,
            "Softmax" | "LogSoftmax" | "Where" | "Erf" | "Gather" | "Neg" | "IsNaN" => true,
            _ => false,
        };
        let mut settled = inputs.to_vec();
        for input in settled.iter_mut().flatten().filter(|_| !parts) {
            if let Value::Flow(flow) = input {
                *flow = self.settled(node, flow)?;
            }
        }
        Ok(settled)
    }

    /// The layer that owns a weight already, so that a second one shares it; else this weight is noted for the next layer.
    fn owner(&self, weight: &Constant) -> Option<Owner> {
        weight.initialiser.and_then(|at| self.weights.owners.get(&at)).copied()
    }

    /// Appends a layer with a weight, which it shares with an earlier one where the file has one tensor for both, and the
    /// bias, too: whether the weight as it is given has its outputs last, and which initialiser is the bias.
    pub fn weighted(
        &mut self,
        node: &NodeProto,
        kind: LayerKind,
        input: LayerId,
        weight: &Constant,
        (outputs_last, bias): (bool, Option<usize>),
    ) -> Result<LayerId, OnnxError> {
        let owner = self.owner(weight);
        if weight.initialiser.is_none() && !self.weights.computed.insert(weight.identity()) {
            return Err(unsupported(node, "one computed weight of several layers"));
        }
        let outputs_last = outputs_last != weight.turned;
        let with_bias =
            matches!(kind, LayerKind::Conv { bias: true, .. } | LayerKind::FullyConnected { bias: true, .. });
        if let Some(owner) = owner {
            if with_bias && (bias.is_none() || bias != owner.bias) {
                return Err(unsupported(node, "one weight of several layers with a bias each"));
            }
            if outputs_last != owner.outputs_last {
                return Err(unsupported(node, "one weight of several layers, transposed in one of them"));
            }
        }
        let name = match owner {
            None => self.name(node, Some(weight)),
            Some(_) => self.name(node, None),
        };
        let layer = self.layer(&name, kind, &[input], owner.map(|owner| owner.layer))?;
        if owner.is_some() {
            let tensor = weight.initialiser.map_or("", |at| self.graph.initialisers[at].name.as_str());
            self.notes
                .push(format!("`{}` is one weight of several layers, and is trained as one", shown(tensor)));
        }
        if let Some(at) = weight.initialiser {
            self.weights.owners.entry(at).or_insert(Owner { layer, outputs_last, bias });
        }
        Ok(layer)
    }

    fn conv(
        &mut self,
        node: &NodeProto,
        x: &Flow,
        weight: &Constant,
        inputs: &[Option<Value>],
    ) -> Result<Flow, OnnxError> {
        let place = label(node);
        let (layer, shape) = self.image(node, x)?;
        let [out, in_group, rows, columns] = weight.dims[..] else {
            return Err(unsupported(
                node,
                format!("Conv over {} dimensions", weight.dims.len().saturating_sub(2)),
            ));
        };
        let window = window(node, Some([rows, columns]))?;
        let groups = small(&place, "group", int(node, "group", 1)?)?;
        let out_channels = small(&place, "its number of filters", i64::try_from(out).unwrap_or(-1))?;
        let given = ints(node, "kernel_shape")?.unwrap_or_default();
        if !given.is_empty() && window.size.map(i64::from) != *given
            || in_group.checked_mul(u64::from(groups)) != Some(u64::from(shape.channels))
        {
            let why = format!(
                "weights of {:?} do not fit a window of {}x{} over {} channels in {groups} groups; export the file again",
                weight.dims, window.size[0], window.size[1], shape.channels
            );
            return broken(place, why);
        }
        let tensor = inputs.get(2).and_then(Option::as_ref);
        let bias = self.bias(node, tensor, out)?;
        let kind = LayerKind::Conv { out_channels, window, groups, bias };
        let layer = self.weighted(node, kind, layer, weight, (false, initialiser(tensor)))?;
        let runs = vec![
            (out, in_group * rows * columns),
            (in_group, 1),
            (rows, columns * in_group),
            (columns, in_group),
        ];
        self.sources.push(Source { layer, part: "weight", constant: weight.clone(), runs });
        if let (true, Some(Value::Constant(bias))) = (bias, tensor) {
            self.sources.push(Source::in_order(layer, "bias", bias));
        }
        self.biased.extend(bias.then_some(layer));
        Ok(self.images(layer))
    }

    /// Whether a node has a bias, which must hold a number for each output.
    fn bias(&self, node: &NodeProto, bias: Option<&Value>, outputs: u64) -> Result<bool, OnnxError> {
        match bias {
            None => Ok(false),
            Some(Value::Constant(bias))
                if bias.dims.last() == Some(&outputs) && bias.elements() == outputs =>
            {
                // Some exporters give a product without bias one of zeros, computed on the spot.
                let computed = bias.initialiser.is_none();
                match computed.then(|| self.numbers.of(&label(node), bias)) {
                    Some(Ok(numbers)) => Ok(numbers.iter().any(|number| *number != 0.0)),
                    Some(Err(error @ OnnxError::TooLarge { .. })) => Err(error),
                    Some(Err(_)) | None => Ok(true),
                }
            }
            Some(Value::Constant(bias)) => {
                let why = format!("a bias of {:?} for {outputs} outputs; export the file again", bias.dims);
                broken(label(node), why)
            }
            Some(Value::Flow(_) | Value::Drawn(_)) => {
                Err(unsupported(node, format!("{} with a bias that depends on the input", node.op_type)))
            }
        }
    }

    /// A matrix times what lies in the last dimension: all of a sample, or the channels of each position.
    fn product(
        &mut self,
        at: usize,
        node: &NodeProto,
        x: &Flow,
        weight: &Constant,
        bias: Option<&Value>,
    ) -> Result<Flow, OnnxError> {
        let place = label(node);
        let view = self.whole(node, x)?.clone();
        let turned = int(node, "transB", 0)? != 0;
        let [inputs, outputs] = match weight.dims[..] {
            [outputs, inputs] if turned => [inputs, outputs],
            [inputs, outputs] => [inputs, outputs],
            _ => return Err(unsupported(node, format!("a product with a weight of {:?}", weight.dims))),
        };
        let Some(last) = view.dims.last() else { return broken(place, "it multiplies a single number") };
        if size(last) != inputs {
            let why =
                format!("{} values times a weight of {:?}; export the file again", size(last), weight.dims);
            return broken(place, why);
        }
        let own_bias = self.bias(node, bias, outputs)?;
        let next = if bias.is_none() { self.followed_by_bias(at, node, outputs) } else { None };
        let given = if let Some(Value::Constant(bias)) = bias { Some(bias) } else { next.as_ref() };
        let given = given.cloned();
        let tensor = initialiser(bias).or(next.as_ref().and_then(|bias| bias.initialiser));
        let bias = own_bias || next.is_some();
        let outputs = small(&place, "its number of outputs", i64::try_from(outputs).unwrap_or(-1))?;
        let shape = self.builder.shape(view.layer);
        let by_position = self.over_channels(&view, view.dims.len() - 1) && shape.pixels() > 1;
        let kind = if by_position {
            LayerKind::Conv { out_channels: outputs, window: Window::square(1, 1, 0), groups: 1, bias }
        } else if view.dims[..view.dims.len() - 1].iter().flatten().all(|atom| atom.axis == Axis::Batch) {
            LayerKind::FullyConnected { outputs, bias }
        } else {
            return Err(unsupported(node, "a product over something else than channels or whole samples"));
        };
        let layer = self.weighted(node, kind, view.layer, weight, (!turned, tensor))?;
        let (rows, columns) = (vec![(u64::from(outputs), inputs)], runs(last, shape));
        let runs = if turned { [rows, columns] } else { [columns, rows] }.concat();
        self.sources.push(Source { layer, part: "weight", constant: weight.clone(), runs });
        self.sources.extend(given.filter(|_| bias).map(|bias| Source::in_order(layer, "bias", &bias)));
        let mut dims = view.dims;
        if let Some(last) = dims.last_mut() {
            *last = whole(Axis::Channel, u64::from(outputs));
        }
        Ok(Flow::output(View::of(layer, dims)))
    }

    /// The bias that the only reader of a product adds to it, which then belongs to the product's layer.
    fn followed_by_bias(&mut self, at: usize, node: &NodeProto, outputs: u64) -> Option<Constant> {
        let graph = self.graph;
        let output = node.output.first().filter(|name| **name != graph.output)?;
        let Some([reader]) = graph.readers.get(output).map(Vec::as_slice) else { return None };
        let add = &graph.nodes[*reader];
        if add.op_type != "Add" || add.input.len() != 2 || *reader <= at {
            return None;
        }
        let other = if add.input[0] == *output { &add.input[1] } else { &add.input[0] };
        let bias = self.constant(other).filter(|bias| bias.dims == [outputs]).cloned()?;
        self.biases.insert(*reader);
        Some(bias)
    }

    /// What is computed for each element.
    pub fn each(&mut self, node: &NodeProto, x: &Flow, kind: LayerKind) -> Result<Flow, OnnxError> {
        let view = self.whole(node, x)?.clone();
        let layer = self.layer(&self.name(node, None), kind, &[view.layer], None)?;
        Ok(Flow::output(view.with_layer(layer)))
    }

    fn clip(&mut self, node: &NodeProto, x: &Flow, inputs: &[Option<Value>]) -> Result<Flow, OnnxError> {
        let bound = |name: &str, at: usize| {
            let constant = match inputs.get(at) {
                Some(Some(Value::Constant(constant))) => Some(constant),
                _ => None,
            };
            attribute_or_input(&self.numbers, node, name, constant)
        };
        let (low, high) = (bound("min", 1)?, bound("max", 2)?.unwrap_or(f64::INFINITY));
        if low != Some(0.0) || high.is_nan() || high <= 0.0 {
            let why = format!(
                "Clip from {} to {high}; only ReLU and its kin, from 0 on, are layers",
                low.unwrap_or(f64::NEG_INFINITY)
            );
            return Err(unsupported(node, why));
        }
        let ceiling = if high >= f64::from(f32::MAX) { f32::INFINITY } else { high as f32 };
        self.each(node, x, LayerKind::Relu { ceiling })
    }

    fn batch_norm(
        &mut self,
        node: &NodeProto,
        x: &Flow,
        inputs: &[Option<Value>],
    ) -> Result<Flow, OnnxError> {
        let view = self.whole(node, x)?.clone();
        if view.dims.len() < 2 || !self.over_channels(&view, 1) {
            return Err(unsupported(node, "BatchNormalization over something else than channels"));
        }
        let (epsilon, kept) = (float(node, "epsilon", 1e-5)?, float(node, "momentum", 0.9)?);
        if !(epsilon >= 0.0 && epsilon.is_finite() && (0.0..=1.0).contains(&kept)) {
            let why =
                format!("epsilon {epsilon} and momentum {kept}; epsilon is at least 0, momentum from 0 to 1");
            return broken(label(node), why);
        }
        // ONNX counts what is kept of the running statistics; the difference to 1 in decimal, as people write it.
        let momentum = ((1.0 - f64::from(kept)) * 1e6).round() / 1e6;
        let kind = LayerKind::BatchNorm { epsilon, momentum: momentum as f32 };
        self.normalised(node, &view, kind, inputs)
    }

    fn layer_norm(
        &mut self,
        node: &NodeProto,
        x: &Flow,
        inputs: &[Option<Value>],
    ) -> Result<Flow, OnnxError> {
        let view = self.whole(node, x)?.clone();
        let last = view.dims.len().saturating_sub(1);
        let over = axis(node, int(node, "axis", -1)?, view.dims.len())?;
        if over != last || !self.over_channels(&view, last) {
            return Err(unsupported(node, "LayerNormalization over something else than channels"));
        }
        let kind = LayerKind::LayerNorm { epsilon: float(node, "epsilon", 1e-5)? };
        self.normalised(node, &view, kind, inputs)
    }

    /// A normalisation with scale and shift.
    fn normalised(
        &mut self,
        node: &NodeProto,
        view: &View,
        kind: LayerKind,
        inputs: &[Option<Value>],
    ) -> Result<Flow, OnnxError> {
        let channels = u64::from(self.builder.shape(view.layer).channels);
        let given = |at: usize, what: &str| match inputs.get(at) {
            Some(Some(Value::Constant(given))) if given.dims == [channels] => Ok(Some(given)),
            Some(Some(Value::Constant(given))) => {
                let why =
                    format!("a {what} of {:?} for {channels} channels; export the file again", given.dims);
                broken(label(node), why)
            }
            _ => Ok(None),
        };
        let Some(scale) = given(1, "scale")? else {
            return Err(unsupported(node, format!("{} without a scale", node.op_type)));
        };
        let shift = given(2, "shift")?;
        if shift.is_none() {
            self.note("a normalisation without a shift is trained with one, which begins at 0");
        }
        self.take(scale);
        let name = self.name(node, Some(scale));
        let mut parts = vec![("weight", Some(scale)), ("bias", shift)];
        if matches!(kind, LayerKind::BatchNorm { .. }) {
            parts.extend([("running_mean", given(3, "mean")?), ("running_var", given(4, "variance")?)]);
        }
        let layer = self.layer(&name, kind, &[view.layer], None)?;
        let parts = parts.into_iter().filter_map(|(part, constant)| Some((part, constant?)));
        self.sources.extend(parts.map(|(part, constant)| Source::in_order(layer, part, constant)));
        Ok(Flow::output(view.with_layer(layer)))
    }

    fn pool(&mut self, node: &NodeProto, x: &Flow) -> Result<Flow, OnnxError> {
        let (layer, shape) = self.image(node, x)?;
        let window = window(node, None)?;
        if window == Window::square(1, 1, 0) {
            return Ok(x.clone());
        }
        let max = node.op_type == "MaxPool";
        let floor = window.output(shape.height, shape.width);
        let ceil = int(node, "ceil_mode", 0)? != 0 && window.output_ceil(shape.height, shape.width) != floor;
        if !max && ceil {
            return Err(unsupported(node, "AveragePool with a last window that is cut off (ceil_mode)"));
        }
        if !max && window.padding != [0, 0] && int(node, "count_include_pad", 0)? == 0 {
            return Err(unsupported(
                node,
                "AveragePool whose padding does not count (count_include_pad = 0)",
            ));
        }
        let kind = if max { LayerKind::MaxPool { window, ceil } } else { LayerKind::AvgPool { window } };
        let layer = self.layer(&self.name(node, None), kind, &[layer], None)?;
        Ok(self.images(layer))
    }

    /// The dimensions that a node takes a mean over.
    pub fn reduced(
        &self,
        node: &NodeProto,
        rank: usize,
        second: Option<&Value>,
    ) -> Result<Vec<usize>, OnnxError> {
        let given = match second {
            Some(Value::Constant(constant)) => {
                let numbers = self.numbers.of(&label(node), constant)?;
                Some(numbers.iter().map(|number| *number as i64).collect())
            }
            _ => None,
        };
        let given: Option<Vec<i64>> = axes(node, &|_| Ok(given.clone()))?;
        let over = given.unwrap_or_default().into_iter().map(|a| axis(node, a, rank));
        let over = over.collect::<Result<Vec<usize>, _>>()?;
        if over.iter().enumerate().any(|(i, dim)| over[..i].contains(dim)) {
            return broken(label(node), "its axes name a dimension twice; export the file again");
        }
        Ok(over)
    }

    /// The mean over all positions.
    fn mean(&mut self, node: &NodeProto, x: &Flow, second: Option<&Value>) -> Result<Flow, OnnxError> {
        let view = self.whole(node, x)?.clone();
        let over = self.reduced(node, view.dims.len(), second)?;
        let positions =
            |dim: &usize| view.dims[*dim].iter().all(|a| matches!(a.axis, Axis::Row | Axis::Column));
        let pixels = self.builder.shape(view.layer).pixels();
        let covered: u64 = over.iter().map(|dim| size(&view.dims[*dim])).product();
        if over.is_empty() || !over.iter().all(positions) || covered != pixels {
            return Err(unsupported(node, "ReduceMean over something else than all positions"));
        }
        let layer = self.layer(&self.name(node, None), LayerKind::GlobalAvgPool, &[view.layer], None)?;
        let keep = int(node, "keepdims", 1)? != 0;
        let dims = view.dims.iter().enumerate().filter(|(dim, _)| keep || !over.contains(dim));
        let dims = dims.map(|(dim, atoms)| if over.contains(&dim) { Vec::new() } else { atoms.clone() });
        Ok(Flow::output(View::of(layer, dims.collect())))
    }

    fn dropout(&mut self, node: &NodeProto, x: &Flow, ratio: Option<&Value>) -> Result<Flow, OnnxError> {
        let constant = if let Some(Value::Constant(constant)) = ratio { Some(constant) } else { None };
        let probability = attribute_or_input(&self.numbers, node, "ratio", constant)?.unwrap_or(0.5);
        if probability == 0.0 {
            return Ok(x.clone());
        }
        if let Some(flow) = self.dropped_shares(x) {
            return Ok(flow);
        }
        self.each(node, x, LayerKind::Dropout { probability: probability as f32, unit: DropUnit::Element })
    }

    fn sum(&mut self, node: &NodeProto, x: &Flow, y: &Flow) -> Result<Flow, OnnxError> {
        if let Some(turned) = self.rotary(node, x, y)? {
            return Ok(turned);
        }
        let (first, second) = (self.whole(node, x)?.clone(), self.whole(node, y)?.clone());
        let shapes = [first.layer, second.layer].map(|layer| self.builder.shape(layer));
        if first.dims != second.dims || shapes[0] != shapes[1] {
            let why = format!("Add of {:?} and {:?}, which do not lie alike", first.sizes(), second.sizes());
            return Err(unsupported(node, why));
        }
        let layer = self.layer(&self.name(node, None), LayerKind::Add, &[first.layer, second.layer], None)?;
        Ok(Flow::output(first.with_layer(layer)))
    }

    fn concat(&mut self, node: &NodeProto, inputs: &[Option<Value>]) -> Result<Flow, OnnxError> {
        let first = inputs.iter().flatten().find_map(|v| if let Value::Flow(f) = v { Some(f) } else { None });
        let Some(first) = first else { return broken(label(node), "it joins nothing") };
        let first = self.whole(node, first)?.clone();
        let along = axis(node, int(node, "axis", 0)?, first.dims.len())?;
        let mut views = Vec::new();
        for input in inputs.iter().flatten() {
            views.push(match input {
                Value::Flow(flow) => {
                    let view = self.whole(node, flow)?.clone();
                    self.as_sequence(node, view, along)?
                }
                Value::Constant(constant) => self.learned(node, constant, &first, along)?,
                Value::Drawn(_) => return Err(unsupported(node, "Concat with random numbers")),
            });
        }
        let Some(first) = views.first().cloned() else { return broken(label(node), "it joins nothing") };
        let alike = |view: &View| {
            view.dims.len() == first.dims.len()
                && (0..first.dims.len()).all(|d| d == along || view.dims[d] == first.dims[d])
        };
        if let Some(other) = views.iter().find(|view| !alike(view)) {
            let why =
                format!("Concat of {:?} and {:?}, which do not lie alike", first.sizes(), other.sizes());
            return Err(unsupported(node, why));
        }
        let rows = |view: &View| {
            let shape = self.builder.shape(view.layer);
            view.dims[along] == whole(Axis::Row, u64::from(shape.height))
                && (shape.height > 1 || shape.width == 1)
        };
        let (axis, kind) = if views.iter().all(|view| self.over_channels(view, along)) {
            (Axis::Channel, Along::Channels)
        } else if views.iter().all(rows) {
            (Axis::Row, Along::Rows)
        } else {
            return Err(unsupported(node, "Concat along something else than channels or rows"));
        };
        let layers: Vec<LayerId> = views.iter().map(|view| view.layer).collect();
        let layer = match layers[..] {
            [only] => only,
            _ => self.layer(&self.name(node, None), LayerKind::Concat { along: kind }, &layers, None)?,
        };
        let mut dims = first.dims;
        dims[along] = whole(axis, views.iter().map(|view| size(&view.dims[along])).sum());
        Ok(Flow::output(View::of(layer, dims)))
    }

    /// A map of which one dimension runs over all positions, as a sequence; any other value as it is.
    fn as_sequence(&mut self, node: &NodeProto, view: View, along: usize) -> Result<View, OnnxError> {
        let shape = self.builder.shape(view.layer);
        let [height, width] = [shape.height, shape.width].map(u64::from);
        let positions = [whole(Axis::Row, height), whole(Axis::Column, width)].concat();
        if shape.width == 1 || shape.height == 1 || view.dims[along] != positions {
            return Ok(view);
        }
        let name = self.name(node, None);
        let layer = self.layer(&name, LayerKind::Flatten, &[view.layer], None)?;
        let mut dims = view.dims;
        dims[along] = whole(Axis::Row, height * width);
        Ok(View::of(layer, dims))
    }

    /// Rows that are the same for every sample, to be joined with others: a weight that is repeated for all samples.
    fn learned(
        &mut self,
        node: &NodeProto,
        constant: &Constant,
        other: &View,
        along: usize,
    ) -> Result<View, OnnxError> {
        let no = || unsupported(node, "Concat with a weight that is not one for all samples");
        let at = constant.repeats.or(constant.initialiser).ok_or_else(no)?;
        let channels = u64::from(self.builder.shape(other.layer).channels);
        let rows = constant.dims.get(along).copied().unwrap_or(0);
        let fits = constant.dims.len() == other.dims.len()
            && constant.dims.iter().zip(&other.dims).enumerate().all(|(d, (given, dim))| {
                d == along
                    || *given == size(dim)
                        && (dim.is_empty() || d == 0 || *dim == whole(Axis::Channel, channels))
            })
            && along != 0
            && other.dims[0] == whole(Axis::Batch, self.batch)
            && other.dims.contains(&whole(Axis::Channel, channels));
        let held = super::tensor::elements(&super::tensor::dims(&self.graph.initialisers[at]));
        if !fits || constant.turned || held != rows.checked_mul(channels) {
            return Err(no());
        }
        self.take(constant);
        let name = self.name(node, Some(&Constant::initialiser(self.graph, at)));
        let [rows, channels] = [rows, channels].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let layer = self.layer(&name, LayerKind::Learned { rows, channels }, &[], None)?;
        let of = |dim: usize| match dim == along {
            true => (u64::from(rows), u64::from(channels)),
            false => (constant.dims[dim], 1),
        };
        let runs = (1..constant.dims.len()).map(of).collect();
        let constant = Constant::initialiser(self.graph, at);
        self.sources.push(Source { layer, part: "weight", constant, runs });
        let mut dims = other.dims.clone();
        dims[along] = whole(Axis::Row, u64::from(rows));
        Ok(View::of(layer, dims))
    }

    fn lrn(&mut self, node: &NodeProto, x: &Flow) -> Result<Flow, OnnxError> {
        let (layer, _) = self.image(node, x)?;
        if attribute(node, "size").is_none() {
            return broken(label(node), "it has no size; export the file again");
        }
        let size = small(&label(node), "size", int(node, "size", 1)?)?;
        let (alpha, beta) = (float(node, "alpha", 1e-4)?, float(node, "beta", 0.75)?);
        let bias = float(node, "bias", 1.0)?;
        if ![alpha, beta, bias].iter().all(|number| number.is_finite()) {
            let why = format!(
                "alpha {alpha}, beta {beta} and bias {bias} are not all finite; export the file again"
            );
            return broken(label(node), why);
        }
        let kind = LayerKind::Lrn { size, alpha, beta, bias };
        let layer = self.layer(&self.name(node, None), kind, &[layer], None)?;
        Ok(self.images(layer))
    }

    /// A sigmoid, hard or not. Where nothing reads it but products with what it is of, those are the layer.
    fn gate(&mut self, node: &NodeProto, x: &Flow, function: Function) -> Result<Flow, OnnxError> {
        let (graph, from) = (self.graph, node.input.first());
        let (output, readers) = (node.output.first(), node.output.first().and_then(|o| graph.readers.get(o)));
        let of_both = |reader: &usize| {
            let other = &graph.nodes[*reader];
            let has = |name: Option<&String>| name.is_some_and(|name| other.input.contains(name));
            other.op_type == "Mul" && has(from) && has(output)
        };
        let gates_itself =
            output != Some(&graph.output) && readers.is_some_and(|readers| readers.iter().all(of_both));
        if !gates_itself {
            return self.each(node, x, function.layer());
        }
        self.whole(node, x)?;
        Ok(Flow { stage: Stage::Gate(function), ..x.clone() })
    }

    /// The product of two values, element by element, or of channels by one value of each.
    pub fn multiplied(&mut self, node: &NodeProto, x: &Flow, y: &Flow) -> Result<Flow, OnnxError> {
        let [x, y] = [self.whole(node, x)?.clone(), self.whole(node, y)?.clone()];
        let [of_x, of_y] = [x.layer, y.layer].map(|layer| self.builder.shape(layer));
        let positions = |dim: &[Atom]| dim.iter().all(|atom| matches!(atom.axis, Axis::Row | Axis::Column));
        let scales = |x: &View, y: &View| {
            let dims = x.dims.iter().zip(&y.dims);
            x.dims.len() == y.dims.len()
                && dims.into_iter().all(|(x, y)| x == y || y.is_empty() && positions(x))
        };
        let (scaled, scale) = match (of_x, of_y) {
            _ if of_x == of_y && x.dims == y.dims => (x, y),
            _ if of_y.pixels() == 1 && of_x.channels == of_y.channels && scales(&x, &y) => (x, y),
            _ if of_x.pixels() == 1 && of_x.channels == of_y.channels && scales(&y, &x) => (y, x),
            _ => {
                let why = format!("Mul of {:?} and {:?}, which do not lie alike", x.sizes(), y.sizes());
                return Err(unsupported(node, why));
            }
        };
        let name = self.name(node, None);
        let layer = self.layer(&name, LayerKind::Multiply, &[scaled.layer, scale.layer], None)?;
        Ok(Flow::output(scaled.with_layer(layer)))
    }

    /// Adds or multiplies by a constant: a bias, a scale, or a number that GELU or attention needs.
    fn with_constant(&mut self, node: &NodeProto, x: &Flow, constant: &Constant) -> Result<Flow, OnnxError> {
        if let Some(flow) = self.number(node, x, constant)? {
            return Ok(flow);
        }
        if let Stage::Unit(epsilon) = x.stage {
            return self.normalised_by_root(node, x, constant, epsilon);
        }
        if let Some(flow) = super::rotary::times_table(node, x, constant) {
            return Ok(flow);
        }
        if node.op_type == "Div" {
            return Err(unsupported(node, "Div by a weight"));
        }
        let view = self.whole(node, x)?.clone();
        let shape = self.builder.shape(view.layer);
        let lead = view.dims.len().checked_sub(constant.dims.len());
        let Some(lead) = lead else {
            return Err(unsupported(node, format!("{} of a weight with more dimensions", node.op_type)));
        };
        let (mut channels, mut positions, mut order) = (false, 1, Vec::new());
        for (dim, wanted) in view.dims[lead..].iter().zip(&constant.dims) {
            let over_positions = dim.iter().all(|atom| matches!(atom.axis, Axis::Row | Axis::Column));
            if *wanted == 1 {
                continue;
            }
            order.extend(runs(dim, shape));
            if size(dim) != *wanted {
                let why =
                    format!("{:?} and {:?} do not match; export the file again", view.sizes(), constant.dims);
                return broken(label(node), why);
            } else if *dim == whole(Axis::Channel, u64::from(shape.channels)) {
                channels = true;
            } else if over_positions {
                positions *= *wanted;
            } else {
                let why = format!("{} of a weight that is another for every sample", node.op_type);
                return Err(unsupported(node, why));
            }
        }
        let add = node.op_type == "Add";
        let kind = match (channels, positions) {
            (true, 1) if add => LayerKind::Bias { over: Extent::Channels, spare: 0 },
            (true, all) if add && all == shape.pixels() => {
                LayerKind::Bias { over: Extent::Positions, spare: 0 }
            }
            // What is computed, and no tensor of the file, is no parameter that could be trained.
            (true, 1) if constant.initialiser.is_some() => LayerKind::Scale,
            _ => {
                let why = format!("{} of a weight of {:?}", node.op_type, constant.dims);
                return Err(unsupported(node, why));
            }
        };
        self.take(constant);
        let name = self.name(node, Some(constant));
        let part = if add { "bias" } else { "weight" };
        let layer = self.layer(&name, kind, &[view.layer], None)?;
        self.sources.push(Source { layer, part, constant: constant.clone(), runs: order });
        Ok(Flow::output(view.with_layer(layer)))
    }
}

/// The initialiser that a value is, if it is one.
fn initialiser(value: Option<&Value>) -> Option<usize> {
    if let Some(Value::Constant(constant)) = value { constant.initialiser } else { None }
}

/// A number of the file as a size of ours.
pub fn small(place: &str, what: &str, number: i64) -> Result<u32, OnnxError> {
    match u32::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => broken(place, format!("{what} is {number}; it is from 1 to 2^32 - 1")),
    }
}

/// The window of a convolution or pooling; its size is that of the weight, where there is one.
fn window(node: &NodeProto, weight: Option<[u64; 2]>) -> Result<Window, OnnxError> {
    let place = label(node);
    let pair = |name: &str, default: Option<[u32; 2]>| match ints(node, name)? {
        Some(&[rows, columns]) => Ok([small(&place, name, rows)?, small(&place, name, columns)?]),
        Some(other) => broken(&place, format!("{name} {other:?} are not two numbers; export the file again")),
        None => match default {
            Some(default) => Ok(default),
            None => broken(&place, format!("it has no {name}; export the file again")),
        },
    };
    let size = match weight {
        Some([rows, columns]) => {
            let side = |size: u64| small(&place, "a side of its window", i64::try_from(size).unwrap_or(-1));
            [side(rows)?, side(columns)?]
        }
        None => pair("kernel_shape", None)?,
    };
    let (stride, dilation) = (pair("strides", Some([1; 2]))?, pair("dilations", Some([1; 2]))?);
    // What is automatic and read is no padding.
    let automatic = attribute(node, "auto_pad").is_some_and(|a| a.s.as_ref() == b"VALID");
    let padding = match ints(node, "pads")? {
        _ if automatic => [0; 2],
        None => [0; 2],
        Some(pads) => {
            match pads.iter().map(|pad| u32::try_from(*pad)).collect::<Result<Vec<u32>, _>>().as_deref() {
                Ok([rows, columns, _, _]) => [*rows, *columns],
                _ => return broken(&place, format!("pads {pads:?} are not four numbers from 0 to 2^32 - 1")),
            }
        }
    };
    Ok(Window { size, stride, padding, dilation })
}
