//! A run: section after section, each in a process of its own.
//!
//! A section prints its rows on stdout, one JSON object a line, and whatever it likes besides; what it says on stderr is
//! shown as it comes, and its last line is the reason where it fails. When its time is over it is killed with all that it
//! started, and the rows that it gave until then count.

use crate::results::{Outcome, Results, SectionState};
use crate::row::{Row, words};
use crate::sections::{SECTIONS, Section, find};
use crate::{Options, torch};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use plimsoll::study::error::{Error, Kind};
use plimsoll::study::version;
use plimsoll_runtime::cuda::survey;
use plimsoll_runtime::{Cpu, CpuOptions, Device};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds of a whole run: nine minutes, less what starting and writing take.
pub const SECONDS: u64 = 525;

/// Runs sections, the usual ones where none is named, and writes each row as it comes.
///
/// Errors: an unknown section, no usable device, a folder that cannot be written; and at the end, with everything written, a
/// test or a bit that is wrong, or a section that did not run to its end.
pub fn run(named: &[String], folder: &Path, seconds: u64, options: &Options) -> Result<(), Error> {
    let chosen: Vec<&Section> = match named {
        [] => SECTIONS.iter().filter(|section| !section.by_name_only).collect(),
        named => named.iter().map(|name| find(name)).collect::<Result<_, _>>()?,
    };
    let begun = Instant::now();
    let (mut results, path) = Results::open(folder, machine(options)?, options.small)?;
    println!("{}, {}", words(&results.machine, "device"), version());
    let (mut bad, mut count) = (Vec::new(), chosen.len() as u64);
    for section in chosen {
        let left = seconds.saturating_sub(begun.elapsed().as_secs());
        println!("\n{}: {}", section.name, section.asks);
        // One that is named has its share of the whole time, however long it would be given in a run of all.
        let share = if named.is_empty() { 0 } else { left / count.max(1) };
        count = count.saturating_sub(1);
        let seconds = section.seconds.max(share).min(left);
        let outcome = attempt(section, seconds, options, &mut |so_far| results.add(so_far.clone(), &path))?;
        println!("{}", outcome.line());
        let wrong = section.targets.iter().find_map(|target| {
            let verdict = (target.judge)(&outcome.rows)?;
            (target.verifies && verdict.met == Some(false)).then_some(verdict.measured)
        });
        let reason = wrong.map(|what| (Kind::Verification, what));
        let cut = (outcome.state != SectionState::Done).then(|| (Kind::Internal, outcome.line()));
        bad.extend(reason.or(cut).map(|(exit, what)| (exit, format!("{}: {what}", section.name))));
        results.add(outcome, &path)?;
    }
    println!(
        "\n{}\nwritten to {} in {:.0} s",
        results.markdown(),
        path.display(),
        begun.elapsed().as_secs_f64()
    );
    if bad.is_empty() {
        return Ok(());
    }
    let verified = bad.iter().all(|(exit, _)| *exit != Kind::Verification);
    let exit = if verified { Kind::Internal } else { Kind::Verification };
    let what: Vec<String> = bad.into_iter().map(|(_, what)| what).collect();
    Err(Error::new(exit, what.join("; ")))
}

/// What a row took: from the one before it, or from the section's start.
const TOOK: &str = "took_seconds";

/// How a line begins that says why something failed.
const FAILURE: &str = "error: ";

/// What a section's process says.
enum Said {
    Out(String),
    Err(String),
    /// A pipe is at its end.
    End,
}

/// Runs one section for so many seconds at most. `keep` takes what is known of it after every row.
fn attempt(
    section: &Section,
    seconds: u64,
    options: &Options,
    keep: &mut dyn FnMut(&Outcome) -> Result<(), Error>,
) -> Result<Outcome, Error> {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds);
    let mut outcome = Outcome {
        section: section.name.to_owned(),
        state: SectionState::Cut,
        why: Some("no time was left".to_owned()),
        seconds: 0.0,
        plimsoll: version(),
        small: options.small,
        rows: Vec::new(),
        date: None,
    };
    if seconds == 0 {
        return Ok(outcome);
    }
    // What stands in the results where this program is ended before the section is.
    outcome.why = Some("the run was ended".to_owned());
    let mut child = start(section, seconds, options)?;
    let (sender, said) = channel();
    listen(child.stdout.take().expect("it is piped"), sender.clone(), Said::Out);
    listen(child.stderr.take().expect("it is piped"), sender, Said::Err);
    let (mut ends, mut last, mut last_row) = (0, String::new(), begun);
    while ends < 2 {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Said::Out(line)) => match serde_json::from_str::<Row>(&line) {
                Ok(mut row) => {
                    let now = Instant::now();
                    row.insert(
                        TOOK.to_owned(),
                        json!((now - std::mem::replace(&mut last_row, now)).as_secs_f64()),
                    );
                    println!("  {}", brief(&row));
                    outcome.rows.push(row);
                    outcome.seconds = begun.elapsed().as_secs_f64();
                    if let Err(failure) = keep(&outcome) {
                        end(&mut child);
                        return Err(failure);
                    }
                }
                Err(_) => println!("  {line}"),
            },
            Ok(Said::Err(line)) => {
                eprintln!("  {line}");
                // What a failure says is one line, and help may follow; what a panic says comes before its notes.
                let failure = last.starts_with(FAILURE);
                if line.starts_with(FAILURE)
                    || !(failure || line.trim().is_empty() || line.starts_with("note: "))
                {
                    last = line;
                }
            }
            Ok(Said::End) => ends += 1,
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => ends = 2,
        }
    }
    let cut = ends < 2;
    if cut {
        end(&mut child);
    }
    let status = child.wait().map_err(|e| Error::new(Kind::Internal, format_args!("waiting: {e}")))?;
    outcome.seconds = begun.elapsed().as_secs_f64();
    (outcome.state, outcome.why) = match (cut, status.success()) {
        (true, _) => (SectionState::Cut, Some(format!("{seconds} s were over"))),
        (false, true) => (SectionState::Done, None),
        (false, false) if last.is_empty() => (SectionState::Failed, Some(status.to_string())),
        (false, false) => (SectionState::Failed, Some(last.trim_start_matches(FAILURE).to_owned())),
    };
    Ok(outcome)
}

