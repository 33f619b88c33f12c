//! PyTorch's side: `pytorch.py` as a process that answers questions, one JSON object a line each way.
//!
//! It stays open as long as a section, so that PyTorch is imported once and both sides can take turns.

use crate::Options;
use plimsoll::study::error::{Error, Kind};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// PyTorch's side, or why there is none; every question is answered with that then.
pub struct Torch(Result<Process, Error>);

/// The process; it ends when this is dropped.
struct Process {
    child: Child,
    questions: Option<ChildStdin>,
    /// Lines, as a thread reads them.
    answers: Receiver<std::io::Result<String>>,
}

/// How long the facts are waited for: importing PyTorch from a slow disk takes its time.
const FACTS: Duration = Duration::from_secs(120);

impl Torch {
    /// Starts it.
    pub fn start(options: &Options) -> Torch {
        let mut command = Command::new(&options.python);
        command.arg(&options.pytorch).args(options.pytorch_cpu.then_some("--cpu"));
        let child = command.env("PYTHONUNBUFFERED", "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let process = child.map(|mut child| {
            let questions = child.stdin.take();
            let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
            let (sender, answers) = channel();
            // It ends with the process, or where nobody listens any more.
            std::thread::spawn(move || lines.into_iter().try_for_each(|line| sender.send(line)));
            Process { child, questions, answers }
        });
        Torch(process.map_err(|error| {
            let python = options.python.display();
            Error::usage(format_args!("{python} does not start: {error}")).help("name another with --python")
        }))
    }

    /// Asks; an answer with `error` in it, or none, is a failure.
    pub fn ask(&mut self, question: &Value) -> Result<Value, Error> {
        self.ask_within(question, None)
    }

    /// The same; where there is no answer in time, its process is ended.
    fn ask_within(&mut self, question: &Value, time: Option<Duration>) -> Result<Value, Error> {
        let process = self.0.as_mut().map_err(|failure| failure.clone())?;
        let gone =
            |what| Error::new(Kind::Internal, format_args!("PyTorch's side {what}, asked for {question}"));
        let pipe = process.questions.as_mut().expect("it is open until it is dropped");
        writeln!(pipe, "{question}").map_err(|_| gone("is gone"))?;
        let line = match time {
            Some(time) => process.answers.recv_timeout(time),
            None => process.answers.recv().map_err(RecvTimeoutError::from),
        };
        if matches!(line, Err(RecvTimeoutError::Timeout)) {
            let _ = process.child.kill();
            return Err(gone("does not answer in time"));
        }
        let line = line.ok().and_then(Result::ok).ok_or_else(|| gone("says nothing"))?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| gone("gave no answer"))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(Error::new(Kind::Device, error)),
            None => Ok(answer),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of the questions ends it.
        drop(self.questions.take());
        let _ = self.child.wait();
    }
}

/// Versions and device of PyTorch, or why there is none.
pub fn facts(options: &Options) -> Value {
    let answer = Torch::start(options).ask_within(&json!({ "do": "facts" }), Some(FACTS));
    answer.unwrap_or_else(|why| json!({ "pytorch": format!("none: {}", why.message) }))
}
