//! What a job tells while it works, and how it is told to stop.
//!
//! A job prints nothing. Its caller passes a [`Watch`] of two functions: the job asks the first whether to stop, and tells the
//! second what happens. [`Watch::silent`] serves callers who want neither.

use plimsoll_ir::{Bytes, Seconds};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The caller's side of a job.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Whether to save what is done and stop. Asked between iterations and plans, from the thread that the job runs on.
    pub stop: &'a dyn Fn() -> bool,
    /// Told of every event, in order.
    pub tell: &'a dyn Fn(Event<'_>),
}

/// Something that happens while a job works.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A step of the job begins, such as `profile`: so many parts of it are to be done, where that is known. Steps do not
    /// overlap.
    Begin {
        /// The step's name.
        step: &'static str,
        /// How many parts it has.
        of: Option<u64>,
    },
    /// The step has so many parts, as is known by now.
    Length(u64),
    /// So many parts of the step are done.
    Done(u64),
    /// What the step is at.
    At(&'a str),
    /// The step begins once more.
    Again,
    /// The step is over.
    End,
    /// An epoch of training is over.
    Epoch {
        /// Its number, from 1.
        epoch: u64,
        /// How many there will be.
        of: u64,
        /// The mean loss over the epoch.
        loss: f32,
        /// The share of samples that were told right, from 0 to 1.
        accuracy: f32,
    },
    /// Something that the user should know.
    Notice(Notice),
}

/// Something that the user should know. [`Notice::is_warning`] tells warnings from information.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Makes results doubtful, or training slower than it could be.
    Warning(String),
    /// The same was measured before, this long ago, and is used.
    MeasuredBefore {
        /// The network's name.
        network: String,
        /// How long ago.
        age: Duration,
    },
    /// An iteration took longer or shorter than the error that was stated for its prediction allows.
    PredictionMissed(String),
    /// The link has no room for a copy of the state beside every iteration.
    StateCopiesSlow {
        /// An iteration without the copy.
        without: Seconds,
        /// An iteration with it.
        with: Seconds,
        /// Bytes of the state.
        state: Bytes,
    },
    /// Nothing is left to train.
    NothingLeft {
        /// For how long was trained, in words.
        trained: String,
        /// For how long was asked, in words.
        asked: String,
    },
    /// A training goes on for other than the epochs over which its decay was spread.
    OtherLength {
        /// For how long was trained, in words.
        trained: String,
        /// For how long is asked now, in words.
        asked: String,
        /// The rate of the last iteration.
        last: f64,
        /// The rate of the next.
        next: f64,
    },
    /// A choice that the study holds is used.
    ChoiceUsed(PathBuf),
}

impl Notice {
    /// Whether results are doubtful, slower or other than expected.
    pub fn is_warning(&self) -> bool {
        match self {
            Notice::Warning(_)
            | Notice::PredictionMissed(_)
            | Notice::StateCopiesSlow { .. }
            | Notice::OtherLength { .. } => true,
            Notice::MeasuredBefore { .. } | Notice::NothingLeft { .. } | Notice::ChoiceUsed(_) => false,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Warning(words) | Notice::PredictionMissed(words) => f.write_str(words),
            Notice::MeasuredBefore { network, age } => {
                write!(
                    f,
                    "{network}: measured {} ago in another study, and used here",
                    Seconds(age.as_secs_f64())
                )
            }
            Notice::StateCopiesSlow { without, with, state } => write!(
                f,
                "the way to the host has no room for a copy of the state ({state}) beside every iteration, which a device that \
                 fails cannot take along: an iteration of {without} takes {with}, {:.1} % more",
                (*with / *without - 1.0) * 100.0
            ),
            Notice::NothingLeft { trained, asked } => {
                write!(f, "trained for {trained}, asked for {asked}: nothing is left to train")
            }
            Notice::OtherLength { trained, asked, last, next } => write!(
                f,
                "trained for {trained}, asked for {asked}: from here on the decay of the learning rate is spread over \
                 {asked}, so the rate, which was {last:.3e} in the last iteration, is {next:.3e} in the next. That is \
                 another training than {asked} from the start"
            ),
            Notice::ChoiceUsed(config) => write!(f, "using the choice in {}", config.display()),
        }
    }
}

impl<'a> Watch<'a> {
    /// Nobody watches, and nothing stops the job.
    pub fn silent() -> Watch<'static> {
        Watch { stop: &|| false, tell: &|_| {} }
    }

    /// Whether to stop.
    pub fn stops(&self) -> bool {
        (self.stop)()
    }

    /// Begins a step of so many parts, where that is known; it ends when what is given is dropped.
    #[must_use = "the step ends as soon as this is dropped"]
    pub fn step(&self, step: &'static str, of: Option<u64>) -> Step<'a> {
        (self.tell)(Event::Begin { step, of });
        Step { tell: self.tell }
    }

    /// Tells what makes results doubtful or training slower.
    pub fn warn(&self, words: impl fmt::Display) {
        self.notice(Notice::Warning(words.to_string()));
    }

    /// Tells what the user should know.
    pub fn notice(&self, notice: Notice) {
        (self.tell)(Event::Notice(notice));
    }
}

/// A step under way.
pub struct Step<'a> {
    tell: &'a dyn Fn(Event<'_>),
}

impl Step<'_> {
    /// It has so many parts, as is known by now.
    pub fn length(&self, of: u64) {
        (self.tell)(Event::Length(of));
    }

    /// So many parts are done.
    pub fn done(&self, parts: u64) {
        (self.tell)(Event::Done(parts));
    }

    /// What it is at.
    pub fn at(&self, words: &str) {
        (self.tell)(Event::At(words));
    }

    /// It begins once more.
    pub fn again(&self) {
        (self.tell)(Event::Again);
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        (self.tell)(Event::End);
    }
}
