//! Ways to break a schedule, for the property tests.

use plimsoll_ir::ids::{BufferId, CommandId, OpId, TensorId};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Schedule, Stream, alternative_of};
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_testing::Random;

/// A change to a schedule or its trace; returns `true` if there was something to change.
pub type Change = fn(&mut Trace, &mut Schedule, &mut Random) -> bool;

/// Changes that may or may not break a schedule; the referee judges the result.
pub const CHANGES: &[(&str, Change)] = &[
    ("drop a wait", |_, s, r| drop_wait(s, r)),
    ("drop all waits of a command", |_, s, r| drop_all_waits(s, r, &Stream::ALL)),
    ("drop all waits of an offload", |_, s, r| drop_all_waits(s, r, &[Stream::Offload])),
    ("drop all waits of a prefetch", |_, s, r| drop_all_waits(s, r, &[Stream::Prefetch])),
    ("no room is short, drop a wait", |_, s, r| {
        apart(s);
        drop_wait(s, r)
    }),
    ("no room is short, drop all waits of an offload", |_, s, r| {
        apart(s);
        drop_all_waits(s, r, &[Stream::Offload])
    }),
    ("no room is short, drop all waits of a compute command", |_, s, r| {
        apart(s);
        drop_all_waits(s, r, &[Stream::Compute])
    }),
    ("add a wait", |_, s, r| {
        let i = r.below(s.commands.len() as u64) as usize;
        let wait = CommandId::new(r.below(i as u64) as usize);
        s.commands[i].waits_mut().extend((i > 0).then_some(wait));
        i > 0
    }),
    ("exchange two neighbours", |_, s, r| {
        let i = r.below(s.commands.len() as u64) as usize;
        i > 0 && {
            s.commands.swap(i - 1, i);
            true
        }
    }),
    ("exchange two neighbours, by all their names", |_, s, r| {
        let i = r.below(s.commands.len() as u64) as usize;
        i > 0 && {
            s.commands.swap(i - 1, i);
            rename(s, |c| match c {
                _ if c == i => i - 1,
                _ if c + 1 == i => i,
                _ => c,
            });
            true
        }
    }),
    ("leave a command out", |_, s, r| {
        let i = r.below(s.commands.len() as u64) as usize;
        s.commands.remove(i);
        rename(s, |c| if c > i { c - 1 } else { c });
        !s.commands.is_empty()
    }),
    ("another op", |t, s, r| {
        let other = OpId::new(r.below(t.ops.len() as u64) as usize);
        change_compute(s, r, &[false, true], |op, _, alternative| (*op, *alternative) = (other, None))
    }),
    ("another op again", |t, s, r| {
        let other = OpId::new(r.below(t.ops.len() as u64) as usize);
        change_compute(s, r, &[true], |op, _, alternative| (*op, *alternative) = (other, None))
    }),
    ("for the first time or again", |_, s, r| {
        change_compute(s, r, &[false, true], |_, again, _| *again = !*again)
    }),
    ("in the plain way", |_, s, r| {
        change_compute(s, r, &[false, true], |_, _, alternative| *alternative = None)
    }),
    ("a transfer the other way", |_, s, r| {
        let Some(i) = pick_command(s, r, |c| c.transfer().is_some()) else { return false };
        s.commands[i] = match s.commands[i].clone() {
            Command::Offload { tensor, first_byte, bytes, waits } => {
                Command::Prefetch { tensor, first_byte, bytes, waits }
            }
            Command::Prefetch { tensor, first_byte, bytes, waits } => {
                Command::Offload { tensor, first_byte, bytes, waits }
            }
            other => other,
        };
        true
    }),
    ("a transfer of other bytes", |t, s, r| {
        let tensors = &t.tensors;
        change_transfer(s, r, |tensor, first_byte, bytes, r| {
            let all = tensors[tensor.index()].bytes.0;
            let first = r.below(all);
            (*first_byte, *bytes) = (Some(Bytes(first)), Some(Bytes(1 + r.below(all - first))));
        })
    }),
    ("a transfer of another tensor", |t, s, r| {
        let count = t.tensors.len() as u64;
        change_transfer(s, r, |tensor, first_byte, bytes, r| {
            *tensor = TensorId::new(r.below(count) as usize);
            (*first_byte, *bytes) = (None, None);
        })
    }),
    ("a buffer a little off", |_, s, r| {
        change_buffer(s, r, |b, r| b.offset.0 = b.offset.0.saturating_add(r.below(5)).saturating_sub(2))
    }),
    ("a buffer somewhere else", |_, s, r| {
        let pool = s.pool_bytes.0;
        change_buffer(s, r, |b, r| b.offset.0 = r.below(pool.saturating_add(1)))
    }),
    ("a buffer at the end of a larger pool", |_, s, r| {
        let end = enlarge(s);
        change_buffer(s, r, |b, _| b.offset.0 = end)
    }),
    ("one close less", |_, s, r| {
        change_buffer(s, r, |b, r| {
            let at = r.below(b.closes.len() as u64) as usize;
            b.closes.drain(at..b.closes.len().min(at + 1));
        })
    }),
    ("another close", |_, s, r| {
        let count = s.commands.len() as u64;
        change_buffer(s, r, |b, r| b.closes = vec![CommandId::new(r.below(count) as usize)])
    }),
    ("one close more", |_, s, r| {
        let count = s.commands.len() as u64;
        change_buffer(s, r, |b, r| b.closes.push(CommandId::new(r.below(count) as usize)))
    }),
    ("another opening", |_, s, r| {
        let count = s.commands.len() as u64;
        change_buffer(s, r, |b, r| b.opens = (r.percent(90)).then(|| CommandId::new(r.below(count) as usize)))
    }),
    ("other bytes in a buffer", |t, s, r| {
        let tensors = &t.tensors;
        change_buffer(s, r, |b, r| {
            let Holds::Tensor { tensor, first_byte, bytes } = &mut b.holds else { return };
            let all = tensors[tensor.index()].bytes.0;
            let first = r.below(all);
            (*first_byte, *bytes) = (Some(Bytes(first)), Some(Bytes(r.below(all - first + 1))));
        })
    }),
    ("a buffer less", |_, s, r| {
        let at = r.below(s.buffers.len() as u64) as usize;
        s.buffers.len() > at && {
            s.buffers.remove(at);
            true
        }
    }),
    ("a buffer twice, in a larger pool", |t, s, r| {
        let end = enlarge(s);
        let Some(at) = pick_tensor_buffer(t, s, r) else { return false };
        let mut twin = s.buffers[at].clone();
        twin.offset.0 = end;
        let at = r.below(s.buffers.len() as u64) as usize;
        s.buffers.insert(at, twin);
        true
    }),
    ("held until the end", |_, s, r| {
        let last = CommandId::new(s.commands.len() - 1);
        change_buffer(s, r, |b, _| b.closes.push(last))
    }),
    ("no recomputing", |t, s, r| {
        let op = r.below(t.ops.len() as u64) as usize;
        t.ops[op].recomputable = false;
        !s.commands.is_empty()
    }),
    ("on the half-duplex link", |_, s, _| {
        s.link.duplex = plimsoll_ir::schedule::Duplex::Half;
        true
    }),
    ("a slower op", |t, _, r| {
        let op = r.below(t.ops.len() as u64) as usize;
        t.ops[op].seconds = Seconds(7.0 / 3.0);
        true
    }),
];

