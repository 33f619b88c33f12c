//! Which operators and attributes are read, and all of a file that are not, at once.
//!
//! An attribute that is not named here is not ignored: it may change what its operator means.

use super::error::{OnnxError, Trouble, broken, shown};
use super::graph::{Graph, attribute, float, int, ints, label, text};
use super::proto::NodeProto;
use std::collections::HashSet;

/// The operators that are read, with their attributes; whatever says how a tensor is kept, and nothing of its value, is
/// there, too.
const OPERATORS: &[(&str, &[&str])] = &[
    ("Add", &[]),
    ("And", &[]),
    (
        "AveragePool",
        &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"],
    ),
    ("BatchNormalization", &["epsilon", "momentum", "spatial", "training_mode"]),
    ("Cast", &["to", "saturate", "round_mode"]),
    ("CastLike", &["saturate", "round_mode"]),
    ("Ceil", &[]),
    ("Clip", &["max", "min"]),
    ("Concat", &["axis"]),
    ("Constant", &["value", "value_float", "value_floats", "value_int", "value_ints"]),
    ("ConstantOfShape", &["value"]),
    ("Conv", &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"]),
    ("Cos", &[]),
    ("CumSum", &["exclusive", "reverse"]),
    ("Div", &[]),
    ("Dropout", &["ratio", "seed"]),
    ("Equal", &[]),
    ("Erf", &[]),
    ("Expand", &[]),
    ("Flatten", &["axis"]),
    ("Floor", &[]),
    ("Gather", &["axis"]),
    ("GatherND", &["batch_dims"]),
    ("Gelu", &["approximate"]),
    ("Gemm", &["alpha", "beta", "transA", "transB"]),
    ("GlobalAveragePool", &[]),
    ("Greater", &[]),
    ("GreaterOrEqual", &[]),
    ("HardSigmoid", &["alpha", "beta"]),
    ("HardSwish", &[]),
    ("Identity", &[]),
    ("IsNaN", &[]),
    ("LRN", &["alpha", "beta", "bias", "size"]),
    ("LayerNormalization", &["axis", "epsilon", "stash_type"]),
    ("Less", &[]),
    ("LessOrEqual", &[]),
    ("LogSoftmax", &["axis"]),
    ("MatMul", &[]),
    ("Max", &[]),
    ("MaxPool", &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"]),
    ("Min", &[]),
    ("Mod", &["fmod"]),
    ("Mul", &[]),
    ("Neg", &[]),
    ("Not", &[]),
    ("Or", &[]),
    ("Pow", &[]),
    ("RMSNormalization", &["axis", "epsilon", "stash_type"]),
    ("RandomUniform", &["dtype", "high", "low", "seed", "shape"]),
    ("RandomUniformLike", &["dtype", "high", "low", "seed"]),
    ("Range", &[]),
    ("Reciprocal", &[]),
    ("ReduceMean", &["axes", "keepdims", "noop_with_empty_axes"]),
    ("Relu", &[]),
    ("Reshape", &["allowzero"]),
    ("Shape", &["end", "start"]),
    ("Sigmoid", &[]),
    ("Sin", &[]),
    ("Slice", &["axes", "ends", "starts"]),
    ("Softmax", &["axis"]),
    ("Split", &["axis", "num_outputs", "split"]),
    ("Sqrt", &[]),
    ("Squeeze", &["axes"]),
    ("Sub", &[]),
    ("Swish", &["alpha"]),
    ("Transpose", &["perm"]),
    ("Trilu", &["upper"]),
    ("Unsqueeze", &["axes"]),
    ("Where", &[]),
];

/// Refuses a graph in which anything is not read, with all of that.
pub fn survey(graph: &Graph) -> Result<(), OnnxError> {
    let mut troubles: Vec<Trouble> = Vec::new();
    for node in &graph.nodes {
        for what in troubles_of(node)? {
            match troubles.iter().position(|trouble| trouble.what == what) {
                Some(known) => troubles[known].count += 1,
                // Whoever makes up operators makes up many; the first hundred say enough.
                None if troubles.len() == 100 => {}
                None => troubles.push(Trouble { what, node: name(node), count: 1 }),
            }
        }
    }
    if troubles.is_empty() { Ok(()) } else { Err(OnnxError::Unsupported(troubles)) }
}

/// What a node is called in a list of troubles.
pub fn name(node: &NodeProto) -> String {
    shown(if node.name.is_empty() { node.output.first().map_or("", String::as_str) } else { &node.name })
}

/// What of a node is not read, as far as it can be told without shapes.
fn troubles_of(node: &NodeProto) -> Result<Vec<String>, OnnxError> {
    let op = node.op_type.as_str();
    let own = node.domain.is_empty() || node.domain == "ai.onnx";
    let Some((_, known)) = OPERATORS.iter().find(|(name, _)| own && *name == op) else {
        let domain = if own { String::new() } else { format!("{}::", shown(&node.domain)) };
        return Ok(vec![format!("operator {domain}{}", shown(op))]);
    };
    let mut all = Vec::new();
    let mut names = HashSet::new();
    if let Some(twice) = node.attribute.iter().find(|attribute| !names.insert(attribute.name.as_str())) {
        let why = format!("attribute `{}` is there twice; export the file again", shown(&twice.name));
        return broken(label(node), why);
    }
    for attribute in node.attribute.iter().filter(|a| !known.contains(&a.name.as_str())) {
        all.push(format!("{op} with attribute {}", shown(&attribute.name)));
    }
    let pads = ints(node, "pads")?.unwrap_or_default();
    let (begin, end) = pads.split_at(pads.len() / 2);
    if begin != end {
        all.push(format!("{op} with more padding on one side (pads {pads:?}); pad both sides alike"));
    }
    let automatic = text(node, "auto_pad")?;
    if !["", "NOTSET", "VALID"].contains(&automatic.as_str()) {
        all.push(format!("{op} with auto_pad {}; export with pads in numbers", shown(&automatic)));
    }
    let kernel = ints(node, "kernel_shape")?;
    if let Some(kernel) = kernel.filter(|kernel| kernel.len() != 2) {
        all.push(format!("{op} over {} dimensions; windows have rows and columns", kernel.len()));
    }
    if op.ends_with("Pool") && ints(node, "dilations")?.is_some_and(|all| all.iter().any(|d| *d != 1)) {
        all.push(format!("{op} with dilation"));
    }
    if int(node, "storage_order", 0)? != 0 {
        all.push(format!("{op} in column-major order"));
    }
    if op == "BatchNormalization" && int(node, "spatial", 1)? == 0 {
        all.push(format!("{op} with statistics of every position"));
    }
    if op == "Gemm" {
        let factors = [float(node, "alpha", 1.0)?, float(node, "beta", 1.0)?];
        if factors != [1.0; 2] || int(node, "transA", 0)? != 0 {
            all.push("Gemm with factors, or of what is transposed".to_owned());
        }
    }
    let hard = [float(node, "alpha", 0.2)?, float(node, "beta", 0.5)?];
    if op == "HardSigmoid" && ((hard[0] - 1.0 / 6.0).abs() > 1e-5 || hard[1] != 0.5) {
        let [alpha, beta] = hard;
        all.push(format!("HardSigmoid with alpha {alpha} and beta {beta}, not 1/6 and 0.5"));
    }
    if op == "Swish" && float(node, "alpha", 1.0)? != 1.0 {
        all.push("Swish with alpha other than 1".to_owned());
    }
    if op == "Gelu" && attribute(node, "approximate").is_some() {
        let approximate = text(node, "approximate")?;
        if !["", "none"].contains(&approximate.as_str()) {
            all.push(format!("Gelu approximated by {}; export with the exact one", shown(&approximate)));
        }
    }
    Ok(all)
}
