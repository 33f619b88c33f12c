//! Terms: the contents of a tensor, as an expression over the images, the labels and the parameters.

use std::collections::HashMap;

/// The number of a term; equal terms have equal numbers.
pub type TermId = u32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// A function, with its shapes and constants in its name, of other terms.
    Apply(String, Vec<TermId>),
    /// A sum whose order does not matter; no term of it is a sum.
    Sum(Vec<TermId>),
}

/// All terms so far.
#[derive(Default)]
pub struct Terms {
    numbers: HashMap<Term, TermId>,
    terms: Vec<Term>,
}

impl Terms {
    fn number(&mut self, term: Term) -> TermId {
        let next = self.terms.len() as TermId;
        let terms = &mut self.terms;
        *self.numbers.entry(term).or_insert_with_key(|term| {
            terms.push(term.clone());
            next
        })
    }

    /// Returns a given term.
    pub fn atom(&mut self, name: &str) -> TermId {
        self.apply(name, &[])
    }

    pub fn apply(&mut self, function: &str, arguments: &[TermId]) -> TermId {
        self.number(Term::Apply(function.to_owned(), arguments.to_vec()))
    }

    pub fn sum(&mut self, a: TermId, b: TermId) -> TermId {
        let mut addends = Vec::new();
        for part in [a, b] {
            match &self.terms[part as usize] {
                Term::Sum(inner) => addends.extend(inner),
                Term::Apply(..) => addends.push(part),
            }
        }
        addends.sort_unstable();
        self.number(Term::Sum(addends))
    }

    /// Returns the text after a prefix in a term's function, and its only argument.
    pub fn constant_and_argument_of(&self, prefix: &str, term: TermId) -> (String, TermId) {
        match &self.terms[term as usize] {
            Term::Apply(name, arguments) if name.starts_with(prefix) && arguments.len() == 1 => {
                (name[prefix.len()..].to_owned(), arguments[0])
            }
            other => panic!("needs a {prefix}, and holds {other:?}"),
        }
    }

    /// Returns the only argument of a term that must be this function of it.
    pub fn argument_of(&self, function: &str, term: TermId) -> TermId {
        match &self.terms[term as usize] {
            Term::Apply(name, arguments) if name == function && arguments.len() == 1 => arguments[0],
            other => panic!("needs a {function}, and holds {other:?}"),
        }
    }
}
