//! Goes through a graph node by node and makes our layers: what each value is, a constant or where it lies in a layer's
//! output, is known before the next node is looked at.
//!
//! Operators that compute are in `operators.rs`, those of transformers in `transformer.rs`; those that move elements about
//! make no layer (`view.rs`), and those of constants none either (`fold.rs`).

use super::constant::{Constant, Kind, Numbers};
use super::error::{OnnxError, Trouble, broken, shown};
use super::fold::{cast, fold, integers};
use super::graph::{Graph, attribute, int, label};
use super::layout::{Layout, axis, layout};
use super::proto::NodeProto;
use super::source::Source;
use super::survey;
use super::tensor;
use super::value::{Flow, Stage, Value};
use super::view::{self, Axis, View, whole};
use crate::builder::Builder;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Function, Layer, LayerKind, Network, NetworkSpec, Shape};
use std::collections::{HashMap, HashSet};

/// The samples in a batch of open size, while the graph is read: any number does, but exporters have no sizes like this one.
const OPEN_BATCH: u64 = 509;

/// The first layer that has a weight.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The layer.
    pub layer: LayerId,
    /// Whether the weight has its outputs in its last dimension, not in its first.
    pub outputs_last: bool,
    /// The initialiser that is its bias, if it is one.
    pub bias: Option<usize>,
}

/// Which weights are in use, and by which layers.
#[derive(Default)]
pub struct Weights {
    /// The layer that a weight belongs to.
    pub owners: HashMap<usize, Owner>,
    /// Weights that are no initialisers, by their identity: the import's values keep them all.
    pub computed: HashSet<usize>,
    /// Scales, shifts and biases that a layer has.
    pub taken: HashSet<usize>,
}

/// A graph on its way to a network.
pub struct Import<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// Its numbers.
    pub numbers: Numbers<'g>,
    /// The network.
    pub builder: Builder,
    /// Samples in a batch, as the graph counts them.
    pub batch: u64,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Who uses which weights.
    pub weights: Weights,
    /// Additions that are the bias of the layer before.
    pub biases: HashSet<usize>,
    /// Convolutions with a bias, which may have a normalisation folded into them.
    pub biased: Vec<LayerId>,
    /// Where the layers' tensors come from.
    pub sources: Vec<Source>,
    /// The layers that give a part of another, by what they are a part of: rows and channels from one on, so many.
    pub parts: HashMap<(LayerId, [u64; 4]), LayerId>,
    values: HashMap<&'g str, Value>,
    names: HashMap<String, u32>,
}

/// A network that was read, and the initialisers whose numbers were needed for it.
pub struct Read<'g> {
    /// The network; its spec has no name yet.
    pub network: Network,
    /// What the user should know.
    pub notes: Vec<String>,
    /// What was read of the file's numbers.
    pub numbers: Numbers<'g>,
    /// Where the layers' tensors come from.
    pub sources: Vec<Source>,
}

/// Makes the network of a graph, for images of this size where the graph leaves it open.
pub fn import<'g>(
    graph: &'g Graph,
    image: Option<[u32; 2]>,
    numbers: Numbers<'g>,
) -> Result<Read<'g>, OnnxError> {
    let (spec, batch, dims) = input(graph, image)?;
    let builder = Builder::new(&spec)?;
    let mut import = Import {
        graph,
        numbers,
        batch,
        notes: Vec::new(),
        weights: Weights::default(),
        biases: HashSet::new(),
        biased: Vec::new(),
        sources: Vec::new(),
        parts: HashMap::new(),
        values: HashMap::new(),
        names: HashMap::from([("images".to_owned(), 1), ("loss".to_owned(), 1)]),
        builder,
    };
    for (at, tensor) in graph.initialisers.iter().enumerate() {
        import.values.insert(&tensor.name, Value::Constant(Constant::initialiser(graph, at)));
    }
    let images = Flow::output(View::of(import.builder.images(), dims));
    import.values.insert(&graph.input.name, Value::Flow(images));
    for (at, node) in graph.nodes.iter().enumerate() {
        let outputs = import.node(at, node)?;
        for (at, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            match outputs.get(at) {
                Some(value) => {
                    import.values.insert(name, value.clone());
                }
                None if !graph.readers.contains_key(name) && *name != graph.output => {}
                None => return Err(unsupported(node, format!("output {at} of {}", node.op_type))),
            }
        }
    }
    import.finish()
}

