//! Texts, for models that predict the next token: the text embedded in the binary (see `runtime/data/text/README.md`) or a
//! user's file.
//!
//! A token is a character, numbered in the order of those that occur in the whole text. Samples are its pieces
//! (`pieces.rs`).
//!
//! Deliberately does not build larger tokens, or mask characters for a model to guess.

use super::Split;
use super::pieces::{Pieces, Tokens, longest};
use crate::error::Error;
use std::path::Path;
use std::sync::Arc;

/// *The Tragedy of Coriolanus*.
static SHIPPED: &str = include_str!("../../data/text/coriolanus.txt");
/// One character in this many is held out, at the end of the text.
const HELD_OUT: usize = 10;

/// The text embedded in Plimsoll, in pieces of `length` characters. Errors: the pieces are longer than the held-out part.
pub fn text(length: u32) -> Result<Split, Error> {
    split(SHIPPED, length)
        .map_err(|most| Error::mismatch("length of the texts", format!("1 to {most}"), length))
}

/// A text file in UTF-8, in pieces of `length` characters. Errors: it cannot be read, is not UTF-8 or too short.
pub fn text_file(path: &Path, length: u32) -> Result<Split, Error> {
    let fault = |why: String| Error::data(path, why);
    let bytes = super::whole_file(path, "a text")?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        fault(format!("is no text in UTF-8: byte {} belongs to no character", error.valid_up_to()))
    })?;
    split(text, length).map_err(|most| {
        let characters = text.chars().count();
        let advice = match most {
            0 => "give a longer text".to_owned(),
            most => format!("give a longer text, or pieces of 1 to {most}"),
        };
        fault(format!("has {characters} characters, too few for pieces of {length} to train on and to test with; {advice}"))
    })
}

/// Training and test set; the error is the longest piece for which both have one.
fn split(text: &str, length: u32) -> Result<Split, usize> {
    let mut characters: Vec<char> = text.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    let number = |c: char| characters.binary_search(&c).expect("it was collected") as i32;
    let tokens: Arc<Vec<i32>> = Arc::new(text.chars().map(number).collect());
    let vocabulary = characters.len() as u32;
    let held_out = tokens.len() / HELD_OUT;
    // Bounded by the shorter part.
    let most = longest(held_out);
    if length == 0 || length as usize > most {
        return Err(most);
    }
    let part =
        |name: &str, range| Box::new(Pieces::of(format!("text-{name}"), &tokens, range, length, vocabulary));
    let border = tokens.len() - held_out;
    Ok(Split { train: part("train", 0..border), test: part("test", border..tokens.len()) })
}

impl Tokens for Vec<i32> {
    fn read(&self, first: usize, tokens: &mut [i32], _: u32) -> Result<(), Error> {
        tokens.copy_from_slice(&self[first..first + tokens.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, Input};

    fn piece(data: &dyn Dataset, index: usize) -> (Vec<i32>, Vec<i32>) {
        let (mut tokens, mut labels) = (vec![-1; data.labels()], vec![-1; data.labels()]);
        data.read(index, Input::Tokens(&mut tokens), &mut labels).expect("it is in memory");
        (tokens, labels)
    }

    #[test]
    fn pieces_lie_end_to_end_and_labels_are_one_further() {
        let split = split("abcabcabcabcabcabcabcabcabcabcxyz", 2).expect("it is long enough");
        assert_eq!((split.train.len(), split.test.len(), split.train.classes()), (14, 1, 6));
        assert_eq!(piece(&*split.train, 0), (vec![0, 1], vec![1, 2]));
        assert_eq!(piece(&*split.train, 1), (vec![2, 0], vec![0, 1]));
        assert_eq!(piece(&*split.test, 0), (vec![3, 4], vec![4, 5]));
    }

    #[test]
    fn the_shipped_text_is_whole() {
        let split = text(128).expect("it is long enough");
        assert_eq!((split.train.len(), split.test.len(), split.train.classes()), (1086, 120, 61));
        assert!(text(15_445).is_ok());
        for length in [0, 15_446] {
            let error = text(length).err().expect("it has no such pieces").to_string();
            assert!(error.contains("expected 1 to 15445"), "{error}");
        }
    }
}
