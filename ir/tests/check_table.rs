//! Hand-made schedules, and each way to break them, with the rule and the expected message.
//!
//! Six ops: a convolution, a ReLU in place, a pooling, a fully connected layer and two backward steps. One schedule swaps the
//! activation `a` in two pieces that return to their own place; the other drops it and recomputes it.

use crate::common::broken_rule;
use plimsoll_ir::check::{check, locate};
use plimsoll_ir::ids::{CommandId, OpId, TensorId};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::{Alternative, Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};

const X: u32 = 0;
const A: u32 = 1;
const B: u32 = 2;
const Y: u32 = 3;
const D: u32 = 4;
const E: u32 = 5;
const NONE: u32 = 6;

fn trace() -> Trace {
    let tensor = |name: &str, bytes, kind| Tensor { name: name.into(), bytes: Bytes(bytes), kind };
    let op = |name: &str, phase, reads: &[u32], writes: &[u32]| Op {
        name: name.into(),
        layer: name.into(),
        kind: "x".into(),
        phase,
        seconds: Seconds(1.0),
        reads: reads.iter().copied().map(TensorId).collect(),
        writes: writes.iter().copied().map(TensorId).collect(),
        workspace_bytes: Bytes(if name == "conv" { 32 } else { 0 }),
        flops: 0,
        recomputable: name != "fc",
        alternatives: Vec::new(),
    };
    let (forward, backward) = (Phase::Forward, Phase::Backward);
    let mut trace = Trace {
        kind: TraceKind,
        name: "hand".into(),
        batch: 4,
        resident_bytes: Bytes(100),
        tensors: vec![
            tensor("x", 64, TensorKind::Input),
            tensor("a", 128, TensorKind::Activation),
            tensor("b", 64, TensorKind::Activation),
            tensor("y", 64, TensorKind::Activation),
            tensor("d", 64, TensorKind::Gradient),
            tensor("e", 128, TensorKind::Gradient),
            tensor("none", 0, TensorKind::Other),
        ],
        ops: vec![
            op("conv", forward, &[X], &[A]),
            op("relu", forward, &[A, NONE], &[A]),
            op("pool", forward, &[A], &[B, NONE]),
            op("fc", forward, &[B], &[Y]),
            op("fc.back", backward, &[B, Y], &[D]),
            op("pool.back", backward, &[A, D], &[E]),
        ],
    };
    trace.ops[0].alternatives =
        vec![Alternative { name: "lean".into(), seconds: Seconds(2.0), workspace_bytes: Bytes(0) }];
    trace
}

fn ids(waits: &[u32]) -> Vec<CommandId> {
    waits.iter().copied().map(CommandId).collect()
}

fn compute(op: u32, waits: &[u32]) -> Command {
    Command::Compute { op: OpId(op), again: false, alternative: None, waits: ids(waits) }
}

fn again(op: u32) -> Command {
    Command::Compute { op: OpId(op), again: true, alternative: None, waits: Vec::new() }
}

fn offload(tensor: u32, first: u64, bytes: u64, waits: &[u32]) -> Command {
    let (first_byte, bytes) = (Some(Bytes(first)), Some(Bytes(bytes)));
    Command::Offload { tensor: TensorId(tensor), first_byte, bytes, waits: ids(waits) }
}

fn prefetch(tensor: u32, first: u64, bytes: u64, waits: &[u32]) -> Command {
    let (first_byte, bytes) = (Some(Bytes(first)), Some(Bytes(bytes)));
    Command::Prefetch { tensor: TensorId(tensor), first_byte, bytes, waits: ids(waits) }
}

fn whole(tensor: u32, offset: u64, opens: impl Into<Option<u32>>, closes: &[u32]) -> Buffer {
    let holds = Holds::Tensor { tensor: TensorId(tensor), first_byte: None, bytes: None };
    Buffer { holds, offset: Bytes(offset), opens: opens.into().map(CommandId), closes: ids(closes) }
}

