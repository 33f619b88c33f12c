//! An iteration in two parts, between which numbers are exchanged: the pass, forward and backward, and the update.
//!
//! The update's ops read and write only what is resident. So it can stand behind all other commands of a schedule, and the
//! pass can be run again before it. What the schedule promises of the other commands holds as before: none of them waits for
//! the update.
//!
//! What it deliberately does not do: change a schedule, or a plain iteration of it.

use super::{Builder, Enqueued, Executor, Loaded, Step, same_length, unused};
use crate::device::EventId;
use crate::error::RuntimeError;
use crate::state::Half;
use plimsoll_ir::exchange::{Overlap, pieces, summed, writes};
use plimsoll_ir::program::{Operand, Program, Region};
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, CommandId, OpId};

/// The two parts of an iteration.
#[derive(Clone, Debug)]
pub(super) struct Apart {
    pass: Enqueued,
    /// The same, and behind it the next input from each slot.
    fed: Option<[Enqueued; 2]>,
    update: Enqueued,
    parts: Vec<Part>,
}

/// A part of what workers sum, which the pass completes at once.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Gradients, then running statistics.
    pub(crate) regions: Vec<Region>,
    /// The last command that writes them.
    last: CommandId,
    /// Recorded behind it.
    complete: EventId,
}

impl Apart {
    /// All of its sequences of commands.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Enqueued> {
        [&self.pass, &self.update].into_iter().chain(self.fed.iter().flatten())
    }
}

impl Executor {
    /// As [`Executor::load`], of a program whose pass and update a [`crate::Trainer`] of several virtual workers then runs
    /// one by one. What workers sum is cut into parts of about so many bytes, each of which can be sent once the pass has
    /// completed it.
    ///
    /// Errors: those of `load`; the program has no update; or an update touches the pool, or something waits for it.
    pub fn load_apart(
        &mut self,
        program: &Program,
        schedule: &Schedule,
        part: Bytes,
    ) -> Result<Loaded, RuntimeError> {
        self.load_with(program, schedule, |executor, builder| {
            let parts = builder.parts(part);
            let [pass, update] = builder.steps_apart(&parts, None)?;
            let (pass, update) = (executor.enqueued(false, pass), executor.enqueued(false, update));
            let mut fed = |slot| {
                let [pass, _] = builder.steps_apart(&parts, Some(slot))?;
                Ok::<_, RuntimeError>(executor.enqueued(false, pass))
            };
            let fed = match builder.slots {
                Some(_) => Some([fed(Half::First)?, fed(Half::Second)?]),
                None => None,
            };
            Ok((None, Some(Apart { pass, fed, update, parts })))
        })
    }

    /// Enqueues a pass, which brings the next input from a slot where there are slots; [`Executor::finish`] must follow.
    pub(crate) fn start_pass(&mut self, loaded: &Loaded, slot: Option<Half>) {
        let Apart { pass, fed, .. } = loaded.apart();
        let fed = slot.zip(fed.as_ref()).map(|(slot, fed)| &fed[slot as usize]);
        self.enqueue(loaded, fed.unwrap_or(pass));
    }

    /// Reads a region of a part while the pass goes on; false where the part is not complete yet.
    pub(crate) fn read_of_part(
        &mut self,
        part: &Part,
        region: &Region,
        data: &mut [u8],
    ) -> Result<bool, RuntimeError> {
        same_length(region, data.len())?;
        Ok(self.device.read_behind(part.complete, region.offset, data)?)
    }

    /// Runs the update.
    pub(crate) fn run_update(&mut self, loaded: &Loaded) -> Result<(), RuntimeError> {
        self.enqueue(loaded, &loaded.apart().update);
        self.finish()
    }
}

impl Loaded {
    /// Whether its pass and its update can be run one by one.
    pub(crate) fn is_apart(&self) -> bool {
        self.apart.is_some()
    }

    /// What workers sum, in the order in which a pass completes it.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.apart().parts
    }

    fn apart(&self) -> &Apart {
        self.apart.as_ref().expect("it was loaded in two parts")
    }
}

impl Builder<'_> {
    /// The steps of the pass, which completes these parts and brings the next input from a slot, and those of the update.
    fn steps_apart(&self, parts: &[Part], slot: Option<Half>) -> Result<[Vec<Step>; 2], RuntimeError> {
        let (events, program) = (self.events(), self.program);
        let feeding = self.feeding(slot, unused(&events) + parts.len() as u32);
        let (mut pass, mut update) = (Vec::new(), Vec::new());
        for (id, command) in self.schedule.numbered_commands() {
            if is_update(program, command) {
                only_resident(program, command)?;
                // What it waits for is over with the pass.
                update.push(self.step(id, command));
                continue;
            }
            let stream = command.stream();
            if matches!(command, Command::Compute { .. }) && !update.is_empty() {
                return Err(refused(format!("command {}", id.0), "behind an update"));
            }
            for wait in &self.waits[id.index()] {
                if is_update(program, &self.schedule.commands[wait.index()]) {
                    return Err(refused(format!("command {}", id.0), "waiting for an update"));
                }
                let event = events[wait.index()].expect("whatever is waited for has an event");
                pass.push(Step::Wait(stream, event));
            }
            pass.push(self.step(id, command));
            pass.extend(events[id.index()].map(|event| Step::Record(stream, event)));
            let completed = parts.iter().filter(|part| part.last == id);
            pass.extend(completed.map(|part| Step::Record(stream, part.complete)));
            feeding.iter().for_each(|feeding| feeding.behind(id, &mut pass));
        }
        feeding.into_iter().for_each(|feeding| feeding.end(&mut pass));
        if update.is_empty() {
            return Err(RuntimeError::mismatch("program in two parts", "one that trains", "no update"));
        }
        Ok([pass, update])
    }

    /// What workers sum, cut into parts of about so many bytes, in the order in which the commands complete them.
    fn parts(&self, part: Bytes) -> Vec<Part> {
        let pieces = pieces(self.program, Overlap::Backward(part)).unwrap_or_default();
        let mut regions = summed(self.program);
        let mut end = Bytes::ZERO;
        let mut parts: Vec<Part> = Vec::new();
        for piece in pieces {
            let mut of_piece = Vec::new();
            while end < piece.first_byte + piece.bytes {
                let region = regions.next().expect("the pieces are made of the regions");
                end += region.bytes();
                of_piece.push(region.clone());
            }
            // With those that run an op again, and write the same numbers again.
            let written: Vec<OpId> =
                of_piece.iter().flat_map(|region| writes(self.program, region)).collect();
            let writes_it =
                |command: &Command| matches!(command, Command::Compute { op, .. } if written.contains(op));
            let last = self.schedule.numbered_commands().filter(|(_, command)| writes_it(command)).last();
            let last = last.map_or(CommandId(0), |(id, _)| id);
            parts.push(Part { regions: of_piece, last, complete: EventId(0) });
        }
        parts.sort_by_key(|part| part.last);
        let first = unused(&self.events());
        parts.iter_mut().zip(first..).for_each(|(part, event)| part.complete = EventId(event));
        parts
    }
}

