//! An iteration in two parts, between which workers exchange numbers: the pass (forward and backward), and the update.
//!
//! The update's ops read and write only resident memory. So the update can come after all other commands of a schedule, and
//! the pass can be run again before it. The schedule's guarantees for the other commands still hold: none of them waits for
//! the update.
//!
//! For the same reason each update op can also run within the next pass, before the first command that reads its parameter.
//! If the host can write during a running iteration, such a pass is enqueued up to the first command that needs a part's
//! parameters; then, with the sum of that part, its update; and so on.
//!
//! Deliberately does not change a schedule, or a plain iteration of it.

use super::{Begun, Builder, Enqueued, Executor, Loaded, Step, same_length, unused};
use crate::device::{Beside, Collective, EventId};
use crate::error::RuntimeError;
use crate::state::{Half, saved_name};
use bytemuck::cast_slice;
use plimsoll_ir::exchange::{Overlap, pieces, summed, writes};
use plimsoll_ir::program::{Access, Hyper, Operand, Program, Region, Role};
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, CommandId, OpId};

/// The two parts of an iteration.
#[derive(Clone, Debug)]
pub(super) struct Apart {
    pass: Pass,
    /// The same, followed by the next input from each slot.
    fed: Option<[Pass; 2]>,
    update: Enqueued,
    parts: Vec<Part>,
}

/// A pass, forward and backward.
#[derive(Clone, Debug)]
struct Pass {
    enqueued: Enqueued,
    /// In the order of the pass's steps.
    needs: Vec<Need>,
}

/// A part that must be updated before a step of a pass.
#[derive(Clone, Copy, Debug)]
struct Need {
    step: usize,
    part: usize,
}

/// Progress of a pass that updates parts on its way.
pub(crate) struct Enqueuing {
    slot: Option<Half>,
    /// Number of steps enqueued.
    steps: usize,
    /// Number of needs already returned.
    parts: usize,
}

/// A part of the numbers that workers sum, which the pass completes at once.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Gradients, or running statistics.
    pub(crate) regions: Vec<Region>,
    /// Its place in the order in which passes need its parameters, from 1; 0 for running statistics, which are needed at the
    /// start.
    pub(crate) needed: u32,
    /// Regions that its update writes: parameters and their optimizer state.
    pub(crate) updated: Vec<Region>,
    /// Its update; nothing waits for it.
    update: Vec<Step>,
    /// The last command that writes the regions.
    last: CommandId,
    /// Event recorded after that command.
    complete: EventId,
}

impl Apart {
    /// All its command sequences.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Enqueued> {
        let passes = [&self.pass].into_iter().chain(self.fed.iter().flatten());
        passes.map(|pass| &pass.enqueued).chain([&self.update])
    }

    fn pass(&self, slot: Option<Half>) -> &Pass {
        slot.zip(self.fed.as_ref()).map_or(&self.pass, |(slot, fed)| &fed[slot as usize])
    }
}

impl Executor {
    /// Loads a program as [`Executor::load`] does; a [`crate::Trainer`] of several virtual workers can then run its pass and
    /// its update one by one. The numbers that workers sum are cut into parts of about `part` bytes, each of which can be
    /// sent once the pass has completed it.
    ///
    /// Errors: those of `load`; the program does not train, or has a gradient without an update; or an update touches the
    /// pool, or a command waits for it.
    pub fn load_apart(
        &mut self,
        program: &Program,
        schedule: &Schedule,
        part: Bytes,
    ) -> Result<Loaded, RuntimeError> {
        self.load_with(program, schedule, |executor, builder| {
            let parts = builder.parts(part)?;
            let mut pass = |slot| {
                let (steps, needs) = builder.pass_steps(&parts, slot)?;
                Ok::<_, RuntimeError>(Pass { enqueued: executor.enqueued(false, steps), needs })
            };
            let fed = match builder.slots {
                Some(_) => Some([pass(Some(Half::First))?, pass(Some(Half::Second))?]),
                None => None,
            };
            let pass = pass(None)?;
            let update = executor.enqueued(false, builder.update_steps()?);
            Ok((None, Some(Apart { pass, fed, update, parts })))
        })
    }

