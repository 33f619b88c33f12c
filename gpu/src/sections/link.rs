//! How fast is the link? Each way alone and beside the other, from pinned memory, as the profiler measures it, and from
//! memory that is not pinned; and what transfers cost an op that is bound by memory.

use super::{Section, Target, numbers, worst};
use crate::bench::{link, middle};
use crate::ground::Ground;
use crate::row::{Row, Verdict, words};
use plimsoll::study::Error;
use plimsoll_ir::Seconds;
use plimsoll_ir::profile::TransferSample;
use plimsoll_tuner::model::LinkModel;
use serde_json::{Value, json};

/// The section.
pub const SECTION: Section = Section {
    name: "link",
    asks: "how fast is the link to the host, each way, alone and together, pinned and not?",
    seconds: 10,
    by_name_only: false,
    run,
    targets: &[Target { what: "the four rates, pageable beside pinned", verifies: false, judge }],
};

fn run(ground: &Ground) -> Result<(), Error> {
    let samples = link(ground)?;
    let rates = LinkModel::fit(&samples).map_err(Error::usage)?;
    for (direction, rate) in [
        ("offload alone", rates.offload_alone),
        ("prefetch alone", rates.prefetch_alone),
        ("offload, prefetch running", rates.offload_together),
        ("prefetch, offload running", rates.prefetch_together),
    ] {
        ground.row(&json!({
            "way": direction,
            "memory": "pinned",
            "rate_bytes_per_second": rate.rate.bytes_per_second,
            "latency_seconds": rate.rate.latency_seconds,
            "off_share": rate.relative_error,
        }));
    }
    let pageable = samples.pageable.unwrap_or_default();
    for (direction, samples) in [("offload alone", &pageable.offload), ("prefetch alone", &pageable.prefetch)]
    {
        ground.row(&json!({
            "way": direction,
            "memory": "pageable",
            "rate_bytes_per_second": rate(samples),
            "latency_seconds": Value::Null,
            "off_share": Value::Null,
        }));
    }
    if let Some(beside) = samples.beside {
        let median = |seconds: &[Seconds]| (!seconds.is_empty()).then(|| middle(seconds).0);
        ground.row(&json!({
            "memory_bound_op_bytes": beside.bytes,
            "alone_seconds": median(&beside.alone),
            "offloading_seconds": median(&beside.offloading),
            "prefetching_seconds": median(&beside.prefetching),
            "both_seconds": median(&beside.both),
        }));
    }
    Ok(())
}

/// The rate of the largest transfers.
fn rate(samples: &[TransferSample]) -> Option<f64> {
    let largest = samples.iter().map(|sample| sample.bytes).max()?;
    let seconds: Vec<Seconds> = samples.iter().filter(|s| s.bytes == largest).map(|s| s.seconds).collect();
    Some(largest.0 as f64 / middle(&seconds).0.0)
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let rate = |memory: &str| {
        let of: Vec<Row> = rows.iter().filter(|row| words(row, "memory") == memory).cloned().collect();
        worst(&numbers(&of, "rate_bytes_per_second")).map(|rate| format!("{:.1} GB/s {memory}", rate / 1e9))
    };
    let rates: Vec<String> = ["pinned", "pageable"].into_iter().filter_map(rate).collect();
    (!rates.is_empty()).then(|| Verdict { measured: format!("at best {}", rates.join(", ")), met: None })
}