/// Changes that surely break a schedule, with the broken rule.
pub const BREAKS: &[(&str, u8, Change)] = &[
    ("the last op missing", 1, |t, _, _| {
        let last = t.ops.last().cloned();
        t.ops.extend(last.map(|op| Op { reads: Vec::new(), writes: Vec::new(), ..op }));
        true
    }),
    ("an op twice", 1, |_, s, r| {
        let first = |c: &Command| matches!(c, Command::Compute { again: false, .. });
        let twin = pick_command(s, r, first).map(|i| s.commands[i].clone());
        let there = twin.is_some();
        s.commands.extend(twin);
        there
    }),
    ("an op before its turn", 1, |t, s, r| {
        let mut there = false;
        change_compute(s, r, &[false], |op, _, alternative| {
            (*op, *alternative) = (OpId(op.0.saturating_add(1)), None);
            there = op.index() < t.ops.len();
        });
        there
    }),
    ("no closes", 2, |_, s, r| change_buffer(s, r, |b, _| b.closes.clear())),
    ("no workspace", 2, |t, s, r| {
        let needed = |b: &Buffer| {
            matches!(b.holds, Holds::Workspace { command } if matches!(&s.commands[command.index()],
                Command::Compute { op, alternative, .. } if alternative_of(&t.ops[op.index()], *alternative)
                    .is_some_and(|(_, workspace)| workspace > Bytes::ZERO)))
        };
        let at: Vec<usize> = (0..s.buffers.len()).filter(|i| needed(&s.buffers[*i])).collect();
        r.pick(&at).map(|at| s.buffers.remove(at)).is_some()
    }),
    ("no buffer for what is read from the start", 2, |t, s, _| {
        let from_start = |b: &Buffer| {
            matches!(b.holds, Holds::Tensor { tensor, .. }
            if b.opens.is_none() && t.tensors[tensor.index()].bytes > Bytes::ZERO)
        };
        let first = s.buffers.iter().position(from_start);
        first.map(|at| s.buffers.remove(at)).is_some()
    }),
    ("a prefetch to no buffer", 2, |_, s, r| {
        let Some(i) = pick_command(s, r, |c| matches!(c, Command::Prefetch { .. })) else { return false };
        s.buffers.retain(|b| b.opens != Some(CommandId::new(i)));
        true
    }),
    ("not recomputable", 3, |t, s, r| {
        change_compute(s, r, &[true], |op, _, _| t.ops[op.index()].recomputable = false)
    }),
    ("a buffer twice in one place", 4, |t, s, r| {
        let Some(at) = pick_tensor_buffer(t, s, r) else { return false };
        let twin = s.buffers[at].clone();
        s.buffers.push(twin);
        true
    }),
    ("another tensor in the same place", 4, |t, s, r| {
        let Some(at) = pick_tensor_buffer(t, s, r) else { return false };
        let mut twin = s.buffers[at].clone();
        let all = t.tensors.iter().enumerate().filter(|(_, tensor)| tensor.bytes > Bytes::ZERO);
        let all: Vec<usize> = all.map(|(i, _)| i).collect();
        let Some(other) = r.pick(&all) else { return false };
        let (first_byte, bytes) = (Some(Bytes(0)), Some(Bytes(1)));
        twin.holds = Holds::Tensor { tensor: TensorId::new(other), first_byte, bytes };
        s.buffers.push(twin);
        true
    }),
    ("past the pool", 6, |t, s, r| {
        pick_tensor_buffer(t, s, r).is_some_and(|at| {
            s.buffers[at].offset = s.pool_bytes;
            true
        })
    }),
    ("over the budget", 6, |t, s, _| {
        let need = t.resident_bytes + s.pool_bytes;
        s.budget_bytes = need.saturating_sub(Bytes(1));
        need > Bytes::ZERO
    }),
];

