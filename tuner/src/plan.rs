//! Planning: checks a request, reports impossible budgets at once, and leaves the rest to a policy.
//!
//! The same request gives the same plan, unless a deadline cut the search short.

use crate::bound::least_hosted;
use crate::policies;
use crate::policies::papers::dqn::Control;
use crate::request::{Error, Outcome, PlanRequest, Shortage, Witness};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Document, OpId};

/// Lowest rate at which times of transfers can be computed.
const RATE_MIN: f64 = BytesPerSecond::LEAST.0;

/// Highest latency.
const LATENCY_MAX: f64 = 1e20;

fn check_request(trace: &Trace, request: &PlanRequest<'_>) -> Result<(), Error> {
    trace.validate()?;
    let link = &request.link;
    let rates = [
        ("offload rate", link.offload_bytes_per_second.0, RATE_MIN..=f64::MAX),
        ("prefetch rate", link.prefetch_bytes_per_second.0, RATE_MIN..=f64::MAX),
        ("latency", link.latency_seconds.0, 0.0..=LATENCY_MAX),
    ];
    for (what, value, sense) in rates {
        if !sense.contains(&value) {
            return Err(Error::usage(format_args!(
                "the link's {what} is {value}; a rate is a number from {RATE_MIN:e} bytes per second on, a latency one from 0 \
                 to {LATENCY_MAX:e} seconds"
            )));
        }
    }
    if request.budget.0 > 1 << 62 {
        return Err(Error::usage(format_args!("a budget of {} is more than 2^62 bytes", request.budget)));
    }
    Ok(())
}

/// Returns the reason why no plan of any kind can fit, if so.
fn hopeless(trace: &Trace, request: &PlanRequest<'_>) -> Option<Witness> {
    let PlanRequest { budget, policy, allow, .. } = *request;
    let (op, floor) = trace.memory().floor()?;
    let lives = trace.lives();
    let at_start = trace.tensors.iter().zip(lives).filter(|(_, life)| life.is_some_and(|l| l.born.is_none()));
    let start: Bytes = trace.resident_bytes + at_start.map(|(t, _)| t.bytes).sum();
    let witness = |op: OpId, needs: Bytes, most: Bytes, why| {
        let name = trace.ops[op.index()].name.clone();
        Some(Witness { op, name, needs, short_by: needs - most, why })
    };
    if floor > budget {
        return witness(op, floor, budget, Shortage::Floor);
    } else if start > budget {
        return witness(OpId(0), start, budget, Shortage::Start);
    }
    let host = allow.host.filter(|_| allow.swap && policy.swaps())?;
    let (op, needs) = least_hosted(trace, budget, allow)?;
    if needs > host { witness(op, needs, host, Shortage::Host) } else { None }
}

/// Plans one iteration of a trace.
///
/// # Errors
///
/// [`Error`] for an invalid trace or link, and for bugs in this crate; a budget that nothing fits is no error but
/// [`Outcome::Infeasible`].
///
/// ```
/// use plimsoll_ir::network::NetworkSpec;
/// use plimsoll_ir::{Bytes, BytesPerSecond, Seconds, schedule::Link};
/// use plimsoll_networks::{LowerOptions, build, lower};
/// use plimsoll_tuner::{Outcome, PlanRequest, Policy, plan};
///
/// let spec = NetworkSpec { name: "mlp".into(), image: [8, 8], channels: 1, classes: 10 };
/// let mut trace = lower(&build(&spec)?, 64, &LowerOptions::default())?.trace;
/// // Times come from a profile; here, 100 microseconds each.
/// trace.ops.iter_mut().for_each(|op| op.seconds = Seconds(1e-4));
/// let (_, peak) = trace.memory().peak().ok_or("a trace has ops")?;
///
/// let link = Link::symmetric(BytesPerSecond(12.2e9));
/// let tight = PlanRequest::new(Bytes(peak.0 * 9 / 10), link, Policy::Plimsoll);
/// match plan(&trace, &tight)? {
///     Outcome::Planned(plan) => println!("{} an iteration, {} moved", plan.makespan, plan.moved),
///     Outcome::Infeasible(witness) => println!("{witness}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(trace: &Trace, request: &PlanRequest<'_>) -> Result<Outcome, Error> {
    Ok(plan_with_log(trace, request)?.0)
}

/// Plans as [`plan`] does, and also returns the log of the search.
///
/// # Errors
///
/// Errors of [`plan`].
pub fn plan_with_log(trace: &Trace, request: &PlanRequest<'_>) -> Result<(Outcome, SearchLog), Error> {
    plan_by(trace, request, policies::decide)
}

/// Plans with the actions of [`Policy::Dqn`](crate::Policy::Dqn), which the request must name, and as many evaluations, but by a
/// search that learns nothing: this measures the value of learning.
///
/// # Errors
///
/// Errors of [`plan`].
pub fn plan_by_control(
    trace: &Trace,
    request: &PlanRequest<'_>,
    control: Control,
) -> Result<(Outcome, SearchLog), Error> {
    plan_by(trace, request, |trace, request| policies::control(trace, request, control))
}

fn plan_by(
    trace: &Trace,
    request: &PlanRequest<'_>,
    decide: impl Fn(&Trace, &PlanRequest<'_>) -> Result<(Outcome, SearchLog), Error>,
) -> Result<(Outcome, SearchLog), Error> {
    check_request(trace, request)?;
    if let Some(witness) = hopeless(trace, request) {
        return Ok((Outcome::Infeasible(witness), SearchLog::default()));
    }
    let (mut outcome, log) = decide(trace, request)?;
    if let Outcome::Planned(plan) = &mut outcome {
        plan.status = plan.status.of(trace);
    }
    Ok((outcome, log))
}