fn is_update(program: &Program, command: &Command) -> bool {
    matches!(command, Command::Compute { op, .. } if program.trace.ops[op.index()].phase == Phase::Update)
}

/// Makes sure that an update needs nothing of the pool, in which a pass leaves nothing.
fn only_resident(program: &Program, command: &Command) -> Result<(), RuntimeError> {
    let Command::Compute { op, .. } = command else { return Ok(()) };
    let operands = &program.kernels[op.index()].operands;
    if operands.iter().all(|operand| matches!(operand, Operand::Resident(_))) {
        return Ok(());
    }
    Err(refused(
        format!("`{}`", program.trace.ops[op.index()].name),
        "an update that reads or writes the pool",
    ))
}

fn refused(what: String, found: &str) -> RuntimeError {
    RuntimeError::mismatch(what, "updates behind everything else, of what is resident", found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::workspace_bytes;
    use crate::device::MemoryLayout;
    use crate::{Cpu, CpuOptions};
    use plimsoll_ir::BytesPerSecond;
    use plimsoll_ir::program::{KernelAlternative, Role};
    use plimsoll_ir::schedule::Link;
    use plimsoll_networks::{LowerOptions, build, lower, usual};
    use plimsoll_tuner::{PlanRequest, Policy, plan};

    /// A part may be read behind its event: nothing that runs later writes it, and what was to be written is. Most of the
    /// backward pass is still to come when the first gradients are complete.
    #[test]
    fn a_part_is_complete_behind_its_event_and_not_before() {
        let network = build(&usual("resnet20").expect("it is in the zoo")).expect("it can be built");
        let alternatives = |call: &_| KernelAlternative::sole(workspace_bytes(call, 1));
        let options = LowerOptions { alternatives: &alternatives, ..LowerOptions::default() };
        let program = lower(&network, 2, &options).expect("it can be lowered");
        let (floor, peak) = (program.trace.memory().floor(), program.trace.memory().peak());
        let (floor, peak) = (floor.expect("it has ops").1, peak.expect("it has ops").1);
        for share in [0.1, 1.0] {
            let budget = Bytes(floor.0 + ((peak.0 - floor.0) as f64 * share) as u64);
            // So slow that ops are computed again.
            let request = PlanRequest::new(budget, Link::symmetric(BytesPerSecond(1e6)), Policy::Plimsoll);
            let planned = plan(&program.trace, &request).expect("a sound trace");
            let schedule = &planned.plan().expect("it fits").schedule;
            let layout = MemoryLayout::of(&program, schedule);
            let mut executor =
                Executor::new(Box::new(Cpu::new(CpuOptions::default())), layout).expect("it is small");
            let loaded = executor.load_apart(&program, schedule, Bytes(64 << 10)).expect("a sound plan");
            let Apart { pass, parts, .. } = loaded.apart();
            assert!(parts.len() > 4, "{} parts", parts.len());
            let mut regions = 0;
            for (number, part) in parts.iter().enumerate() {
                let at = pass
                    .steps
                    .iter()
                    .position(|step| matches!(step, Step::Record(_, event) if *event == part.complete));
                let (before, behind) = pass.steps.split_at(at.expect("its event is recorded"));
                for region in &part.regions {
                    regions += 1;
                    let writers: Vec<OpId> = writes(&program, region).collect();
                    let writes_it = |step: &&Step| step.launch().is_some_and(|l| writers.contains(&l.op()));
                    assert!(before.iter().filter(writes_it).count() >= writers.len(), "`{}`", region.name);
                    assert_eq!(behind.iter().filter(writes_it).count(), 0, "`{}`", region.name);
                }
                if has_gradients(part) && !parts[..number].iter().any(has_gradients) {
                    let count = |steps: &[Step]| steps.iter().filter(|step| step.launch().is_some()).count();
                    let (later, all) = (count(behind), count(&pass.steps));
                    assert!(3 * later > all, "{later} of {all} ops are later");
                }
            }
            assert_eq!(regions, summed(&program).count());
        }
    }

    fn has_gradients(part: &Part) -> bool {
        part.regions.iter().any(|region| region.role == Role::Gradient)
    }
}
