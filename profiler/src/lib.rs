//! What measures: per-op seconds at fractions of the largest trainable batch, and the rates of the link.
//!
//! The network runs under a schedule that the caller hands in with the program at a batch size: the one under which it would
//! be trained, keeping everything or a plan, since swapping empties caches and takes memory's bandwidth from ops. What such a
//! plan is made from, before anything is known, is measured roughly (`rough.rs`) under naive swapping (AccUDNN §3.2).
//!
//! Every op is timed by an event before and after it, on the device that will train, and what that costs is measured on its
//! own and taken off. Beside each such iteration one runs as training does, with nothing timed inside; both once iterations
//! have become steady (`steady.rs`). Where the system counts for how long threads wait while others have the processors, that
//! is noted, too: a machine that is shared is measured as if it were not.
//!
//! Machines drift: another process comes, a clock falls. Batch sizes are therefore measured in rounds, a few
//! repetitions of each in turn and the order reversed every other round, so that a drift falls on all of them alike
//! instead of looking like the effect of one batch size. Rounds go on until the median iteration of each is known well enough,
//! or time is up. Raw samples are kept; what ran before iterations were steady is not.
//!
//! Ops that can be run in several alternatives are measured in each (`alternatives.rs`), after the rounds and with fewer
//! repetitions.
//!
//! Everything that was measured is appended to a journal at once; a second run goes on where the first one was interrupted.
//!
//! What this crate deliberately does not do: predict, fit, plan, or choose batch sizes beyond the paper's fractions.
#![forbid(unsafe_code)]

mod alternatives;
mod bench;
mod device;
mod error;
mod journal;
mod link;
mod rough;
mod rounds;
mod statistics;
mod steady;

pub use alternatives::schedule_with;
pub use device::batch_samples;
pub use error::ProfileError;
pub use journal::Header;
pub use rough::{Rough, rough_seconds};
pub use rounds::{Progress, Stage};
pub use statistics::{Centre, centre};
pub use steady::Settling;

use bench::Bench;
use device::DeviceBench;
use journal::{Entry, Journal};
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::{Machine, Profile, ProfileKind};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::{Bytes, Optimizer, Seconds};
use plimsoll_runtime::Device;
use rounds::Measured;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// What is measured, how long, and where it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRequest {
    /// What the programs are of.
    pub network: NetworkSpec,
    /// Who updates the parameters in them.
    pub optimizer: Optimizer,
    /// On what; [`machine`] makes it from a device.
    pub machine: Machine,
    /// What the device may hold.
    pub budget: Bytes,
    /// Distinct batch sizes, ascending; [`fractions`] gives those of the paper.
    pub batches: Vec<u64>,
    /// How often.
    pub effort: Effort,
    /// The journal's file; its folder is made where it is missing.
    pub journal: PathBuf,
    /// Forget what the journal holds.
    pub fresh: bool,
}

impl ProfileRequest {
    /// A name of what is measured, on what and within what: 16 hexadecimal digits that are the same for requests whose
    /// journals go on from each other. How often it is repeated is no part of it.
    pub fn key(&self) -> String {
        Header::of(self).key()
    }
}

/// How often everything is repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Timed iterations of each batch size at least, whatever the time.
    pub at_least: usize,
    /// At most.
    pub at_most: usize,
    /// No new round begins after this, once every batch size has `at_least`. As much again goes to the other alternatives to
    /// run ops.
    pub time: Seconds,
    /// Rounds go on for this long, up to `at_most`, however well the median seems to be known: who else uses the machine
    /// comes and goes in seconds, and what was measured within one visit agrees with itself.
    pub lasting: Seconds,
    /// A batch size is done when the relative standard error of its median iteration is at most this.
    pub good: f64,
    /// Beyond this, nothing can be decided with it: [`ProfileError::Noisy`].
    pub bad: f64,
}

impl Default for Effort {
    /// 6 to 30 iterations, 15 to 60 s, done at 1 %, too noisy at 15 %.
    fn default() -> Effort {
        Effort {
            at_least: 6,
            at_most: 30,
            time: Seconds(60.0),
            lasting: Seconds(15.0),
            good: 0.01,
            bad: 0.15,
        }
    }
}

/// What the caller says and hears while it lasts.
pub struct Watch<'a> {
    /// True ends the measurement after the running iteration, which does not count: who stops it may have hurried it.
    /// Everything measured before is in the journal.
    pub stop: &'a dyn Fn() -> bool,
    /// Told after every iteration.
    pub progress: &'a mut dyn FnMut(Progress),
    /// Told, once each, what makes the times doubtful: another process on the device, a device that is slowed down.
    pub warn: &'a mut dyn FnMut(&str),
}

