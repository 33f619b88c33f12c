//! From timed commands to a schedule: residencies, addresses, lowering.
//!
//! A value lies in the pool from the start of the command that brings it until the commands that use it there have ended. In the
//! list, which is in order of starts, that is from the position of the first to the first position behind the others that starts
//! no earlier than they end: a later occupant of the same addresses then waits only for commands that have ended anyway. So a
//! schedule whose addresses fit takes no longer than the commands say.
//!
//! Addresses are easier to find if values lie in the pool for less time. So every prefetch is first delayed as far as its readers
//! and its stream permit.

use super::search::{Action, Timed};
use super::space::{Set, Space, ValueId, holds, members, only};
use crate::decide::placement::{Direction, HomeId, Opens, Placement, Residency, Slot, Step, Transfer};
use crate::place::address::{Block, Item, Items};
use crate::place::realise::{Attempt, Case, GIVEN, LIGHT, Realised};
use crate::request::Error;
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

/// Value in the pool without a break, including its in-place updates.
#[derive(Clone, Debug)]
struct Stay {
    value: ValueId,
    /// Command that brings it; `None` from the start.
    opens: Option<usize>,
    /// Commands that use it there.
    uses: Vec<usize>,
}

/// Returns the schedule of these commands, if addresses are found.
pub(super) fn realise(case: &Case<'_>, space: &Space, commands: &[Timed]) -> Result<Realised, Error> {
    let commands = worthwhile(space, commands);
    let stays = stays(space, &commands);
    let mut lowest = u64::MAX;
    for late in [true, false] {
        let mut commands = commands.clone();
        if late {
            delay(space, &mut commands);
        }
        let lay = Lay::new(space, &commands, &stays);
        let (placement, items) = (lay.placement(), lay.items());
        for attempt in case.useful(&[GIVEN[0], Attempt { work: LIGHT, ..GIVEN[9] }]) {
            if let Some(found) = case.with_addresses(attempt, &mut lowest, &placement, &items)? {
                return Ok(found);
            }
        }
    }
    Ok(case.without_addresses(lowest))
}

/// Removes useless transfers: prefetches whose bytes are never read, offloads that are never fetched.
fn worthwhile(space: &Space, commands: &[Timed]) -> Vec<Timed> {
    // Backwards from the last command: values that are read later, and fetched later.
    let (mut read, mut fetched): (Set, Set) = (0, 0);
    let mut kept: Vec<Timed> = Vec::new();
    for command in commands.iter().rev() {
        let keep = match command.action {
            Action::Begin => false,
            Action::Run { op, .. } => {
                let job = &space.jobs[op];
                read = read & !job.writes | job.reads;
                true
            }
            Action::Prefetch { value } => {
                let wanted = holds(read, value);
                read &= !only(value);
                fetched |= if wanted { only(value) } else { 0 };
                wanted
            }
            Action::Offload { value } => {
                let wanted = holds(fetched, value);
                fetched &= !only(value);
                wanted
            }
        };
        if keep {
            kept.push(*command);
        }
        // Values given up here are not read from there on.
        read &= !command.given_up;
    }
    kept.reverse();
    kept
}

/// Returns the values in the pool, with the commands that use them there.
fn stays(space: &Space, commands: &[Timed]) -> Vec<Stay> {
    let start = members(space.start).map(|value| Stay { value, opens: None, uses: Vec::new() });
    let mut stays: Vec<Stay> = start.collect();
    // By value: its stay.
    let mut at: TiVec<ValueId, Option<usize>> = vec![None; space.values.len()].into();
    stays.iter().enumerate().for_each(|(k, stay)| at[stay.value] = Some(k));
    let open = |value: ValueId, c: usize, stays: &mut Vec<Stay>, at: &mut TiSlice<ValueId, Option<usize>>| {
        at[value] = Some(stays.len());
        stays.push(Stay { value, opens: Some(c), uses: vec![c] });
    };
    for (c, Timed { action, given_up, .. }) in commands.iter().enumerate() {
        members(*given_up).for_each(|v| at[v] = None);
        match *action {
            Action::Begin => {}
            Action::Offload { value } => {
                at[value].into_iter().for_each(|k| stays[k].uses.push(c));
            }
            Action::Prefetch { value } => open(value, c, &mut stays, &mut at),
            Action::Run { op, .. } => {
                let job = &space.jobs[op];
                let of = |w: ValueId| space.values[w].tensor;
                for v in members(job.reads) {
                    at[v].into_iter().for_each(|k| stays[k].uses.push(c));
                }
                for w in members(job.writes) {
                    match members(job.consumed).find(|v| of(*v) == of(w)) {
                        // The stay continues as the updated value.
                        Some(v) => at[w] = at[v].take(),
                        None => open(w, c, &mut stays, &mut at),
                    }
                }
            }
        }
    }
    stays
}

