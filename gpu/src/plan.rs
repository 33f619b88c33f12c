//! What to run in so much time: commands of ten minutes at most, in the order of what matters, of this program and of the
//! front for PyTorch.
//!
//! What it deliberately does not do: ask the GPU. It prints the same everywhere, so that the time on a borrowed one goes into
//! what is printed.

use crate::sections::SECTIONS;
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
    seconds: u64,
}

/// The sections of `python/accept.py` in its order, with the seconds that its table gives all their networks together.
const PYTORCH: [Part; 15] = {
    const fn part(section: &'static str, seconds: u64) -> Part {
        Part { of: Program::PyTorch, section, seconds }
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

/// All sections in the order of what matters: what must be right and fast here, then in PyTorch, then the comparisons.
fn parts() -> Vec<Part> {
    let own = |names: &[&str]| {
        let named = SECTIONS.iter().filter(|section| names.contains(&section.name));
        named.map(|s| Part { of: Program::Accept, section: s.name, seconds: s.seconds }).collect::<Vec<_>>()
    };
    let [facts, bits, curve, by_name @ ..] = PYTORCH;
    [
        own(&["tests", "bits", "step", "link", "predict"]),
        vec![facts, bits],
        own(&["batches", "pytorch"]),
        vec![curve],
        own(&["deep"]),
        by_name.to_vec(),
    ]
    .concat()
}

/// The commands for so many minutes, one a line, with the seconds that each takes at most; and what there is no time for.
pub fn plan(minutes: u64) -> String {
    let mut left = minutes.saturating_mul(60);
    let mut commands: Vec<Vec<Part>> = Vec::new();
    let mut without: Vec<Part> = Vec::new();
    for part in parts() {
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
    let mut text = String::new();
    for command in &commands {
        let _ = writeln!(text, "{}  # {} s at most", line(command), seconds(command));
    }
    for part in without {
        let _ = writeln!(text, "# no time for: {}  # {} s at most", line(&[part]), part.seconds);
    }
    text
}

fn seconds(command: &[Part]) -> u64 {
    command.iter().map(|part| part.seconds).sum()
}

/// A command, as it is typed at the root of the repository.
fn line(command: &[Part]) -> String {
    let sections: Vec<&str> = command.iter().map(|part| part.section).collect();
    let (sections, seconds) = (sections.join(" "), seconds(command));
    match command[0].of {
        Program::Accept => format!("gpu/accept.sh run {sections} --seconds {seconds}"),
        Program::PyTorch => format!("python3 python/accept.py {sections} --seconds {seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at the ends of a plan's commands.
    fn spent(text: &str) -> Vec<u64> {
        let lines = text.lines().filter(|line| !line.starts_with("# no time"));
        let seconds = lines.map(|line| line.rsplit("# ").next()?.strip_suffix(" s at most")?.parse().ok());
        seconds.collect::<Option<_>>().expect("each command says its seconds")
    }

    #[test]
    fn no_plan_takes_longer_than_it_may_and_every_section_is_named_once() {
        assert_eq!(parts().len(), SECTIONS.len() + PYTORCH.len());
        for minutes in 0..60 {
            let text = plan(minutes);
            let spent = spent(&text);
            assert!(spent.iter().sum::<u64>() <= 60 * minutes, "{minutes} minutes:\n{text}");
            assert!(spent.iter().all(|seconds| *seconds <= COMMAND_SECONDS), "{text}");
            for part in parts() {
                let named = text.lines().filter(|line| {
                    let own = line.contains("gpu/accept.sh") == (part.of == Program::Accept);
                    own && line.split(' ').any(|word| word == part.section)
                });
                assert_eq!(named.count(), 1, "{} in:\n{text}", part.section);
            }
        }
    }

    #[test]
    fn half_an_hour_begins_with_what_must_be_right_and_holds_all_but_what_runs_long_by_name() {
        let text = plan(25);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("gpu/accept.sh run tests bits step link predict --seconds "), "{text}");
        assert!(lines[1].starts_with("python3 python/accept.py facts bits --seconds 420"), "{text}");
        let without: Vec<&&str> = lines.iter().filter(|line| line.starts_with("# no time")).collect();
        // What is left of the time is enough for the shortest of them.
        let by_name = PYTORCH.iter().skip_while(|part| part.section != "long-32k");
        let by_name: Vec<String> = by_name.map(|part| format!("accept.py {} ", part.section)).collect();
        assert_eq!(without.len(), by_name.len(), "{text}");
        assert!(without.iter().zip(by_name).all(|(line, name)| line.contains(&name)), "{text}");
    }

    #[test]
    fn the_seconds_of_pytorchs_sections_are_those_of_its_program() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/benches/acceptance/sections.py");
        let text = std::fs::read_to_string(path).expect("the sections of the front's program");
        // One tuple of names, as `NAMES = ("a", "b")`; `link` stands for itself.
        let networks = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} = (")));
            line.map_or(1, |names| names.matches('"').count() as u64 / 2)
        };
        let (_, table) = text.split_once("SECTIONS = {\n").expect("its table");
        let (table, _) = table.split_once("\n}\n").expect("its end");
        for part in PYTORCH {
            let (_, rest) = table.split_once(&format!("\"{}\": Section(", part.section)).expect("a section");
            let arguments = rest.split(": Section(").next().expect("there is always a first");
            // Behind the last number comes the next section's name, if anything.
            let (arguments, _) = arguments.rsplit_once(')').expect("it is closed");
            let words = arguments.split([',', '\n']).map(|word| word.trim_matches([' ', '(', ')']));
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            let each: u64 = words.last().and_then(|word| word.parse().ok()).expect("seconds for a network");
            let names = words[words.len() - 2];
            assert_eq!(part.seconds, each * networks(names), "{} of {names}", part.section);
        }
    }
}