/// What the input is in our words, the samples of the graph's batch, and what each of its dimensions runs over.
fn input(
    graph: &Graph,
    image: Option<[u32; 2]>,
) -> Result<(NetworkSpec, u64, Vec<Vec<view::Atom>>), OnnxError> {
    let place = format!("input `{}`", shown(&graph.input.name));
    let dims = &graph.input.dims;
    let (axes, [rows, columns]): (&[Axis], _) = match (dims.len(), graph.input.integer) {
        (4, false) => (&[Axis::Batch, Axis::Channel, Axis::Row, Axis::Column], [Some(2), Some(3)]),
        (3, false) => (&[Axis::Batch, Axis::Row, Axis::Channel], [Some(1), None]),
        (2, false) => (&[Axis::Batch, Axis::Channel], [None, None]),
        (2, true) => (&[Axis::Batch, Axis::Row], [Some(1), None]),
        (rank, integer) => {
            let what = if integer { "integers" } else { "floats" };
            let why = format!(
                "it has {rank} dimensions of {what}; networks take images (batch, channels, rows, columns), sequences \
                 (batch, positions, channels), vectors (batch, channels) or tokens (batch, positions)"
            );
            return broken(place, why);
        }
    };
    let fixed = [rows, columns].map(|at: Option<usize>| at.map(|at| dims[at].as_ref().ok().copied()));
    let sides = [0, 1].map(|d| match (fixed[d], image) {
        (None, _) => Ok(1),
        (Some(Some(size)), _) => Ok(size),
        (Some(None), Some(image)) => Ok(u64::from(image[d])),
        (Some(None), None) => broken(&place, "its rows or columns are open; say for which image size"),
    });
    let [height, width] = sides;
    let (height, width) = (height?, width?);
    let batch = dims[0].clone().unwrap_or(OPEN_BATCH);
    let channels = match axes.iter().position(|axis| *axis == Axis::Channel) {
        None => 1,
        Some(at) => match &dims[at] {
            Ok(channels) => *channels,
            Err(name) => {
                let why =
                    format!("its channels are open (`{}`); export with a fixed number of them", shown(name));
                return broken(place, why);
            }
        },
    };
    let of = |axis: &Axis| match axis {
        Axis::Batch => batch,
        Axis::Row => height,
        Axis::Column => width,
        _ => channels,
    };
    let views = axes.iter().map(|axis| whole(*axis, of(axis))).collect();
    let small = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    // The classes are known in the end.
    let image = [small(height), small(width)];
    let spec = NetworkSpec { name: String::new(), image, channels: small(channels), classes: 1 };
    Ok((spec, batch, views))
}

/// A thing that one node asks for and no layer of ours does.
pub fn unsupported(node: &NodeProto, what: impl Into<String>) -> OnnxError {
    OnnxError::Unsupported(vec![Trouble { what: what.into(), node: survey::name(node), count: 1 }])
}

impl<'g> Import<'g> {
    /// What a node gives.
    fn node(&mut self, at: usize, node: &'g NodeProto) -> Result<Vec<Value>, OnnxError> {
        let inputs = node.input.iter().map(|name| self.values.get(name.as_str()).cloned());
        let inputs: Vec<Option<Value>> = inputs.collect();
        if self.biases.contains(&at) {
            let flows = inputs.into_iter().flatten().filter(|value| matches!(value, Value::Flow(_)));
            return Ok(flows.take(1).collect());
        }
        if node.op_type == "Shape" {
            return self.shape_of(node, inputs.first()).map(|shape| vec![Value::Constant(shape)]);
        }
        if let Some(value) = self.random(node, &inputs)? {
            return Ok(vec![value]);
        }
        let constants: Vec<Option<Constant>> = (inputs.iter())
            .map(|input| if let Some(Value::Constant(c)) = input { Some(c.clone()) } else { None })
            .collect();
        if !inputs.iter().flatten().any(|input| matches!(input, Value::Flow(_))) {
            return match fold(&self.numbers, node, &constants)? {
                Some(outputs) => Ok(outputs.into_iter().map(Value::Constant).collect()),
                None => Err(unsupported(node, format!("{} of weights alone", node.op_type))),
            };
        }
        if ["Cast", "CastLike"].contains(&node.op_type.as_str()) {
            return Ok(vec![self.converted(node, &inputs)?]);
        }
        if let Some(Value::Flow(flow)) = inputs.first().and_then(Option::as_ref) {
            let several = ["Add", "Mul", "MatMul", "Concat", "Where"].contains(&node.op_type.as_str());
            let other = inputs.iter().skip(1).position(|input| matches!(input, Some(Value::Flow(_))));
            if let Some(at) = other.filter(|_| !several) {
                let why = format!("{} whose input {} depends on the data, too", node.op_type, at + 1);
                return Err(unsupported(node, why));
            }
            let place = label(node);
            let integers = |at: usize| integers(&self.numbers, &place, &constants, at);
            if let Some(layout) = layout(node, &flow.view.sizes(), &integers)? {
                return laid_out(node, flow, layout);
            }
        }
        let flows = self.compute(at, node, &inputs)?;
        Ok(flows.into_iter().map(Value::Flow).collect())
    }