/// Delays every prefetch as far as its readers and the link permit; the order on the link stays.
fn delay(space: &Space, commands: &mut [Timed]) {
    let mut next_on_link = f64::INFINITY;
    for c in (0..commands.len()).rev() {
        let Timed { action, start, end, .. } = commands[c];
        match action {
            Action::Prefetch { value } => {
                let versions = space.versions[value];
                let touches = |later: &&Timed| match later.action {
                    Action::Run { op, .. } => holds(space.jobs[op].reads, value),
                    // The host's copy must not change while it is read.
                    Action::Offload { value } => holds(versions, value),
                    _ => false,
                };
                let reader = commands[c + 1..].iter().find(touches).map_or(end, |later| later.start);
                let latest = (next_on_link.min(reader) - (end - start)).max(start);
                (commands[c].start, commands[c].end) = (latest, latest + (end - start));
                next_on_link = latest;
            }
            Action::Offload { .. } if space.machine.half => next_on_link = start,
            _ => {}
        }
    }
}

/// Commands in the order of the list.
struct Lay<'a> {
    space: &'a Space,
    commands: &'a [Timed],
    stays: &'a [Stay],
    /// By position: the command. By command: its position.
    order: Vec<usize>,
    position: Vec<usize>,
}

impl<'a> Lay<'a> {
    fn new(space: &'a Space, commands: &'a [Timed], stays: &'a [Stay]) -> Lay<'a> {
        let mut order: Vec<usize> = (0..commands.len()).collect();
        order.sort_by(|a, b| commands[*a].start.total_cmp(&commands[*b].start).then(a.cmp(b)));
        let mut position = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, c)| position[*c] = at);
        Lay { space, commands, stays, order, position }
    }

    fn placement(&self) -> Placement {
        let mut placement = Placement::default();
        // By command: the slot of its step, or before which it is listed.
        let mut slots = vec![Slot::START; self.commands.len()];
        for &c in &self.order {
            slots[c] = Slot::new(placement.steps.len() + 1);
            if let Action::Run { op, again, alternative } = self.commands[c].action {
                let alternative = self.space.jobs[op].alternatives[alternative].alternative;
                placement.steps.push(Step { op, again, alternative });
            }
        }
        let mut transfers: Vec<(usize, Transfer)> = Vec::new();
        for (home, stay) in (0..).map(HomeId).zip(self.stays) {
            let value = self.space.values[stay.value];
            let is_step = |c: &&usize| matches!(self.commands[**c].action, Action::Run { .. });
            let begins = stay.opens.map_or(Slot::START, |c| slots[c]);
            let last = stay.uses.iter().filter(is_step).map(|c| slots[*c]).max().unwrap_or(begins);
            let opens = match stay.opens.map(|c| self.commands[c].action) {
                None => Opens::Start,
                Some(Action::Prefetch { .. }) => Opens::Prefetched,
                Some(_) => Opens::Written,
            };
            let (tensor, bytes, slots_of) = (value.tensor, 0..value.bytes, begins..last.max(begins).next());
            let residency = Residency { tensor, bytes, home, slots: slots_of, opens };
            let residency = placement.residencies.push_and_get_key(residency);
            for &c in &stay.uses {
                let direction = match self.commands[c].action {
                    Action::Offload { .. } => Direction::Offload,
                    Action::Prefetch { .. } => Direction::Prefetch,
                    _ => continue,
                };
                transfers.push((self.position[c], Transfer { residency, direction, before: slots[c] }));
            }
        }
        transfers.sort_by_key(|(position, _)| *position);
        placement.transfers = transfers.into_iter().map(|(_, transfer)| transfer).collect();
        placement
    }

    /// Returns the positions in the list during which a value is present that these commands open and use.
    fn positions(&self, opens: Option<usize>, uses: &[usize]) -> Range<Slot> {
        let first = uses.iter().map(|c| self.position[*c] + 1).max().unwrap_or(0);
        let ended = uses.iter().map(|c| self.commands[*c].end).fold(0.0, f64::max);
        let until = (first..self.order.len()).find(|at| self.commands[self.order[*at]].start >= ended);
        let from = opens.map_or(Slot::START, |c| Slot::new(self.position[c] + 1));
        from..Slot::new(until.unwrap_or(self.order.len()) + 1)
    }

    fn items(&self) -> Items {
        let item = |slots: Range<Slot>, bytes: u64| Item {
            hull: Block { slots, bytes: 0..bytes },
            blocks: Vec::new(),
        };
        let mut items = Items::default();
        for stay in self.stays {
            let slots = self.positions(stay.opens, &stay.uses);
            let item = items.items.push_and_get_key(item(slots, self.space.values[stay.value].bytes));
            items.of_residency.push(item);
        }
        for &c in &self.order {
            let Action::Run { op, alternative, .. } = self.commands[c].action else { continue };
            let bytes = self.space.jobs[op].alternatives[alternative].workspace;
            let slots = self.positions(Some(c), &[c]);
            let here = (bytes > 0).then(|| (items.items.push_and_get_key(item(slots, bytes)), bytes));
            items.of_step.push(here);
        }
        items
    }
}
