//! A file's graph, checked: every name is given once and before it is read, sizes agree with data, one input and one output.
//!
//! What this file does not do: know what any operator means.

use super::error::{OnnxError, broken, shown};
use super::proto::tensor_shape_proto::dimension::Value as Dimension;
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto,
};
use super::tensor;
use super::weigh::weigh;
use prost::Message;
use prost::bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Versions of the operators that are read; the attributes of what lies between did not change their meaning.
const OPSETS: std::ops::RangeInclusive<i64> = 9..=26;

/// The images or tokens that the network takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Whether its elements are integers.
    pub integer: bool,
    /// Its dimensions; a name for those that are open.
    pub dims: Vec<Result<u64, String>>,
}

/// A graph whose names and sizes are sound.
#[derive(Debug)]
pub struct Graph {
    /// The version of the operators.
    pub opset: i64,
    /// Nodes that the output needs, in topological order.
    pub nodes: Vec<NodeProto>,
    /// Tensors that the file holds.
    pub initialisers: Vec<TensorProto>,
    /// What is trained on.
    pub input: Input,
    /// The value that the loss takes.
    pub output: String,
    /// The nodes that read each value.
    pub readers: HashMap<String, Vec<usize>>,
}

impl Graph {
    /// Decodes a file and checks it.
    pub fn open(file: Vec<u8>) -> Result<Graph, OnnxError> {
        weigh(&file)?;
        let not = |why: String| OnnxError::NotOnnx { why };
        let model = ModelProto::decode(Bytes::from(file)).map_err(|error| not(error.to_string()))?;
        let Some(graph) = model.graph else { return Err(not("it holds no graph".into())) };
        let own = model.opset_import.iter().find(|set| set.domain.is_empty() || set.domain == "ai.onnx");
        let Some(opset) = own.map(|set| set.version) else {
            return Err(not("it does not say which version of ONNX's operators it uses".into()));
        };
        if !OPSETS.contains(&opset) {
            let (least, most) = OPSETS.into_inner();
            let why = format!("it has version {opset}; export with an opset version from {least} to {most}");
            return broken("the operators", why);
        }
        graph.initializer.iter().try_for_each(tensor::check)?;
        let made = order(&graph)?;
        let nodes = needed(&graph, &made)?;
        let mut readers: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            for name in node.input.iter().filter(|name| !name.is_empty()) {
                readers.entry(name.clone()).or_default().push(at);
            }
        }
        let output = sole_output(&graph)?;
        let input = sole_input(&graph, &readers)?;
        Ok(Graph { opset, nodes, initialisers: graph.initializer, input, output, readers })
    }

    /// The file again without notes, and with the data of those initialisers only that were read, with their bytes where
    /// these came from another file.
    pub fn architecture(&self, read: &BTreeMap<usize, Option<Vec<u8>>>) -> Vec<u8> {
        let initializer = self.initialisers.iter().enumerate().map(|(at, tensor)| match read.get(&at) {
            None => tensor::without_data(tensor),
            Some(None) => TensorProto { external_data: Vec::new(), ..tensor.clone() },
            Some(Some(bytes)) => {
                TensorProto { raw_data: bytes.clone().into(), ..tensor::without_data(tensor) }
            }
        });
        let dims = self.input.dims.iter().map(|dim| super::proto::tensor_shape_proto::Dimension {
            value: Some(match dim {
                Ok(size) => Dimension::DimValue(i64::try_from(*size).unwrap_or(i64::MAX)),
                Err(name) => Dimension::DimParam(name.clone()),
            }),
        });
        let shape = super::proto::TensorShapeProto { dim: dims.collect() };
        let elem_type = if self.input.integer { tensor::INT64 } else { tensor::FLOAT };
        let tensor = super::proto::type_proto::Tensor { elem_type, shape: Some(shape) };
        let value = |name: &str, r#type| ValueInfoProto { name: name.to_owned(), r#type };
        let graph = GraphProto {
            node: self.nodes.clone(),
            name: "architecture".to_owned(),
            initializer: initializer.collect(),
            input: vec![value(&self.input.name, Some(TypeProto { tensor_type: Some(tensor) }))],
            output: vec![value(&self.output, None)],
        };
        let opset = super::proto::OperatorSetIdProto { domain: String::new(), version: self.opset };
        let model = ModelProto { ir_version: 8, graph: Some(graph), opset_import: vec![opset] };
        model.encode_to_vec()
    }
}

/// Who makes each value: a node, or nobody (it is there from the start).
fn order(graph: &GraphProto) -> Result<HashMap<&str, Option<usize>>, OnnxError> {
    let mut made: HashMap<&str, Option<usize>> = HashMap::new();
    for tensor in &graph.initializer {
        if tensor.name.is_empty() || made.insert(&tensor.name, None).is_some() {
            let why = "two initialisers have this name, or it has none; export the file again";
            return broken(tensor::initialiser(tensor), why);
        }
    }
    let tensors: HashSet<&str> = made.keys().copied().collect();
    for input in &graph.input {
        // Until IR version 3 initialisers were listed as inputs, too.
        if !tensors.contains(input.name.as_str()) && made.insert(&input.name, None).is_some() {
            return broken(
                format!("input `{}`", shown(&input.name)),
                "two inputs have this name; export the file again",
            );
        }
    }
    let outputs = graph.node.iter().flat_map(|node| &node.output);
    let later: HashSet<&str> = outputs.filter(|name| !name.is_empty()).map(String::as_str).collect();
    for (at, node) in graph.node.iter().enumerate() {
        if let Some(name) = node.input.iter().find(|n| !n.is_empty() && !made.contains_key(n.as_str())) {
            let why = if later.contains(name.as_str()) {
                format!(
                    "it reads `{}`, which only it or a later node makes: nodes stand in order, without cycles",
                    shown(name)
                )
            } else {
                format!("it reads `{}`, which nothing makes", shown(name))
            };
            return broken(label(node), why + "; export the file again");
        }
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if made.insert(name, Some(at)).is_some() {
                let why =
                    format!("it makes `{}`, which is there already; export the file again", shown(name));
                return broken(label(node), why);
            }
        }
    }
    Ok(made)
}