fn piece(tensor: u32, (first, bytes): (u64, u64), offset: u64, opens: u32, closes: &[u32]) -> Buffer {
    let (first_byte, bytes) = (Some(Bytes(first)), Some(Bytes(bytes)));
    let holds = Holds::Tensor { tensor: TensorId(tensor), first_byte, bytes };
    Buffer { holds, offset: Bytes(offset), opens: Some(CommandId(opens)), closes: ids(closes) }
}

fn workspace(command: u32, offset: u64) -> Buffer {
    let holds = Holds::Workspace { command: CommandId(command) };
    Buffer { holds, offset: Bytes(offset), opens: Some(CommandId(command)), closes: ids(&[command]) }
}

fn schedule(commands: Vec<Command>, buffers: Vec<Buffer>) -> Schedule {
    Schedule {
        kind: ScheduleKind,
        trace: "hand".into(),
        batch: 4,
        budget_bytes: Bytes(420),
        pool_bytes: Bytes(320),
        link: Link::symmetric(BytesPerSecond(64.0)),
        commands,
        buffers,
    }
}

/// Returns a schedule whose commands 3, 4 offload the halves of `a`, and 7, 8 prefetch them; `y` uses the first
/// half's place meanwhile.
fn swap() -> Schedule {
    schedule(
        vec![
            compute(0, &[]),
            compute(1, &[]),
            compute(2, &[]),
            offload(A, 0, 64, &[1]),
            offload(A, 64, 64, &[]),
            compute(3, &[3]),
            compute(4, &[]),
            prefetch(A, 0, 64, &[6]),
            prefetch(A, 64, 64, &[4]),
            compute(5, &[8]),
        ],
        vec![
            whole(X, 0, None, &[0]),
            piece(A, (0, 64), 64, 0, &[2, 3]),
            piece(A, (64, 64), 128, 0, &[2, 4]),
            workspace(0, 256),
            whole(B, 192, 2, &[6]),
            whole(Y, 64, 5, &[6]),
            whole(D, 0, 6, &[9]),
            piece(A, (0, 64), 64, 7, &[9]),
            piece(A, (64, 64), 128, 8, &[9]),
            whole(E, 192, 9, &[9]),
        ],
    )
}

/// Returns a schedule whose commands 5, 6 recompute `a` from `x` at a different place; 5 in the lean alternative,
/// without a workspace.
fn recompute() -> Schedule {
    let lean = Command::Compute { op: OpId(0), again: true, alternative: Some(0), waits: Vec::new() };
    schedule(
        vec![
            compute(0, &[]),
            compute(1, &[]),
            compute(2, &[]),
            compute(3, &[]),
            compute(4, &[]),
            lean,
            again(1),
            compute(5, &[]),
        ],
        vec![
            whole(X, 0, None, &[5]),
            whole(A, 64, 0, &[2]),
            workspace(0, 192),
            whole(B, 192, 2, &[4]),
            whole(Y, 256, 3, &[4]),
            whole(D, 64, 4, &[7]),
            whole(A, 128, 5, &[7]),
            whole(E, 256, 7, &[7]),
        ],
    )
}

#[test]
fn the_hand_made_schedules_hold() {
    let mut recompute = recompute();
    recompute.pool_bytes = Bytes(384);
    recompute.budget_bytes = Bytes(484);
    for (schedule, makespan) in [(swap(), 8.0), (recompute, 9.0)] {
        assert_eq!(check(&trace(), &schedule), Ok(()));
        assert_eq!(simulate(&trace(), &schedule).makespan(), Seconds(makespan));
    }
}

#[test]
fn the_proof_tells_where_everything_lies() {
    let places = locate(&trace(), &swap()).expect("it is valid");
    assert_eq!(places.tensors(CommandId(0)), [(TensorId(X), Bytes(0)), (TensorId(A), Bytes(64))]);
    assert_eq!(places.workspace(CommandId(0)), Some(Bytes(256)));
    assert_eq!(
        places.tensors(CommandId(4)),
        [(TensorId(A), Bytes(128))],
        "an offload starts at its first byte"
    );
    assert_eq!(places.tensors(CommandId(8)), [(TensorId(A), Bytes(128))]);
    let last = [(TensorId(A), Bytes(64)), (TensorId(D), Bytes(0)), (TensorId(E), Bytes(192))];
    assert_eq!(places.tensors(CommandId(9)), last);
}

