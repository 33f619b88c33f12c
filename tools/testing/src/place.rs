//! Addresses for a random schedule: first fit over the order of commands, with a random hole now and then.

use crate::Random;

/// Bytes of the pool for a live interval. Drafts of one group lie as their tensor does in one place.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// Tensor; `None` for a workspace.
    pub(super) tensor: Option<usize>,
    /// First byte, from the start of the group's place.
    pub(super) first: u64,
    pub(super) bytes: u64,
    pub(super) group: usize,
    pub(super) opens: Option<usize>,
    /// Commands that read or write it; later its `closes`.
    pub(super) users: Vec<usize>,
    /// Last writer.
    pub(super) writer: Option<usize>,
}

/// The commands that must have ended before each command starts.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    /// Number of commands of each stream, by command.
    before: Vec<[u32; 3]>,
    /// Stream of each command, and the number of that stream's commands that have ended when it has.
    own: Vec<(usize, u32)>,
    last: [Option<usize>; 3],
}

impl Clocks {
    /// Adds a command; returns the waits that it needs, without those that others imply.
    pub(super) fn add(&mut self, stream: usize, mut waits: Vec<usize>, random: &mut Random) -> Vec<usize> {
        waits.sort_unstable();
        waits.dedup();
        let mut clock = [0; 3];
        if let Some(last) = self.last[stream] {
            self.join(&mut clock, last);
        }
        let mut kept = Vec::new();
        for &wait in waits.iter().rev() {
            let (own_stream, own) = self.own[wait];
            if clock[own_stream] < own || random.percent(10) {
                kept.push(wait);
                self.join(&mut clock, wait);
            }
        }
        let own = self.last[stream].map_or(0, |last| self.own[last].1) + 1;
        self.last[stream] = Some(self.own.len());
        self.before.push(clock);
        self.own.push((stream, own));
        kept
    }

    /// Returns the last command of a stream.
    pub(super) fn last(&self, stream: usize) -> Option<usize> {
        self.last[stream]
    }

    fn join(&self, clock: &mut [u32; 3], command: usize) {
        for (mine, theirs) in clock.iter_mut().zip(self.before[command]) {
            *mine = (*mine).max(theirs);
        }
        let (stream, own) = self.own[command];
        clock[stream] = clock[stream].max(own);
    }

    /// Returns `true` if `a` has ended when `b` starts.
    pub(super) fn is_before(&self, a: usize, b: usize) -> bool {
        let (stream, own) = self.own[a];
        self.before[b][stream] >= own
    }

    fn all_ended(&self, closes: &[usize]) -> [u32; 3] {
        let mut ended = [0; 3];
        for &close in closes {
            let (stream, own) = self.own[close];
            ended[stream] = ended[stream].max(own);
        }
        ended
    }
}

/// A draft with its place.
struct Placed {
    start: u64,
    end: u64,
    opens: Option<usize>,
    ended: [u32; 3],
}

/// Returns the offset of every draft, and the pool that they need.
pub(super) fn place(
    drafts: &[Draft],
    clocks: &Clocks,
    alignment: u64,
    random: &mut Random,
) -> (Vec<u64>, u64) {
    let groups = drafts.iter().map(|d| d.group + 1).max().unwrap_or(0);
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); groups];
    drafts.iter().enumerate().for_each(|(i, draft)| members[draft.group].push(i));
    members.retain(|group| !group.is_empty());
    members.sort_by_key(|group| group.iter().map(|d| drafts[*d].opens).min());
    let mut offsets = vec![0; drafts.len()];
    let mut placed: Vec<Placed> = Vec::new();
    let (mut pool, mut latest, mut seen) = (0, [[0; 3]; 3], 0);
    for group in members {
        let opens = group.iter().map(|d| drafts[*d].opens).min().flatten().unwrap_or(0);
        for command in seen..opens {
            latest[clocks.own[command].0] = clocks.before[command];
        }
        seen = seen.max(opens);
        // A command that has ended for the latest command of every stream has ended for all that open from now on.
        let all = [0, 1, 2].map(|s| latest.iter().map(|clock| clock[s]).min().unwrap_or(0));
        placed.retain(|p| p.ended.iter().zip(all).any(|(ended, all)| *ended > all));
        let skip = if random.percent(20) { random.below(3) } else { 0 };
        let base = first_fit(&group, drafts, clocks, &placed, alignment, skip);
        for d in group {
            let draft = &drafts[d];
            let start = base + draft.first;
            (offsets[d], pool) = (start, pool.max(start + draft.bytes));
            let ended = clocks.all_ended(&draft.users);
            placed.push(Placed { start, end: start + draft.bytes, opens: draft.opens, ended });
        }
    }
    (offsets, pool)
}

/// Returns the lowest place without conflict for a whole group, after skipping some holes.
fn first_fit(
    group: &[usize],
    drafts: &[Draft],
    clocks: &Clocks,
    placed: &[Placed],
    alignment: u64,
    mut skip: u64,
) -> u64 {
    let ended_before = |ended: [u32; 3], opens: Option<usize>| {
        opens.is_some_and(|o| clocks.before[o].iter().zip(ended).all(|(c, e)| *c >= e))
    };
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for draft in group.iter().map(|d| &drafts[*d]).filter(|draft| draft.bytes > 0) {
        let ended = clocks.all_ended(&draft.users);
        for other in placed.iter().filter(|other| other.end > other.start) {
            if !ended_before(other.ended, draft.opens) && !ended_before(ended, other.opens) {
                // Bases strictly between these bounds would make the drafts share a byte.
                let from = (other.start + 1).saturating_sub(draft.first + draft.bytes);
                let until = other.end.saturating_sub(draft.first);
                taken.push((from, until));
            }
        }
    }
    taken.sort_unstable();
    let mut base = 0;
    for (from, until) in taken {
        if from > base {
            if skip == 0 {
                break;
            }
            skip -= 1;
        }
        base = base.max(until.next_multiple_of(alignment));
    }
    base
}
