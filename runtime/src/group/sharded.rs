//! The sharded parameter server: each piece is summed by its owner, over any message engine.
//!
//! To start a piece is to send one's own nodes of it to its owner. The owner pushes the nodes of all workers into the tree,
//! from left to right, and sends the root to all. Every worker whose range of virtual workers is one node of the tree sends
//! and receives (N - 1) / N of the numbers.

use super::messages::{HEAD, Head, Messages};
use super::rooms::Rooms;
use super::tree::{Node, TreeSum};
use super::{Group, GroupError, GroupFacts, Piece};
use bytemuck::{cast_slice, cast_vec};
use std::collections::{HashMap, VecDeque};

/// Words that identify the node that follows, and its count of numbers.
const NODE: usize = 5;

/// A group that exchanges messages.
pub(super) struct Sharded<M> {
    messages: M,
    /// By worker: messages that have come early.
    early: Vec<VecDeque<Vec<u32>>>,
    /// Number of times that pieces were forgotten.
    round: u32,
    /// By worker: number of messages of this round's pieces sent to it.
    sent: Vec<u32>,
    /// By worker: number of messages of this round's pieces that came from it.
    heard: Vec<u32>,
    /// Started pieces that this worker owns.
    own: Vec<Own>,
    /// `true` if a message has come, or a piece was started, since the pieces were examined.
    is_new: bool,
    /// Finished sums that were not requested yet, by number.
    summed: HashMap<u32, Vec<f32>>,
}

/// A piece that this worker sums.
struct Own {
    piece: Piece,
    /// Its own nodes of the piece.
    mine: TreeSum,
    /// Nodes of the workers before the next one.
    all: TreeSum,
    /// Worker whose nodes come next.
    next: usize,
}

impl<M: Messages> Sharded<M> {
    pub(super) fn new(messages: M) -> Sharded<M> {
        let workers = messages.facts().workers;
        Sharded {
            messages,
            early: (0..workers).map(|_| VecDeque::new()).collect(),
            round: 0,
            sent: vec![0; workers],
            heard: vec![0; workers],
            own: Vec::new(),
            is_new: false,
            summed: HashMap::new(),
        }
    }

    /// Sends a worker's words to another; they overtake messages of pieces.
    fn say(&mut self, to: usize, head: Head, words: &[u32]) -> Result<(), GroupError> {
        let head = head.words(self.round, self.sent[to]);
        self.messages.send(to, 0, [&head, words].concat())
    }

    /// Sends a message of a piece.
    fn send(&mut self, to: usize, piece: &Piece, message: Vec<u32>) -> Result<(), GroupError> {
        self.sent[to] = self.sent[to].wrapping_add(1);
        self.messages.send(to, piece.needed.saturating_add(1), message)
    }

    /// Waits for the message of a worker with this head, and sums meanwhile.
    fn receive(&mut self, from: usize, head: Head) -> Result<Vec<u32>, GroupError> {
        loop {
            self.serve()?;
            if let Some(message) = self.take(from, head) {
                return Ok(message);
            }
            self.hear(from, head)?;
        }
    }

    /// Waits for a message of any worker, as long as this one may still send the awaited message.
    fn hear(&mut self, awaited: usize, head: Head) -> Result<(), GroupError> {
        // Messages of no piece overtake earlier messages of pieces; their head holds the number of those.
        let is_next = |message: &&Vec<u32>| Head::is_next(message, self.round, self.heard[awaited]);
        if let Some(other) = self.early[awaited].iter().find(is_next) {
            return Err(self.out_of_step(awaited, head, other));
        }
        let (from, message) = self.messages.receive(awaited)?;
        self.keep(from, message)
    }

    /// Message of a worker with this head, if it has come.
    fn take(&mut self, from: usize, head: Head) -> Option<Vec<u32>> {
        let place = self.early[from].iter().position(|message| head.is_of(message, self.round))?;
        self.early[from].remove(place)
    }

