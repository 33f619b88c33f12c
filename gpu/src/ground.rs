//! What a section stands on: how much time it has, how large it may measure, and where its rows go.

use crate::Options;
use serde_json::Value;
use std::io::Write;
use std::time::{Duration, Instant};

/// What a section is given.
pub struct Ground {
    /// What the command line says.
    pub options: Options,
    /// When its time is over.
    until: Instant,
}

impl Ground {
    /// With so many seconds from now.
    pub fn new(seconds: u64, options: Options) -> Ground {
        Ground { options, until: Instant::now() + Duration::from_secs(seconds) }
    }

    /// One of two sizes.
    pub fn pick<T>(&self, full: T, small: T) -> T {
        if self.options.small { small } else { full }
    }

    /// Seconds that are left.
    pub fn left(&self) -> f64 {
        self.until.saturating_duration_since(Instant::now()).as_secs_f64()
    }

    /// Gives a row of the result, an object with its units in the names: `_seconds`, `_bytes`, `_share`.
    ///
    /// It goes out at once, so that what was measured before a section is cut is kept.
    pub fn row(&self, row: &Value) {
        let mut out = std::io::stdout().lock();
        // Nobody reads any more: whoever asked has cut the section.
        let _ = writeln!(out, "{row}").and_then(|()| out.flush());
    }
}
