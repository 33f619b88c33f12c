//! The thread that makes all MPI calls: it executes send commands, receives all messages, and shows that it lives.
//!
//! A message is a head of fixed length, and a body of the length given in the head. A head without a body is a sign of life,
//! with the number of iterations done.

use super::super::GroupError;
use super::Shared;
use super::flow::{ACKNOWLEDGED, Flow};
use super::table::{CALL_WORDS, Library, Moving};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// Tags of heads, of message bodies, and of texts, which overtake messages.
const HEAD: i32 = 1;
const BODY: i32 = 2;
const TEXT: i32 = 3;

/// Words of a head: its kind, the words of its body or those that have come, the iterations done; two words for each number.
const HEAD_WORDS: usize = 5;

/// Kinds of heads.
const LIVES: u32 = 1;
const MESSAGE: u32 = 2;
const FAILED: u32 = 3;
const ENDS: u32 = 4;
const HOST: u32 = 5;
/// Acknowledges a number of message words at a time in microseconds; there is no body.
const CAME: u32 = 6;

/// Time between two signs of life.
const BEAT: Duration = Duration::from_millis(200);

/// A longer time between two checks means that this process was stopped, and heard no worker.
const PAUSE: Duration = Duration::from_secs(1);

/// Time without calls between the last word of all and `MPI_Finalize`. MPICH over UCX asks each other process there, once,
/// if everything has come, and answers only until it has its own answers: a process that is asked while it still polls for
/// messages answers too early, and waits for ever for its own answer.
const QUIET: Duration = Duration::from_millis(100);

/// Sleep between two checks: short during activity and for some time after it, else long.
const SHORT: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_millis(1);
const LIVELY: Duration = Duration::from_millis(20);

/// Command to the thread.
pub(super) enum Command {
    Send { to: usize, needed: u32, message: Vec<u32> },
    Fail(String),
    End,
    Abort(u8),
}

/// An initialised library.
pub(super) struct Begun {
    pub(super) library: String,
    pub(super) rank: usize,
    pub(super) workers: usize,
}

/// State of all workers, as heard.
pub(super) struct Heard {
    pub(super) workers: Vec<OfWorker>,
    /// Messages, each with its sender.
    pub(super) messages: VecDeque<(usize, Vec<u32>)>,
    /// Reason why the library no longer works, if it does not.
    pub(super) broken: Option<String>,
    /// `true` if MPI was ended here.
    pub(super) over: bool,
    /// `true` if this process was stopped for so long that the others may have taken it for lost.
    pub(super) given_up: bool,
}

/// State of a worker, as heard.
pub(super) struct OfWorker {
    /// `true` if it ended normally.
    pub(super) ended: bool,
    pub(super) last: Instant,
    iterations: u64,
    host: String,
    pub(super) failed: Option<String>,
    /// Message of the library about its death.
    pub(super) died: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    No,
    NotKnown,
    Yes,
}

impl OfWorker {
    /// Loss of a worker: it has died, or was silent for as long as the timeout. A worker that ended normally, or has sent a
    /// sign of life since then, is not lost.
    pub(super) fn is_lost(&self, since: Instant, timeout: Duration) -> Lost {
        match self {
            OfWorker { died: Some(_), .. } => Lost::Yes,
            _ if self.ended || self.failed.is_some() || self.last > since => Lost::No,
            _ if self.last.elapsed() > timeout => Lost::Yes,
            _ => Lost::NotKnown,
        }
    }
}

impl Heard {
    pub(super) fn of(workers: usize) -> Heard {
        let of_worker = || OfWorker {
            ended: false,
            last: Instant::now(),
            iterations: 0,
            host: "a host that is not known yet".to_owned(),
            failed: None,
            died: None,
        };
        Heard {
            workers: (0..workers).map(|_| of_worker()).collect(),
            messages: VecDeque::new(),
            broken: None,
            over: false,
            given_up: false,
        }
    }