    /// Keeps a message until it is requested. A worker sends the messages of its pieces in any order, each once.
    fn keep(&mut self, from: usize, message: Vec<u32>) -> Result<(), GroupError> {
        if Head::is_forgotten(&message, self.round) {
            return Ok(());
        }
        let is_again = |kept: &Vec<u32>| kept.get(..HEAD) == message.get(..HEAD);
        if Head::is_of_piece(&message) {
            if self.early[from].iter().any(is_again) {
                let there = format!("{} again", Head::in_words(&message));
                let here = "the same iteration".to_owned();
                return Err(GroupError::OutOfStep { rank: from, me: self.facts().rank, there, here });
            }
            self.heard[from] = self.heard[from].wrapping_add(1);
        }
        self.early[from].push_back(message);
        self.is_new = true;
        Ok(())
    }

    fn out_of_step(&self, rank: usize, head: Head, message: &[u32]) -> GroupError {
        let (there, here) = (Head::in_words(message), Head::in_words(&head.words(self.round, 0)));
        GroupError::OutOfStep { rank, me: self.facts().rank, there, here }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<M> {
        let GroupFacts { rank, workers, .. } = self.facts();
        (0..workers).filter(move |other| *other != rank)
    }

    /// Adds up the started pieces of this worker as far as their nodes have come, and sends their sums to all.
    fn serve(&mut self) -> Result<(), GroupError> {
        while let Some((from, message)) = self.messages.arrived() {
            self.keep(from, message)?;
        }
        if !std::mem::take(&mut self.is_new) {
            return Ok(());
        }
        let workers = self.facts().workers;
        for mut own in std::mem::take(&mut self.own) {
            self.add_up(&mut own)?;
            if own.next < workers {
                self.own.push(own);
            } else {
                self.tell_sum(own)?;
            }
        }
        Ok(())
    }

    /// Adds up a piece of this worker as far as its nodes have come.
    fn add_up(&mut self, own: &mut Own) -> Result<(), GroupError> {
        let GroupFacts { rank, workers, .. } = self.facts();
        let head = Head::Nodes(own.piece.number);
        while own.next < workers {
            if own.next == rank {
                own.mine.take_nodes().for_each(|(node, numbers)| own.all.push(node, numbers));
            } else {
                let Some(message) = self.take(own.next, head) else { return Ok(()) };
                let pushed = push_nodes(&message[HEAD..], &own.piece, &mut own.all, self.messages.rooms());
                pushed.ok_or_else(|| self.out_of_step(own.next, head, &[]))?;
                self.messages.rooms().keep(message);
            }
            own.next += 1;
        }
        Ok(())
    }

    /// Sends the sum of a piece of this worker to all.
    fn tell_sum(&mut self, Own { piece, mut all, .. }: Own) -> Result<(), GroupError> {
        if all.root().is_none() {
            return Err(self.out_of_step(self.facts().rank, Head::Sum(piece.number), &[]));
        }
        let (_, root) = all.take_nodes().next().expect("it has a root");
        all.into_rooms().for_each(|room| self.messages.rooms().keep(cast_vec(room)));
        let head = Head::Sum(piece.number).words(self.round, 0);
        let words: &[u32] = cast_slice(&root);
        self.others().try_for_each(|other| {
            let mut message = self.messages.rooms().empty(HEAD + words.len());
            message.extend(head);
            message.extend_from_slice(words);
            self.send(other, &piece, message)
        })?;
        self.summed.insert(piece.number, root);
        Ok(())
    }

    /// Waits for more nodes of a piece of this worker.
    fn hear_nodes(&mut self, number: u32) -> Result<(), GroupError> {
        let own = self.own.iter().find(|own| own.piece.number == number).expect("it was started");
        self.hear(own.next, Head::Nodes(number))
    }
}

/// A message with the nodes of a piece after its first words.
fn with_nodes(first: [u32; HEAD], piece: &Piece, mine: &TreeSum, rooms: &Rooms) -> Vec<u32> {
    let mut words = rooms.empty(HEAD + mine.nodes().count() * (NODE + piece.elements.len()));
    words.extend(first);
    for (Node { first, end }, numbers) in mine.nodes() {
        let numbers = &numbers[piece.elements.clone()];
        words.extend([
            first as u32,
            (first >> 32) as u32,
            end as u32,
            (end >> 32) as u32,
            numbers.len() as u32,
        ]);
        words.extend_from_slice(cast_slice(numbers));
    }
    words
}

/// Pushes received nodes into a tree; `None` if they are not the nodes of this piece that come next in it.
fn push_nodes(mut words: &[u32], piece: &Piece, all: &mut TreeSum, rooms: &Rooms) -> Option<()> {
    let mut next = all.nodes().last().map_or(0, |(node, _)| node.end);
    while !words.is_empty() {
        let [first, first_high, end, end_high, length] = *words.first_chunk::<NODE>()?;
        let whole = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let node = Node { first: whole(first, first_high), end: whole(end, end_high) };
        let numbers = words.get(NODE..NODE + length as usize)?;
        let fits = node.first == next && node.end > node.first && node.end <= all.leaves();
        if !fits || numbers.len() != piece.elements.len() {
            return None;
        }
        next = node.end;
        if !all.add(node, cast_slice(numbers)) {
            all.push(node, cast_vec(rooms.copy(numbers)));
        }
        words = &words[NODE + numbers.len()..];
    }
    Some(())
}

impl<M: Messages> Group for Sharded<M> {
    fn facts(&self) -> GroupFacts {
        self.messages.facts()
    }

