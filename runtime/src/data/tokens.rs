//! An already tokenised text: consecutive 16-bit little-endian numbers, as nanoGPT writes `train.bin`, or an array that
//! NumPy wrote (`npy.rs`).
//!
//! A piece (`pieces.rs`) is read from the file when it is requested, so that a text may be larger than memory. The digits in
//! the name of a set are a checksum of the sizes and of a few blocks of the files.
//!
//! Deliberately does not tokenise.

use super::Split;
use super::npy::{self, Array, Number};
use super::pieces::{Pieces, Tokens, longest};
use crate::error::Error;
use plimsoll_ir::checksum::{Checksum, Summing};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One token in this many is held out, at the end, if there is no held-out file.
const HELD_OUT: u64 = 10;
/// Upper bound on a vocabulary: labels are 32-bit integers.
const TOKENS_MAX: u32 = i32::MAX as u32;
/// Bytes of a block that is read, or checksummed, at once; number of checksummed blocks.
const BLOCK: usize = 1 << 16;
const SUMMED: u64 = 16;

/// A file of tokens.
struct TokenFile {
    path: PathBuf,
    file: File,
    tokens: Array,
}

/// A file of tokens, or the `train.bin` or `train.npy` of a folder, in pieces of `length` tokens. `val.bin` next to a
/// `train.bin`, and `val.npy` next to a `train.npy`, is held out, else the last tenth. The default vocabulary is the largest
/// token plus 1, for which the files are read once; a token that is not below a given vocabulary is an error when it is
/// read.
///
/// # Errors
///
/// A file cannot be read, is incomplete, or is too short for such pieces.
pub fn token_file(path: &Path, length: u32, vocabulary: Option<u32>) -> Result<Split, Error> {
    let path = if path.is_dir() { of_folder(path) } else { path.to_owned() };
    let train = Arc::new(TokenFile::open(&path)?);
    let beside = path.with_file_name(if is_npy(&path) { "val.npy" } else { "val.bin" });
    let trains = |name: &OsStr| TRAIN.iter().any(|train| *train == name);
    let held_out = path.file_name().is_some_and(trains) && beside.exists();
    let (test, border) = match held_out {
        true => (Arc::new(TokenFile::open(&beside)?), None),
        false => (train.clone(), Some((train.tokens.length - train.tokens.length / HELD_OUT) as usize)),
    };
    let [all, held_out_all] = [&train, &test].map(|file| file.tokens.length as usize);
    let (train_range, test_range) = (0..border.unwrap_or(all), border.unwrap_or(0)..held_out_all);
    for (file, range) in [(&train, &train_range), (&test, &test_range)] {
        let (tokens, most) = (range.len(), longest(range.len()));
        if length == 0 || length as usize > most {
            return Err(file.fault(format!(
                "gives {tokens} tokens to one of training and test, too few for a piece of {length} and the token behind \
                 it; give a longer text, or pieces of 1 to {most}"
            )));
        }
    }
    let vocabulary = match vocabulary {
        Some(given) => given,
        None => train.largest()?.max(if held_out { test.largest()? } else { 0 }) + 1,
    };
    let digits = digest([&train, &test])?;
    let part = |name: &str, file, range| {
        Box::new(Pieces::of(format!("tokens-{name}-{digits}"), file, range, length, vocabulary))
    };
    Ok(Split { train: part("train", &train, train_range), test: part("test", &test, test_range) })
}

/// Training files of a folder.
const TRAIN: [&str; 2] = ["train.bin", "train.npy"];

/// The first of them that exists.
fn of_folder(folder: &Path) -> PathBuf {
    let [usual, array] = TRAIN.map(|name| folder.join(name));
    if !usual.exists() && array.exists() { array } else { usual }
}

/// Returns `true` if a file has the extension of a NumPy array.
fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npy"))
}

