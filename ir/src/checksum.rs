//! Checksums of a study's files, against disks, memory and copies that lose bits: CRC-32, as of gzip and PNG.
//!
//! A line of a journal carries its own checksum: `{"crc32":"1c291ca3","entry":...}`. A line without one was written by an
//! older version and is accepted unverified.
//!
//! Checksums deliberately do not protect against an attacker, who can write a new checksum too.

use std::fmt;
use std::str::FromStr;

/// A CRC-32 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(u32);

/// The checksum of bytes that arrive piece by piece.
#[derive(Clone, Debug, Default)]
pub struct Summing(crc32fast::Hasher);

/// A text that does not match its stored checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it does not match its checksum")]
pub struct Mismatch;

/// Texts before a line's checksum, between it and the entry, and after the entry.
const BEFORE: &[u8] = b"{\"crc32\":\"";
const BETWEEN: &[u8] = b"\",\"entry\":";
const BEHIND: &[u8] = b"}";

impl Checksum {
    /// Hexadecimal digits of a written checksum.
    pub const DIGITS: usize = 8;

    /// Returns the checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(crc32fast::hash(bytes))
    }
}

impl Summing {
    /// Adds more bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all added bytes.
    pub fn sum(self) -> Checksum {
        Checksum(self.0.finalize())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for Checksum {
    type Err = Mismatch;
    fn from_str(text: &str) -> Result<Checksum, Mismatch> {
        let digits = text.len() == Checksum::DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = u32::from_str_radix(text, 16).ok().filter(|_| digits);
        value.map(Checksum).ok_or(Mismatch)
    }
}

/// Returns a journal entry, in JSON, as a line with its checksum and a line break.
pub fn line_of(entry: &str) -> String {
    format!("{{\"crc32\":\"{}\",\"entry\":{entry}}}\n", Checksum::of(entry.as_bytes()))
}

/// Returns the entry of a line, with or without its line break; fails if the entry does not match the line's checksum.
pub fn entry_of(line: &[u8]) -> Result<&[u8], Mismatch> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let Some(rest) = line.strip_prefix(BEFORE) else { return Ok(line) };
    let (digits, rest) = rest.split_at_checked(Checksum::DIGITS).ok_or(Mismatch)?;
    let entry = rest.strip_prefix(BETWEEN).and_then(|rest| rest.strip_suffix(BEHIND)).ok_or(Mismatch)?;
    let wanted: Checksum = std::str::from_utf8(digits).map_err(|_| Mismatch)?.parse()?;
    if Checksum::of(entry) == wanted { Ok(entry) } else { Err(Mismatch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_crc_that_others_compute() {
        assert_eq!(Checksum::of(b"123456789").to_string(), "cbf43926");
        let mut piecewise = Summing::default();
        [&b"1234"[..], b"", b"56789"].into_iter().for_each(|part| piecewise.add(part));
        assert_eq!(piecewise.sum(), Checksum::of(b"123456789"));
        assert_eq!("cbf43926".parse(), Ok(Checksum::of(b"123456789")));
        for bad in ["", "cbf4392", "cbf439266", "+bf43926", "cbf4392g"] {
            assert_eq!(bad.parse::<Checksum>(), Err(Mismatch), "{bad}");
        }
    }

    /// If any bit of a line flips, its entry is unchanged or the line is refused, here or as JSON of no known kind.
    #[test]
    fn no_flipped_bit_of_a_line_changes_its_entry() {
        let entry = r#"{"overhead":0.000125}"#;
        let line = line_of(entry);
        assert_eq!(entry_of(line.as_bytes()), Ok(entry.as_bytes()));
        assert_eq!(entry_of(entry.as_bytes()), Ok(entry.as_bytes()), "an older line has no checksum");
        for bit in 0..line.len() * 8 {
            let mut damaged = line.clone().into_bytes();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(found) = entry_of(&damaged) {
                let whole = found == entry.as_bytes();
                // The start of the line is damaged: the rest is not an entry of a journal.
                assert!(whole || found.starts_with(&damaged[..10]), "bit {bit}");
            }
        }
    }
}