    /// Whether a value is the tokens of the input, which only an embedding takes.
    pub fn is_tokens(&self, flow: &Flow) -> bool {
        self.graph.input.integer && flow.view.layer == self.builder.images()
    }

    /// A value as another type: what is computed stays in floats, and tokens in numbers that hold all of them.
    fn converted(&mut self, node: &NodeProto, inputs: &[Option<Value>]) -> Result<Value, OnnxError> {
        let op = node.op_type.as_str();
        let like = inputs.get(1).and_then(Option::as_ref).filter(|_| op == "CastLike");
        let kind_of_flow = |flow: &Flow| if self.is_tokens(flow) { Kind::Integer } else { Kind::Float };
        let flow = match (inputs.first(), like) {
            (Some(Some(Value::Flow(flow))), _) => flow,
            (Some(Some(Value::Constant(constant))), Some(Value::Flow(like))) => {
                return match (constant.kind, kind_of_flow(like)) {
                    // Tokens may have been made floats on the way.
                    (Kind::Float, Kind::Integer) => {
                        Err(unsupported(node, "CastLike of floats to what tokens are"))
                    }
                    (_, kind) => cast(node, constant, kind).map(Value::Constant),
                };
            }
            _ => return broken(label(node), "it has no input; export the file again"),
        };
        let of_kind = |kind: Kind| match kind {
            Kind::Float => tensor::FLOAT,
            Kind::Integer => tensor::INT64,
            Kind::Truth => tensor::BOOL,
        };
        let to = match like {
            Some(Value::Constant(like)) => i64::from(of_kind(like.kind)),
            Some(Value::Flow(like)) => i64::from(of_kind(kind_of_flow(like))),
            Some(Value::Drawn(_)) => i64::from(tensor::FLOAT),
            None if attribute(node, "to").is_some() => int(node, "to", 0)?,
            None => return broken(label(node), "it has no `to`, which says the type; export the file again"),
        };
        let tokens = self.is_tokens(flow);
        let to_type = i32::try_from(to).unwrap_or(0);
        let same = match tokens {
            true => [tensor::INT32, tensor::INT64, tensor::FLOAT, tensor::DOUBLE].contains(&to_type),
            false => tensor::is_float(to_type),
        };
        if !same {
            let of = if tokens { "tokens" } else { "floats" };
            return Err(unsupported(node, format!("{op} of {of} to {}", tensor::type_name(to))));
        }
        if !tokens && to_type != tensor::FLOAT {
            self.note("what the file converts to floats of 16 or 64 bits is computed in 32 bits");
        }
        Ok(Value::Flow(flow.clone()))
    }

    /// Takes a scale, shift or bias for a layer. Exporters make one tensor of those that are equal, as they all are before
    /// training; so one tensor of several layers says nothing, and each has its own.
    pub fn take(&mut self, parameter: &Constant) {
        if parameter.initialiser.is_some_and(|at| !self.weights.taken.insert(at)) {
            self.note("scales, shifts and biases that are one tensor of several layers are trained apart");
        }
    }

    /// Says something to the user, once.
    pub fn note(&mut self, note: &str) {
        if self.notes.iter().all(|known| known != note) {
            self.notes.push(note.to_owned());
        }
    }

    /// The constant of this name, if one is known by now.
    pub fn constant(&self, name: &str) -> Option<&Constant> {
        if let Some(Value::Constant(constant)) = self.values.get(name) { Some(constant) } else { None }
    }

