//! Quantities with their unit in the type: bytes, seconds, bytes per second.
//!
//! JSON stores them as bare numbers (integers for bytes, floats otherwise); people see them with a unit. Parsing accepts the
//! usual forms of a command line: `22GiB`, `500MB`, `12.2GB/s`, `3ms`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A length of time in seconds; never NaN after it was read from a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

/// A rate in bytes per second; at least [`BytesPerSecond::LEAST`] and finite after it was read from a document or a text.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Returns the difference, or no bytes if `other` is larger.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Returns the number as f64: exact up to 2^53 bytes (8 PiB), rounded to 53 binary digits above.
    #[inline]
    pub const fn to_f64(self) -> f64 {
        self.0 as f64
    }

    /// Returns this share of the bytes, rounded down to whole bytes; 0 for a share below 0 or NaN, and at most `u64::MAX`.
    #[inline]
    pub fn share(self, share: f64) -> Bytes {
        Bytes((self.to_f64() * share) as u64)
    }

    /// Returns the smallest multiple of `alignment` that is at least this.
    pub fn round_up(self, alignment: u64) -> Bytes {
        Bytes(self.0.div_ceil(alignment) * alignment)
    }
}

impl BytesPerSecond {
    /// Smallest rate for which transfer times can be computed.
    pub const LEAST: BytesPerSecond = BytesPerSecond(1e-9);

    /// Returns `true` if times can be computed with this rate.
    pub fn is_sound(self) -> bool {
        self.0.is_finite() && self >= BytesPerSecond::LEAST
    }
}

impl Seconds {
    /// No time.
    pub const ZERO: Seconds = Seconds(0.0);

    /// Returns the later of two times.
    pub fn max(self, other: Seconds) -> Seconds {
        Seconds(self.0.max(other.0))
    }

    /// Returns the earlier of two times.
    pub fn min(self, other: Seconds) -> Seconds {
        Seconds(self.0.min(other.0))
    }
}

macro_rules! arithmetic {
    ($t:ident) => {
        impl Add for $t {
            type Output = $t;
            fn add(self, other: $t) -> $t {
                $t(self.0 + other.0)
            }
        }
        impl AddAssign for $t {
            fn add_assign(&mut self, other: $t) {
                self.0 += other.0;
            }
        }
        impl Sub for $t {
            type Output = $t;
            fn sub(self, other: $t) -> $t {
                $t(self.0 - other.0)
            }
        }
        impl SubAssign for $t {
            fn sub_assign(&mut self, other: $t) {
                self.0 -= other.0;
            }
        }
        impl Sum for $t {
            fn sum<I: Iterator<Item = $t>>(iter: I) -> $t {
                iter.fold($t::default(), Add::add)
            }
        }
    };
}
arithmetic!(Bytes);
arithmetic!(Seconds);

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, count: u64) -> Bytes {
        Bytes(self.0 * count)
    }
}

impl Mul<f64> for Seconds {
    type Output = Seconds;
    fn mul(self, factor: f64) -> Seconds {
        Seconds(self.0 * factor)
    }
}

impl Div for Seconds {
    type Output = f64;
    fn div(self, other: Seconds) -> f64 {
        self.0 / other.0
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    /// Returns the duration of this many bytes at that rate.
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.to_f64() / rate.0)
    }
}

impl Mul<BytesPerSecond> for Seconds {
    type Output = Bytes;
    /// Returns the whole bytes that pass in this time at that rate; none in a time below 0.
    fn mul(self, rate: BytesPerSecond) -> Bytes {
        Bytes((self.0 * rate.0) as u64)
    }
}

/// Formats at most four significant digits, without trailing zeros: `12.2`, `3`, `0.0451`.
fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let decimals = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_f64();
        let text = match self.0 {
            0..1024 => format!("{} B", self.0),
            1024..1_048_576 => format!("{} KiB", short(value / 1024.0)),
            1_048_576..1_073_741_824 => format!("{} MiB", short(value / 1_048_576.0)),
            _ => format!("{} GiB", short(value / 1_073_741_824.0)),
        };
        f.pad(&text)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        let text = if size == 0.0 {
            "0 s".to_owned()
        } else if size < 1e-3 {
            format!("{} µs", short(self.0 * 1e6))
        } else if size < 1.0 {
            format!("{} ms", short(self.0 * 1e3))
        } else if size < 120.0 {
            format!("{} s", short(self.0))
        } else if size < 7200.0 {
            format!("{} min", short(self.0 / 60.0))
        } else {
            format!("{} h", short(self.0 / 3600.0))
        };
        f.pad(&text)
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.0 >= 1e9 {
            format!("{} GB/s", short(self.0 / 1e9))
        } else if self.0 >= 1e5 {
            format!("{} MB/s", short(self.0 / 1e6))
        } else {
            format!("{} B/s", short(self.0))
        };
        f.pad(&text)
    }
}

/// An error of parsing a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct ParseQuantityError {
    /// Given text.
    pub text: String,
    /// Expected form, with an example.
    pub wanted: &'static str,
}

/// Splits `12.2GB` into 12.2 and `GB`. Accepts no sign, so no quantity is negative.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    // `1e9` is one number, not `1` of the unit `e9`.
    let (number, unit) = match text[end..].strip_prefix(['e', 'E']) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            text.split_at(end + 1 + digits)
        }
        _ => text.split_at(end),
    };
    let value: f64 = number.replace('_', "").parse().ok()?;
    value.is_finite().then_some((value, unit.trim()))
}