    fn is_first_left(&mut self) -> bool {
        self.messages.is_first_left()
    }

    fn start(&mut self, piece: &Piece, mine: &TreeSum) -> Result<(), GroupError> {
        if piece.owner != self.facts().rank {
            let head = Head::Nodes(piece.number).words(self.round, 0);
            let message = with_nodes(head, piece, mine, self.messages.rooms());
            return self.send(piece.owner, piece, message);
        }
        let (mut own, all) = (TreeSum::over(mine.leaves()), TreeSum::over(mine.leaves()));
        for (node, numbers) in mine.nodes() {
            let words = cast_slice(&numbers[piece.elements.clone()]);
            own.push(node, cast_vec(self.messages.rooms().copy(words)));
        }
        self.is_new = true;
        self.own.push(Own { piece: piece.clone(), mine: own, all, next: 0 });
        Ok(())
    }

    fn finish(&mut self, piece: &Piece, sum: &mut [f32]) -> Result<(), GroupError> {
        if piece.owner == self.facts().rank {
            let own = loop {
                self.serve()?;
                if let Some(own) = self.summed.remove(&piece.number) {
                    break own;
                }
                self.hear_nodes(piece.number)?;
            };
            sum.copy_from_slice(&own);
            self.messages.rooms().keep(cast_vec(own));
            return Ok(());
        }
        let head = Head::Sum(piece.number);
        let message = self.receive(piece.owner, head)?;
        let numbers = &message[HEAD..];
        if numbers.len() != sum.len() {
            return Err(self.out_of_step(piece.owner, head, &[]));
        }
        sum.copy_from_slice(cast_slice(numbers));
        self.messages.rooms().keep(message);
        Ok(())
    }

    fn advance(&mut self) -> Result<(), GroupError> {
        self.serve()
    }

    fn look(&mut self) -> Result<(), GroupError> {
        self.serve()?;
        self.messages.lost().map_or(Ok(()), Err)
    }

    fn forget(&mut self) {
        self.round += 1;
        self.own.clear();
        self.summed.clear();
        self.early.iter_mut().for_each(|early| early.retain(|message| !Head::is_of_piece(message)));
        self.sent.fill(0);
        self.heard.fill(0);
    }

