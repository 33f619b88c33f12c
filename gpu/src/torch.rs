//! PyTorch's side: `pytorch.py` as a process that answers questions, one JSON object a line each way.
//!
//! It stays open as long as a section, so that PyTorch is imported once and both sides can take turns.

use crate::Options;
use plimsoll::failure::{Exit, Failure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// PyTorch's side, or why there is none; every question is answered with that then.
pub struct Torch(Result<Process, Failure>);

/// The process; it ends when this is dropped.
struct Process {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Torch {
    /// Starts it.
    pub fn start(options: &Options) -> Torch {
        let mut command = Command::new(&options.python);
        command.arg(&options.pytorch).args(options.pytorch_cpu.then_some("--cpu"));
        let child = command.env("PYTHONUNBUFFERED", "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let process = child.map(|mut child| {
            let questions = child.stdin.take();
            let answers = BufReader::new(child.stdout.take().expect("it is piped"));
            Process { child, questions, answers }
        });
        Torch(process.map_err(|error| {
            let python = options.python.display();
            Failure::usage(format_args!("{python} does not start: {error}"))
                .help("name another with --python")
        }))
    }

    /// Asks; an answer with `error` in it, or none, is a failure.
    pub fn ask(&mut self, question: &Value) -> Result<Value, Failure> {
        let process = self.0.as_mut().map_err(|failure| failure.clone())?;
        let gone =
            |what| Failure::new(Exit::Internal, format_args!("PyTorch's side {what}, asked for {question}"));
        let pipe = process.questions.as_mut().expect("it is open until it is dropped");
        writeln!(pipe, "{question}").map_err(|_| gone("is gone"))?;
        let mut line = String::new();
        process.answers.read_line(&mut line).map_err(|_| gone("says nothing"))?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| gone("gave no answer"))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(Failure::new(Exit::Device, error)),
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
    let answer = Torch::start(options).ask(&json!({ "do": "facts" }));
    answer.unwrap_or_else(|why| json!({ "pytorch": format!("none: {}", why.message) }))
}
