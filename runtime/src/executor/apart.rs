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

use super::steps::{At, Builder, EVENTS_OF_PARTS, Extra, Step};
use super::{Begun, Enqueued, Executor, Iteration, Loaded, same_length};
use crate::device::{Collective, EventId};
use crate::error::Error;
use crate::state::{Half, of_regions, of_regions_mut, saved_name};
use bytemuck::cast_slice;
use plimsoll_ir::exchange::{Overlap, pieces, summed, writes};
use plimsoll_ir::program::{Access, Hyper, Operand, Program, Region, Role};
use plimsoll_ir::schedule::{Command, Schedule, Stream};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, CommandId, OpId};

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
    ) -> Result<Loaded, Error> {
        let mut parts = Vec::new();
        let mut loaded = self.load_with(program, schedule, |builder| {
            parts = builder.parts(part)?;
            builder.check_apart()?;
            let slots = builder.slots.map(|_| Half::BOTH.map(Some)).into_iter().flatten();
            let pass = |slot| (Iteration::Pass(slot), builder.pass_steps(&parts, slot));
            let update = builder.updates().map(|(id, command)| builder.step(id, command)).collect();
            let passes = slots.chain([None]).map(pass);
            Ok(passes.chain([(Iteration::Update, update)]).collect())
        })?;
        loaded.parts = parts;
        Ok(loaded)
    }

    /// Starts a pass that brings the next input if a slot is given, and calls `update` where a part must be updated; it may
    /// call [`Executor::update_part`].
    pub(crate) fn start_updating(
        &mut self,
        loaded: &Loaded,
        slot: Option<Half>,
        mut update: impl FnMut(&mut Executor, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        assert_eq!(loaded.executor, self.id, "a loaded program runs on the executor that loaded it");
        let Enqueued { id, steps } = loaded.sequence(Iteration::Pass(slot));
        let begun = self.device.begin(*id);
        assert_eq!(begun, Begun::Enqueue, "a device that the host writes to meanwhile captures no iteration");
        for steps in steps.split_inclusive(|step| matches!(step, Step::Update(_))) {
            self.enqueue_steps(steps);
            if let Some(Step::Update(part)) = steps.last() {
                update(self, *part)?;
            }
        }
        Ok(())
    }

    /// Returns `true` if a pass can update parts on its way.
    pub(crate) fn updates_within(&self) -> bool {
        self.device.is_open()
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
    ) -> Result<(), Error> {
        let part = &loaded.parts[number];
        // No command that is enqueued touches its gradients or writes its parameters.
        before.resize(part.updated.iter().map(|region| region.bytes().0 as usize).sum(), 0);
        for (region, data) in of_regions_mut(&part.updated, before) {
            self.device.read_beside(region.offset, data)?;
        }
        self.replace_part(part, numbers)?;
        let hyper = loaded.hyper().offset;
        self.device.write_in_order(hyper, own)?;
        self.enqueue_steps(&part.update);
        self.device.write_in_order(hyper, of_pass)
    }

    /// Restores the data that the update of a part has overwritten, while nothing runs.
    pub(crate) fn undo_part(&mut self, loaded: &Loaded, number: usize, before: &[u8]) -> Result<(), Error> {
        of_regions(&loaded.parts[number].updated, before)
            .try_for_each(|(region, data)| self.write_region(region, data))
    }

    /// Reads a region of a part during a pass; returns `false` if the part is not complete yet.
    pub(crate) fn read_of_part(
        &mut self,
        part: &Part,
        region: &Region,
        data: &mut [u8],
    ) -> Result<bool, Error> {
        same_length(region, data.len())?;
        self.device.read_behind(part.complete, region.offset, data)
    }

    /// Returns `true` if a running pass has completed a part.
    pub(crate) fn has_completed(&mut self, part: &Part) -> Result<bool, Error> {
        self.device.read_behind(part.complete, Bytes::ZERO, &mut [])
    }

    /// Replaces the numbers of a part that a running pass has completed.
    pub(crate) fn replace_part(&mut self, part: &Part, numbers: &[f32]) -> Result<(), Error> {
        of_regions(&part.regions, numbers)
            .try_for_each(|(region, numbers)| self.device.write_beside(region.offset, cast_slice(numbers)))
    }

    /// Begins to sum regions that a running pass has completed over the devices of all workers; each worker's numbers are
    /// multiplied by its factor.
    pub(crate) fn sum_regions<'a>(
        &mut self,
        regions: impl Iterator<Item = &'a Region>,
        factor: f32,
    ) -> Result<(), Error> {
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
}