    /// Enqueues a pass, which brings the next input if a slot is given; [`Executor::finish`] must follow.
    pub(crate) fn start_pass(&mut self, loaded: &Loaded, slot: Option<Half>) {
        self.enqueue(loaded, &loaded.apart().pass(slot).enqueued);
    }

    /// Returns `true` if a pass can update parts on its way.
    pub(crate) fn updates_within(&mut self) -> bool {
        self.device.beside().is_some()
    }

    /// Begins a pass as [`Executor::start_pass`] does, without enqueueing its commands; [`Executor::enqueue_on`] does that.
    pub(crate) fn begin_pass(&mut self, loaded: &Loaded, slot: Option<Half>) -> Enqueuing {
        assert_eq!(loaded.executor, self.id, "a loaded program runs on the executor that loaded it");
        let begun = self.device.begin(loaded.apart().pass(slot).enqueued.id);
        assert_eq!(begun, Begun::Enqueue, "whoever has a way beside an iteration captures none");
        Enqueuing { slot, steps: 0, parts: 0 }
    }

    /// Enqueues a pass up to the next part that must be updated, and returns its number, for [`Executor::update_part`];
    /// `None` if all of it is enqueued.
    pub(crate) fn enqueue_on(&mut self, loaded: &Loaded, pass: &mut Enqueuing) -> Option<usize> {
        let Pass { enqueued, needs } = loaded.apart().pass(pass.slot);
        let next = needs.get(pass.parts);
        let end = next.map_or(enqueued.steps.len(), |need| need.step);
        self.enqueue_steps(&enqueued.steps[pass.steps..end]);
        (pass.steps, pass.parts) = (end, pass.parts + 1);
        next.map(|need| need.part)
    }

    /// Enqueues the update of a part with these concatenated gradients, with its own hyperparameters before those of the
    /// pass. The data that it overwrites are put into `before`.
    pub(crate) fn update_part(
        &mut self,
        loaded: &Loaded,
        number: usize,
        numbers: &[f32],
        [own, of_pass]: &[[u8; Hyper::BYTES]; 2],
        before: &mut Vec<u8>,
    ) -> Result<(), RuntimeError> {
        let part = &loaded.parts()[number];
        // No command that is enqueued touches its gradients or writes its parameters.
        let beside = self.beside();
        before.resize(part.updated.iter().map(|region| region.bytes().0 as usize).sum(), 0);
        let mut rest = before.as_mut_slice();
        for region in &part.updated {
            let (data, others) = rest.split_at_mut(region.bytes().0 as usize);
            rest = others;
            beside.read_beside(region.offset, data)?;
        }
        let mut rest = numbers;
        for region in &part.regions {
            let (data, others) = rest.split_at(region.elements() as usize);
            rest = others;
            beside.write_beside(region.offset, cast_slice(data))?;
        }
        beside.write_in_order(loaded.hyper.offset, own)?;
        self.enqueue_steps(&part.update);
        self.beside().write_in_order(loaded.hyper.offset, of_pass)
    }

    /// Restores the data that the update of a part has overwritten, while nothing runs.
    pub(crate) fn undo_part(
        &mut self,
        loaded: &Loaded,
        number: usize,
        before: &[u8],
    ) -> Result<(), RuntimeError> {
        let mut rest = before;
        for region in &loaded.parts()[number].updated {
            let (data, others) = rest.split_at(region.bytes().0 as usize);
            rest = others;
            self.write_region(region, data)?;
        }
        Ok(())
    }

    fn beside(&mut self) -> &mut dyn Beside {
        self.device.beside().expect("it updates within passes")
    }

