//! Which of two studies trains faster, in words and numbers.
//!
//! Two measured times differ where they lie further apart than their spreads come to together, as a tuning tells a batch from
//! another. Two times of one modelled device differ as the model has it: an error of the model that both have in common changes
//! neither their order nor the share.
//! What this file does not do: say which of two networks learns more from an epoch.

use super::data::{Compared, Measure, Verdict};
use crate::report::reasons::percent;
use crate::report::tuned::capitalised;
use crate::tuning::WITHIN_LEAST;
use plimsoll_ir::Seconds;

/// Two times of one modelled device that differ by no more count as equal: what a tuning takes for equal.
const SAME_MODEL: f64 = WITHIN_LEAST;

/// The verdict, by a measure that both have.
pub(super) fn verdict(by: Measure, studies: &[Compared; 2], notes: &[String]) -> Verdict {
    let rates = studies.each_ref().map(|study| rate(by, study));
    let (fast, slow) = if rates[0] >= rates[1] { (0, 1) } else { (1, 0) };
    let less = 1.0 - rates[slow] / rates[fast];
    let equal = equal(studies);
    let is_faster = less > equal;
    let (fast, slow) = (&studies[fast], &studies[slow]);
    Verdict {
        headline: headline(by, studies, [fast, slow], is_faster.then_some(less)),
        why: [vec![sureness(studies, equal)], notes.to_vec()].concat().join(" "),
        by,
        faster: is_faster.then(|| fast.name.clone()),
        less,
        equal,
    }
}

/// Progress a second.
fn rate(by: Measure, study: &Compared) -> f64 {
    match by {
        Measure::Goodput => study.choice.goodput.unwrap_or(study.choice.samples_per_second),
        Measure::Epoch | Measure::Samples => study.choice.samples_per_second,
    }
}

fn is_of_one_model([a, b]: &[Compared; 2]) -> bool {
    a.about.modelled && b.about.modelled && a.about.device == b.about.device
}

/// The share up to which a difference counts as none.
fn equal(studies: &[Compared; 2]) -> f64 {
    let [a, b] = studies.each_ref().map(|study| study.choice.epoch_error);
    if is_of_one_model(studies) { SAME_MODEL } else { a.hypot(b) }
}

/// The answer in one sentence.
fn headline(by: Measure, studies: &[Compared; 2], [fast, slow]: [&Compared; 2], less: Option<f64>) -> String {
    let known = match studies.each_ref().map(|study| study.about.modelled) {
        [false, false] => "measured",
        [true, true] if is_of_one_model(studies) => "by the model",
        [true, true] => "by their models",
        _ => "by one measured and one modelled time",
    };
    let what = match by {
        Measure::Epoch => "an epoch",
        Measure::Goodput => "the same progress",
        Measure::Samples => "the same number of samples",
    };
    let [first, second] = [fast, slow].map(|study| match by {
        Measure::Epoch => Seconds(study.choice.epoch_seconds).to_string(),
        Measure::Goodput | Measure::Samples => format!("{} samples/s", digits(rate(by, study))),
    });
    let (fast, slow) = (&fast.name, &slow.name);
    let of = if by == Measure::Goodput { "a goodput of " } else { "" };
    match less.map(percent) {
        Some(less) => {
            let between = if by == Measure::Epoch { "instead of" } else { "against" };
            let known = capitalised(known);
            format!(
                "{known}, {what} takes {less} less with {fast} than with {slow}: {of}{first} {between} {second}"
            )
        }
        None if by == Measure::Epoch => {
            format!(
                "Neither is shown to be faster: {known}, {what} takes {first} with {fast} and {second} with {slow}"
            )
        }
        None => format!(
            "Neither is shown to be faster: {known}, {of}{first} with {fast} and {second} with {slow}"
        ),
    }
}

/// How sure that is.
fn sureness(studies: &[Compared; 2], equal: f64) -> String {
    let [a, b] = studies;
    let error = |study: &Compared| percent(study.choice.epoch_error);
    let share = percent(equal);
    let together =
        format!("A difference of up to {share} counts as none: the root of the sum of their squares.");
    match (a.about.modelled, b.about.modelled) {
        (true, true) if is_of_one_model(studies) => {
            let within = if a.choice.epoch_error == b.choice.epoch_error {
                format!("each may be off by {}", error(a))
            } else {
                format!("that of {} may be off by {}, that of {} by {}", a.name, error(a), b.name, error(b))
            };
            format!(
                "Both times are of one model of the device, and {within}. An error that both have in common changes neither \
                 their order nor the share. Up to {share} counts as equal."
            )
        }
        (true, true) => format!(
            "Both are modelled: the time of {} may be off by {}, that of {} by {}. {together}",
            a.name,
            error(a),
            b.name,
            error(b)
        ),
        (false, false) => format!(
            "Both were measured, with spreads of {} ({}) and {} ({}). {together}",
            error(a),
            a.name,
            error(b),
            b.name
        ),
        (modelled, _) => {
            let (model, measured) = if modelled { (a, b) } else { (b, a) };
            format!(
                "{} was measured, with a spread of {}; {} is modelled, and may be off by {}. {together}",
                measured.name,
                error(measured),
                model.name,
                error(model)
            )
        }
    }
}

/// A rate with four digits.
pub(super) fn digits(rate: f64) -> String {
    let places = if rate > 0.0 { (3.0 - rate.log10().floor()).clamp(0.0, 6.0) as usize } else { 0 };
    format!("{rate:.places$}")
}