impl TokenFile {
    fn open(path: &Path) -> Result<TokenFile, Error> {
        let fault = |why: String| Error::data(path, why);
        let expected = "expected tokens as 16-bit numbers (train.bin) or as an array of NumPy (.npy)";
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz")) {
            return Err(fault("is an archive of arrays; write one alone with numpy.save".to_owned()));
        }
        let failed = |error: std::io::Error| fault(format!("{error}; {expected}"));
        let mut file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if bytes == 0 {
            return Err(fault(format!("the file is empty; {expected}")));
        }
        if is_npy(path) {
            let tokens = npy::array(&mut file, bytes).map_err(fault)?;
            if tokens.length == 0 {
                return Err(fault("is an array without numbers; write one that holds a text".to_owned()));
            }
            return Ok(TokenFile { path: path.to_owned(), file, tokens });
        }
        let number = Number::U16;
        let each = number.bytes() as u64;
        if bytes % each != 0 {
            let why =
                format!("has {bytes} bytes, an odd number; it is cut short, or its tokens have not 16 bits");
            return Err(fault(why));
        }
        let tokens = Array { number, length: bytes / each, start: 0 };
        Ok(TokenFile { path: path.to_owned(), file, tokens })
    }

    fn fault(&self, why: String) -> Error {
        Error::data(&self.path, why)
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        self.fault(format!("cannot be read: {error}; put the file back as it was"))
    }

    /// The largest token.
    fn largest(&self) -> Result<u32, Error> {
        let number = self.tokens.number;
        let in_block = (BLOCK / number.bytes()) as u64;
        let (mut block, mut largest) = (vec![0; BLOCK], 0);
        for first in (0..self.tokens.length).step_by(in_block as usize) {
            let bytes = (self.tokens.length - first).min(in_block) as usize * number.bytes();
            self.read_at(first, &mut block[..bytes])?;
            for (at, token) in (first..).zip(number.all(&block[..bytes])) {
                largest = largest.max(self.below(at, token, TOKENS_MAX)?);
            }
        }
        Ok(largest)
    }

    /// Token at a position, checked against the vocabulary.
    fn below(&self, at: u64, token: i64, vocabulary: u32) -> Result<u32, Error> {
        match u32::try_from(token) {
            Ok(known) if known < vocabulary.min(TOKENS_MAX) => Ok(known),
            Ok(_) if vocabulary < TOKENS_MAX => Err(self.fault(format!(
                "token {token} at place {at} is beyond the vocabulary of {vocabulary} tokens; choose a network with a \
                 larger vocabulary"
            ))),
            _ => Err(self.fault(format!(
                "{token} at place {at} is no token: tokens are from 0 to {}; write the numbers of a tokeniser",
                TOKENS_MAX - 1
            ))),
        }
    }

    /// Reads bytes from the start of a token on.
    fn read_at(&self, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let Array { number, start, .. } = self.tokens;
        let at = start + first * number.bytes() as u64;
        self.file.read_exact_at(bytes, at).map_err(|error| self.failed(&error))
    }
}

/// Checksum of the sizes of the files, and of blocks from all over them.
fn digest(files: [&TokenFile; 2]) -> Result<Checksum, Error> {
    let mut sum = Summing::default();
    for file in files {
        let Array { number, length, .. } = file.tokens;
        let tokens = length.min((BLOCK / number.bytes()) as u64);
        let mut block = vec![0; tokens as usize * number.bytes()];
        sum.add(&length.to_le_bytes());
        for number in 0..SUMMED {
            file.read_at((length - tokens) / (SUMMED - 1) * number, &mut block)?;
            sum.add(&block);
        }
    }
    Ok(sum.sum())
}

impl Tokens for TokenFile {
    fn read(&self, first: usize, tokens: &mut [i32], vocabulary: u32) -> Result<(), Error> {
        let number = self.tokens.number;
        let mut bytes = vec![0; tokens.len() * number.bytes()];
        self.read_at(first as u64, &mut bytes)?;
        for ((at, place), token) in (first as u64..).zip(tokens).zip(number.all(&bytes)) {
            // Below 2^31.
            *place = self.below(at, token, vocabulary)? as i32;
        }
        Ok(())
    }
}