/// The nodes that the output needs, as they stand.
fn needed(graph: &GraphProto, made: &HashMap<&str, Option<usize>>) -> Result<Vec<NodeProto>, OnnxError> {
    let mut wanted = vec![false; graph.node.len()];
    let mut open: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    while let Some(name) = open.pop() {
        let Some(maker) = made.get(name) else {
            return broken(format!("output `{}`", shown(name)), "nothing makes it; export the file again");
        };
        if let Some(at) = *maker
            && !std::mem::replace(&mut wanted[at], true)
        {
            open.extend(graph.node[at].input.iter().filter(|name| !name.is_empty()).map(String::as_str));
        }
    }
    let nodes = graph.node.iter().zip(&wanted);
    Ok(nodes.filter(|(_, wanted)| **wanted).map(|(node, _)| node.clone()).collect())
}

/// The output.
fn sole_output(graph: &GraphProto) -> Result<String, OnnxError> {
    match graph.output.as_slice() {
        [output] => Ok(output.name.clone()),
        [] => broken("the graph", "it has no output; export what gives the logits"),
        several => {
            let names: Vec<&str> = several.iter().map(|output| output.name.as_str()).collect();
            let why = format!(
                "it has {} outputs ({}), and the loss takes one: export the network so that it gives the logits alone, \
                 without auxiliary heads",
                names.len(),
                some(&names)
            );
            broken("the graph", why)
        }
    }
}

/// The input; those that nothing reads do not count.
fn sole_input(graph: &GraphProto, readers: &HashMap<String, Vec<usize>>) -> Result<Input, OnnxError> {
    let tensors: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let read =
        |input: &&ValueInfoProto| !tensors.contains(input.name.as_str()) && readers.contains_key(&input.name);
    let inputs: Vec<&ValueInfoProto> = graph.input.iter().filter(read).collect();
    let [input] = inputs.as_slice() else {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        let why = match names.len() {
            0 => "its output needs no input; export a network that takes images or tokens".to_owned(),
            n => format!(
                "it takes {n} inputs ({}), and the data give one: export the network so that it takes the images or \
                 tokens alone",
                some(&names)
            ),
        };
        return broken("the graph", why);
    };
    let place = format!("input `{}`", shown(&input.name));
    let kind = input.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    let Some(kind) = kind else { return broken(place, "it is no tensor; export a network that takes one") };
    let integer = match kind.elem_type {
        tensor::FLOAT | tensor::FLOAT16 | tensor::DOUBLE | tensor::BFLOAT16 => false,
        tensor::INT32 | tensor::INT64 => true,
        other => {
            let why =
                format!("its elements are of type {other}; images are floats, and tokens are int32 or int64");
            return broken(place, why);
        }
    };
    let Some(shape) = &kind.shape else {
        return broken(place, "it has no shape; export with an example, so that the file holds it");
    };
    let dims = shape.dim.iter().map(|dim| match &dim.value {
        Some(Dimension::DimValue(size)) => match u32::try_from(*size) {
            Ok(size) if size > 0 => Ok(Ok(u64::from(size))),
            _ => broken(&place, format!("a dimension is {size}; dimensions are from 1 to 2^32 - 1")),
        },
        Some(Dimension::DimParam(name)) => Ok(Err(name.clone())),
        None => Ok(Err("?".to_owned())),
    });
    Ok(Input { name: input.name.clone(), integer, dims: dims.collect::<Result<_, _>>()? })
}

/// The first few names of many.
fn some(names: &[&str]) -> String {
    let few = names.iter().take(4).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if names.len() > 4 { few + ", ..." } else { few }
}

/// What to call a node: its name, or what it makes.
pub fn label(node: &NodeProto) -> String {
    let name = if node.name.is_empty() { node.output.first().map_or("", String::as_str) } else { &node.name };
    format!("node `{}` ({})", shown(name), shown(&node.op_type))
}

/// An attribute of a node.
pub fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

/// An attribute that must be of this type, 0 standing for a file that does not say.
fn typed<'n>(node: &'n NodeProto, name: &str, wanted: i32) -> Result<Option<&'n AttributeProto>, OnnxError> {
    match attribute(node, name) {
        Some(found) if found.r#type != wanted && found.r#type != 0 => {
            broken(label(node), format!("attribute `{name}` is of type {}, not {wanted}", found.r#type))
        }
        other => Ok(other),
    }
}

/// A number that is an integer.
pub fn int(node: &NodeProto, name: &str, default: i64) -> Result<i64, OnnxError> {
    Ok(typed(node, name, 2)?.map_or(default, |attribute| attribute.i))
}

/// A number.
pub fn float(node: &NodeProto, name: &str, default: f32) -> Result<f32, OnnxError> {
    Ok(typed(node, name, 1)?.map_or(default, |attribute| attribute.f))
}

/// Integers.
pub fn ints<'n>(node: &'n NodeProto, name: &str) -> Result<Option<&'n [i64]>, OnnxError> {
    Ok(typed(node, name, 7)?.map(|attribute| attribute.ints.as_slice()))
}

/// A text; empty where there is none.
pub fn text(node: &NodeProto, name: &str) -> Result<String, OnnxError> {
    Ok(typed(node, name, 3)?.map_or_else(String::new, |a| String::from_utf8_lossy(&a.s).into_owned()))
}
