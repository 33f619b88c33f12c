//! Do all tests pass? Each group in a process of its own, since a device that a kernel has lost is lost for its process. A test
//! that fails is a row at once, with its words; a group is one when it has ended.

use super::{Section, Target, numbers};
use crate::bodies::GROUPS;
use crate::ground::Ground;
use crate::row::{Row, Verdict};
use plimsoll::study::error::{Error, Kind};
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

fn run(ground: &Ground) -> Result<(), Error> {
    // A test or two of each group are enough to see that it runs.
    let small = ["relu", "captured", "resnet20"];
    for (group, small) in GROUPS.iter().zip(small) {
        let begun = Instant::now();
        let (filter, expected) =
            ground.pick((format!("{}::", group.name), group.len()), (small.to_owned(), 1));
        let failed = |test: &str, words: &str| {
            ground.row(&json!({ "group": group.name, "test": test, "words": words }));
        };
        let Ended { passed, failed, status } = harness(&filter, &failed)?;
        // A process that ended in the middle of a test has told neither of it nor of those after it.
        let lost = expected.saturating_sub(passed + failed);
        ground.row(&json!({
            "group": group.name,
            "passed": passed,
            "failed": failed,
            "lost": lost,
            "status": status,
            "seconds": begun.elapsed().as_secs_f64(),
        }));
    }
    Ok(())
}

/// How a process of tests ended, and how many did.
struct Ended {
    passed: usize,
    failed: usize,
    status: String,
}

/// Runs the tests that a filter leaves; `tell` hears of each that fails.
fn harness(filter: &str, tell: &dyn Fn(&str, &str)) -> Result<Ended, Error> {
    let no_start = |error| Error::new(Kind::Internal, format_args!("cannot start the tests: {error}"));
    let own = std::env::current_exe().map_err(no_start)?;
    // On two threads at least: one test at a time has the device, the others compute what to expect.
    let mut child = Command::new(own)
        .args(["test", "--format", "json", "--test-threads", "8", filter])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(no_start)?;
    let (mut passed, mut failed) = (0, 0);
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
                // The harness gives what a test panicked with as `Error: "..."`.
                let words = event["stdout"].as_str().unwrap_or("without a word").trim();
                let quoted = words.strip_prefix("Error: \"").and_then(|words| words.strip_suffix('"'));
                tell(name, quoted.unwrap_or(words));
                failed += 1;
            }
            _ => {}
        }
    }
    let status = child.wait().map_err(no_start)?.to_string();
    Ok(Ended { passed, failed, status })
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let sum = |name| numbers(rows, name).iter().sum::<f64>();
    // A test that failed is a row before its group is one, which may never come.
    let failed = rows.iter().filter(|row| row.contains_key("test")).count() as f64;
    let (passed, bad) = (sum("passed"), failed.max(sum("failed")) + sum("lost"));
    // Groups that were not reached have neither failed nor passed.
    let groups = numbers(rows, "passed").len();
    let whole = passed > 0.0 && groups == GROUPS.len();
    let met = if bad > 0.0 { Some(false) } else { whole.then_some(true) };
    let measured = format!("{passed} of {} passed, in {groups} of {} groups", passed + bad, GROUPS.len());
    (!rows.is_empty()).then_some(Verdict { measured, met })
}
