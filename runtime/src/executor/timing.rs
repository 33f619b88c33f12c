//! Iterations in which commands are timed: an event before and after each.
//!
//! A device may run consecutive launches as one kernel ([`Device::joins`]): the updates of all parameters. An event between
//! them would separate them, and each would be measured as a launch that no training iteration has. So they are timed as
//! they run, from the first to the last, and each gets its operands' share, by bytes, of that time.
//!
//! Deliberately does not correct times for the cost of the events; the profiler does, which has measured it.

use super::Loaded;
use super::steps::{At, Builder, Extra, Step};
use crate::device::{Device, EventId};
use plimsoll_ir::schedule::{Command, Stream};
use plimsoll_ir::simulate::{Span, Timeline};
use plimsoll_ir::{CommandId, Seconds};

/// Compute commands that a device runs as one kernel.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    /// At least two, in their order.
    commands: Vec<CommandId>,
    /// Share of each in the bytes of all; the sum is 1.
    shares: Vec<f64>,
}

/// Start event of a timed command.
pub(super) fn begin_event(command: u32) -> EventId {
    EventId(2 * command)
}

fn end_event(command: u32) -> EventId {
    EventId(2 * command + 1)
}

impl Loaded {
    /// Share of a command in the pair of events that times it: 1, or its share of the commands that the device joins it
    /// with.
    pub fn share_of_events(&self, command: CommandId) -> f64 {
        let of = |joined: &Joined| {
            let at = joined.commands.binary_search(&command).ok()?;
            Some(joined.shares[at])
        };
        self.joined.iter().find_map(of).unwrap_or(1.0)
    }
}

/// Start and end of each command in the last iteration, which was timed.
pub(super) fn timeline(device: &mut dyn Device, loaded: &Loaded) -> Timeline {
    let mut spans = vec![Span { start: Seconds::ZERO, end: Seconds::ZERO }; loaded.schedule.commands.len()];
    let mut alone = vec![true; spans.len()];
    for Joined { commands, shares } in &loaded.joined {
        let (first, last) = (commands[0], commands[commands.len() - 1]);
        let (start, end) =
            (device.event_seconds(begin_event(first.0)), device.event_seconds(end_event(last.0)));
        let mut done = 0.0;
        for (command, share) in commands.iter().zip(shares) {
            let at = |share: f64| Seconds(start.0 + (end.0 - start.0) * share);
            spans[command.index()] = Span { start: at(done), end: at(done + share) };
            alone[command.index()] = false;
            done += share;
        }
    }
    for (number, span) in (0..).zip(&mut spans).filter(|(number, _)| alone[*number as usize]) {
        let (begin, end) = (begin_event(number), end_event(number));
        *span = Span { start: device.event_seconds(begin), end: device.event_seconds(end) };
    }
    Timeline { spans }
}

impl Builder<'_> {
    /// Commands that the device joins: neighbours on the compute stream, of which no other stream waits for the first and
    /// the next waits for none.
    pub(super) fn joined(&self, device: &dyn Device) -> Vec<Joined> {
        let awaited = self.events();
        let mut all: Vec<Joined> = Vec::new();
        let mut last = None;
        let on_compute = self.schedule.numbered_commands().filter(|(_, c)| c.stream() == Stream::Compute);
        for (id, command) in on_compute {
            let Step::Compute(launch) = self.step(id, command) else { continue };
            if let Some((before, of_before)) = last.replace((id, launch.clone()))
                && awaited[before.index()].is_none()
                && self.waits[id.index()].is_empty()
                && device.joins(&of_before, &launch)
            {
                match all.last_mut().filter(|joined| joined.commands.last() == Some(&before)) {
                    Some(joined) => joined.commands.push(id),
                    None => all.push(Joined { commands: vec![before, id], shares: Vec::new() }),
                }
            }
        }
        for joined in &mut all {
            let bytes: Vec<u64> = joined.commands.iter().map(|id| self.bytes(*id)).collect();
            let whole = bytes.iter().sum::<u64>().max(1) as f64;
            joined.shares = bytes.into_iter().map(|bytes| bytes as f64 / whole).collect();
        }
        all
    }

    /// Bytes of a compute command's operands.
    fn bytes(&self, id: CommandId) -> u64 {
        let Command::Compute { op, .. } = &self.schedule.commands[id.index()] else { return 0 };
        let kernel = &self.program.kernels[op.index()];
        kernel.specified().map(|(_, spec)| spec.bytes_in(self.program.feature_maps).0).sum()
    }

    /// Steps of an iteration in which every command is timed.
    pub(super) fn timed_steps(&self, joined: &[Joined]) -> Vec<Step> {
        let commands = 0..self.schedule.commands.len() as u32;
        let mut begins = vec![true; commands.len()];
        let mut events: Vec<Option<EventId>> = commands.map(|i| Some(end_event(i))).collect();
        for Joined { commands, .. } in joined {
            commands[1..].iter().for_each(|command| begins[command.index()] = false);
            commands[..commands.len() - 1].iter().for_each(|command| events[command.index()] = None);
        }
        let begun = self.schedule.numbered_commands().filter(|(id, _)| begins[id.index()]);
        let begun =
            begun.map(|(id, command)| ((id, At::Command), Step::Record(command.stream(), begin_event(id.0))));
        self.steps(&events, |_| true, begun.collect::<Extra>())
    }
}
