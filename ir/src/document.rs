//! Strict parsing and serialisation of the JSON documents.
//!
//! The key `"plimsoll"` of a document names its kind and version. A reader accepts only the kind and version that it knows,
//! and rejects every unknown key, with the place of the fault. This file does no IO: it takes and returns text.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Returns `true` for a mark that serialisation leaves out.
pub(crate) fn is_false(mark: &bool) -> bool {
    !mark
}

/// Reason why a text is not the requested document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text is no JSON object of Plimsoll's, was cut short, or has a key or a value that the kind does not have.
    #[error("{0}")]
    Unreadable(String),
    /// The text is a different kind of document, or a different version.
    #[error("this is a `{found}` document; expected `{wanted}`")]
    OtherKind {
        /// Kind that the document names.
        found: String,
        /// Requested kind.
        wanted: &'static str,
    },
    /// The values do not belong together: an id that names nothing, a sum that overflows, an op that reads data
    /// never written.
    #[error("at {place}: {why}")]
    Meaning {
        /// Path to the value.
        place: String,
        /// The fault in words, and the correct value.
        why: String,
    },
}

/// A JSON document with a kind and version in its key `"plimsoll"`.
pub trait Document: Serialize + DeserializeOwned {
    /// Value of the key `"plimsoll"`.
    const KIND: &'static str;

    /// Checks the values taken together.
    fn validate(&self) -> Result<(), Fault>;

    /// Parses a document.
    fn from_json(text: &str) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        #[serde(expecting = "a JSON object")]
        struct Header {
            plimsoll: Option<String>,
        }
        if text.trim().is_empty() {
            let message = format!("the file is empty; expected a {} document", Self::KIND);
            return Err(Fault::Unreadable(message));
        }
        match serde_json::from_str::<Header>(text) {
            Ok(Header { plimsoll: None }) => {
                let wanted = Self::KIND;
                return Err(Fault::Unreadable(format!(
                    "no key \"plimsoll\" that names its kind; expected a {wanted} document"
                )));
            }
            Ok(Header { plimsoll: Some(found) }) if found != Self::KIND => {
                return Err(Fault::OtherKind { found, wanted: Self::KIND });
            }
            Ok(_) => {}
            Err(error) => {
                let (why, line, column) = (without_place(&error), error.line(), error.column());
                return Err(Fault::Unreadable(format!(
                    "not a whole JSON document ({why} at line {line}, column {column}); it may be cut short or of another \
                     kind"
                )));
            }
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        let document: Self = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let place = match error.path().to_string() {
                top if top == "." => "the top level".to_owned(),
                path => path,
            };
            let inner = error.into_inner();
            let (why, line, column) = (without_place(&inner), inner.line(), inner.column());
            Fault::Unreadable(format!("at {place} (line {line}, column {column}): {why}"))
        })?;
        document.validate()?;
        Ok(document)
    }

    /// Serialises the document: the same bytes for the same value, with one entry of the long arrays per line.
    fn to_json(&self) -> String {
        let value = serde_json::to_value(self).expect("a document has string keys and finite numbers");
        let mut out = String::new();
        write_value(&value, 0, &mut out);
        out.push('\n');
        out
    }
}

/// Returns the words of an error without the place at their end.
fn without_place(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

/// Writes objects at depth 0 and arrays of objects at depth 1 with one entry per line; everything deeper stays on its line.
fn write_value(value: &serde_json::Value, depth: usize, out: &mut String) {
    use serde_json::Value;
    match value {
        Value::Object(map) if depth == 0 => {
            out.push_str("{\n");
            for (i, (key, inner)) in map.iter().enumerate() {
                let comma = if i + 1 < map.len() { "," } else { "" };
                out.push_str("  ");
                out.push_str(&Value::String(key.clone()).to_string());
                out.push_str(": ");
                write_value(inner, 1, out);
                out.push_str(comma);
                out.push('\n');
            }
            out.push('}');
        }
        Value::Array(items) if depth == 1 && items.first().is_some_and(Value::is_object) => {
            out.push_str("[\n");
            for (i, item) in items.iter().enumerate() {
                let comma = if i + 1 < items.len() { "," } else { "" };
                out.push_str("    ");
                out.push_str(&item.to_string());
                out.push_str(comma);
                out.push('\n');
            }
            out.push_str("  ]");
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Defines the zero-sized type that is serialised as a document's kind, and deserialises only from it.
macro_rules! define_kind {
    ($name:ident, $text:literal) => {
        #[doc = concat!("The value of the key `\"plimsoll\"`: `\"", $text, "\"`.")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($text)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                if text == $text {
                    Ok($name)
                } else {
                    Err(serde::de::Error::custom(format_args!(concat!("`{}` is not `", $text, "`"), text)))
                }
            }
        }
    };
}
pub(crate) use define_kind;