/// A change to a valid schedule, and part of the expected message.
type Break = (&'static str, fn(&mut Schedule), &'static str);

fn set_waits(schedule: &mut Schedule, command: usize, waits: &[u32]) {
    *schedule.commands[command].waits_mut() = ids(waits);
}

/// Checks that each change breaks the rule, or is a fault of no rule.
fn assert_breaks(valid: fn() -> Schedule, rule: Option<u8>, breaks: &[Break]) {
    for (name, change, says) in breaks {
        let mut schedule = valid();
        change(&mut schedule);
        let text = check(&trace(), &schedule).expect_err(name).to_string();
        assert!(text.contains(says), "{name}: `{text}` does not say `{says}`");
        assert_eq!(broken_rule(&text), rule, "{name}: {text}");
    }
}

#[test]
fn what_does_not_belong_together_is_told_first() {
    assert_breaks(
        swap,
        None,
        &[
            ("another name", |s| s.trace = "other".into(), "the schedule is for `other` at batch 4"),
            ("another batch", |s| s.batch = 8, "at batch 8, the trace is `hand` at batch 4"),
            (
                "another name and nonsense besides",
                |s| {
                    s.trace = "other".into();
                    s.commands.clear();
                },
                "plan this trace anew",
            ),
            (
                "a rate of NaN",
                |s| s.link.offload_bytes_per_second.0 = f64::NAN,
                "link.offload_bytes_per_second",
            ),
            ("a latency below 0", |s| s.link.latency_seconds.0 = -1.0, "link.latency_seconds"),
            ("a huge offset", |s| s.buffers[0].offset.0 = u64::MAX, "buffers[0].offset"),
            ("a wait for itself", |s| set_waits(s, 3, &[3]), "command 3 (offload `a`) waits for command 3"),
            ("a wait for a later one", |s| set_waits(s, 3, &[5]), "waits for command 5, which is no earlier"),
            ("a wait for none", |s| set_waits(s, 3, &[u32::MAX]), "waits for command 4294967295"),
        ],
    );
}

#[test]
fn what_is_named_exists() {
    assert_breaks(
        swap,
        None,
        &[
            ("no such op", |s| s.commands[9] = compute(6, &[8]), "commands[9].op is 6, but there are only 6"),
            ("no such tensor", |s| s.commands[3] = offload(7, 0, 1, &[]), "commands[3].tensor is 7"),
            ("no such tensor to hold", |s| s.buffers[0] = whole(7, 0, None, &[0]), "buffers[0].tensor is 7"),
            ("no such opener", |s| s.buffers[1].opens = Some(CommandId(10)), "buffers[1].opens is 10"),
            ("no such closer", |s| s.buffers[1].closes.push(CommandId(10)), "buffers[1].closes[2] is 10"),
            ("no such workspace", |s| s.buffers[3] = workspace(10, 256), "buffers[3].opens is 10"),
            (
                "no such alternative",
                |s| {
                    s.commands[1] =
                        Command::Compute { op: OpId(1), again: false, alternative: Some(0), waits: vec![] }
                },
                "commands[1].alternative is 0, but there are only 0",
            ),
            ("a piece too long", |s| s.commands[3] = offload(A, 64, 65, &[1]), "commands[3] names bytes"),
            ("a piece of nothing", |s| s.commands[3] = offload(A, 64, 0, &[1]), "or none at all"),
            ("a piece past the end", |s| s.commands[3] = offload(A, u64::MAX, u64::MAX, &[1]), "128 bytes"),
            (
                "a buffer too long",
                |s| s.buffers[1] = piece(A, (64, 65), 64, 0, &[2]),
                "buffers[1] names bytes",
            ),
        ],
    );
}