    /// Reason why the workers cannot continue together, if they cannot.
    pub(super) fn lost(&self, me: usize, timeout: Duration) -> Option<GroupError> {
        if let Some(why) = &self.broken {
            return Some(GroupError::Engine { me, why: why.clone() });
        }
        let others = || self.workers.iter().enumerate().filter(move |(rank, _)| *rank != me);
        let failed = others().find_map(|(rank, worker)| {
            let why = worker.failed.clone()?;
            Some(GroupError::Failed { rank, host: worker.host.clone(), iterations: worker.iterations, why })
        });
        let died = || {
            others().find_map(|(rank, worker)| {
                let why = worker.died.clone()?;
                Some(GroupError::Died { rank, host: worker.host.clone(), iterations: worker.iterations, why })
            })
        };
        failed.or_else(died).or_else(|| {
            let (rank, worker) =
                others().find(|(_, worker)| !worker.ended && worker.last.elapsed() > timeout)?;
            let (host, iterations) = (worker.host.clone(), worker.iterations);
            Some(GroupError::Silent { rank, host, iterations, silent: timeout })
        })
    }
}

/// A message that waits, or is partly under way.
#[derive(Clone)]
struct Outgoing {
    /// Messages that are needed sooner go first.
    needed: u32,
    words: Vec<u32>,
    sent: usize,
}

/// Puts a message after those that are needed as soon, and after one that is partly under way.
fn put(waiting: &mut VecDeque<Outgoing>, message: Outgoing) {
    let goes_before = |other: &Outgoing| other.sent > 0 || other.needed <= message.needed;
    let place = waiting.iter().rposition(goes_before).map_or(0, |before| before + 1);
    waiting.insert(place, message);
}

/// A message whose head has arrived.
struct Arriving {
    what: u32,
    /// `None` for a message without a body.
    body: Option<Moving>,
    /// Number of its words that have come and are counted for acknowledgement.
    counted: usize,
}

struct Messenger<'a> {
    library: &'a Library,
    shared: &'a Shared,
    /// By worker: messages that wait, in the order in which they are needed.
    waiting: Vec<VecDeque<Outgoing>>,
    /// By worker: messages that the library holds, in order.
    sent: Vec<VecDeque<Moving>>,
    /// By worker: data under way.
    flows: Vec<Flow>,
    /// By worker: words that have come and are not acknowledged yet.
    came: Vec<usize>,
    /// By worker: messages in the order in which it sent them.
    arriving: Vec<VecDeque<Arriving>>,
    begun: Instant,
    /// By worker: `true` if it has died.
    dead: Vec<bool>,
}

/// Initialises the first library that works, reports it, and serves until it receives the command to end.
pub(super) fn run(
    files: Vec<&'static str>,
    ready: &Sender<Result<Begun, String>>,
    given: &Receiver<Arc<Shared>>,
    commands: &Receiver<Command>,
) {
    let mut why = Vec::new();
    let begun = files.into_iter().find_map(|file| Library::begin(file).map_err(|error| why.push(error)).ok());
    let Some(library) = begun else {
        let _ = ready.send(Err(why.join("; ")));
        return;
    };
    let (name, rank, workers) = (library.name.clone(), library.rank, library.workers);
    let _ = ready.send(Ok(Begun { library: name, rank, workers }));
    let Ok(shared) = given.recv() else {
        // No worker uses it any more, and an initialised library does not survive being unloaded.
        std::mem::forget(library);
        return;
    };
    let messenger = Messenger {
        library: &library,
        shared: &shared,
        waiting: vec![VecDeque::new(); workers],
        sent: (0..workers).map(|_| VecDeque::new()).collect(),
        flows: (0..workers).map(|_| Flow::new()).collect(),
        came: vec![0; workers],
        arriving: (0..workers).map(|_| VecDeque::new()).collect(),
        begun: Instant::now(),
        dead: vec![false; workers],
    };
    let ends = messenger.serve(commands);
    let ended = match ends {
        Ok(()) => library.end(),
        Err(error) => {
            std::mem::forget(library);
            Err(error)
        }
    };
    let mut heard = shared.heard();
    heard.broken = ended.err();
    heard.over = heard.broken.is_none();
    shared.changed.notify_all();
}

