//! The thread that makes all calls of MPI: it sends what it is told to, receives whatever comes, and shows that it lives.
//!
//! A message is a head of fixed length, and a body of the length that the head says. A head without a body is a sign of life,
//! with the iterations that are done.

use super::super::GroupError;
use super::Shared;
use super::flow::{ACKNOWLEDGED, Flow};
use super::table::{CALL_WORDS, Library, Moving};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// Of heads, of what messages carry, and of texts, which overtake messages.
const HEAD: i32 = 1;
const BODY: i32 = 2;
const TEXT: i32 = 3;

/// A head: what it is, the words of its body or those that have come, the iterations done; the numbers in two words each.
const HEAD_WORDS: usize = 5;

/// What a head says.
const LIVES: u32 = 1;
const MESSAGE: u32 = 2;
const FAILED: u32 = 3;
const ENDS: u32 = 4;
const HOST: u32 = 5;
/// That so many words of messages have come, and at which microsecond of a clock; there is no body.
const CAME: u32 = 6;

/// Time between two signs of life.
const BEAT: Duration = Duration::from_millis(200);

/// A longer time between two looks is one in which this process was stopped, and heard nobody.
const PAUSE: Duration = Duration::from_secs(1);

/// How long no call is made between the last word of all and `MPI_Finalize`. MPICH over UCX asks each other process there,
/// once, whether all has come, and answers only until it has its own answers: one that is asked while it still looks at
/// messages answers too early, and waits for ever for its own answer.
const QUIET: Duration = Duration::from_millis(100);

/// How long it sleeps between two looks: short while something happens, and up to so long after that.
const SHORT: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_millis(1);
const LIVELY: Duration = Duration::from_millis(20);

/// What the thread is told to do.
pub(super) enum Command {
    Send { to: usize, needed: u32, message: Vec<u32> },
    Fail(String),
    End,
    Abort(u8),
}

/// A library that was begun.
pub(super) struct Begun {
    pub(super) library: String,
    pub(super) rank: usize,
    pub(super) workers: usize,
}

/// What was heard of all workers.
pub(super) struct Heard {
    pub(super) workers: Vec<OfWorker>,
    /// Each with its sender.
    pub(super) messages: VecDeque<(usize, Vec<u32>)>,
    /// Why the library serves no longer, where it does not.
    pub(super) broken: Option<String>,
    /// MPI was ended here.
    pub(super) over: bool,
    /// This process was stopped for so long that the others may have taken it for lost.
    pub(super) given_up: bool,
}

/// What was heard of a worker.
pub(super) struct OfWorker {
    /// Whether it ended as it should.
    pub(super) ended: bool,
    pub(super) last: Instant,
    iterations: u64,
    host: String,
    pub(super) failed: Option<String>,
    /// What the library says of its death.
    pub(super) died: Option<String>,
}

/// Whether a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    No,
    NotKnown,
    Yes,
}

impl OfWorker {
    /// Whether it has died, or was silent for as long as the timeout. One that has ended by itself, or has shown since then
    /// that it lives, is not lost.
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

    /// Why the workers cannot go on together, where they cannot.
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

/// A message that waits, or of which a part is under way.
#[derive(Clone)]
struct Outgoing {
    /// Those that are needed sooner go first.
    needed: u32,
    words: Vec<u32>,
    sent: usize,
}

/// Puts a message behind those that are needed as soon, and behind one of which a part is under way.
fn put(waiting: &mut VecDeque<Outgoing>, message: Outgoing) {
    let goes_before = |other: &Outgoing| other.sent > 0 || other.needed <= message.needed;
    let place = waiting.iter().rposition(goes_before).map_or(0, |before| before + 1);
    waiting.insert(place, message);
}

/// A message whose head is here.
struct Arriving {
    what: u32,
    /// None of a message that is a head alone.
    body: Option<Moving>,
    /// So many of its words have come, and are among those that are acknowledged.
    counted: usize,
}

struct Messenger<'a> {
    library: &'a Library,
    shared: &'a Shared,
    /// To each worker, in the order in which they are needed.
    waiting: Vec<VecDeque<Outgoing>>,
    /// What the library has for each worker, in order.
    sent: Vec<VecDeque<Moving>>,
    /// What is under way to each worker.
    flows: Vec<Flow>,
    /// Of each worker, the words that have come and are not acknowledged yet.
    came: Vec<usize>,
    /// Of each worker, in the order in which it sent them.
    arriving: Vec<VecDeque<Arriving>>,
    begun: Instant,
    /// Of each worker, whether it has died.
    dead: Vec<bool>,
}

/// Begins the first library that can be, says so, and serves until it is told to end.
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
        // Nobody goes on with it, and a library that was begun does not survive being unloaded.
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
                // They count from its last sign of life, which came some time before it was stopped.
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

    /// Tells all that this worker ends, and sees to it that what was sent is gone.
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
        // All end at once now; a sign of life that comes after this is received, and the library has nothing left to do.
        self.drain()
    }

    /// Receives what the others send until all have said that they end.
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

    /// The other workers that live.
    fn others(&self) -> Vec<usize> {
        let others = 0..self.shared.facts.workers;
        others.filter(|other| *other != self.shared.facts.rank && !self.dead[*other]).collect()
    }

    /// What came of a call that was about a worker; none where it has died and the library goes on without it.
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
        // One that has said that it ends may be gone.
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

    /// Sends something short, past what waits.
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

    /// Whether anything is under way to others, or waits for that.
    fn is_sending(&self) -> bool {
        self.sent.iter().any(|sent| !sent.is_empty())
            || self.flows.iter().any(|flow| !flow.is_empty())
            || self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Sends what waits, as far as there is room on the way: a part to each worker in turn.
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

    /// Sends the next part of what waits for a worker; false where nothing does.
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

    /// Acknowledges what has come from a worker, once it is enough or all that was announced.
    fn acknowledge(&mut self, from: usize) -> Result<(), String> {
        let is_all = self.arriving[from].is_empty();
        if self.came[from] >= if is_all { 1 } else { ACKNOWLEDGED } {
            let words = std::mem::take(&mut self.came[from]) as u64;
            self.send_head(from, CAME, words | u64::from(self.micros()) << 32)?;
        }
        Ok(())
    }

    /// A clock for what is on its way, which wraps.
    fn micros(&self) -> u32 {
        self.begun.elapsed().as_micros() as u32
    }

    /// Receives what is there, forgets what is sent, and sends on; whether anything happened.
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

    /// Forgets what has been sent to a worker.
    fn forget_sent(&mut self, to: usize) -> Result<(), String> {
        while let Some(first) = self.sent[to].front_mut()
            && self.library.is_done(first)?
        {
            let sent = self.sent[to].pop_front().expect("it was there just now");
            self.shared.rooms.keep(sent.into_words());
        }
        Ok(())
    }

    /// Takes a step with what a worker sends, where there is one.
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
        // Signs of life come behind a long body, too.
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

/// This machine's name.
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