    /// Reads a region of a part during a pass; returns `false` if the part is not complete yet.
    pub(crate) fn read_of_part(
        &mut self,
        part: &Part,
        region: &Region,
        data: &mut [u8],
    ) -> Result<bool, RuntimeError> {
        same_length(region, data.len())?;
        self.device.read_behind(part.complete, region.offset, data)
    }

    /// Returns `true` if a running pass has completed a part.
    pub(crate) fn has_completed(&mut self, part: &Part) -> Result<bool, RuntimeError> {
        self.device.read_behind(part.complete, Bytes::ZERO, &mut [])
    }

    /// Replaces the numbers of a part that a running pass has completed.
    pub(crate) fn replace_part(&mut self, part: &Part, numbers: &[f32]) -> Result<(), RuntimeError> {
        let mut rest = numbers;
        for region in &part.regions {
            let (own, others) = rest.split_at(region.elements() as usize);
            rest = others;
            self.beside().write_beside(region.offset, cast_slice(own))?;
        }
        Ok(())
    }

    /// Begins to sum regions that a running pass has completed over the devices of all workers; each worker's numbers are
    /// multiplied by its factor.
    pub(crate) fn sum_regions<'a>(
        &mut self,
        regions: impl Iterator<Item = &'a Region>,
        factor: f32,
    ) -> Result<(), RuntimeError> {
        let ranges: Vec<(Bytes, u64)> = regions.map(|region| (region.offset, region.elements())).collect();
        self.collective().sum(&ranges, factor)
    }

    /// Returns `true` if the workers' devices sum by themselves.
    pub(crate) fn sums_on_devices(&mut self) -> bool {
        self.device.collective().is_some()
    }

    /// The device's sums with other workers' devices.
    pub(crate) fn collective(&mut self) -> &mut dyn Collective {
        self.device.collective().expect("its device sums with others")
    }

    pub(crate) fn run_update(&mut self, loaded: &Loaded) -> Result<(), RuntimeError> {
        self.enqueue(loaded, &loaded.apart().update);
        self.finish()
    }
}

impl Loaded {
    /// Returns `true` if its pass and its update can be run one by one.
    pub(crate) fn is_apart(&self) -> bool {
        self.apart.is_some()
    }

    /// Numbers that workers sum, in the order in which a pass completes them.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.apart().parts
    }

    fn apart(&self) -> &Apart {
        self.apart.as_ref().expect("it was loaded in two parts")
    }
}