impl Messenger<'_> {
    fn serve(mut self, commands: &Receiver<Command>) -> Result<(), String> {
        let host = host();
        self.tell_all(HOST, host.as_bytes())?;
        let (mut beat, mut lively, mut looked) = (Instant::now(), Instant::now(), Instant::now());
        loop {
            let mut ends = false;
            let away = looked.elapsed();
            looked = Instant::now();
            if away > PAUSE {
                let mut heard = self.shared.heard();
                heard.workers.iter_mut().for_each(|worker| worker.last += away);
                // The others count from its last sign of life, some time before it was stopped.
                heard.given_up |= away > self.shared.timeout / 2;
            }
            loop {
                match commands.try_recv() {
                    Ok(Command::Send { to, needed, message }) => {
                        put(&mut self.waiting[to], Outgoing { needed, words: message, sent: 0 });
                    }
                    Ok(Command::Fail(why)) => self.tell_all(FAILED, why.as_bytes())?,
                    Ok(Command::Abort(exit)) => self.library.abort(exit),
                    Ok(Command::End) | Err(TryRecvError::Disconnected) => ends = true,
                    Err(TryRecvError::Empty) => break,
                }
                lively = Instant::now();
                if ends {
                    return self.end();
                }
            }
            if beat.elapsed() >= BEAT {
                beat = Instant::now();
                self.tell_all(LIVES, &[])?;
            }
            if self.look()? || self.is_sending() || self.arriving.iter().any(|queue| !queue.is_empty()) {
                lively = Instant::now();
            }
            std::thread::sleep(if lively.elapsed() < LIVELY { SHORT } else { LONG });
        }
    }

    /// Notifies all that this worker ends, and completes all sends.
    fn end(mut self) -> Result<(), String> {
        let begun = Instant::now();
        for ends in [false, true] {
            if ends {
                self.tell_all(ENDS, &[])?;
            }
            while self.is_sending() && begun.elapsed() < self.shared.timeout {
                self.look()?;
                std::thread::sleep(SHORT);
            }
        }
        // All end at once now; a later sign of life is received, and the library has nothing left to do.
        self.drain()
    }

    /// Receives messages until all workers have ended.
    fn drain(&mut self) -> Result<(), String> {
        let (me, begun) = (self.shared.facts.rank, Instant::now());
        let all_end = |shared: &Shared| {
            let heard = shared.heard();
            let is_over = |worker: &OfWorker| worker.ended || worker.died.is_some();
            heard.workers.iter().enumerate().all(|(rank, worker)| rank == me || is_over(worker))
        };
        while !all_end(self.shared) && begun.elapsed() < self.shared.timeout {
            self.look()?;
            std::thread::sleep(SHORT);
        }
        std::thread::sleep(QUIET);
        Ok(())
    }

    /// Other workers that live.
    fn others(&self) -> Vec<usize> {
        let others = 0..self.shared.facts.workers;
        others.filter(|other| *other != self.shared.facts.rank && !self.dead[*other]).collect()
    }

    /// Result of a call about a worker; `None` if it has died and the library continues without it.
    fn of_worker<T>(&mut self, worker: usize, outcome: Result<T, String>) -> Result<Option<T>, String> {
        let Err(why) = outcome else { return outcome.map(Some) };
        if !self.library.outlives {
            return Err(why);
        }
        self.dead[worker] = true;
        self.waiting[worker].clear();
        self.sent[worker].clear();
        self.flows[worker] = Flow::new();
        self.arriving[worker].clear();
        let mut heard = self.shared.heard();
        // A worker that has announced its end may be gone.
        if !heard.workers[worker].ended {
            heard.workers[worker].died = Some(why);
        }
        self.shared.changed.notify_all();
        Ok(None)
    }

    fn tell_all(&mut self, what: u32, text: &[u8]) -> Result<(), String> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let body: Vec<u32> = text.chunks(4).map(word).collect();
        for other in self.others() {
            let sent = self.send(other, what, body.clone());
            self.of_worker(other, sent)?;
        }
        Ok(())
    }

    /// Sends a short message, which overtakes waiting ones.
    fn send(&mut self, to: usize, what: u32, text: Vec<u32>) -> Result<(), String> {
        self.send_head(to, what, text.len() as u64)?;
        if !text.is_empty() {
            self.sent[to].push_back(self.library.send(to, TEXT, text)?);
        }
        Ok(())
    }

    fn send_head(&mut self, to: usize, what: u32, length: u64) -> Result<(), String> {
        let two = |number: u64| [number as u32, (number >> 32) as u32];
        let ([length, length_high], [done, done_high]) =
            (two(length), two(self.shared.iterations().unwrap_or(0)));
        let head = vec![what, length, length_high, done, done_high];
        self.sent[to].push_back(self.library.send(to, HEAD, head)?);
        Ok(())
    }

    /// Returns `true` if any data are under way to others, or wait.
    fn is_sending(&self) -> bool {
        self.sent.iter().any(|sent| !sent.is_empty())
            || self.flows.iter().any(|flow| !flow.is_empty())
            || self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Sends waiting messages, as far as the windows allow: one part to each worker in turn.
    fn send_on(&mut self) -> Result<(), String> {
        loop {
            let mut has_sent = false;
            for to in self.others() {
                if self.flows[to].has_room() {
                    let sent = self.send_part(to);
                    has_sent |= self.of_worker(to, sent)? == Some(true);
                }
            }
            if !has_sent {
                return Ok(());
            }
        }
    }

    /// Sends the next part of the messages for a worker; returns `false` if there is none.
    fn send_part(&mut self, to: usize) -> Result<bool, String> {
        let Some(Outgoing { words, sent, .. }) = self.waiting[to].front_mut() else { return Ok(false) };
        let (length, begin) = (words.len(), *sent);
        *sent = length.min(begin + CALL_WORDS);
        let rooms = &self.shared.rooms;
        let part = rooms.copy(&words[begin..*sent]);
        if *sent == length {
            self.waiting[to].pop_front().into_iter().for_each(|message| rooms.keep(message.words));
        }
        if begin == 0 {
            self.send_head(to, MESSAGE, length as u64)?;
        }
        let now = self.micros();
        self.flows[to].sent(part.len(), now);
        self.sent[to].push_back(self.library.send(to, BODY, part)?);
        Ok(true)
    }

    /// Acknowledges words from a worker, once there are enough or all that were announced.
    fn acknowledge(&mut self, from: usize) -> Result<(), String> {
        let is_all = self.arriving[from].is_empty();
        if self.came[from] >= if is_all { 1 } else { ACKNOWLEDGED } {
            let words = std::mem::take(&mut self.came[from]) as u64;
            self.send_head(from, CAME, words | u64::from(self.micros()) << 32)?;
        }
        Ok(())
    }

    /// Clock for data under way, which wraps.
    fn micros(&self) -> u32 {
        self.begun.elapsed().as_micros() as u32
    }

    /// Receives arrived data, forgets completed sends, and sends more; returns `true` if anything happened.
    fn look(&mut self) -> Result<bool, String> {
        let mut happened = false;
        for to in self.others() {
            let forgotten = self.forget_sent(to);
            self.of_worker(to, forgotten)?;
        }
        self.send_on()?;
        for from in self.others() {
            loop {
                let looked = self.look_at(from);
                if self.of_worker(from, looked)? != Some(true) {
                    break;
                }
                happened = true;
            }
            let acknowledged = self.acknowledge(from);
            self.of_worker(from, acknowledged)?;
        }
        Ok(happened)
    }

    /// Forgets completed sends to a worker.
    fn forget_sent(&mut self, to: usize) -> Result<(), String> {
        while let Some(first) = self.sent[to].front_mut()
            && self.library.is_done(first)?
        {
            let sent = self.sent[to].pop_front().expect("it was there just now");
            self.shared.rooms.keep(sent.into_words());
        }
        Ok(())
    }

    /// Makes one step of progress with data from a worker; returns `false` if there are none.
    fn look_at(&mut self, from: usize) -> Result<bool, String> {
        if let Some(first) = self.arriving[from].front_mut() {
            let is_done = match &mut first.body {
                Some(body) => self.library.is_done(body)?,
                None => true,
            };
            if let Some(body) = first.body.as_ref().filter(|_| first.what == MESSAGE) {
                self.came[from] += body.words_done() - first.counted;
                first.counted = body.words_done();
            }
            if is_done {
                let Arriving { what, body, .. } =
                    self.arriving[from].pop_front().expect("it was there just now");
                self.arrived(from, what, body.map_or_else(Vec::new, Moving::into_words));
                return Ok(true);
            }
        }
        // Signs of life also arrive after a long body.
        if !self.library.waits(from, HEAD)? {
            return Ok(false);
        }
        let mut head = self.library.receive(from, HEAD, vec![0; HEAD_WORDS])?;
        while !self.library.is_done(&mut head)? {
            std::hint::spin_loop();
        }
        let head = head.into_words();
        let two = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let (what, length, iterations) = (head[0], two(head[1], head[2]), two(head[3], head[4]));
        {
            let mut heard = self.shared.heard();
            heard.workers[from].last = Instant::now();
            heard.workers[from].iterations = iterations;
        }
        if what == CAME {
            self.flows[from].acknowledged(length as u32 as usize, (length >> 32) as u32);
        } else if what != LIVES {
            let tag = if what == MESSAGE { BODY } else { TEXT };
            let room = || self.shared.rooms.filled(length as usize);
            let body = (length > 0).then(|| self.library.receive(from, tag, room())).transpose()?;
            self.arriving[from].push_back(Arriving { what, body, counted: 0 });
        }
        Ok(true)
    }

    fn arrived(&self, from: usize, what: u32, words: Vec<u32>) {
        let text = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
        };
        let mut heard = self.shared.heard();
        let worker = &mut heard.workers[from];
        worker.last = Instant::now();
        match what {
            MESSAGE => heard.messages.push_back((from, words)),
            FAILED => worker.failed = Some(text(&words)),
            ENDS => worker.ended = true,
            HOST => worker.host = text(&words),
            // A sign of life.
            _ => return,
        }
        self.shared.changed.notify_all();
    }
}

