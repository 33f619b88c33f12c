//! An iteration in two parts, between which numbers are exchanged: the pass, forward and backward, and the update.
//!
//! The update's ops read and write only what is resident. So it can stand behind all other commands of a schedule, and the
//! pass can be run again before it. What the schedule promises of the other commands holds as before: none of them waits for
//! the update.
//!
//! What it deliberately does not do: change a schedule, or a plain iteration of it.

use super::{Builder, Enqueued, Executor, Loaded, Step};
use crate::error::RuntimeError;
use plimsoll_ir::program::{Operand, Program};
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_ir::trace::Phase;

/// The two parts of an iteration.
#[derive(Clone, Debug)]
pub(super) struct Apart {
    pass: Enqueued,
    update: Enqueued,
}

impl Apart {
    /// Both sequences of commands.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Enqueued> {
        [&self.pass, &self.update].into_iter()
    }
}

impl Executor {
    /// As [`Executor::load`], of a program whose pass and update a [`crate::Trainer`] of several virtual workers then runs
    /// one by one.
    ///
    /// Errors: those of `load`; the program has no update; or an update touches the pool, or something waits for it.
    pub fn load_apart(&mut self, program: &Program, schedule: &Schedule) -> Result<Loaded, RuntimeError> {
        self.load_with(program, schedule, |executor, builder| {
            let [pass, update] = builder.steps_apart()?;
            let (pass, update) = (executor.enqueued(false, pass), executor.enqueued(false, update));
            Ok((None, Some(Apart { pass, update })))
        })
    }

    /// Enqueues a pass; [`Executor::finish`] must follow.
    pub(crate) fn start_pass(&mut self, loaded: &Loaded) {
        self.enqueue(loaded, &loaded.apart().pass);
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

    fn apart(&self) -> &Apart {
        self.apart.as_ref().expect("it was loaded in two parts")
    }
}

impl Builder<'_> {
    /// The steps of the pass, and those of the update.
    fn steps_apart(&self) -> Result<[Vec<Step>; 2], RuntimeError> {
        let (events, program) = (self.events(), self.program);
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
        }
        if update.is_empty() {
            return Err(RuntimeError::mismatch("program in two parts", "one that trains", "no update"));
        }
        Ok([pass, update])
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
