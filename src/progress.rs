//! Everything written to stderr while a command runs: progress, logs, and the final error, for people or for programs.
//!
//! People see a bar on a terminal, once a step has taken half a second, and no progress elsewhere; logs are lines.
//! With `--message-format json` each line is an object: `event` names its kind, and the keys of a kind are fixed:
//!
//! ```text
//! {"event":"progress","what":"train","done":12,"of":100,"seconds":3.1,"left_seconds":22.7,"message":"loss 1.2"}
//! {"event":"log","level":"info","message":"..."}
//! {"event":"search","tried":"whole tensors, round 1","decided_seconds":0.4,"result":{"kind":"no-faster"}}
//! {"event":"error","exit":3,"message":"...","help":"..."}
//! ```
//!
//! `what` names the step, or the command if no step is under way; `of` and `left_seconds` are null if unknown,
//! `message` and `help` if absent. At most five progress events are written per second, and one per second if nothing
//! can be counted. `search` is one step of the search for a plan, written once the plan is made. Results go to
//! stdout.

use crate::interrupt;
use crate::terminal;
use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_study::watch::Event as JobEvent;
use plimsoll_study::words::{lines, visible_json};
use plimsoll_study::{Error, Watch};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Format of progress, logs and errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MessageFormat {
    /// In words, with a bar on a terminal
    #[default]
    Human,
    /// One JSON object a line
    Json,
}

/// Interval between progress updates.
const PERIOD: Duration = Duration::from_millis(200);

/// Shortest duration of a step that shows a bar on a terminal.
const PATIENCE: Duration = Duration::from_millis(500);

/// Interval between progress events of a step that counts nothing.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Format of this process's progress; nothing is written until it is set.
static SHOWN: OnceLock<Shown> = OnceLock::new();

/// Number of steps under way that have their own bar.
static STEPS: AtomicUsize = AtomicUsize::new(0);

struct Shown {
    format: MessageFormat,
    /// `true` if progress is shown.
    progress: bool,
    bars: MultiProgress,
}

/// Sets up progress and logs. `RUST_LOG` decides if set; otherwise `quiet` leaves errors only, and each `verbose`
/// adds a level. The program calls it once.
pub fn start(format: MessageFormat, quiet: bool, verbose: u8) {
    let human = format == MessageFormat::Human;
    let progress = !quiet && (!human || io::stderr().is_terminal());
    let target = if human { terminal::target() } else { ProgressDrawTarget::hidden() };
    SHOWN.get_or_init(|| Shown { format, progress, bars: MultiProgress::with_draw_target(target) });
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::INFO,
        (false, 1) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let asked = std::env::var("RUST_LOG").ok().and_then(|targets| targets.parse().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(level));
    let logs = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(|| BetweenBars);
    if human {
        let set = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let words = format::debug_fn(|writer, field, value| match field.name() {
            "message" => write!(writer, "{}", lines(format_args!("{value:?}"))),
            name => write!(writer, "{name}={}", lines(format_args!("{value:?}"))),
        });
        let logs = logs.fmt_fields(words.delimited(" ")).without_time().with_target(false);
        logs.with_ansi(io::stderr().is_terminal() && !set).finish().with(filter).init();
    } else {
        logs.event_format(JsonLines).finish().with(filter).init();
    }
}

/// Writes the error with which the program ends.
pub fn failure(format: MessageFormat, failure: &Error) {
    let Error { kind, message, help, .. } = failure;
    match format {
        MessageFormat::Human => {
            let _ = writeln!(io::stderr().lock(), "error: {failure:#}");
        }
        MessageFormat::Json => {
            tell(&json!({"event": "error", "exit": *kind as u8, "message": message, "help": help}));
        }
    }
}

/// Writes the steps of a plan search: events for programs, lines of the debug log for people.
pub fn searched(log: &SearchLog) {
    let json = SHOWN.get().is_some_and(|shown| shown.format == MessageFormat::Json);
    for step in &log.steps {
        if json {
            let mut event = json!(step);
            event["event"] = "search".into();
            tell(&event);
        } else {
            tracing::debug!("{step}");
        }
    }
}

/// Runs a write while no bar is drawn.
pub fn aside<T>(write: impl FnOnce() -> T) -> T {
    match SHOWN.get() {
        Some(shown) => shown.bars.suspend(write),
        None => write(),
    }
}

