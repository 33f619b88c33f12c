//! `check` and `simulate` against the independent referee: the same verdict on valid and on broken schedules, and the same
//! makespan. Runs if python3 and the referee are installed.
//!
//! The two differ, on purpose, in these classes of schedules and no others:
//! 1. An offload and a command that fills a buffer of *other* bytes of the same tensor need no order by rule 5; the
//!    referee wants one if the fill stands earlier in the list and that buffer may still be open.
//! 2. A tensor that is on the device from the start and is written without being read may stay in place; the referee wants
//!    new buffers the first time.
//! 3. A transfer of 0 bytes is refused here; the referee lets an offload of 0 bytes pass inside an open buffer.

use crate::common::broken_rule;
use plimsoll_ir::check::check;
use plimsoll_ir::ids::{CommandId, TensorId};
use plimsoll_ir::schedule::{Command, Holds, Schedule, piece_of};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document};
use plimsoll_testing::{Random, random_schedule, random_trace};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::process::Command as Process;

/// Judges JSON lines, one after the other.
const DRIVER: &str = "
import json, sys
sys.path.insert(0, sys.argv[1])
import referee
for line in open(sys.argv[2]):
    case = json.loads(line)
    try:
        r = referee.judge(case['trace'], case['schedule'])
        print(json.dumps({'makespan': r['makespan_seconds'], 'offloaded': r['offloaded_bytes'],
                          'prefetched': r['prefetched_bytes']}))
    except (referee.Invalid, KeyError, TypeError, ValueError, IndexError) as e:
        print(json.dumps({'why': type(e).__name__ + ': ' + str(e)}))
";

struct Case {
    name: String,
    trace: Trace,
    schedule: Schedule,
}

/// Returns the referee's answers, or `None` if it cannot run.
fn judge(cases: &[Case]) -> Option<Vec<Value>> {
    let tools = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/tools"));
    if !tools.join("referee.py").exists() {
        println!("skipped: no referee.py in {}", tools.display());
        return None;
    }
    if Process::new("python3").arg("--version").output().is_err() {
        println!("skipped: no python3");
        return None;
    }
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    for case in cases {
        let line = json!({"trace": case.trace, "schedule": case.schedule});
        writeln!(file, "{line}").expect("room for a temporary file");
    }
    file.flush().expect("room for a temporary file");
    let output = Process::new("python3").args(["-B", "-c", DRIVER]).arg(tools).arg(file.path()).output();
    let output = output.expect("python3 can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    Some(lines.lines().map(|line| serde_json::from_str(line).expect("the driver prints JSON")).collect())
}

/// Returns the predecessors of each command, from the text of the format: by reachability, without clocks.
fn ancestors(schedule: &Schedule) -> Vec<Vec<bool>> {
    let mut all: Vec<Vec<bool>> = Vec::new();
    for (id, command) in schedule.numbered_commands() {
        let mut mine = vec![false; schedule.commands.len()];
        let stream = |c: &usize| schedule.commands[*c].stream() == command.stream();
        let last = (0..id.index()).rev().find(stream);
        for earlier in command.waits().iter().map(|c| c.index()).chain(last) {
            mine[earlier] = true;
            mine.iter_mut().zip(&all[earlier]).for_each(|(mine, theirs)| *mine |= theirs);
        }
        all.push(mine);
    }
    all
}

fn bytes_of(trace: &Trace, tensor: TensorId, first: Option<Bytes>, bytes: Option<Bytes>) -> Range<u64> {
    piece_of(&trace.tensors[tensor.index()], first, bytes).unwrap_or(0..0)
}

/// Returns `true` for class 1: an offload, and a buffer of other bytes of that tensor, which may still be open and whose
/// opening command stands earlier in the list, in no order. (An update writes the whole tensor, so it never is apart from an
/// offload.)
fn has_disjoint_unordered(trace: &Trace, schedule: &Schedule) -> bool {
    let before = ancestors(schedule);
    let offloads = schedule.numbered_commands().filter(|(_, c)| matches!(c, Command::Offload { .. }));
    offloads.filter_map(|(id, c)| c.transfer().map(|moved| (id.index(), moved))).any(
        |(c, (t, first, bytes))| {
            let moved = bytes_of(trace, t, first, bytes);
            schedule.buffers.iter().any(|buffer| {
                let Holds::Tensor { tensor, first_byte, bytes } = buffer.holds else { return false };
                let held = bytes_of(trace, tensor, first_byte, bytes);
                let apart = held.end <= moved.start || moved.end <= held.start;
                let open = buffer.closes.iter().any(|d| d.index() == c || before[d.index()][c]);
                let unordered = buffer.opens.is_some_and(|o| o.index() < c && !before[c][o.index()]);
                tensor == t && apart && open && unordered
            })
        },
    )
}

/// Returns `true` for class 2: a compute command writes, as the first op that does, a tensor that is there from the start and
/// that it does not read, and opens no buffer for it.
fn overwrites_from_start(trace: &Trace, schedule: &Schedule) -> bool {
    let from_start: Vec<bool> = trace.lives().iter().map(|l| l.is_some_and(|l| l.born.is_none())).collect();
    let opens = |c: CommandId, t: TensorId| {
        let mut buffers = schedule.buffers.iter().filter(|b| b.opens == Some(c));
        buffers.any(|b| matches!(b.holds, Holds::Tensor { tensor, .. } if tensor == t))
    };
    schedule.numbered_commands().any(|(c, command)| {
        let Command::Compute { op, .. } = *command else { return false };
        let first = |t: &TensorId| !trace.ops[..op.index()].iter().any(|earlier| earlier.writes.contains(t));
        let op = &trace.ops[op.index()];
        let stands =
            |t: &&TensorId| from_start[t.index()] && !op.reads.contains(t) && first(t) && !opens(c, **t);
        op.writes.iter().any(|t| stands(&t))
    })
}

/// Returns the reason of an intended difference, or `None` for a bug.
fn meant(case: &Case, mine: Option<&str>, why: Option<&str>) -> Option<&'static str> {
    let (trace, schedule) = (&case.trace, &case.schedule);
    match (mine, why) {
        (None, Some(why)) if why.contains("unordered") && has_disjoint_unordered(trace, schedule) => {
            Some("disjoint pieces")
        }
        (None, Some(why)) if why.contains("its 0 buffers") && overwrites_from_start(trace, schedule) => {
            Some("overwritten from the start")
        }
        (Some(text), None) if text.contains("or none at all") => Some("empty transfer"),
        _ => None,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let trace = random_trace(seed + 1_000_000);
        let schedule = random_schedule(&trace, seed);
        let changes = crate::common::CHANGES.iter().map(|(name, change)| (*name, *change));
        let all: Vec<_> =
            changes.chain(crate::common::BREAKS.iter().map(|(name, _, change)| (*name, *change))).collect();
        for _ in 0..4 {
            let (mut trace, mut schedule) = (trace.clone(), schedule.clone());
            let mut name = format!("seed {seed}");
            for _ in 0..1 + random.below(2) {
                let (what, change) = random.pick(&all).expect("there are changes");
                change(&mut trace, &mut schedule, &mut random);
                name = format!("{name}, {what}");
                if schedule.commands.is_empty() || schedule.buffers.is_empty() {
                    break;
                }
            }
            cases.push(Case { name, trace, schedule });
        }
        cases.push(Case { name: format!("seed {seed}, valid"), trace, schedule });
    }
    cases
}

