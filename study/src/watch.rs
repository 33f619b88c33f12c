//! Progress reports of a job, and requests to stop it.
//!
//! A job prints nothing. Its caller passes a [`Watch`] of two functions: the job calls the first to ask if it should stop, and
//! the second to report events. [`Watch::silent`] serves callers who want neither.

use std::fmt;

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
    Notice {
        /// `true` if results are doubtful, slower or other than expected.
        warning: bool,
        /// The notice, with the option that changes something about it.
        words: String,
    },
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

    /// Warns of doubtful or other results, or of slower training.
    pub fn warn(&self, words: impl fmt::Display) {
        (self.tell)(Event::Notice { warning: true, words: words.to_string() });
    }

    /// Sends the user a notice.
    pub fn notice(&self, words: impl fmt::Display) {
        (self.tell)(Event::Notice { warning: false, words: words.to_string() });
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
