//! One row of results: a JSON object whose names carry their units, and what some rows say about a target.

use serde_json::{Map, Value};

/// One measured thing.
pub type Row = Map<String, Value>;

/// A number of a row.
pub fn number(row: &Row, name: &str) -> Option<f64> {
    row.get(name).and_then(Value::as_f64)
}

/// Words of a row; empty where there are none.
pub fn words<'a>(row: &'a Row, name: &str) -> &'a str {
    row.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// What the rows of a section say about a target.
pub struct Verdict {
    /// In words and numbers.
    pub measured: String,
    /// Whether it is met; none where nothing is demanded.
    pub met: Option<bool>,
}
