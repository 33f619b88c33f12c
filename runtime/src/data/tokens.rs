//! A text that is tokenised already: 16-bit numbers, little-endian, one behind the other, as nanoGPT writes `train.bin`.
//!
//! A piece (`pieces.rs`) is read from the file when it is asked for, so that a text may be larger than memory. The digits in
//! the name of a set are a checksum of the sizes and of a few blocks of the files.
//!
//! What it deliberately does not do: tokenise, or read other numbers.

use super::Split;
use super::pieces::{Pieces, Tokens, longest};
use crate::error::RuntimeError;
use plimsoll_ir::checksum::{Checksum, Summing};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a token.
const EACH: usize = 2;
/// One token in so many is held out, at the end, where no file is there for that.
const HELD_OUT: u64 = 10;
/// Bytes of a block that is read at once, or summed up; how many of the latter.
const BLOCK: usize = 1 << 16;
const SUMMED: u64 = 16;

/// A file of tokens.
struct TokenFile {
    path: PathBuf,
    file: File,
    tokens: u64,
}

/// A file of tokens, or the `train.bin` of a folder, in pieces of so many. `val.bin` beside a `train.bin` is held out, else the
/// last tenth. Where no vocabulary is given it is the largest token plus 1, for which the files are read once; a token beyond
/// one that is given is an error where it is read.
///
/// # Errors
///
/// A file cannot be read, is not whole, or is too short for such pieces.
pub fn token_file(path: &Path, length: u32, vocabulary: Option<u32>) -> Result<Split, RuntimeError> {
    let path = if path.is_dir() { path.join("train.bin") } else { path.to_owned() };
    let train = Arc::new(TokenFile::open(&path)?);
    let beside = path.with_file_name("val.bin");
    let held_out = path.file_name().is_some_and(|name| name == "train.bin") && beside.exists();
    let (test, border) = match held_out {
        true => (Arc::new(TokenFile::open(&beside)?), None),
        false => (train.clone(), Some((train.tokens - train.tokens / HELD_OUT) as usize)),
    };
    let [all, held_out_all] = [&train, &test].map(|file| file.tokens as usize);
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

impl TokenFile {
    fn open(path: &Path) -> Result<TokenFile, RuntimeError> {
        let fault = |why: String| RuntimeError::Data { path: path.to_owned(), why };
        if path.extension().is_some_and(|ending| ending == "npy") {
            let advice = "numpy.load(FILE).astype('<u2').tofile('train.bin')";
            return Err(fault(format!("is an array of NumPy; write its numbers alone: {advice}")));
        }
        let failed =
            |error: std::io::Error| fault(format!("{error}; expected tokens as 16-bit numbers (train.bin)"));
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if bytes == 0 {
            return Err(fault("the file is empty; expected tokens as 16-bit numbers".to_owned()));
        }
        if bytes % EACH as u64 != 0 {
            let why =
                format!("has {bytes} bytes, an odd number; it is cut short, or its tokens have not 16 bits");
            return Err(fault(why));
        }
        Ok(TokenFile { path: path.to_owned(), file, tokens: bytes / EACH as u64 })
    }

    fn fault(&self, why: String) -> RuntimeError {
        RuntimeError::Data { path: self.path.clone(), why }
    }

    fn failed(&self, error: &std::io::Error) -> RuntimeError {
        self.fault(format!("cannot be read: {error}; put the file back as it was"))
    }

    /// The largest token.
    fn largest(&self) -> Result<u32, RuntimeError> {
        let (mut file, mut block, mut largest) = (&self.file, vec![0; BLOCK], 0);
        loop {
            let mut filled = 0;
            while filled < BLOCK {
                match file.read(&mut block[filled..]).map_err(|error| self.failed(&error))? {
                    0 => break,
                    more => filled += more,
                }
            }
            if filled == 0 {
                return Ok(u32::from(largest));
            }
            largest = numbers(&block[..filled]).fold(largest, u16::max);
        }
    }

    /// Reads what begins at a token.
    fn read_at(&self, first: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        self.file.read_exact_at(bytes, first * EACH as u64).map_err(|error| self.failed(&error))
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks::<EACH>().0.iter().map(|two| u16::from_le_bytes(*two))
}

/// Of the sizes of the files, and of blocks from all over them.
fn digest(files: [&TokenFile; 2]) -> Result<Checksum, RuntimeError> {
    let mut sum = Summing::default();
    for file in files {
        let tokens = file.tokens.min((BLOCK / EACH) as u64);
        let mut block = vec![0; tokens as usize * EACH];
        sum.add(&file.tokens.to_le_bytes());
        for number in 0..SUMMED {
            file.read_at((file.tokens - tokens) / (SUMMED - 1) * number, &mut block)?;
            sum.add(&block);
        }
    }
    Ok(sum.sum())
}

impl Tokens for TokenFile {
    fn read(&self, first: usize, tokens: &mut [i32], vocabulary: u32) -> Result<(), RuntimeError> {
        let mut bytes = vec![0; tokens.len() * EACH];
        self.read_at(first as u64, &mut bytes)?;
        for ((at, place), token) in (first..).zip(tokens).zip(numbers(&bytes)) {
            if u32::from(token) >= vocabulary {
                return Err(self.fault(format!(
                    "token {token} at place {at} is beyond the vocabulary of {vocabulary} tokens; choose a network with a \
                     larger vocabulary"
                )));
            }
            *place = token.into();
        }
        Ok(())
    }
}