impl Builder<'_> {
    /// Commands of the update.
    fn updates(&self) -> impl Iterator<Item = (CommandId, &Command)> {
        self.schedule.numbered_commands().filter(|(_, command)| is_update(self.program, command))
    }

    /// Steps of the update. The commands that they wait for end with the pass.
    fn update_steps(&self) -> Result<Vec<Step>, RuntimeError> {
        self.updates()
            .map(|(id, command)| only_resident(self.program, command).map(|()| self.step(id, command)))
            .collect()
    }

    /// Steps of a pass that completes these parts and brings the next input if a slot is given, and the steps before which
    /// each part must be updated.
    fn pass_steps(&self, parts: &[Part], slot: Option<Half>) -> Result<(Vec<Step>, Vec<Need>), RuntimeError> {
        let (events, program) = (self.events(), self.program);
        let feeding = self.feeding(slot, unused(&events) + parts.len() as u32);
        let (mut pass, mut needs) = (Vec::new(), Vec::new());
        let mut updates = false;
        for (id, command) in self.schedule.numbered_commands() {
            if is_update(program, command) {
                updates = true;
                continue;
            }
            let stream = command.stream();
            if matches!(command, Command::Compute { .. }) && updates {
                return Err(refused(format!("command {}", id.0), "behind an update"));
            }
            let needed = parts.iter().enumerate().filter(|(_, part)| part.needed == id.0 + 1);
            needs.extend(needed.map(|(part, _)| Need { step: pass.len(), part }));
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
        Ok((pass, needs))
    }

    /// Numbers that workers sum, cut into parts of about this many bytes, in the order in which the commands complete them.
    fn parts(&self, part: Bytes) -> Result<Vec<Part>, RuntimeError> {
        let pieces = pieces(self.program, Overlap::Forward(part));
        let pieces = pieces.ok_or_else(|| {
            RuntimeError::mismatch("program in two parts", "one that trains", "no backward pass")
        })?;
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
            // Includes ops that are recomputed, and write the same numbers again.
            let written: Vec<OpId> =
                of_piece.iter().flat_map(|region| writes(self.program, region)).collect();
            let writes_it =
                |command: &Command| matches!(command, Command::Compute { op, .. } if written.contains(op));
            let last = self.schedule.numbered_commands().filter(|(_, command)| writes_it(command)).last();
            let last = last.map_or(CommandId(0), |(id, _)| id);
            let (update, updated) = self.update_of(&of_piece);
            if let Some(region) = of_piece.iter().find(|region| region.role == Role::Gradient)
                && updated.is_empty()
            {
                let what = format!("update by gradient `{}`", region.name);
                return Err(RuntimeError::mismatch(what, "one", "none"));
            }
            let needed = self.first_reader(&updated);
            parts.push(Part { regions: of_piece, needed, updated, update, last, complete: EventId(0) });
        }
        let of_parts: usize = parts.iter().map(|part| part.update.len()).sum();
        if of_parts != self.updates().count() {
            return Err(RuntimeError::mismatch(
                "updates of the gradients that workers sum",
                self.updates().count(),
                of_parts,
            ));
        }
        // With these, the data saved before an update are all of the state, together with the running statistics.
        let is_updated = |region: &Region| {
            parts.iter().flat_map(|part| &part.updated).any(|updated| updated.offset == region.offset)
        };
        let is_kept = |region: &Region| {
            saved_name(region).is_some()
                && !matches!(region.role, Role::State(_))
                && region.bytes() > Bytes::ZERO
        };
        let mut resident = self.program.resident.iter();
        if let Some(region) = resident.find(|region| is_kept(region) && !is_updated(region)) {
            return Err(RuntimeError::mismatch(format!("update of `{}`", region.name), "one", "none"));
        }
        parts.sort_by_key(|part| part.last);
        let first = unused(&self.events());
        parts.iter_mut().zip(first..).for_each(|(part, event)| part.complete = EventId(event));
        Ok(parts)
    }

    /// Update that uses these gradients, and the regions that it writes.
    fn update_of(&self, gradients: &[Region]) -> (Vec<Step>, Vec<Region>) {
        let at = |place: Operand, regions: &[Region]| {
            let mut regions = regions.iter().filter(|region| region.bytes() > Bytes::ZERO);
            regions.find(|region| place == Operand::Resident(region.offset)).cloned()
        };
        let (mut steps, mut updated) = (Vec::new(), Vec::new());
        for (id, command) in self.updates() {
            let Command::Compute { op, .. } = command else { continue };
            let kernel = &self.program.kernels[op.index()];
            if kernel.operands.iter().all(|operand| at(*operand, gradients).is_none()) {
                continue;
            }
            steps.push(self.step(id, command));
            let written = kernel.specified().filter(|(_, spec)| spec.access != Access::Read);
            updated.extend(written.filter_map(|(operand, _)| at(operand, &self.program.resident)));
        }
        (steps, updated)
    }

    /// Place of the first command of a pass that touches one of these regions, from 1; 0 if there are no regions.
    fn first_reader(&self, regions: &[Region]) -> u32 {
        if regions.is_empty() {
            return 0;
        }
        let touches = |command: &Command| match command {
            Command::Compute { op, .. } => {
                let mut operands = self.program.kernels[op.index()].operands.iter();
                operands.any(|o| regions.iter().any(|region| *o == Operand::Resident(region.offset)))
            }
            _ => false,
        };
        let mut passing =
            self.schedule.numbered_commands().filter(|(_, command)| !is_update(self.program, command));
        // A region that no pass reads is updated at its start.
        1 + passing.find(|(_, command)| touches(command)).map_or(0, |(id, _)| id.0)
    }
}

