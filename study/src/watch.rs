//! Progress reports of a job, and requests to stop it.
//!
//! A job prints nothing. Its caller passes a [`Watch`] of two functions: the job calls the first to ask if it should stop, and
//! the second to report events. [`Watch::silent`] serves callers who want neither.

use plimsoll_ir::{Bytes, Seconds};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The caller's side of a job.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Returns `true` to save the results so far and stop. Called between iterations and plans, on the job's thread.
    pub stop: &'a dyn Fn() -> bool,
    /// Receives every event, in order.
    pub tell: &'a dyn Fn(Event<'_>),
}

/// Event of a running job.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A step of the job begins, such as `profile`. Steps do not overlap.
    Begin {
        /// Name of the step.
        step: &'static str,
        /// Number of parts of the step, if known.
        of: Option<u64>,
    },
    /// Number of parts of the step, known by now.
    Length(u64),
    /// Number of parts that are done.
    Done(u64),
    /// Current work of the step.
    At(&'a str),
    /// The step begins again.
    Again,
    /// The step is over.
    End,
    /// An epoch of training is over.
    Epoch {
        /// Number of the epoch, from 1.
        epoch: u64,
        /// Number of epochs in total.
        of: u64,
        /// Mean loss over the epoch.
        loss: f32,
        /// Share of samples classified correctly, from 0 to 1.
        accuracy: f32,
    },
    /// A notice to the user.
    Notice(Notice),
}

/// Information for the user. [`Notice::is_warning`] separates warnings from other notices.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Makes results doubtful, or training slower than it could be.
    Warning(String),
    /// An earlier identical measurement is used.
    MeasuredBefore {
        /// Name of the network.
        network: String,
        /// Age of the measurement.
        age: Duration,
    },
    /// An iteration's time differs from its prediction by more than the stated error.
    PredictionMissed(String),
    /// The link has no room for a copy of the state during every iteration.
    StateCopiesSlow {
        /// Seconds of an iteration without the copy.
        without: Seconds,
        /// Seconds of an iteration with the copy.
        with: Seconds,
        /// Bytes of the state.
        state: Bytes,
    },
    /// Nothing is left to train.
    NothingLeft {
        /// Length of the training so far, in words.
        trained: String,
        /// Requested length, in words.
        asked: String,
    },
    /// A training continues with a number of epochs different from the one over which its decay was spread.
    OtherLength {
        /// Length of the training so far, in words.
        trained: String,
        /// Requested length, in words.
        asked: String,
        /// Rate of the last iteration.
        last: f64,
        /// Rate of the next iteration.
        next: f64,
    },
    /// The choice that the study holds is used.
    ChoiceUsed(PathBuf),
}

impl Notice {
    /// Returns `true` if results are doubtful, slower or other than expected.
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
    /// Returns a watch that ignores events and never stops the job.
    pub fn silent() -> Watch<'static> {
        Watch { stop: &|| false, tell: &|_| {} }
    }

    /// Returns `true` if the job should stop.
    pub fn stops(&self) -> bool {
        (self.stop)()
    }

    /// Begins a step with this number of parts, if known; the step ends when the returned value is dropped.
    #[must_use = "the step ends as soon as this is dropped"]
    pub fn step(&self, step: &'static str, of: Option<u64>) -> Step<'a> {
        (self.tell)(Event::Begin { step, of });
        Step { tell: self.tell }
    }

    /// Warns of doubtful results or slower training.
    pub fn warn(&self, words: impl fmt::Display) {
        self.notice(Notice::Warning(words.to_string()));
    }

    /// Sends the user a notice.
    pub fn notice(&self, notice: Notice) {
        (self.tell)(Event::Notice(notice));
    }
}

/// A step under way.
pub struct Step<'a> {
    tell: &'a dyn Fn(Event<'_>),
}

impl Step<'_> {
    /// Reports the number of parts, known by now.
    pub fn length(&self, of: u64) {
        (self.tell)(Event::Length(of));
    }

    /// Reports the number of parts done.
    pub fn done(&self, parts: u64) {
        (self.tell)(Event::Done(parts));
    }

    /// Reports the current work.
    pub fn at(&self, words: &str) {
        (self.tell)(Event::At(words));
    }

    /// Reports that the step begins again.
    pub fn again(&self) {
        (self.tell)(Event::Again);
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        (self.tell)(Event::End);
    }
}