    fn agree(&mut self, mine: &[u32]) -> Result<Vec<Vec<u32>>, GroupError> {
        for other in self.others() {
            self.say(other, Head::Agreement, mine)?;
        }
        let GroupFacts { rank, workers, .. } = self.facts();
        let said = (0..workers).map(|other| {
            if other == rank {
                return Ok(mine.to_vec());
            }
            self.receive(other, Head::Agreement).map(|message| message[HEAD..].to_vec())
        });
        said.collect()
    }

    fn at(&mut self, iterations: u64) {
        self.messages.at(iterations);
    }

    fn broadcast(&mut self, words: &mut Vec<u32>) -> Result<(), GroupError> {
        if self.facts().rank == 0 {
            return self.others().try_for_each(|other| self.say(other, Head::Broadcast, words));
        }
        *words = self.receive(0, Head::Broadcast)?.split_off(HEAD);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, PoisonError};

    /// One of two workers between which messages of no piece overtake everything.
    struct Overtaking {
        rank: usize,
        rooms: Rooms,
        to: [Arc<Mutex<Vec<Vec<u32>>>>; 2],
    }

    impl Messages for Overtaking {
        fn facts(&self) -> GroupFacts {
            GroupFacts { engine: "overtaking", rank: self.rank, workers: 2 }
        }

        fn rooms(&self) -> &Rooms {
            &self.rooms
        }

        fn send(&mut self, to: usize, _: u32, message: Vec<u32>) -> Result<(), GroupError> {
            self.to[to].lock().unwrap_or_else(PoisonError::into_inner).push(message);
            Ok(())
        }

        fn arrived(&mut self) -> Option<(usize, Vec<u32>)> {
            let mut here = self.to[self.rank].lock().unwrap_or_else(PoisonError::into_inner);
            let place = here.iter().position(|message| !Head::is_of_piece(message)).unwrap_or(0);
            (!here.is_empty()).then(|| (1 - self.rank, here.remove(place)))
        }

        fn lost(&mut self) -> Option<GroupError> {
            None
        }

        fn receive(&mut self, awaited: usize) -> Result<(usize, Vec<u32>), GroupError> {
            self.arrived().ok_or(GroupError::Lost { rank: awaited })
        }
    }

    /// A worker's words may come before its earlier messages of pieces. It is out of step only if all of these have come,
    /// and the awaited message is not among them.
    #[test]
    fn a_worker_whose_word_overtakes_its_pieces_is_not_out_of_step() {
        let piece = |number| Piece { number, owner: 0, needed: number, elements: 0..1 };
        let numbers = |leaf: u64| {
            let mut mine = TreeSum::over(2);
            mine.push(Node::leaf(leaf), vec![1.0 + leaf as f32]);
            mine
        };
        let to = [Arc::default(), Arc::default()];
        let worker = |rank| Sharded::new(Overtaking { rank, rooms: Rooms::default(), to: to.clone() });
        let [mut first, mut second] = [0, 1].map(worker);
        for number in 0..3 {
            second.start(&piece(number), &numbers(1)).expect("it waits for nobody");
        }
        second.say(0, Head::Agreement, &[7]).expect("it waits for nobody");
        for number in 0..4 {
            first.start(&piece(number), &numbers(0)).expect("it waits for nobody");
        }
        let mut sum = [0.0];
        for number in [2, 0, 1] {
            first.finish(&piece(number), &mut sum).expect("it has come behind the word");
            assert_eq!(sum, [3.0]);
        }
        let error = first.finish(&piece(3), &mut sum).expect_err("it was not sent");
        let words = error.to_string();
        assert_eq!(words, "worker 1 is at an agreement, where worker 0 is at the nodes of piece 3");
        assert_eq!(first.receive(1, Head::Agreement).expect("it has come")[HEAD..], [7]);
    }
}