#[test]
fn check_and_simulate_agree_with_the_referee() {
    let cases = cases();
    let Some(answers) = judge(&cases) else { return };
    assert_eq!(cases.len(), answers.len());
    let mut tally: BTreeMap<String, u32> = BTreeMap::new();
    for (case, answer) in cases.iter().zip(&answers) {
        let why = answer["why"].as_str();
        let mine = check(&case.trace, &case.schedule);
        let text = mine.as_ref().err().map(ToString::to_string);
        if mine.is_ok() != why.is_none() {
            let meant = meant(case, text.as_deref(), why);
            let Some(class) = meant else {
                let documents = case.trace.to_json() + &case.schedule.to_json();
                panic!("{}: here {mine:?}, there {why:?}\n{documents}", case.name);
            };
            *tally.entry(format!("differ: {class}")).or_default() += 1;
            continue;
        }
        let rule = match &mine {
            Ok(()) => "valid".to_owned(),
            Err(violation) => broken_rule(&violation.0).map_or("unfit".into(), |rule| format!("rule {rule}")),
        };
        *tally.entry(rule).or_default() += 1;
        if mine.is_ok() {
            let timeline = simulate(&case.trace, &case.schedule);
            let totals = timeline.totals(&case.trace, &case.schedule);
            let theirs = answer["makespan"].as_f64().expect("the driver prints it");
            assert!((timeline.makespan().0 - theirs).abs() <= 1e-12 * theirs, "{}: {theirs}", case.name);
            assert_eq!(Some(totals.offloaded.0), answer["offloaded"].as_u64(), "{}", case.name);
            assert_eq!(Some(totals.prefetched.0), answer["prefetched"].as_u64(), "{}", case.name);
        }
    }
    println!("{tally:?}");
    for rule in ["valid", "rule 1", "rule 2", "rule 3", "rule 4", "rule 5", "rule 6"] {
        assert!(tally.get(rule).is_some_and(|n| *n >= 5), "too few cases of {rule}: {tally:?}");
    }
}