impl Loaded {
    /// Returns `true` if its pass and its update can be run one by one.
    pub(crate) fn is_apart(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Numbers that workers sum, in the order in which a pass completes them.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl Builder<'_> {
    fn updates_op(&self, command: &Command) -> bool {
        matches!(command, Command::Compute { op, .. } if self.is_update(*op))
    }

    /// Commands of the update. The commands that they wait for end with the pass.
    fn updates(&self) -> impl Iterator<Item = (CommandId, &Command)> {
        self.schedule.numbered_commands().filter(|(_, command)| self.updates_op(command))
    }

    /// Steps of a pass that completes these parts, and brings the next input if a slot is given.
    fn pass_steps(&self, parts: &[Part], slot: Option<Half>) -> Vec<Step> {
        let mut extra = Extra::new();
        for (number, part) in parts.iter().enumerate() {
            if part.needed > 0 {
                extra.push(((CommandId(part.needed - 1), At::Waits), Step::Update(number)));
            }
            extra.push(((part.last, At::End), Step::Record(Stream::Compute, part.complete)));
        }
        extra.extend(slot.into_iter().flat_map(|slot| self.next_input(slot)));
        self.steps(&self.events(), |command| !self.updates_op(command), extra)
    }

    /// Checks that no command needs to follow an update, and that updates use nothing in the pool, where a pass leaves
    /// nothing.
    fn check_apart(&self) -> Result<(), Error> {
        let refused = |what: String, found| {
            let expected = "updates behind everything else, of what is resident";
            Err(Error::mismatch(what, expected, found))
        };
        let mut updates = false;
        for (id, command) in self.schedule.numbered_commands() {
            let mut waits = self.waits[id.index()].iter();
            if self.updates_op(command) {
                updates = true;
            } else if updates && matches!(command, Command::Compute { .. }) {
                return refused(format!("command {}", id.0), "behind an update");
            } else if waits.any(|wait| self.updates_op(&self.schedule.commands[wait.index()])) {
                return refused(format!("command {}", id.0), "waiting for an update");
            }
        }
        for (op, kernel) in self.program.trace.ops.iter().zip(&self.program.kernels) {
            let is_resident = |operand: &Operand| matches!(operand, Operand::Resident(_));
            if op.phase == Phase::Update && !kernel.operands.iter().all(is_resident) {
                return refused(format!("`{}`", op.name), "an update that reads or writes the pool");
            }
        }
        Ok(())
    }

    /// Numbers that workers sum, cut into parts of about this many bytes, in the order in which the commands complete them.
    fn parts(&self, part: Bytes) -> Result<Vec<Part>, Error> {
        let pieces = pieces(self.program, Overlap::Forward(part));
        let pieces = pieces
            .ok_or_else(|| Error::mismatch("program in two parts", "one that trains", "no backward pass"))?;
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
                return Err(Error::mismatch(what, "one", "none"));
            }
            let needed = self.first_reader(&updated);
            parts.push(Part { regions: of_piece, needed, updated, update, last, complete: EventId(0) });
        }
        let of_parts: usize = parts.iter().map(|part| part.update.len()).sum();
        let (what, updates) = ("updates of the gradients that workers sum", self.updates().count());
        Error::unless(of_parts == updates, what, updates, of_parts)?;
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
            return Err(Error::mismatch(format!("update of `{}`", region.name), "one", "none"));
        }
        parts.sort_by_key(|part| part.last);
        let EventId(first) = self.free_event(EVENTS_OF_PARTS);
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
        let touches = |op: OpId| {
            let mut operands = self.program.kernels[op.index()].operands.iter();
            operands.any(|o| regions.iter().any(|region| *o == Operand::Resident(region.offset)))
        };
        // A region that no pass reads is updated at its start.
        1 + self.first_of(|op| !self.is_update(op) && touches(op)).map_or(0, |id| id.0)
    }
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
            let (pass, parts) = (loaded.sequence(Iteration::Pass(None)), &loaded.parts);
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
            let needs = pass.steps.iter().enumerate().filter_map(|(at, step)| match step {
                Step::Update(part) => Some((at, *part)),
                _ => None,
            });
            let needs: Vec<(usize, usize)> = needs.collect();
            let mut updates = 0;
            for (step, part) in &needs {
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
            assert_eq!(updates, loaded.sequence(Iteration::Update).steps.len());
            assert_eq!(needs.len(), parts.iter().filter(|part| has_gradients(part)).count());
            let count = |steps: &[Step]| steps.iter().filter(|step| step.launch().is_some()).count();
            let (last, _) = needs.last().expect("it has parts");
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
