//! The values of a graph: what each of its names stands for while our layers are made of its nodes.

use super::constant::Constant;
use super::view::View;
use plimsoll_ir::network::Function;
use std::rc::Rc;

/// What a name of the graph stands for.
#[derive(Clone, Debug)]
pub enum Value {
    /// Numbers that do not depend on the input.
    Constant(Constant),
    /// Random numbers.
    Drawn(Drawn),
    /// The output of a layer, or what lies between two of our layers.
    Flow(Flow),
}

/// The output of a layer, or something on the way to the next one.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Where it lies; scores of attention lie in the output of the layer that gives the queries, over keys in place of
    /// channels.
    pub view: View,
    /// Times this.
    pub factor: f64,
    /// What it is.
    pub stage: Stage,
}

/// What a value is.
#[derive(Clone, Debug)]
pub enum Stage {
    /// The output of a layer.
    Output,
    /// erf(x / sqrt(2)) of it.
    Erf,
    /// 1 + erf(x / sqrt(2)) of it.
    ErfAndOne,
    /// x (1 + erf(x / sqrt(2))) of it: twice its GELU.
    TwiceGelu,
    /// The sigmoid of it, hard or not, which nothing reads but products of the two.
    Gate(Function),
    /// The square of it.
    Square,
    /// On the way from the mean of its squares over channels to 1 over their root.
    Root(Rc<Root>),
    /// It over that root, which is a normalisation once it has a scale; with what was added to the mean.
    Unit(f64),
    /// Queries times keys.
    Scores(Rc<Scores>),
    /// Softmax of these.
    Shares(Rc<Scores>),
    /// Where these are no numbers, which no position is that sees itself.
    NoShares,
    /// The heads of it times a table, the cosines of rotary embeddings.
    Cosines(Constant),
    /// The heads of it with their halves in each other's place, the one that is first now negated.
    Swapped,
    /// That times a table, the sines.
    Sines(Constant),
}

/// A root of a mean square, as far as it has come.
#[derive(Clone, Debug)]
pub struct Root {
    /// What was squared.
    pub of: View,
    /// What was added to the mean; none yet.
    pub epsilon: Option<f64>,
    /// Whether the root was taken.
    pub rooted: bool,
    /// Whether 1 was divided by it.
    pub inverted: bool,
}

/// Queries and keys that were multiplied.
#[derive(Clone, Debug)]
pub struct Scores {
    /// The queries.
    pub query: View,
    /// The keys, positions before channels.
    pub key: View,
    /// Whether a mask hides what comes later.
    pub causal: bool,
}

impl Flow {
    /// The output of a layer.
    pub fn output(view: View) -> Flow {
        Flow { view, factor: 1.0, stage: Stage::Output }
    }

    /// What it is, where it is not the whole output of a layer.
    pub fn nature(&self) -> &'static str {
        match self.stage {
            Stage::Output if self.factor != 1.0 => {
                "of what is multiplied by a number, which only GELU and attention are"
            }
            Stage::Output => "of a part of what a layer gives, which only attention takes",
            Stage::Erf | Stage::ErfAndOne | Stage::TwiceGelu => "of an error function that is no GELU",
            Stage::Gate(_) => "of a sigmoid",
            Stage::Square | Stage::Root(_) | Stage::Unit(_) => {
                "of squares that are no normalisation: one has a mean over channels, a root and a scale"
            }
            Stage::Scores(_) | Stage::Shares(_) | Stage::NoShares => {
                "of products of two values that are no attention"
            }
            Stage::Cosines(_) | Stage::Swapped | Stage::Sines(_) => {
                "of halves of heads that are no rotary embedding: one is the sum of heads times cosines and of their \
                 halves, swapped, the first negated, times sines"
            }
        }
    }
}

/// Random numbers, each drawn by itself.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Their dimensions.
    pub dims: Vec<u64>,
    /// How likely each is to be 1, and not 0; none for numbers that are uniform from 0 to 1.
    pub kept: Option<f64>,
    /// Times this.
    pub factor: f64,
}
