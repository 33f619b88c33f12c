//! Header of an array that NumPy wrote (`numpy.save`): the type of its numbers, and their place in the file.
//!
//! Such a file begins with `\x93NUMPY`, two bytes of version, the length of a text (2 bytes in version 1.0, 4 in 2.0), and
//! that text, a Python dictionary:
//!
//! ```text
//! {'descr': '<u2', 'fortran_order': False, 'shape': (100,), }
//! ```
//!
//! (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.) For one dimension both orders are the same.
//! The text is read as JSON and never evaluated.
//!
//! Deliberately does not read numbers, arrays of several dimensions, or archives (`.npz`).

use serde::Deserialize;
use serde_json::Value;
use std::io::Read;

/// First bytes of every file.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Upper bound on the length of a header of numbers.
const HEADER_BYTES_MAX: u32 = 1 << 16;

/// Number types of tokens, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    U16,
    U32,
    I32,
    I64,
}

impl Number {
    /// Type with this NumPy name.
    fn named(descr: &str) -> Option<Number> {
        Some(match descr {
            "<u2" => Number::U16,
            "<u4" => Number::U32,
            "<i4" => Number::I32,
            "<i8" => Number::I64,
            _ => return None,
        })
    }

    /// Bytes of a number.
    pub(super) fn bytes(self) -> usize {
        match self {
            Number::U16 => 2,
            Number::U32 | Number::I32 => 4,
            Number::I64 => 8,
        }
    }

    /// Decodes bytes as numbers.
    pub(super) fn all(self, bytes: &[u8]) -> impl Iterator<Item = i64> {
        bytes.chunks_exact(self.bytes()).map(move |chunk| match (self, chunk) {
            (Number::U16, &[a, b]) => u16::from_le_bytes([a, b]).into(),
            (Number::U32, &[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]).into(),
            (Number::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
            (_, eight) => eight.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte)),
        })
    }
}

/// Type and place of an array's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Array {
    /// Type of the numbers.
    pub number: Number,
    /// Number of elements.
    pub length: u64,
    /// Offset of the first number in the file.
    pub start: u64,
}

/// Reads the header of a file of this many bytes, which holds the whole array and nothing else. The error gives the fault
/// and the remedy.
pub(super) fn array(file: &mut impl Read, bytes: u64) -> Result<Array, String> {
    let cut = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "is cut short within its header; copy it again".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let mut take = |wanted: usize| {
        let mut taken = vec![0; wanted];
        file.read_exact(&mut taken).map(|()| taken).map_err(cut)
    };
    if take(MAGIC.len()).map_err(|_| foreign())? != MAGIC {
        return Err(foreign());
    }
    let version = take(2)?;
    let length = match version[..] {
        [1, 0] => take(2)?,
        [2, 0] => take(4)?,
        _ => {
            return Err(format!(
                "is of version {}.{} of NumPy's format, and 1.0 and 2.0 are read; write the array again with numpy.save",
                version[0], version[1]
            ));
        }
    };
    let width = length.len();
    let length = length.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
    if length > HEADER_BYTES_MAX {
        return Err(format!(
            "says that its header has {length} bytes, and those of numbers have fewer; copy it again"
        ));
    }
    let text = take(length as usize)?;
    let header = Header::of(&text)?;
    let descr = header.descr.as_str().unwrap_or("a record");
    let Some(number) = Number::named(descr) else {
        return Err(format!(
            "holds numbers of type `{}`, and tokens are `<u2`, `<u4`, `<i4` or `<i8`; write them again: \
             numpy.save('tokens.npy', numpy.load(FILE).astype('<u4'))",
            descr.escape_default()
        ));
    };
    let [length] = header.shape[..] else {
        return Err(format!(
            "is an array of {} dimensions, and a text has one; write it again: numpy.save('tokens.npy', \
             numpy.load(FILE).reshape(-1))",
            header.shape.len()
        ));
    };
    let start = (MAGIC.len() + version.len() + width + text.len()) as u64;
    let end = length.checked_mul(number.bytes() as u64).and_then(|bytes| bytes.checked_add(start));
    match end {
        Some(end) if end == bytes => Ok(Array { number, length, start }),
        Some(end) if end < bytes => {
            Err(format!("has {} bytes behind its array; write one array alone with numpy.save", bytes - end))
        }
        _ => Err(format!(
            "is cut short: its header says {length} numbers, and {bytes} bytes are there; copy it again"
        )),
    }
}