#[test]
fn rule_1_every_op_once_in_order() {
    assert_breaks(
        swap,
        Some(1),
        &[
            ("no commands", |s| s.commands.clear(), "op 0 (`conv`) is never computed"),
            ("the last op missing", |s| drop(s.commands.pop()), "op 5 (`pool.back`) is never computed"),
            ("two ops exchanged", |s| s.commands.swap(1, 2), "command 1 (compute `pool`) stands where op 1"),
            ("an op twice", |s| s.commands[6] = compute(3, &[]), "(compute `fc`) stands where op 4 is due"),
            ("one op too many", |s| s.commands.push(compute(5, &[])), "where no op is due"),
            ("again before its first run", |s| s.commands[1] = again(1), "before the op's first run"),
        ],
    );
}

#[test]
fn rule_2_bytes_are_where_they_are_looked_for() {
    assert_breaks(
        swap,
        Some(2),
        &[
            ("a reader not after the prefetch", |s| set_waits(s, 9, &[]), "may close before command 7"),
            (
                "one piece not waited for",
                |s| set_waits(s, 9, &[7]),
                "buffer 8 (bytes 64..128 of tensor 1 (`a`)",
            ),
            ("no closes", |s| s.buffers[4].closes.clear(), "never closes"),
            (
                "closed before the last reader",
                |s| s.buffers[4].closes = ids(&[5]),
                "bytes 0..64 of tensor 2 (`b`)",
            ),
            ("closed before the offload", |s| s.buffers[2].closes = ids(&[2]), "command 4 (offload `a`)"),
            ("a tensor without buffer", |s| drop(s.buffers.remove(0)), "tensor 0 (`x`)"),
            ("a write without buffer", |s| drop(s.buffers.remove(9)), "the 0 buffers of it that it opens"),
            ("a write into half its room", |s| drop(s.buffers.remove(2)), "the 1 buffers"),
            (
                "a piece returns elsewhere",
                |s| {
                    s.buffers[8].offset = Bytes(320);
                    s.pool_bytes = Bytes(384);
                    s.budget_bytes = Bytes(484);
                },
                "no open buffers hold them all in one place",
            ),
            (
                "written in two places",
                |s| {
                    s.buffers[2].offset = Bytes(320);
                    s.pool_bytes = Bytes(384);
                    s.budget_bytes = Bytes(484);
                },
                "do not hold it whole",
            ),
            (
                "a prefetch into less than its bytes",
                |s| s.buffers[7] = piece(A, (0, 60), 64, 7, &[9]),
                "does not open exactly one buffer of just these",
            ),
            ("a prefetch into nothing", |s| drop(s.buffers.remove(7)), "(it opens 0)"),
        ],
    );
    assert_breaks(
        swap,
        Some(4),
        &[(
            "a prefetch into more than its bytes",
            |s| s.buffers[7] = whole(A, 64, 7, &[9]),
            "share bytes 128..192",
        )],
    );
}

#[test]
fn rule_2_buffers_open_and_close_with_what_they_are_for() {
    assert_breaks(
        swap,
        Some(2),
        &[
            ("no workspace", |s| drop(s.buffers.remove(3)), "needs a workspace of 32 bytes"),
            ("a workspace held on", |s| s.buffers[3].closes.push(CommandId(1)), "buffer 3 is the workspace"),
            (
                "the workspace of a transfer",
                |s| s.buffers.push(workspace(3, 256)),
                "workspace of command 3 (offload `a`)",
            ),
            (
                "on the device before it is made, at a place of its own",
                |s| {
                    s.buffers.push(whole(B, 320, None, &[0]));
                    s.pool_bytes = Bytes(384);
                    s.budget_bytes = Bytes(484);
                },
                "holds bytes 0..64 of tensor 2 (`b`) from the start",
            ),
        ],
    );
    assert_breaks(
        swap,
        Some(4),
        &[(
            "on the device before it is made",
            |s| s.buffers.push(whole(E, 192, None, &[0])),
            "may be open at once",
        )],
    );
}

