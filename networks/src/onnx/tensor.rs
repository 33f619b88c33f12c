//! The tensors of a file: whether their data match their dimensions, where data lie that are not in the file, and what
//! the numbers are.
//!
//! A tensor may hold no data at all; then only its shape is known, which is all that weights are asked for.

use super::error::{OnnxError, broken, shown};
use super::proto::TensorProto;

/// 32-bit floating point.
pub const FLOAT: i32 = 1;
/// 32-bit integers.
pub const INT32: i32 = 6;
/// 64-bit integers.
pub const INT64: i32 = 7;
/// Truth values.
pub const BOOL: i32 = 9;
/// 16-bit floating point.
pub const FLOAT16: i32 = 10;
/// 64-bit floating point.
pub const DOUBLE: i32 = 11;
/// The upper half of 32-bit floating point.
pub const BFLOAT16: i32 = 16;

/// No tensor has more elements; it bounds every product of sizes.
pub const ELEMENTS_MAX: u64 = 1 << 46;

/// No tensor has more dimensions.
pub const DIMENSIONS_MAX: usize = 16;

/// Bytes of an element; none for what is not read.
fn element_bytes(data_type: i32) -> Option<u64> {
    match data_type {
        2 | 3 | BOOL => Some(1),
        4 | 5 | FLOAT16 | BFLOAT16 => Some(2),
        FLOAT | INT32 | 12 => Some(4),
        INT64 | DOUBLE | 13 => Some(8),
        _ => None,
    }
}

/// Whether the elements are floating-point numbers.
pub fn is_float(data_type: i32) -> bool {
    matches!(data_type, FLOAT | FLOAT16 | DOUBLE | BFLOAT16)
}

/// What a type of elements is called.
pub fn type_name(data_type: i64) -> String {
    let names = [
        "float",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "double",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
    ];
    let at = usize::try_from(data_type).ok().and_then(|at| at.checked_sub(1));
    at.and_then(|at| names.get(at)).map_or_else(|| format!("type {data_type}"), |name| (*name).to_owned())
}

/// The number of elements, or none where they or the dimensions are too many.
pub fn elements(dims: &[u64]) -> Option<u64> {
    if dims.len() > DIMENSIONS_MAX {
        return None;
    }
    if dims.contains(&0) {
        return Some(0);
    }
    let product = dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim))?;
    (product <= ELEMENTS_MAX).then_some(product)
}

/// That a tensor has more elements or dimensions than any.
pub fn too_many(dims: &[u64]) -> String {
    match dims.len() {
        0..=DIMENSIONS_MAX => format!("dimensions {dims:?} make more than 2^46 elements"),
        rank => format!("it has {rank} dimensions; more than {DIMENSIONS_MAX} has no tensor of a network"),
    }
}

/// The dimensions of a tensor that was checked.
pub fn dims(tensor: &TensorProto) -> Vec<u64> {
    tensor.dims.iter().map(|dim| u64::try_from(*dim).unwrap_or(0)).collect()
}

/// What to call a tensor of the file.
pub fn initialiser(tensor: &TensorProto) -> String {
    format!("initialiser `{}`", shown(&tensor.name))
}

/// Where a tensor's data lie, if not in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The file, from the folder of the ONNX file on, with `/` between folders.
    pub location: String,
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Holds the data of a tensor against its dimensions.
pub fn check(tensor: &TensorProto) -> Result<(), OnnxError> {
    let place = initialiser(tensor);
    if let Some(dim) = tensor.dims.iter().find(|dim| **dim < 0) {
        return broken(place, format!("a dimension is {dim}; dimensions are at least 0"));
    }
    let Some(count) = elements(&dims(tensor)) else {
        let what = format!("{place}: {}", too_many(&dims(tensor)));
        return Err(OnnxError::TooLarge { what });
    };
    let Some(width) = element_bytes(tensor.data_type) else {
        let why =
            format!("its elements are of type {}, which is not read; export in float32", tensor.data_type);
        return broken(place, why);
    };
    if tensor.data_location == 1 {
        return external(tensor).map(|_| ());
    }
    let held = [
        (tensor.raw_data.len() as u64, width, "bytes"),
        (tensor.float_data.len() as u64, 1, "numbers"),
        (tensor.int32_data.len() as u64, 1, "numbers"),
        (tensor.int64_data.len() as u64, 1, "numbers"),
        (tensor.double_data.len() as u64, 1, "numbers"),
        (tensor.uint64_data.len() as u64, 1, "numbers"),
    ];
    let mut there = held.iter().filter(|(held, ..)| *held > 0);
    let first = there.next();
    if there.next().is_some() {
        return broken(place, "its data are there twice; export the file again");
    }
    match first {
        Some((held, each, unit)) if *held != count * each => {
            let why = format!(
                "it holds {held} {unit} of data, and its dimensions {:?} need {}; the file is damaged, or was cut: \
                 export it again",
                tensor.dims,
                count * each
            );
            broken(place, why)
        }
        _ => Ok(()),
    }
}