/// Shows named work of this number of steps, if known.
pub fn bar(what: &str, steps: Option<u64>, quiet: bool) -> Bar {
    Bar::new(what, steps, quiet, true)
}

/// Shows a whole command, while none of its steps is shown.
pub fn command(what: &str) -> Bar {
    Bar::new(what, None, false, false)
}

/// Runs a job, shows its steps as bars and its notices as logs, and stops it on Ctrl-C.
pub fn watched<T>(quiet: bool, job: impl FnOnce(&Watch<'_>) -> T) -> T {
    let shown = RefCell::new(None);
    let tell = |event: JobEvent<'_>| tell_of(&shown, quiet, event);
    job(&Watch { stop: &interrupt::pressed, tell: &tell })
}

/// Shows an event of a job; `shown` holds the bar of the current step.
fn tell_of(shown: &RefCell<Option<Bar>>, quiet: bool, event: JobEvent<'_>) {
    let with = |tell: &dyn Fn(&Bar)| {
        shown.borrow().iter().for_each(tell);
    };
    match event {
        JobEvent::Begin { step, of } => {
            shown.replace(Some(bar(step, of, quiet)));
        }
        JobEvent::Length(of) => with(&|bar| bar.set_length(of)),
        JobEvent::Done(parts) => with(&|bar| bar.set_position(parts)),
        JobEvent::At(words) => with(&|bar| bar.set_message(words.to_owned())),
        JobEvent::Again => with(&|bar| bar.reset()),
        JobEvent::End => drop(shown.take()),
        JobEvent::Epoch { epoch, of, loss, accuracy } => {
            if shown.borrow().as_ref().is_none_or(Bar::is_unseen) {
                tracing::info!("epoch {epoch} of {of}: loss {loss:.4}, accuracy {:.1} %", accuracy * 100.0);
            }
        }
        JobEvent::Notice { warning: true, words } => tracing::warn!("{words}"),
        JobEvent::Notice { words, .. } => tracing::info!("{words}"),
    }
}

/// Progress of some work. It leaves the screen when finished or dropped.
pub struct Bar {
    told: Arc<Told>,
    teller: Option<JoinHandle<()>>,
}

/// State that the drawing thread shares with the bar.
struct Told {
    bar: ProgressBar,
    /// `true` for a step, `false` for a whole command.
    step: bool,
    over: Mutex<bool>,
    wake: Condvar,
}

impl Bar {
    fn new(what: &str, steps: Option<u64>, quiet: bool, step: bool) -> Bar {
        let bar =
            ProgressBar::with_draw_target(steps, ProgressDrawTarget::hidden()).with_prefix(what.to_owned());
        let template = match steps {
            Some(_) => "{prefix:>10} [{bar:32}] {pos}/{len} {elapsed}, {eta} left {msg}",
            None => "{prefix:>10} {spinner} {elapsed} {msg}",
        };
        let style = ProgressStyle::with_template(template).expect("the template is fixed");
        bar.set_style(style.progress_chars("=> "));
        let told = Arc::new(Told { bar, step, over: Mutex::new(false), wake: Condvar::new() });
        let mut teller = None;
        if let Some(shown) = SHOWN.get().filter(|shown| shown.progress && !quiet) {
            STEPS.fetch_add(usize::from(step), Ordering::SeqCst);
            let told = Arc::clone(&told);
            let tell = move || match shown.format {
                MessageFormat::Human => told.draw(&shown.bars),
                MessageFormat::Json => told.tell(),
            };
            // Without a thread nothing is shown; the work continues.
            teller = std::thread::Builder::new().spawn(tell).ok();
        }
        Bar { told, teller }
    }

    /// Returns `true` if no bar is visible, so that logs must report progress.
    fn is_unseen(&self) -> bool {
        SHOWN.get().is_none_or(|shown| !shown.progress || shown.format == MessageFormat::Json)
    }
}

impl Deref for Bar {
    type Target = ProgressBar;

    /// The bar's state, in which the work counts.
    fn deref(&self) -> &ProgressBar {
        &self.told.bar
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(teller) = self.teller.take() {
            *lock(&self.told.over) = true;
            self.told.wake.notify_all();
            STEPS.fetch_sub(usize::from(self.told.step), Ordering::SeqCst);
            // The thread only draws, and its panic has already been shown.
            let _ = teller.join();
        }
    }
}

impl Told {
    /// Waits a moment; returns `false` once the work is over.
    fn goes_on(&self) -> bool {
        let over = lock(&self.over);
        let waited = self.wake.wait_timeout_while(over, PERIOD, |over| !*over);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns `true` if a step under way hides this bar.
    fn gives_way(&self) -> bool {
        !self.step && STEPS.load(Ordering::SeqCst) > 0
    }

    /// Draws the bar until the work is over.
    fn draw(&self, bars: &MultiProgress) {
        let start = Instant::now();
        let mut drawn = None;
        while self.goes_on() {
            if self.gives_way() {
                let Some(bar) = drawn.take() else { continue };
                ProgressBar::finish_and_clear(&bar);
                bars.remove(&bar);
            } else if start.elapsed() >= PATIENCE {
                let added = || {
                    // A bar that was hidden is drawn anew, with its full elapsed time.
                    let spinner = || {
                        let bar = ProgressBar::hidden()
                            .with_elapsed(start.elapsed())
                            .with_prefix(self.bar.prefix());
                        bar.with_style(self.bar.style())
                    };
                    bars.add(if self.step { self.bar.clone() } else { spinner() })
                };
                drawn.get_or_insert_with(added).tick();
            }
        }
        if let Some(bar) = drawn {
            bar.finish_and_clear();
            bars.remove(&bar);
        }
    }

    /// Writes events at intervals until the work is over, then a last one.
    fn tell(&self) {
        let start = Instant::now();
        let (mut last, mut position, mut any) = (start, 0, false);
        while self.goes_on() {
            let moved = self.bar.position() != position;
            if self.gives_way() {
                last = Instant::now();
            } else if moved || last.elapsed() >= HEARTBEAT {
                (last, position, any) = (Instant::now(), self.bar.position(), true);
                tell(&self.event(start.elapsed()));
            }
        }
        if any && self.step {
            tell(&self.event(start.elapsed()));
        }
    }

    fn event(&self, since: Duration) -> Value {
        let (done, of) = (self.bar.position(), self.bar.length());
        let left = of.filter(|_| done > 0).map(|of| match done < of {
            true => hundredths(self.bar.eta()),
            false => 0.0,
        });
        let message = Some(self.bar.message()).filter(|message| !message.is_empty());
        json!({
            "event": "progress",
            "what": self.bar.prefix(),
            "done": done,
            "of": of,
            "seconds": hundredths(since),
            "left_seconds": left,
            "message": message,
        })
    }
}

/// Seconds, rounded to hundredths.
fn hundredths(time: Duration) -> f64 {
    (time.as_secs_f64() * 100.0).round() / 100.0
}

/// Writes a line to stderr; a closed stderr is ignored.
fn tell(event: &Value) {
    let _ = writeln!(io::stderr().lock(), "{}", visible_json(&event.to_string()));
}

/// Locks a mutex even if a holder panicked: its plain value is always whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stderr that hides bars while a log is written.
struct BetweenBars;

impl Write for BetweenBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // As in `tell`.
        let _ = aside(|| io::stderr().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Log format with one JSON event per line.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = Message(String::new());
        event.record(&mut message);
        let level = event.metadata().level().as_str().to_lowercase();
        let event = json!({"event": "log", "level": level, "message": message.0});
        writeln!(writer, "{}", visible_json(&event.to_string()))
    }
}

/// Message of a log, followed by its values.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let words = match field.name() {
            "message" => format!("{value:?}"),
            name => format!("{}{name}={value:?}", if self.0.is_empty() { "" } else { " " }),
        };
        self.0.push_str(&words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_same_keys_whatever_is_known() {
        let keys = |bar: &Bar| {
            let event = bar.told.event(Duration::from_millis(1234));
            assert_eq!(event["seconds"], 1.23);
            let keys = event.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
            (keys, event)
        };
        let (counted, unknown) = (bar("train", Some(10), true), bar("plan", None, true));
        assert_eq!(keys(&counted).0, keys(&unknown).0);
        assert!(keys(&counted).1["left_seconds"].is_null(), "nothing is done yet");
        counted.inc(10);
        assert_eq!((&keys(&counted).1["done"], &keys(&counted).1["left_seconds"]), (&json!(10), &json!(0.0)));
        assert!(keys(&unknown).1["of"].is_null());
    }
}