/// A caller's own failure to give a program and a schedule.
pub type SubjectError = Box<dyn std::error::Error + Send + Sync>;

/// Gives the program at a batch size and the schedule to measure it under. With a number, a schedule in which the ops run in
/// their alternatives of this number ([`schedule_with`]), or none where there is no such schedule; without one there is
/// always one.
pub type Subject<'a> = dyn FnMut(u64, Option<u32>) -> Result<Option<(Program, Schedule)>, SubjectError> + 'a;

/// 1/8, 1/4, 1/2, 2/3 and 1 of the largest trainable batch (AccUDNN §3.2), rounded, each once, at least 1.
pub fn fractions(largest: u64) -> Vec<u64> {
    let of = |numerator: u64, denominator: u64| {
        let rounded = (u128::from(largest) * u128::from(numerator) + u128::from(denominator) / 2)
            / u128::from(denominator);
        (rounded as u64).max(1)
    };
    let mut batches = vec![of(1, 8), of(1, 4), of(1, 2), of(2, 3), of(1, 1)];
    batches.dedup();
    batches
}

/// What a measurement on a device stands on; `paced` is the link that the device was told to keep to, `plimsoll` version and
/// commit.
pub fn machine(device: &dyn Device, paced: Option<Link>, plimsoll: &str) -> Machine {
    let facts = device.facts();
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Machine {
        device: facts.name,
        threads: facts.threads,
        paced,
        system: facts.system,
        precision: Some(facts.precision),
        plimsoll: plimsoll.to_owned(),
        unix_seconds,
        health: device.health(),
        modelled: false,
        modelled_error: None,
    }
}

/// Measures the link and every batch size on a device, or goes on with what the journal holds of the same measurement. A
/// journal that is complete gives its profile at once, whatever the effort asked for; `fresh` measures anew.
///
/// The device's allocation is the largest that any of the schedules needs, within the budget. Errors leave the journal with
/// all that was measured before them.
pub fn profile(
    request: &ProfileRequest,
    subject: &mut Subject<'_>,
    device: Box<dyn Device>,
    watch: &mut Watch<'_>,
) -> Result<Profile, ProfileError> {
    profile_on(request, &mut DeviceBench::new(device, subject, request.budget, request.machine.paced), watch)
}

/// The same on anything that can be measured.
fn profile_on(
    request: &ProfileRequest,
    bench: &mut dyn Bench,
    watch: &mut Watch<'_>,
) -> Result<Profile, ProfileError> {
    if request.batches.is_empty()
        || request.batches[0] == 0
        || request.batches.windows(2).any(|w| w[0] >= w[1])
    {
        return Err(ProfileError::Unusable(format!(
            "batch sizes to measure must be at least 1, ascending and different, and at least one; got {:?}",
            request.batches
        )));
    }
    let (mut journal, header, entries) = Journal::open(&request.journal, Header::of(request), request.fresh)?;
    let mut measured = Measured::new(&request.batches);
    for entry in entries {
        measured.add(entry).map_err(|differs| journal.other_study(&differs))?;
    }
    if !measured.done {
        go_on(request, bench, &mut journal, &mut measured, watch)?;
    }
    let Measured { overhead: Some(overhead_seconds), link: Some(link), batches, health, .. } = measured
    else {
        return Err(journal.other_study("it says that it is complete and is not"));
    };
    Ok(Profile {
        kind: ProfileKind,
        network: request.network.clone(),
        machine: Machine { unix_seconds: header.unix_seconds, health, ..request.machine.clone() },
        budget_bytes: request.budget,
        overhead_seconds,
        link,
        batches,
    })
}

/// Measures what is missing, each piece in the journal before the next is begun.
fn go_on(
    request: &ProfileRequest,
    bench: &mut dyn Bench,
    journal: &mut Journal,
    measured: &mut Measured,
    watch: &mut Watch<'_>,
) -> Result<(), ProfileError> {
    let overhead = match measured.overhead {
        Some(overhead) => overhead,
        None => bench.calibrate()?,
    };
    if measured.overhead.replace(overhead).is_none() {
        journal.append(&Entry::Overhead(overhead))?;
    }
    bench.prepare(&request.batches, overhead)?;
    if measured.link.is_none() {
        let link = bench.link(watch)?;
        journal.append(&Entry::Link(link.clone()))?;
        measured.link = Some(link);
    }
    rounds::measure(&request.effort, bench, journal, measured, watch)?;
    measured.judge(request.effort.bad)?;
    rounds::measure_alternatives(&request.effort, bench, journal, measured, watch)?;
    journal.append(&Entry::Done)
}

#[cfg(test)]
mod tests;