/// Returns the bytes of one unit; decimal for `kB`, `MB`, binary for `KiB`, `MiB`.
fn bytes_of_unit(unit: &str) -> Option<f64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return None,
    })
}

/// Returns the bytes of one bit, or of a multiple of it, as networks are sold; decimal.
fn bits_of_unit(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_lowercase();
    bytes_of_unit(unit.strip_suffix("bit")?)
        .filter(|_| !unit.starts_with("bbit"))
        .map(|multiple| multiple / 8.0)
}

impl FromStr for Bytes {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Bytes, ParseQuantityError> {
        let error =
            || ParseQuantityError { text: text.to_owned(), wanted: "a size such as 22GiB, 500MB or 4096" };
        if let Ok(exact) = text.trim().parse::<u64>() {
            return Ok(Bytes(exact));
        }
        let (value, unit) = split(text).ok_or_else(error)?;
        let bytes = value * bytes_of_unit(unit).ok_or_else(error)?;
        // A part of a byte is not a size: a user who writes 0.5 means 50%.
        let is_size = bytes < 9e18 && (bytes >= 1.0 || bytes == 0.0);
        if is_size { Ok(Bytes(bytes.round() as u64)) } else { Err(error()) }
    }
}

impl FromStr for BytesPerSecond {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<BytesPerSecond, ParseQuantityError> {
        let error = || ParseQuantityError {
            text: text.to_owned(),
            wanted: "a rate above zero with its unit, such as 12.2GB/s, 900MB/s or 10Gbit/s",
        };
        // `12` that a user means in GB/s would be a link that moves 12 bytes a second.
        let (value, unit) = split(text).ok_or_else(error)?;
        let unit = Some(unit.strip_suffix("/s").unwrap_or(unit)).filter(|unit| !unit.is_empty());
        let rate = value
            * unit.and_then(|unit| bits_of_unit(unit).or_else(|| bytes_of_unit(unit))).ok_or_else(error)?;
        Some(BytesPerSecond(rate)).filter(|rate| rate.is_sound()).ok_or_else(error)
    }
}

impl FromStr for Seconds {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Seconds, ParseQuantityError> {
        let error =
            || ParseQuantityError { text: text.to_owned(), wanted: "a time such as 3ms, 10s or 2min" };
        let (value, unit) = split(text).ok_or_else(error)?;
        let factor = match unit {
            "" | "s" => 1.0,
            // The keyboard's form, and both signs that print alike: micro and mu.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "min" | "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(error()),
        };
        Ok(Seconds(value * factor))
    }
}

/// A size on the command line: bytes, or a share of a whole that the command names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// An exact number of bytes.
    Exact(Bytes),
    /// A share between 0 and 1, written `90%`.
    Share(f64),
}

impl Size {
    /// Returns the bytes; a share is one of `whole`.
    pub fn of(self, whole: Bytes) -> Bytes {
        match self {
            Size::Exact(bytes) => bytes,
            Size::Share(share) => Bytes((whole.to_f64() * share).round() as u64),
        }
    }
}

impl FromStr for Size {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Size, ParseQuantityError> {
        let Some(number) = text.trim().strip_suffix('%') else { return text.parse().map(Size::Exact) };
        let error = || ParseQuantityError {
            text: text.to_owned(),
            wanted: "a size such as 22GiB, or a share above 0% such as 90%",
        };
        match split(number) {
            Some((value, "")) if value > 0.0 => Ok(Size::Share(value / 100.0)),
            _ => Err(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_decimal_and_binary_units() {
        assert_eq!("22GiB".parse(), Ok(Bytes(22 << 30)));
        assert_eq!("500MB".parse(), Ok(Bytes(500_000_000)));
        assert_eq!("1e9".parse(), Ok(Bytes(1_000_000_000)));
        assert_eq!("18446744073709551615".parse(), Ok(Bytes(u64::MAX)));
        assert_eq!("90%".parse::<Size>().map(|s| s.of(Bytes(1000))), Ok(Bytes(900)));
        for bad in ["", "-1", "1XB", "nan", "1e40", "0%", "-3%", "GiB", "0.5", "0.4B"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_and_times_are_read_and_shown() {
        assert_eq!("12.2GB/s".parse(), Ok(BytesPerSecond(12.2e9)));
        assert_eq!("12B/s".parse(), Ok(BytesPerSecond(12.0)));
        assert_eq!("12.2e9 B/s".parse(), Ok(BytesPerSecond(12.2e9)));
        assert_eq!("10Gbit/s".parse(), Ok(BytesPerSecond(1.25e9)));
        assert_eq!("400 mbit/s".parse(), Ok(BytesPerSecond(50e6)));
        assert_eq!("8bit/s".parse(), Ok(BytesPerSecond(1.0)));
        let tiny = format!("0.{}1B/s", "0".repeat(320));
        for bad in [
            "0", "0GB/s", "-1GB/s", "NaN", "inf", "1GB/h", "12", "12.2e9", "1e-320", "1e400B/s", &tiny,
            "12/s", "1Bbit/s", "1bits/s", "0Gbit/s",
        ] {
            assert!(bad.parse::<BytesPerSecond>().is_err(), "{bad}");
        }
        assert_eq!("3ms".parse(), Ok(Seconds(3e-3)));
        assert_eq!(BytesPerSecond(12.2e9).to_string(), "12.2 GB/s");
        assert_eq!(BytesPerSecond(900e3).to_string(), "0.9 MB/s");
        assert_eq!(BytesPerSecond(12.0).to_string(), "12 B/s");
        assert_eq!(Seconds(0.01234).to_string(), "12.34 ms");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
    }
}