/// Name of this machine.
pub fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "a host without a name".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_lost_once_it_was_silent_for_long_enough_and_lives_where_it_is_heard_again() {
        let (begun, timeout) = (Instant::now(), Duration::from_secs(5));
        let mut heard = Heard::of(1);
        let worker = &mut heard.workers[0];
        worker.last = begun - Duration::from_secs(1);
        assert_eq!(worker.is_lost(begun, timeout), Lost::NotKnown);
        worker.last = begun - Duration::from_secs(6);
        assert_eq!(worker.is_lost(begun, timeout), Lost::Yes);
        worker.last = begun + Duration::from_millis(1);
        assert_eq!(worker.is_lost(begun, timeout), Lost::No);
        worker.died = Some("it is gone".to_owned());
        assert_eq!(worker.is_lost(begun, timeout), Lost::Yes);
        (worker.died, worker.last, worker.ended) = (None, begun - Duration::from_secs(6), true);
        assert_eq!(worker.is_lost(begun, timeout), Lost::No, "it has ended as it should");
    }

    #[test]
    fn what_is_needed_sooner_overtakes_and_what_is_under_way_does_not_stop() {
        let message = |needed, word| Outgoing { needed, words: vec![word], sent: 0 };
        let mut waiting = VecDeque::new();
        for (needed, word) in [(7, 0), (3, 1), (7, 2), (3, 3), (5, 4)] {
            put(&mut waiting, message(needed, word));
        }
        waiting[0].sent = 1;
        put(&mut waiting, message(0, 5));
        let order: Vec<u32> = waiting.iter().map(|message| message.words[0]).collect();
        assert_eq!(order, [1, 5, 3, 4, 0, 2]);
    }
}
