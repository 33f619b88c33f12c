//! Writes small ONNX files for tests, good ones and bad ones, by the wire format of protocol buffers alone.
//!
//! It shares no code with the reader, and writes whatever it is told.

/// A field that holds bytes: a text, a message, packed numbers.
pub fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A field that holds a text.
pub fn text(field: u64, content: &str) -> Vec<u8> {
    bytes(field, content.as_bytes())
}

/// A field that holds an integer.
pub fn number(field: u64, value: i64) -> Vec<u8> {
    [varint(field << 3), varint(value as u64)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut all = Vec::new();
    while value > 127 {
        all.push(value as u8 | 128);
        value >>= 7;
    }
    all.push(value as u8);
    all
}

/// An attribute of integers.
pub fn ints(name: &str, values: &[i64]) -> Vec<u8> {
    let packed: Vec<u8> = values.iter().flat_map(|value| varint(*value as u64)).collect();
    bytes(5, &[text(1, name), bytes(8, &packed), number(20, 7)].concat())
}

/// An attribute of one integer.
pub fn int(name: &str, value: i64) -> Vec<u8> {
    bytes(5, &[text(1, name), number(3, value), number(20, 2)].concat())
}

/// An attribute of one number.
pub fn float(name: &str, value: f32) -> Vec<u8> {
    let value = [varint(2 << 3 | 5), value.to_le_bytes().to_vec()].concat();
    bytes(5, &[text(1, name), value, number(20, 1)].concat())
}

/// An attribute of one text.
pub fn word(name: &str, value: &str) -> Vec<u8> {
    bytes(5, &[text(1, name), text(4, value), number(20, 3)].concat())
}

/// A node with its attributes.
pub fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| text(1, name)).collect();
    let outputs: Vec<u8> = outputs.iter().flat_map(|name| text(2, name)).collect();
    bytes(1, &[inputs, outputs, text(4, op), attributes.concat()].concat())
}

/// A tensor without data, of 32-bit floating point.
pub fn weight(name: &str, dims: &[i64]) -> Vec<u8> {
    tensor(name, dims, 1, &[])
}

/// A tensor of this type with more fields.
pub fn tensor(name: &str, dims: &[i64], data_type: i64, more: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim)).collect();
    bytes(5, &[dims, number(2, data_type), text(8, name), more.to_vec()].concat())
}

/// A tensor of 64-bit integers with its data.
pub fn integers(name: &str, values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, &[values.len() as i64], 7, &bytes(9, &raw))
}

/// An input of this type; a dimension below -1 is left open by a name, and -1 without one.
pub fn input(name: &str, elements: i64, dims: &[i64]) -> Vec<u8> {
    let dim = |size: &i64| match *size {
        -1 => bytes(1, &[]),
        size if size < -1 => bytes(1, &text(2, "n")),
        size => bytes(1, &number(1, size)),
    };
    let shape: Vec<u8> = dims.iter().flat_map(dim).collect();
    let kind = bytes(1, &[number(1, elements), bytes(2, &shape)].concat());
    bytes(11, &[text(1, name), bytes(2, &kind)].concat())
}

/// An output.
pub fn output(name: &str) -> Vec<u8> {
    bytes(12, &text(1, name))
}

/// A tensor of 32-bit floating point with its data.
pub fn floats(name: &str, dims: &[i64], values: &[f32]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, dims, 1, &bytes(9, &raw))
}

/// A file with these parts of a graph, for version 17 of the operators.
pub fn file(parts: &[Vec<u8>]) -> Vec<u8> {
    file_of(17, parts)
}

/// A file with these parts of a graph, for this version of the operators.
pub fn file_of(version: i64, parts: &[Vec<u8>]) -> Vec<u8> {
    [number(1, 8), bytes(8, &number(2, version)), bytes(7, &parts.concat())].concat()
}

/// A network that is read: a convolution, a mean, a product.
pub fn small() -> Vec<Vec<u8>> {
    vec![
        input("x", 1, &[-2, 3, 8, 8]),
        weight("c.weight", &[4, 3, 3, 3]),
        weight("f.weight", &[5, 4]),
        node("Conv", &["x", "c.weight"], &["a"], &[ints("pads", &[1, 1, 1, 1])]),
        node("GlobalAveragePool", &["a"], &["b"], &[]),
        node("Flatten", &["b"], &["c"], &[]),
        node("Gemm", &["c", "f.weight"], &["y"], &[int("transB", 1)]),
        output("y"),
    ]
}
