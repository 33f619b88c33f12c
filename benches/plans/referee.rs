//! The judge that shares no code with Plimsoll: `../shared/tools/referee.py`, in one Python process for many schedules.

use super::subjects::Subject;
use plimsoll::ir::Document;
use plimsoll::ir::schedule::Schedule;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Judges the schedules that standard input names, one per line after the file of their trace.
const DRIVER: &str = r#"
import json, sys
sys.path.insert(0, sys.argv[1])
import referee
known = {}
print("ready", flush=True)
for line in sys.stdin:
    trace, schedule = line.rstrip("\n").split("\t")
    try:
        if trace not in known:
            known = {trace: json.load(open(trace))}
        verdict = referee.judge(known[trace], json.load(open(schedule)))
    except Exception as why:
        verdict = {"valid": False, "why": f"{type(why).__name__}: {why}"}
    print(json.dumps(verdict), flush=True)
"#;

/// A referee that waits for schedules.
pub struct Referee {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// File through which the referee gets a schedule.
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Referee {
    /// Starts the referee; `None` if there is no referee next to the repository, or no Python.
    pub fn start() -> Option<Referee> {
        let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/tools");
        let mut command = Command::new("python3");
        command.args(["-B", "-c", DRIVER, tools]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().ok()?;
        let (to, from) = (process.stdin.take()?, process.stdout.take()?);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("schedule.json");
        let mut referee = Referee { process, to, from: BufReader::new(from), file, _folder: folder };
        (referee.line() == "ready").then_some(referee)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a pipe can be read");
        line.trim_end().to_owned()
    }

    /// Returns the makespan of a valid schedule, or the reason why it is invalid.
    pub fn judge(&mut self, subject: &Subject, schedule: &Schedule) -> Result<f64, String> {
        std::fs::write(&self.file, schedule.to_json()).expect("a temporary folder can be written to");
        let asked = writeln!(self.to, "{}\t{}", subject.path.display(), self.file.display());
        asked.and_then(|()| self.to.flush()).expect("the referee listens");
        let line = self.line();
        let verdict: serde_json::Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        match (verdict["valid"].as_bool(), verdict["makespan_seconds"].as_f64()) {
            (Some(true), Some(makespan)) => Ok(makespan),
            _ => Err(verdict["why"].as_str().unwrap_or("no reason given").to_owned()),
        }
    }
}

impl Drop for Referee {
    fn drop(&mut self) {
        // The process ends once its input ends; killing it only makes sure of that.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