    /// The dimensions of a value as a constant.
    fn shape_of(&self, node: &NodeProto, input: Option<&Option<Value>>) -> Result<Constant, OnnxError> {
        let sizes = match input {
            Some(Some(Value::Constant(constant))) => constant.dims.clone(),
            Some(Some(Value::Flow(flow))) => flow.view.sizes(),
            Some(Some(Value::Drawn(drawn))) => drawn.dims.clone(),
            _ => return broken(label(node), "it has no input; export the file again"),
        };
        let rank = sizes.len() as i64;
        let bound = |at: i64| if at < 0 { at.saturating_add(rank) } else { at }.clamp(0, rank) as usize;
        let (start, end) = (bound(int(node, "start", 0)?), bound(int(node, "end", rank)?));
        let numbers: Vec<f64> =
            sizes.get(start..end).unwrap_or(&[]).iter().map(|size| *size as f64).collect();
        Ok(Constant::known(Kind::Integer, vec![numbers.len() as u64], numbers))
    }

    /// Appends a layer; its name is made a new one.
    pub fn layer(
        &mut self,
        name: &str,
        kind: LayerKind,
        inputs: &[LayerId],
        shares: Option<LayerId>,
    ) -> Result<LayerId, OnnxError> {
        // The node of a sum, say, is called after the block that it stands in.
        let base = name.rsplit('.').next().unwrap_or(name).to_lowercase();
        let own = match &kind {
            LayerKind::Conv { .. } | LayerKind::FullyConnected { .. } | LayerKind::Embedding { .. } => "",
            LayerKind::BatchNorm { .. } | LayerKind::LayerNorm { .. } => "",
            LayerKind::Bias { .. } | LayerKind::Scale | LayerKind::Learned { .. } => "",
            LayerKind::RmsNorm { .. } => "",
            other => other.name(),
        };
        let name = if base.contains(own) { name.to_owned() } else { format!("{name}.{own}") };
        let mut unique = name.clone();
        while self.names.contains_key(&unique) {
            let number = self.names.entry(name.clone()).or_insert(1);
            *number += 1;
            unique = format!("{name}_{number}");
        }
        self.names.insert(unique.clone(), 1);
        Ok(match shares {
            Some(of) => self.builder.add_sharing(&unique, kind, inputs, of)?,
            None => self.builder.add(&unique, kind, inputs)?,
        })
    }

    /// A name for the layer of a node: that of its weight, or the node's own.
    pub fn name(&self, node: &NodeProto, weight: Option<&Constant>) -> String {
        let weight = weight.and_then(|constant| constant.initialiser);
        let tensor = weight.map_or("", |at| self.graph.initialisers[at].name.as_str());
        let own = tensor.strip_suffix(".weight").or_else(|| tensor.strip_suffix("_weight"));
        let adds = ["Add", "Mul", "Concat"].contains(&node.op_type.as_str());
        let given = own.or(Some(tensor).filter(|_| adds));
        let named = given.filter(|stem| !stem.is_empty() && !stem.starts_with("onnx::"));
        let name = named.map_or_else(|| own_name(node), str::to_owned);
        let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let clean: String = name.chars().take(80).map(allowed).collect();
        if clean.is_empty() { node.op_type.chars().take(80).map(allowed).collect() } else { clean }
    }

