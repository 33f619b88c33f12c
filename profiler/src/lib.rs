//! Measurement of per-op seconds at fractions of the largest trainable batch, and of the rates of the link.
//!
//! The caller gives a program and a schedule for each batch size: the schedule under which it would be trained, keeping
//! everything or a plan, since swapping empties caches and takes memory bandwidth from ops. The seconds for the first such
//! plan are measured roughly (`rough.rs`) under naive swapping (AccUDNN §3.2).
//!
//! Every op is timed by an event before and after it, on the device that will train; the cost of the events is measured
//! separately and subtracted. Next to each such iteration one runs as in training, without timed ops; both only once
//! iterations are steady (`steady.rs`). If the system counts the time for which threads wait for processors held by other
//! programs, that is recorded too, so that a shared machine is measured as if it were not shared.
//!
//! Machines drift: a different process comes, a clock falls. So batch sizes are measured in rounds, a few repetitions of each
//! in turn and the order reversed every other round. A drift then affects all of them equally, instead of looking like the
//! effect of one batch size. Rounds continue until the median iteration of each is known well enough, or time is up. Raw
//! samples are kept; iterations before the steady state are not.
//!
//! Ops with several alternatives are measured in each (`alternatives.rs`), after the rounds and with fewer repetitions.
//!
//! Every measurement is appended to a journal at once; a second run continues where the first one was interrupted.
//!
//! The crate deliberately does not predict, fit, plan, or choose batch sizes beyond the paper's fractions.
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

/// A request to measure a network on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRequest {
    /// Network of the programs.
    pub network: NetworkSpec,
    /// Optimizer of the programs.
    pub optimizer: Optimizer,
    /// Machine; [`machine`] makes it from a device.
    pub machine: Machine,
    /// Device memory budget.
    pub budget: Bytes,
    /// Distinct batch sizes, ascending; [`fractions`] returns those of the paper.
    pub batches: Vec<u64>,
    /// Number of repetitions.
    pub effort: Effort,
    /// File of the journal; a missing folder is created.
    pub journal: PathBuf,
    /// `true` to discard the journal's contents.
    pub fresh: bool,
}

impl ProfileRequest {
    /// Returns a key of the network, the machine and the limits: 16 hexadecimal digits that are equal for requests whose
    /// journals continue each other. The effort is not part of it.
    pub fn key(&self) -> String {
        Header::of(self).key()
    }
}

/// The number of repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Minimum timed iterations of each batch size, regardless of time.
    pub at_least: usize,
    /// Maximum timed iterations of each batch size.
    pub at_most: usize,
    /// Time after which no new round begins, once every batch size has `at_least`. The other alternatives of ops get the same
    /// time again.
    pub time: Seconds,
    /// Minimum time of the rounds, up to `at_most` iterations, however well the median seems to be known: other load comes
    /// and goes in seconds, and samples within one such period agree with each other.
    pub lasting: Seconds,
    /// Relative standard error of the median iteration at which a batch size is done.
    pub good: f64,
    /// Relative standard error beyond which nothing can be decided: [`ProfileError::Noisy`].
    pub bad: f64,
}

impl Default for Effort {
    /// Returns 6 to 30 iterations, 15 to 60 s, done at 1 %, too noisy at 15 %.
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

/// The caller's callbacks during a measurement.
pub struct Watch<'a> {
    /// Returns `true` to end the measurement after the running iteration, which does not count, since the stop may have
    /// hurried it. Everything measured before is in the journal.
    pub stop: &'a dyn Fn() -> bool,
    /// Called after every iteration.
    pub progress: &'a mut dyn FnMut(Progress),
    /// Called once for each cause of doubtful times: a different process on the device, a throttled device.
    pub warn: &'a mut dyn FnMut(&str),
}

/// A caller's error in making a program and a schedule.
pub type SubjectError = Box<dyn std::error::Error + Send + Sync>;

/// A function that returns the program at a batch size and the schedule to measure it under. With a number, the ops of the
/// schedule run in their alternatives of this number ([`schedule_with`]); it returns `None` if there is no such schedule.
/// Without a number there is always one.
pub type Subject<'a> = dyn FnMut(u64, Option<u32>) -> Result<Option<(Program, Schedule)>, SubjectError> + 'a;

/// Returns 1/8, 1/4, 1/2, 2/3 and 1 of the largest trainable batch (AccUDNN §3.2), rounded, each once, at least 1.
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

/// Describes the machine of a measurement on a device; `paced` is the pace that its link was set to, `plimsoll` version and
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

/// Measures the link and every batch size on a device, or continues the journal of the same measurement. A complete journal
/// gives its profile at once, for any requested effort; `fresh` measures anew.
///
/// The device's allocation is the largest that any of the schedules needs, within the budget. After an error, the journal has
/// everything measured before it.
pub fn profile(
    request: &ProfileRequest,
    subject: &mut Subject<'_>,
    device: Box<dyn Device>,
    watch: &mut Watch<'_>,
) -> Result<Profile, ProfileError> {
    profile_on(request, &mut DeviceBench::new(device, subject, request.budget, request.machine.paced), watch)
}

/// Measures any bench as `profile` does.
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

/// Measures the missing parts, each in the journal before the next begins.
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