/// Gives every tensor a separate place, so that a dropped wait does not break the room.
fn apart(s: &mut Schedule) {
    let unit = s.pool_bytes.0.saturating_add(1000);
    let after =
        |bytes: Bytes, places: usize| Bytes(bytes.0.saturating_add(unit.saturating_mul(places as u64)));
    let mut places: Vec<Holds> = Vec::new();
    for buffer in &mut s.buffers {
        let whose = match buffer.holds {
            Holds::Tensor { tensor, .. } => Holds::Tensor { tensor, first_byte: None, bytes: None },
            workspace => workspace,
        };
        let place = places.iter().position(|other| *other == whose).unwrap_or(places.len());
        if place == places.len() {
            places.push(whose);
        }
        buffer.offset = after(buffer.offset, place);
    }
    s.pool_bytes = after(s.pool_bytes, places.len());
    s.budget_bytes = after(s.budget_bytes, places.len());
}

/// Adds 1000 bytes to the pool and the budget; returns the former end of the pool.
fn enlarge(s: &mut Schedule) -> u64 {
    let end = s.pool_bytes.0;
    (s.pool_bytes.0, s.budget_bytes.0) = (end.saturating_add(1000), s.budget_bytes.0.saturating_add(1000));
    end
}

fn drop_wait(s: &mut Schedule, r: &mut Random) -> bool {
    let Some(i) = pick_command(s, r, |c| !c.waits().is_empty()) else { return false };
    let waits = s.commands[i].waits_mut();
    waits.remove(r.below(waits.len() as u64) as usize);
    true
}

