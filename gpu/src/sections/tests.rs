//! Do all tests pass? Each group in a process of its own, since a device that a kernel has lost is lost for its process.

use super::{Section, Target, numbers};
use crate::bodies::GROUPS;
use crate::ground::Ground;
use crate::row::{Row, Verdict};
use plimsoll::failure::{Exit, Failure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The section.
pub const SECTION: Section = Section {
    name: "tests",
    asks: "do kernels, device and whole schedules do on this GPU what they do elsewhere?",
    seconds: 80,
    by_name_only: false,
    run,
    targets: &[Target { what: "all tests pass", verifies: true, judge }],
};

fn run(ground: &Ground) -> Result<(), Failure> {
    // A test or two of each group are enough to see that it runs.
    let small = ["relu", "captured", "resnet20"];
    for (group, small) in GROUPS.iter().zip(small) {
        let begun = Instant::now();
        let (filter, expected) =
            ground.pick((format!("{}::", group.name), group.len()), (small.to_owned(), 1));
        let (passed, failures, status) = harness(&filter)?;
        // A process that ended in the middle of a test has told neither of it nor of those after it.
        let lost = expected.saturating_sub(passed + failures.len());
        ground.row(&json!({
            "group": group.name,
            "passed": passed,
            "failed": failures.len(),
            "lost": lost,
            "failures": failures.join(", "),
            "status": status,
            "seconds": begun.elapsed().as_secs_f64(),
        }));
    }
    Ok(())
}

/// Runs the tests that a filter leaves: how many passed, which failed, and how the process ended.
fn harness(filter: &str) -> Result<(usize, Vec<String>, String), Failure> {
    let failed = |error| Failure::new(Exit::Internal, format_args!("cannot start the tests: {error}"));
    let own = std::env::current_exe().map_err(failed)?;
    // On two threads at least: one test at a time has the device, the others compute what to expect.
    let mut child = Command::new(own)
        .args(["test", "--format", "json", "--test-threads", "8", filter])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (mut passed, mut failures) = (0, Vec::new());
    for line in BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok) {
        let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
        let name = event["name"].as_str().unwrap_or_default();
        match (event["type"].as_str(), event["event"].as_str()) {
            (Some("test"), Some("ok")) => {
                println!("{name}: ok");
                passed += 1;
            }
            (Some("test"), Some("failed")) => {
                println!("{name}: FAILED");
                failures.push(name.to_owned());
            }
            _ => {}
        }
    }
    let status = child.wait().map_err(failed)?;
    Ok((passed, failures, status.to_string()))
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let sum = |name| numbers(rows, name).iter().sum::<f64>();
    let (passed, bad) = (sum("passed"), sum("failed") + sum("lost"));
    // Groups that were not reached have neither failed nor passed.
    let whole = passed > 0.0 && rows.len() == GROUPS.len();
    let met = if bad > 0.0 { Some(false) } else { whole.then_some(true) };
    let measured =
        format!("{passed} of {} passed, in {} of {} groups", passed + bad, rows.len(), GROUPS.len());
    (!rows.is_empty()).then_some(Verdict { measured, met })
}