    /// The view of a value that must be all that its layer gives.
    pub fn whole<'f>(&self, node: &NodeProto, flow: &'f Flow) -> Result<&'f View, OnnxError> {
        let shape = self.builder.shape(flow.view.layer);
        let output = matches!(flow.stage, Stage::Output) && flow.factor == 1.0;
        if output && flow.view.is_whole(self.batch, shape) {
            return Ok(&flow.view);
        }
        Err(unsupported(node, format!("{} {}", node.op_type, flow.nature())))
    }

    /// A value that is some rows or channels of what a layer gives, in order, as the whole of a layer of its own.
    pub fn settled(&mut self, node: &NodeProto, flow: &Flow) -> Result<Flow, OnnxError> {
        let (view, shape) = (&flow.view, self.builder.shape(flow.view.layer));
        let [height, width, channels] = [shape.height, shape.width, shape.channels].map(u64::from);
        let output = matches!(flow.stage, Stage::Output)
            && flow.factor == 1.0
            && !self.is_tokens(flow)
            && !view.repeats();
        let (Some(rows), Some(of_channels)) = (view.run(Axis::Row), view.run(Axis::Channel)) else {
            return Ok(flow.clone());
        };
        let all = |axis: Axis, size: u64| view.run(axis) == Some(size);
        let whole = (rows, of_channels) == (height, channels);
        if !output || whole || !all(Axis::Batch, self.batch) || !all(Axis::Column, width) {
            return Ok(flow.clone());
        }
        let key = (view.layer, [view.row, rows, view.channel, of_channels]);
        let layer = if let Some(layer) = self.parts.get(&key) {
            *layer
        } else {
            let mut layer = view.layer;
            use plimsoll_ir::network::Axis::{Channels, Rows};
            let cuts = [(Rows, view.row, rows, height), (Channels, view.channel, of_channels, channels)];
            for (along, first, length, _) in cuts.into_iter().filter(|(_, _, length, all)| length != all) {
                let [first, length] = [first, length].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
                let name = format!("{}.slice", self.name(node, None));
                layer = self.layer(&name, LayerKind::Slice { along, first, length }, &[layer], None)?;
            }
            self.parts.insert(key, layer);
            layer
        };
        Ok(Flow::output(View::of(layer, view.dims.clone())))
    }

    /// The layer of a value that must be images as ONNX has them, and its shape.
    pub fn image(&self, node: &NodeProto, flow: &Flow) -> Result<(LayerId, Shape), OnnxError> {
        let view = self.whole(node, flow)?;
        let shape = self.builder.shape(view.layer);
        if view.dims == View::image(view.layer, self.batch, shape).dims {
            return Ok((view.layer, shape));
        }
        let why = format!("{} of what is not (batch, channels, rows, columns)", node.op_type);
        Err(unsupported(node, why))
    }

    /// The output of a layer over images.
    pub fn images(&self, layer: LayerId) -> Flow {
        Flow::output(View::image(layer, self.batch, self.builder.shape(layer)))
    }

    /// The channels of a value: a dimension that runs over them and nothing else.
    pub fn over_channels(&self, view: &View, dim: usize) -> bool {
        let channels = u64::from(self.builder.shape(view.layer).channels);
        view.channel == 0 && view.dims[dim] == whole(Axis::Channel, channels)
    }

    /// Gives the network, where the output of the graph is the whole output of a layer, with the classes as channels.
    fn finish(mut self) -> Result<Read<'g>, OnnxError> {
        let place = format!("output `{}`", shown(&self.graph.output));
        let Some(Value::Flow(flow)) = self.values.get(self.graph.output.as_str()) else {
            return broken(place, "it does not depend on the input; export a network that does");
        };
        let shape = self.builder.shape(flow.view.layer);
        let logits = matches!(flow.stage, Stage::Output)
            && flow.factor == 1.0
            && flow.view.is_whole(self.batch, shape)
            && (0..flow.view.dims.len()).any(|dim| self.over_channels(&flow.view, dim));
        if !logits {
            let sizes = flow.view.sizes();
            let why = format!(
                "it is {sizes:?}, which is no number a class for each sample or position; export the network up to its logits"
            );
            return broken(place, why);
        }
        let layer = flow.view.layer;
        if layer == self.builder.images() {
            return broken(place, "no layer lies between it and the input; export a network");
        }
        self.builder.set_classes(shape.channels);
        let network = self.builder.finish(layer)?;
        self.notes.extend(folded(&network, &self.biased));
        Ok(Read { network, notes: self.notes, numbers: self.numbers, sources: self.sources })
    }
}

/// What to say where convolutions feed an activation without a normalisation. Exporters fold batch normalisation into the
/// convolution before it, which gets a bias by that; a convolution of a single position is a product, and has none to lose.
fn folded(network: &Network, biased: &[LayerId]) -> Option<String> {
    let activates = |layer: &Layer| match layer.kind {
        LayerKind::Relu { .. } => true,
        LayerKind::Activation { function } => !matches!(function, Function::Sigmoid | Function::HardSigmoid),
        _ => false,
    };
    let feeds =
        |id: LayerId| network.layers.iter().any(|layer| layer.inputs.contains(&id) && activates(layer));
    let bare = biased.iter().filter(|id| network.layer(**id).output.pixels() > 1 && feeds(**id));
    let bare: Vec<&LayerId> = bare.collect();
    let first = &network.layer(**bare.first()?).name;
    Some(format!(
        "{} convolution(s), the first `{first}`, feed an activation without a normalisation; if the network has batch \
         normalisation, the exporter folded it away, and neither its memory nor its training is counted: keep it with \
         torch.onnx.export(model.train(), args, path, dynamo=True, optimize=False)",
        bare.len()
    ))
}