#[test]
fn rule_3_versions_are_those_of_the_trace() {
    assert_breaks(
        swap,
        Some(3),
        &[
            (
                "one half was offloaded before the update",
                |s| {
                    s.commands[1..=3].rotate_right(1);
                    set_waits(s, 1, &[0]);
                    set_waits(s, 2, &[1]);
                    set_waits(s, 4, &[2]);
                    set_waits(s, 5, &[]);
                    s.buffers[1].closes = ids(&[3]);
                    s.buffers[2].closes = ids(&[3, 4]);
                    s.buffers[4].opens = Some(CommandId(3));
                },
                "command 9 (compute `pool.back`) needs version 2 of bytes 0..128 of tensor 1 (`a`), and finds version 1",
            ),
            ("never offloaded", |s| s.commands[3] = prefetch(A, 0, 64, &[1]), "not all offloaded before it"),
            (
                "another tensor offloaded",
                |s| s.commands[3] = offload(B, 0, 64, &[2]),
                "bytes 0..64 of tensor 1",
            ),
            (
                "one byte not offloaded",
                |s| s.commands[3] = offload(A, 1, 63, &[1]),
                "these were not all offloaded",
            ),
        ],
    );
    let wide: fn() -> Schedule = || {
        let mut schedule = recompute();
        (schedule.pool_bytes, schedule.budget_bytes) = (Bytes(384), Bytes(484));
        schedule
    };
    assert_breaks(
        wide,
        Some(3),
        &[
            (
                "the update is not done again",
                |s| s.commands[6] = again(2),
                "needs version 2 of bytes 0..128 of tensor 1 (`a`), and finds version 1",
            ),
            ("not recomputable", |s| s.commands[6] = again(3), "(compute `fc` again), but that op is not"),
        ],
    );
    assert_breaks(
        wide,
        Some(2),
        &[("the update is done twice", |s| s.commands[5] = again(1), "no open buffers")],
    );
}

#[test]
fn rule_4_one_tenant_at_a_time() {
    assert_breaks(
        swap,
        Some(4),
        &[
            (
                "in before the piece is out",
                |s| set_waits(s, 5, &[]),
                "buffer 1 (bytes 0..64 of tensor 1 (`a`)) and buffer 5 (bytes 0..64 of tensor 3 (`y`)) share bytes 64..128",
            ),
            ("back before the guest is out", |s| set_waits(s, 7, &[3]), "buffer 5"),
            ("one byte too low", |s| s.buffers[4].offset = Bytes(191), "share bytes 191..192"),
            ("a workspace over a tensor", |s| s.buffers[3].offset = Bytes(33), "the workspace of command 0"),
            ("a guest held on", |s| s.buffers[5].closes = ids(&[8]), "buffer 5"),
            ("the same buffer twice", |s| s.buffers.push(whole(B, 192, 2, &[6])), "share bytes 192..256"),
        ],
    );
}