fn pick_command(s: &Schedule, r: &mut Random, wanted: impl Fn(&Command) -> bool) -> Option<usize> {
    let all: Vec<usize> = (0..s.commands.len()).filter(|i| wanted(&s.commands[*i])).collect();
    r.pick(&all)
}

/// Returns a buffer that holds at least one byte of a tensor.
fn pick_tensor_buffer(t: &Trace, s: &Schedule, r: &mut Random) -> Option<usize> {
    let holds_bytes = |(_, b): &(BufferId, &Buffer)| match b.holds {
        Holds::Tensor { tensor, bytes, .. } => bytes.unwrap_or(t.tensors[tensor.index()].bytes) > Bytes::ZERO,
        Holds::Workspace { .. } => false,
    };
    let all: Vec<usize> = s.numbered_buffers().filter(holds_bytes).map(|(id, _)| id.index()).collect();
    r.pick(&all)
}

/// Drops all waits of a command of one of these streams.
fn drop_all_waits(s: &mut Schedule, r: &mut Random, streams: &[Stream]) -> bool {
    let picked = pick_command(s, r, |c| streams.contains(&c.stream()) && !c.waits().is_empty());
    picked.map(|i| s.commands[i].waits_mut().clear()).is_some()
}

/// Changes a compute command that is a first run or a recompute, as `kinds` has it.
fn change_compute(
    s: &mut Schedule,
    r: &mut Random,
    kinds: &[bool],
    change: impl FnOnce(&mut OpId, &mut bool, &mut Option<u32>),
) -> bool {
    let picked = pick_command(s, r, |c| matches!(c, Command::Compute { again, .. } if kinds.contains(again)));
    let Some(Command::Compute { op, again, alternative, .. }) = picked.map(|i| &mut s.commands[i]) else {
        return false;
    };
    change(op, again, alternative);
    true
}

type Piece = Option<Bytes>;

fn change_transfer(
    s: &mut Schedule,
    r: &mut Random,
    change: impl FnOnce(&mut TensorId, &mut Piece, &mut Piece, &mut Random),
) -> bool {
    let Some(i) = pick_command(s, r, |c| c.transfer().is_some()) else { return false };
    match &mut s.commands[i] {
        Command::Offload { tensor, first_byte, bytes, .. }
        | Command::Prefetch { tensor, first_byte, bytes, .. } => {
            change(tensor, first_byte, bytes, r);
            true
        }
        Command::Compute { .. } => false,
    }
}

fn change_buffer(s: &mut Schedule, r: &mut Random, change: impl FnOnce(&mut Buffer, &mut Random)) -> bool {
    let at = r.below(s.buffers.len() as u64) as usize;
    s.buffers.get_mut(at).map(|b| change(b, r)).is_some()
}

/// Gives every command a new id, and drops ids that then name nothing.
fn rename(s: &mut Schedule, name: impl Fn(usize) -> usize) {
    let count = s.commands.len();
    let new = |id: &mut CommandId| *id = CommandId::new(name(id.index()).min(count.saturating_sub(1)));
    s.commands.iter_mut().for_each(|c| c.waits_mut().iter_mut().for_each(new));
    for buffer in &mut s.buffers {
        buffer.opens.iter_mut().chain(&mut buffer.closes).for_each(new);
        if let Holds::Workspace { command } = &mut buffer.holds {
            new(command);
        }
    }
}

/// Returns the rule of `schedule/1` that a violation names first, if it is one of a rule.
pub fn broken_rule(violation: &str) -> Option<u8> {
    violation.strip_prefix("rule ")?.split(':').next()?.parse().ok()
}