/// The name of a node in short: `layer1.0.conv1` for `/layer1/layer1.0/conv1/Conv`.
fn own_name(node: &NodeProto) -> String {
    let parts: Vec<&str> = node.name.split('/').filter(|part| !part.is_empty()).collect();
    let path = match parts.split_last() {
        Some((last, path)) if !path.is_empty() && last.starts_with(node.op_type.as_str()) => path,
        _ => parts.as_slice(),
    };
    let mut name = String::new();
    for part in path {
        let goes_on = part.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
        name = if name.is_empty() || goes_on { (*part).to_owned() } else { format!("{name}.{part}") };
    }
    name.strip_prefix("node_").map_or(name.clone(), str::to_owned)
}

/// The elements of a layer's output moved about, which makes no layer.
fn laid_out(node: &NodeProto, flow: &Flow, layout: Layout) -> Result<Vec<Value>, OnnxError> {
    let view = &flow.view;
    let uneven = |sizes: &[u64]| {
        let why =
            format!("{} of {:?} to {sizes:?}, which mixes what belongs together", node.op_type, view.sizes());
        unsupported(node, why)
    };
    let one = |view: View| Ok(vec![Value::Flow(Flow { view, ..flow.clone() })]);
    let part = |axis: usize, start: u64, length: u64| {
        let why = || unsupported(node, format!("{} of samples or columns", node.op_type));
        view.slice(axis, start, length).ok_or_else(why)
    };
    match layout {
        Layout::Reshape(sizes) => one(view.reshape(&sizes).ok_or_else(|| uneven(&sizes))?),
        Layout::Transpose(order) => one(view.transpose(&order)),
        Layout::Expand(sizes) => {
            if tensor::elements(&sizes).is_none() {
                let what = format!("{}: {}", label(node), tensor::too_many(&sizes));
                return Err(OnnxError::TooLarge { what });
            }
            let why = || unsupported(node, "Expand to fewer dimensions");
            one(view.expand(&sizes).ok_or_else(why)?)
        }
        Layout::Split(axis, sizes) => {
            let mut start = 0;
            let mut parts = Vec::new();
            for length in sizes {
                if length == 0 {
                    return Err(unsupported(node, "Split with empty parts"));
                }
                parts.push(Value::Flow(Flow { view: part(axis, start, length)?, ..flow.clone() }));
                start += length;
            }
            Ok(parts)
        }
        Layout::Cut(cuts, _) => {
            let mut cut = view.clone();
            for c in cuts {
                if c.step != 1 || c.length == 0 {
                    return Err(unsupported(node, "Slice with steps, or of nothing"));
                }
                let why = || unsupported(node, "Slice of samples or columns");
                cut = cut.slice(c.axis, c.start, c.length).ok_or_else(why)?;
            }
            one(cut)
        }
    }
}

/// One position of a dimension of a layer's output, or some of them in order, without that dimension.
pub fn picked(node: &NodeProto, flow: &Flow, index: &Constant, positions: &[f64]) -> Result<Flow, OnnxError> {
    let sizes = flow.view.sizes();
    let axis = axis(node, int(node, "axis", 0)?, sizes.len())?;
    let [position] = positions else { return Err(unsupported(node, "Gather of several positions")) };
    let size = sizes[axis] as i64;
    let position = *position as i64;
    let from_start = if position < 0 { position.saturating_add(size) } else { position };
    if !(0..size).contains(&from_start) {
        return broken(label(node), format!("position {position} of {size}; export the file again"));
    }
    let why = || unsupported(node, "Gather of samples or columns");
    let mut view = flow.view.slice(axis, from_start as u64, 1).ok_or_else(why)?;
    view.dims.splice(axis..=axis, index.dims.iter().map(|_| Vec::new()));
    let rank = view.dims.len();
    if rank > tensor::DIMENSIONS_MAX {
        return Err(OnnxError::TooLarge { what: format!("{}: it makes {rank} dimensions", label(node)) });
    }
    Ok(Flow { view, ..flow.clone() })
}
