//! What to run in so much time: commands of ten minutes at most, in the order of what matters, of this program and of the
//! front for PyTorch. How long a section of this program takes is what it took in a folder of results, where it ran to its end
//! there, and what it may take else.
//!
//! What it deliberately does not do: ask the GPU. It prints the same on any machine, so that the time on a borrowed one goes
//! into what is printed.

use crate::results::{Results, SectionState};
use crate::sections::{SECTIONS, Section};
use std::fmt::Write;

/// No command takes longer, so that each fits where commands are cut after ten minutes.
const COMMAND_SECONDS: u64 = 600;

/// Which program has a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// This one.
    Accept,
    /// `python/accept.py`.
    PyTorch,
}

/// A section of either program.
#[derive(Clone, Copy, Debug)]
struct Part {
    of: Program,
    section: &'static str,
    /// Seconds after which it is cut.
    most: u64,
    /// Seconds that are planned for it, at most as many.
    seconds: u64,
}

/// The sections of `python/accept.py` in its order, with the seconds that its table gives all their networks together.
const PYTORCH: [Part; 15] = {
    const fn part(section: &'static str, seconds: u64) -> Part {
        Part { of: Program::PyTorch, section, most: seconds, seconds }
    }
    [
        part("facts", 60),
        part("bits", 360),
        part("curve", 300),
        part("truth", 240),
        part("long-32k", 590),
        part("compile-gpt", 590),
        part("state-3b", 590),
        part("batch", 600),
        part("lengths", 300),
        part("curves", 600),
        part("long-8k", 590),
        part("long-64k", 590),
        part("compile-resnet", 590),
        part("compile-vit", 590),
        part("state-8b", 590),
    ]
};

/// Parts that are run for the same reason, one after the other.
struct Group {
    why: &'static str,
    parts: Vec<Part>,
}

/// Less is not worth beginning a section that is cut at its end.
const LEAST_SECONDS: u64 = 120;

/// What may pass beyond what a section took before.
const SPARE: f64 = 1.1;

/// The seconds that are planned for a section: a tenth more than in the longest of these results, or those after which it is
/// cut, if that is less or there are none.
fn seconds_of(section: &Section, measured: &[Results]) -> u64 {
    let outcomes = measured.iter().flat_map(|results| &results.sections);
    let whole = outcomes.filter(|outcome| {
        outcome.section == section.name && outcome.state == SectionState::Done && !outcome.small
    });
    let longest = whole.map(|outcome| outcome.seconds).max_by(f64::total_cmp);
    longest.map_or(section.seconds, |seconds| ((seconds * SPARE).ceil() as u64).min(section.seconds))
}

/// All sections in the order of what matters.
fn groups(measured: &[Results]) -> Vec<Group> {
    let own = |names: &[&str]| {
        let part = |name: &&str| {
            let section = SECTIONS.iter().find(|section| section.name == *name).expect("it is a section");
            let (most, seconds) = (section.seconds, seconds_of(section, measured));
            Part { of: Program::Accept, section: section.name, most, seconds }
        };
        names.iter().map(part).collect::<Vec<_>>()
    };
    let group = |why, parts| Group { why, parts };
    let [facts, bits, curve, by_name @ ..] = PYTORCH;
    vec![
        group(
            "is it right; then how long is a step, in three precisions; then how far off are predictions?",
            own(&["tests", "bits", "step", "link", "predict"]),
        ),
        group(
            "who is faster at 12 GiB, in the precisions that most people train in?",
            own(&["pytorch-bf16", "pytorch-tf32"]),
        ),
        group(
            "which batches fit, beside AccUDNN's table, then in other precisions?",
            own(&["batches", "batches-bf16", "batches-tf32"]),
        ),
        group("is it right in PyTorch, and how long does a step take there?", vec![facts, bits]),
        group("who is faster at equal memory in PyTorch?", vec![curve]),
        group(
            "beside torch.compile with its memory budget, which compiles for most of its time",
            own(&["compile-bf16"]),
        ),
        group("who is faster at 12 GiB in f32?", own(&["pytorch-f32"])),
        group(
            "a thousand layers, a run of its own: on a GPU of 140 GB, since vgg516 keeps 81.8 GiB at batch 32",
            own(&["deep"]),
        ),
        group("the same in other precisions", own(&["compile-tf32", "compile-f32"])),
        group("the rest in PyTorch", by_name.to_vec()),
    ]
}

/// The commands for so many minutes, each with the seconds that are planned for it, behind what it asks; and what there is no
/// time for. What is left goes to the first section of this program that it is too short for, whose rows come one by one. Of
/// what was measured are the seconds of sections that ran to their ends.
pub fn plan(minutes: u64, measured: &[Results]) -> String {
    let mut left = minutes.saturating_mul(60);
    let (mut text, mut without) = (String::new(), Vec::new());
    for Group { why, parts } in groups(measured) {
        let mut commands: Vec<Vec<Part>> = Vec::new();
        for part in parts {
            if part.seconds > left {
                without.push(part);
                continue;
            }
            left -= part.seconds;
            let joins = |command: &&mut Vec<Part>| {
                command[0].of == part.of && seconds(command) + part.seconds <= COMMAND_SECONDS
            };
            match commands.last_mut().filter(joins) {
                Some(command) => command.push(part),
                None => commands.push(vec![part]),
            }
        }
        if !commands.is_empty() {
            let _ = writeln!(text, "# {why}");
        }
        for command in commands {
            let _ = writeln!(text, "{}", line(&command));
        }
    }
    let cut = without.iter().position(|part| part.of == Program::Accept && left >= LEAST_SECONDS);
    if let Some(Part { section, .. }) = cut.map(|at| without.remove(at)) {
        let _ = writeln!(text, "# the time that is left, at whose end this section is cut");
        let _ = writeln!(text, "gpu/accept.sh run {section} --seconds {left}  # {left} s at most");
    }
    for part in without {
        let _ = writeln!(text, "# no time for: {}", line(&[part]));
    }
    text
}

fn seconds(command: &[Part]) -> u64 {
    command.iter().map(|part| part.seconds).sum()
}

/// A command, as it is typed at the root of the repository, and what it takes.
fn line(command: &[Part]) -> String {
    let sections: Vec<&str> = command.iter().map(|part| part.section).collect();
    let (sections, seconds) = (sections.join(" "), seconds(command));
    let most = command.iter().map(|part| part.most).sum::<u64>().min(COMMAND_SECONDS);
    let program = match command[0].of {
        Program::Accept => "gpu/accept.sh run",
        Program::PyTorch => "python3 python/accept.py",
    };
    format!(
        "{program} {sections} --seconds {most}  # {seconds} s{}",
        if most == seconds { " at most" } else { "" }
    )
}