/// Starts a section's process: this program again, in a group of its own.
fn start(section: &Section, seconds: u64, options: &Options) -> Result<Child, Error> {
    let own = std::env::current_exe().and_then(|own| {
        let mut command = Command::new(own);
        command.args(["section", section.name, "--seconds", &seconds.to_string()]);
        command.arg("--python").arg(&options.python).arg("--pytorch").arg(&options.pytorch);
        command.args(options.small.then_some("--small")).args(options.pytorch_cpu.then_some("--pytorch-cpu"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()
    });
    own.map_err(|error| Error::new(Kind::Internal, format_args!("cannot start a section: {error}")))
}

/// Ends a section's process; what it started is in its group, and goes with it.
fn end(child: &mut Child) {
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.wait();
}

/// Sends the lines of a pipe on.
fn listen(pipe: impl Read + Send + 'static, sender: Sender<Said>, of: fn(String) -> Said) {
    std::thread::spawn(move || {
        let lines = BufReader::new(pipe).split(b'\n').map_while(Result::ok);
        // Where nobody listens any more, there is nothing to say.
        for line in lines {
            let _ = sender.send(of(String::from_utf8_lossy(&line).into_owned()));
        }
        let _ = sender.send(Said::End);
    });
}

/// A row in a line.
fn brief(row: &Row) -> String {
    let part = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name} {text}"),
        Value::Number(number) if number.is_f64() => {
            format!("{name} {:.6}", number.as_f64().unwrap_or(f64::NAN))
        }
        other => format!("{name} {other}"),
    };
    row.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// The device and everything around it. Fails where there is no usable one.
fn machine(options: &Options) -> Result<Row, Error> {
    let survey = survey()?;
    let Some((gpu, health)) = survey.devices.first() else {
        return Err(Error::new(Kind::Device, "the driver sees no device")
            .help("`nvidia-smi` says which there are; CUDA_VISIBLE_DEVICES may hide them"));
    };
    let version_of = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let (nvrtc, nvrtc_library) = match &survey.compiler {
        Ok((path, number)) => (version_of(*number), path.display().to_string()),
        Err(error) => (error.to_string(), String::new()),
    };
    let cublas = survey.libraries.cublas.map_or_else(|e| e.to_string(), |path| path.display().to_string());
    let cudnn = survey.libraries.cudnn.map_or_else(
        |error| error.to_string(),
        |(path, (major, minor, patch))| format!("{major}.{minor}.{patch}, {}", path.display()),
    );
    let facts = json!({
        "device": gpu.name,
        "date": date(),
        "plimsoll": version(),
        "driver": survey.driver_version.unwrap_or_else(|error| error.to_string()),
        "cuda": version_of(survey.version),
        "capability": gpu.capability.to_string(),
        "multiprocessors": gpu.multiprocessors,
        "memory_bytes": gpu.memory,
        "health": health,
        "driver_library": survey.driver.display().to_string(),
        "nvrtc": nvrtc,
        "nvrtc_library": nvrtc_library,
        "cublas": cublas,
        "cudnn": cudnn,
        "system": Cpu::new(CpuOptions::default()).facts().system,
    });
    let (Value::Object(mut facts), Value::Object(torch)) = (facts, torch::facts(options)) else {
        return Err(Error::new(Kind::Internal, "PyTorch's side gave no facts"));
    };
    facts.extend(torch);
    Ok(facts)
}

/// Today, in UTC, as 2026-11-20.
fn date() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    // Years that begin in March, so that a leap day is the last of its year; 400 of them have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year)
}