#[test]
fn rule_5_no_races() {
    assert_breaks(
        swap,
        Some(5),
        &[
            (
                "the offload races the update in place",
                |s| set_waits(s, 3, &[0]),
                "command 1 (compute `relu`) and command 3 (offload `a`) both touch bytes 0..64 of tensor 1 (`a`)",
            ),
            (
                "the prefetch races its offload",
                |s| {
                    set_waits(s, 8, &[]);
                    s.buffers[8].offset = Bytes(384);
                    s.buffers[7].offset = Bytes(320);
                    s.pool_bytes = Bytes(448);
                    s.budget_bytes = Bytes(548);
                },
                "command 4 (offload `a`) and command 8 (prefetch `a`)",
            ),
            (
                "an offload anew races the prefetch of the old",
                |s| {
                    // `a` also stays in place, so that it can be offloaded again at any time.
                    s.commands.insert(8, offload(A, 0, 64, &[]));
                    set_waits(s, 9, &[4]);
                    set_waits(s, 10, &[9, 8]);
                    for (buffer, closes) in [(1, [2, 8]), (6, [10, 10]), (7, [10, 10])] {
                        s.buffers[buffer].closes = ids(&closes);
                    }
                    (s.buffers[8].opens, s.buffers[8].closes) = (Some(CommandId(9)), ids(&[10]));
                    s.buffers[8].offset = Bytes(384);
                    s.buffers[7].offset = Bytes(320);
                    s.buffers[5].offset = Bytes(448);
                    (s.buffers[9].opens, s.buffers[9].closes) = (Some(CommandId(10)), ids(&[10]));
                    s.pool_bytes = Bytes(512);
                    s.budget_bytes = Bytes(612);
                },
                "command 7 (prefetch `a`) and command 8 (offload `a`)",
            ),
        ],
    );
    // The reverse: the offload comes first and the update does not wait for it.
    let early: fn() -> Schedule = || {
        let mut schedule = swap();
        schedule.commands.insert(1, offload(X, 0, 64, &[]));
        for command in &mut schedule.commands {
            command.waits_mut().iter_mut().filter(|w| w.0 > 0).for_each(|w| w.0 += 1);
        }
        for buffer in &mut schedule.buffers {
            buffer.opens.iter_mut().chain(&mut buffer.closes).filter(|c| c.0 > 0).for_each(|c| c.0 += 1);
        }
        schedule.buffers[0].closes = ids(&[0, 1]);
        schedule.buffers[6].offset = Bytes(320);
        (schedule.pool_bytes, schedule.budget_bytes) = (Bytes(384), Bytes(484));
        schedule
    };
    assert_eq!(check(&trace(), &early()), Ok(()));
    assert_breaks(
        early,
        Some(5),
        &[(
            "the update in place does not wait for the offload",
            |s| {
                s.commands[1] = offload(A, 0, 64, &[0]);
                s.buffers[1].closes.push(CommandId(1));
            },
            "command 1 (offload `a`) and command 2 (compute `relu`)",
        )],
    );
}

#[test]
fn rule_6_within_pool_and_budget() {
    assert_breaks(
        swap,
        Some(6),
        &[
            ("past the pool", |s| s.pool_bytes = Bytes(319), "ends at byte 320 of a pool of 319 bytes"),
            ("past the pool by far", |s| s.buffers[0].offset = Bytes(1 << 62), "buffer 0"),
            ("a workspace past the pool", |s| s.buffers[3].offset = Bytes(289), "the workspace of command 0"),
            ("over the budget", |s| s.budget_bytes = Bytes(419), "1 bytes more than the budget of 419"),
            ("a huge pool", |s| s.pool_bytes = Bytes(1 << 62), "the budget of 420"),
        ],
    );
}

/// A tensor that is on the device from the start and is then written without being read stays in place.
#[test]
fn a_tensor_from_the_start_is_overwritten_where_it_stands() {
    let mut trace = trace();
    trace.ops.truncate(2);
    trace.ops[1].reads = vec![TensorId(A)];
    trace.ops[1].writes = vec![TensorId(X)];
    let schedule = schedule(
        vec![compute(0, &[]), compute(1, &[])],
        vec![whole(X, 0, None, &[1]), whole(A, 64, 0, &[1]), workspace(0, 192)],
    );
    assert_eq!(check(&trace, &schedule), Ok(()));
    let mut gone = schedule;
    gone.buffers[0].closes = ids(&[0]);
    assert_eq!(check(&trace, &gone).map_err(|v| broken_rule(&v.0)), Err(Some(2)));
}

/// A piece may be offloaded while another piece of the same tensor is prefetched: they share no byte.
#[test]
fn pieces_that_share_no_byte_need_no_order() {
    let mut schedule = swap();
    // The first half is offloaded and prefetched before the second half is offloaded.
    schedule.commands[4] = prefetch(A, 0, 64, &[2, 3]);
    schedule.commands[7] = offload(A, 64, 64, &[1]);
    set_waits(&mut schedule, 8, &[7]);
    schedule.buffers[7].opens = Some(CommandId(4));
    schedule.buffers[2].closes = ids(&[2, 7]);
    schedule.buffers[5].offset = Bytes(320);
    (schedule.pool_bytes, schedule.budget_bytes) = (Bytes(384), Bytes(484));
    assert_eq!(check(&trace(), &schedule), Ok(()));
}
