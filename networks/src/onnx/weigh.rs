//! Weighs a file before it is decoded: what is decoded takes memory for every message in it, however short.
//!
//! A message of two bytes becomes a structure of two hundred; so a file could announce far more than it holds. Here the
//! fields are counted without making anything, by the format of protocol buffers alone. Whatever is malformed is left to the
//! decoder, which says so.

use super::error::OnnxError;

/// More fields than this has no file: the network of 1,517 layers has a hundred thousand.
const FIELDS_MAX: usize = 1 << 20;

/// More bytes than this hold no numbers that are kept as integers: masks and indices.
const INTEGER_BYTES_MAX: usize = 1 << 25;

/// The messages that are decoded; fields that are not named here are skipped or copied byte for byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Value,
    Type,
    TensorType,
    Shape,
    Leaf,
    /// Packed integers.
    Integers,
    /// Text or numbers as they are.
    Bytes,
}

/// What a field of a message holds.
fn inside(message: Message, field: u64) -> Message {
    match (message, field) {
        (Message::Model, 7) => Message::Graph,
        (Message::Model, 8) | (Message::Tensor, 13) => Message::Leaf,
        (Message::Graph, 1) => Message::Node,
        (Message::Graph, 5) | (Message::Attribute, 5) => Message::Tensor,
        (Message::Graph, 11 | 12) => Message::Value,
        (Message::Node, 5) => Message::Attribute,
        (Message::Value, 2) => Message::Type,
        (Message::Type, 1) => Message::TensorType,
        (Message::TensorType, 2) => Message::Shape,
        (Message::Shape, 1) => Message::Leaf,
        (Message::Tensor, 1 | 5 | 7 | 11) | (Message::Attribute, 8) => Message::Integers,
        _ => Message::Bytes,
    }
}

/// What was counted.
#[derive(Default)]
struct Count {
    fields: usize,
    integer_bytes: usize,
}

/// Refuses a file whose decoded form would take far more memory than the file.
pub fn weigh(file: &[u8]) -> Result<(), OnnxError> {
    let mut count = Count::default();
    walk(file, Message::Model, &mut count);
    if count.fields > FIELDS_MAX {
        let what = format!("the file has more than {FIELDS_MAX} fields");
        return Err(OnnxError::TooLarge { what });
    }
    if count.integer_bytes > INTEGER_BYTES_MAX {
        let what = format!("the file has more than {INTEGER_BYTES_MAX} bytes of integers");
        return Err(OnnxError::TooLarge { what });
    }
    Ok(())
}

/// Counts the fields of a message, until it is malformed or enough is known. Messages lie in each other as deep as
/// [`inside`] goes, and no deeper.
fn walk(mut bytes: &[u8], message: Message, count: &mut Count) {
    while !bytes.is_empty() && count.fields <= FIELDS_MAX {
        let Some(key) = varint(&mut bytes) else { return };
        count.fields += 1;
        let length = match key & 7 {
            0 => match varint(&mut bytes) {
                Some(_) => 0,
                None => return,
            },
            1 => 8,
            5 => 4,
            2 => match varint(&mut bytes).map(usize::try_from) {
                Some(Ok(length)) => length,
                _ => return,
            },
            // Groups are of old; the decoder goes through them without keeping anything.
            3 | 4 => 0,
            _ => return,
        };
        let Some((content, rest)) = bytes.split_at_checked(length) else { return };
        bytes = rest;
        if key & 7 == 2 {
            match inside(message, key >> 3) {
                Message::Bytes => {}
                Message::Integers => count.integer_bytes += content.len(),
                inner => walk(content, inner, count),
            }
        }
    }
}

/// A number of up to ten bytes, seven bits each.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