fn is_update(program: &Program, command: &Command) -> bool {
    matches!(command, Command::Compute { op, .. } if program.trace.ops[op.index()].phase == Phase::Update)
}

/// Checks that an update uses nothing in the pool, where a pass leaves nothing.
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
    use crate::device::{Launch, MemoryLayout};
    use crate::{Cpu, CpuOptions};
    use plimsoll_ir::BytesPerSecond;
    use plimsoll_ir::program::KernelAlternative;
    use plimsoll_ir::schedule::Link;
    use plimsoll_networks::{LowerOptions, build, lower, usual};
    use plimsoll_tuner::{PlanRequest, Policy, plan};

    /// A part may be read after its event: no later command writes it, and all writes are done. Most of the backward pass is
    /// still to come when the first gradients are complete. No command that reads a parameter has run where a pass needs its
    /// part, and most of the forward pass has run where the last part is needed.
    #[test]
    fn a_part_is_complete_behind_its_event_and_needed_where_its_parameters_are() {
        let network = build(&usual("resnet20").expect("it is in the zoo")).expect("it can be built");
        let alternatives = |call: &_| KernelAlternative::sole(workspace_bytes(call, 1));
        let options = LowerOptions { alternatives: &alternatives, ..LowerOptions::default() };
        let program = lower(&network, 2, &options).expect("it can be lowered");
        let (floor, peak) = (program.trace.memory().floor(), program.trace.memory().peak());
        let (floor, peak) = (floor.expect("it has ops").1, peak.expect("it has ops").1);
        for share in [0.1, 1.0] {
            let budget = Bytes(floor.0 + ((peak.0 - floor.0) as f64 * share) as u64);
            // Slow enough that ops are recomputed.
            let request = PlanRequest::new(budget, Link::symmetric(BytesPerSecond(1e6)), Policy::Plimsoll);
            let planned = plan(&program.trace, &request).expect("a sound trace");
            let schedule = &planned.plan().expect("it fits").schedule;
            let layout = MemoryLayout::of(&program, schedule);
            let mut executor =
                Executor::new(Box::new(Cpu::new(CpuOptions::default())), layout).expect("it is small");
            let loaded = executor.load_apart(&program, schedule, Bytes(64 << 10)).expect("a sound plan");
            let Apart { pass: Pass { enqueued: pass, needs }, parts, .. } = loaded.apart();
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
                    let writes_it = |step: &&Step| step.launch().is_some_and(|l| writers.contains(&l.op));
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
            let mut updates = 0;
            for Need { step, part } in needs {
                let Part { updated, update, .. } = &parts[*part];
                let touches = |step: &&Step| {
                    let of = |launch: &Launch| updated.iter().any(|r| launch.offsets.contains(&r.offset));
                    step.launch().is_some_and(of)
                };
                assert_eq!(pass.steps[..*step].iter().filter(touches).count(), 0, "part {part}");
                assert!(pass.steps[*step..].iter().any(|step| touches(&step)), "part {part}");
                assert_eq!(update.iter().filter(touches).count(), update.len());
                updates += update.len();
            }
            assert_eq!(updates, loaded.apart().update.steps.len());
            assert_eq!(needs.len(), parts.iter().filter(|part| has_gradients(part)).count());
            assert!(needs.is_sorted_by_key(|need| need.step));
            let count = |steps: &[Step]| steps.iter().filter(|step| step.launch().is_some()).count();
            let last = &needs.last().expect("it has parts").step;
            assert!(
                5 * count(&pass.steps[..*last]) > count(&pass.steps),
                "the last part is needed at {last}"
            );
        }
    }

    fn has_gradients(part: &Part) -> bool {
        part.regions.iter().any(|region| region.role == Role::Gradient)
    }
}