fn foreign() -> String {
    "is no array of NumPy: it does not begin like one; write it with numpy.save, or name a file of 16-bit numbers .bin"
        .to_owned()
}

/// Contents of a header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// A text, or a list for a record type.
    descr: Value,
    #[serde(rename = "fortran_order")]
    _order: bool,
    shape: Vec<u64>,
}

impl Header {
    /// Reads the dictionary as JSON, which it is but for its punctuation.
    fn of(text: &[u8]) -> Result<Header, String> {
        let fault = |at: usize| {
            format!(
                "has a header that is not NumPy's, at byte {at} of it; write the array again with numpy.save"
            )
        };
        let python = str::from_utf8(text).map_err(|error| fault(error.valid_up_to()))?.trim_ascii_end();
        // A single size is followed by a comma.
        if let Some((at, sizes)) = python.find('(').zip(python.split(['(', ')']).nth(1))
            && sizes.bytes().any(|byte| byte.is_ascii_digit())
            && !sizes.contains(',')
        {
            return Err(fault(at + 1 + sizes.len()));
        }
        let mut json = String::new();
        for (at, mark) in python.char_indices() {
            json.push(match mark {
                // The last entry may have a comma after it.
                ',' if python[at + 1..].trim_ascii_start().starts_with(['}', ')']) => ' ',
                '(' => '[',
                ')' => ']',
                '\'' => '"',
                mark => mark,
            });
        }
        let json = json.replace("True", "true").replace("False", "false").replace(['\n', '\r'], " ");
        serde_json::from_str(&json).map_err(|error| fault(error.column().saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of version 1.0 with this header, and this many bytes of data.
    fn file(header: &str, data: usize) -> Vec<u8> {
        [&MAGIC[..], &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), &vec![0; data]]
            .concat()
    }

    fn read(bytes: &[u8]) -> Result<Array, String> {
        array(&mut &bytes[..], bytes.len() as u64)
    }

    #[test]
    fn headers_are_read_in_any_order_and_spacing() {
        let check = |header: &str, number: Number, length: u64| {
            let bytes = file(header, length as usize * number.bytes());
            let start = 10 + header.len() as u64;
            assert_eq!(read(&bytes), Ok(Array { number, length, start }), "{header}");
        };
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (100,), }          \n", Number::U16, 100);
        check("{'descr': '<i8', 'fortran_order': True, 'shape': (1,)}", Number::I64, 1);
        check("{\"shape\":( 7 , ),\"fortran_order\":False,\"descr\":\"<u4\"}\n", Number::U32, 7);
        check(" { 'fortran_order' : True , 'descr' : '<i4' , 'shape' : (3,) , } ", Number::I32, 3);
        let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }\n";
        let longer = (header.len() as u32).to_le_bytes();
        let bytes = [&MAGIC[..], &[2, 0], &longer, header.as_bytes(), &[0; 4]].concat();
        assert_eq!(read(&bytes).map(|array| array.start), Ok(12 + header.len() as u64));
    }

    #[test]
    fn headers_that_numpy_does_not_write_are_refused() {
        let check = |header: &str| {
            let error = read(&file(header, 4)).expect_err(header);
            assert!(error.contains("not NumPy's, at byte "), "{header}: {error}");
        };
        check("");
        check("'descr': '<u2'");
        check("{'descr': '<u2', 'shape': (2,)}");
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (2,), 'descr': '<u2'}");
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (2,), 'more': 1}");
        check("{'descr': '<u2', 'fortran_order': 0, 'shape': (2,)}");
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (2)}");
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (-2,)}");
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (2L,)}");
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (2,)} or 1");
        check("{'descr': '<u\\x32', 'fortran_order': False, 'shape': (2,)}");
        check("{'descr': '<u2' 'fortran_order': False, 'shape': (2,)}");
        check("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,)}");
    }

    #[test]
    fn numbers_of_every_type_are_read() {
        let check = |number: Number, bytes: &[u8], expected: &[i64]| {
            assert_eq!(number.all(bytes).collect::<Vec<_>>(), expected, "{number:?}");
        };
        check(Number::U16, &[255, 255, 1, 0], &[65535, 1]);
        check(Number::U32, &[255, 255, 255, 255], &[4_294_967_295]);
        check(Number::I32, &[255, 255, 255, 255, 2, 1, 0, 0], &[-1, 258]);
        check(Number::I64, &[254, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 1, 0, 0, 0], &[-2, 1 << 32]);
    }
}