/// Where the data of a tensor lie that are not in the file: within its folder.
pub fn external(tensor: &TensorProto) -> Result<External, OnnxError> {
    let place = initialiser(tensor);
    let entry = |key: &str| tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let Some(location) = entry("location").filter(|location| !location.is_empty()) else {
        return broken(place, "its data lie in another file, which is not named; export the file again");
    };
    let inside = !location.contains(['\\', ':', '\0'])
        && location.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if !inside {
        let why = format!(
            "its data are said to lie in `{}`; only files in the folder of the ONNX file are read: move it there \
             and export again",
            shown(location)
        );
        return broken(place, why);
    }
    let number = |key: &str, default: u64| match entry(key) {
        None => Ok(default),
        Some(text) => text.parse::<u64>().or_else(|_| {
            broken(&place, format!("the {key} of its data is `{}`, which is no number of bytes", shown(text)))
        }),
    };
    let count = elements(&dims(tensor)).unwrap_or(0);
    let needed = count * element_bytes(tensor.data_type).unwrap_or(0);
    let (offset, length) = (number("offset", 0)?, number("length", needed)?);
    if length != needed || offset.checked_add(length).is_none() {
        let why = format!("{length} bytes at {offset} of `{location}` are no tensor of {:?}", tensor.dims);
        return broken(place, why + "; export the file again");
    }
    Ok(External { location: location.to_owned(), offset, length })
}

/// Whether a tensor has data, here or in another file.
pub fn has_data(tensor: &TensorProto) -> bool {
    let here = !tensor.raw_data.is_empty()
        || !tensor.float_data.is_empty()
        || !tensor.int32_data.is_empty()
        || !tensor.int64_data.is_empty()
        || !tensor.double_data.is_empty()
        || !tensor.uint64_data.is_empty();
    here || tensor.data_location == 1 || elements(&dims(tensor)) == Some(0)
}

/// Name, type and dimensions alone.
pub fn without_data(tensor: &TensorProto) -> TensorProto {
    let TensorProto { dims, data_type, name, .. } = tensor.clone();
    TensorProto { dims, data_type, name, ..TensorProto::default() }
}

/// The numbers of a tensor whose data are in the file; of `raw` where they were read from another.
pub fn numbers(tensor: &TensorProto, raw: Option<&[u8]>) -> Vec<f64> {
    let bytes = raw.unwrap_or(&tensor.raw_data);
    if bytes.is_empty() {
        let narrow = |value: &i32| match tensor.data_type {
            // Halves are kept as their bits, in integers.
            FLOAT16 => half(*value as u16),
            BFLOAT16 => f64::from(f32::from_bits((*value as u32) << 16)),
            _ => f64::from(*value),
        };
        return (tensor.float_data.iter().map(|v| f64::from(*v)))
            .chain(tensor.int32_data.iter().map(narrow))
            .chain(tensor.int64_data.iter().map(|v| *v as f64))
            .chain(tensor.double_data.iter().copied())
            .chain(tensor.uint64_data.iter().map(|v| *v as f64))
            .collect();
    }
    let width = element_bytes(tensor.data_type).unwrap_or(1) as usize;
    bytes.chunks_exact(width).map(|chunk| number(tensor.data_type, chunk)).collect()
}

/// The same of a tensor of floats, in 32 bits: those of 64 bits are rounded.
pub fn floats(tensor: &TensorProto, raw: Option<&[u8]>) -> Vec<f32> {
    let bytes = raw.unwrap_or(&tensor.raw_data);
    if tensor.data_type == FLOAT && !bytes.is_empty() {
        return bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    }
    numbers(tensor, raw).into_iter().map(|number| number as f32).collect()
}

/// One element, which lies with its least byte first.
fn number(data_type: i32, chunk: &[u8]) -> f64 {
    let mut eight = [0; 8];
    eight[..chunk.len()].copy_from_slice(chunk);
    let unsigned = u64::from_le_bytes(eight);
    match data_type {
        FLOAT => f64::from(f32::from_bits(unsigned as u32)),
        DOUBLE => f64::from_bits(unsigned),
        FLOAT16 => half(unsigned as u16),
        BFLOAT16 => f64::from(f32::from_bits((unsigned as u32) << 16)),
        3 => f64::from(unsigned as u8 as i8),
        5 => f64::from(unsigned as u16 as i16),
        INT32 => f64::from(unsigned as u32 as i32),
        INT64 => unsigned as i64 as f64,
        _ => unsigned as f64,
    }
}

/// A 16-bit floating-point number: a sign, 5 bits of exponent, 10 of fraction.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    let size = match exponent {
        0 => fraction * 2_f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2_f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_type_are_read_from_bytes() {
        let check = |data_type: i32, bytes: &[u8], expected: f64| {
            let tensor = TensorProto {
                dims: vec![1],
                data_type,
                raw_data: bytes.to_vec().into(),
                ..Default::default()
            };
            assert_eq!(numbers(&tensor, None), [expected], "type {data_type}");
        };
        check(FLOAT, &1.5_f32.to_le_bytes(), 1.5);
        check(DOUBLE, &(-2.25_f64).to_le_bytes(), -2.25);
        check(FLOAT16, &0x3e00_u16.to_le_bytes(), 1.5);
        check(FLOAT16, &0xc000_u16.to_le_bytes(), -2.0);
        check(FLOAT16, &0x0001_u16.to_le_bytes(), 2_f64.powi(-24));
        check(FLOAT16, &0xfc00_u16.to_le_bytes(), f64::NEG_INFINITY);
        check(BFLOAT16, &0x3fc0_u16.to_le_bytes(), 1.5);
        check(2, &[255], 255.0);
        check(3, &[255], -1.0);
        check(BOOL, &[1], 1.0);
        check(INT32, &(-3_i32).to_le_bytes(), -3.0);
        check(INT64, &(-1_i64).to_le_bytes(), -1.0);
    }
}
