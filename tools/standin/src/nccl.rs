//! NCCL, as far as the device calls it: workers of one process that join by an id, and sums over all of them.
//!
//! Like NCCL with non-blocking calls, a communicator executes requests later: a join is over once all have joined, and a sum
//! is put on its stream only by a query of the communicator's state. A sum then waits on its stream for the numbers of all
//! workers, however long that takes, and is left as it is if its own worker gives up. Workers add from the last to the
//! first, each with its own factor: not in the order of any tree.
//!
//! All devices share one memory here, so that two workers on one GPU, which NCCL refuses, are not detected.
#![allow(non_snake_case, reason = "the names are NCCL's")]

use crate::driver::here;
use crate::numbers::Numbers;
use crate::state::state;
use crate::stream::{Moment, Work};
use crate::{lock, memory};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

const CUDA_ERROR: u32 = 1;
const INVALID_ARGUMENT: u32 = 4;
const INVALID_USAGE: u32 = 5;
const IN_PROGRESS: u32 = 7;

const VERSION: c_int = 22_809;
const FLOAT: u32 = 7;
const ON_THE_HOST: u32 = 1;

/// Smaller numbers are NCCL's own operations.
const OPERATIONS: u32 = 5;

const MAGIC: u32 = 0xcafe_beef;

type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;
type Outcome<T = ()> = Result<T, u32>;

/// State shared by the workers that join by one id.
struct Meeting {
    joined: Vec<bool>,
    /// By the number of the sum.
    sums: BTreeMap<u64, Sum>,
}

/// A sum that not all workers have taken yet.
struct Sum {
    /// By worker: its numbers, times its factor.
    numbers: Vec<Option<Vec<f32>>>,
    /// By worker: the moment at which it continues.
    moments: Vec<Arc<Moment>>,
    taken: usize,
}

impl Sum {
    fn of(workers: usize) -> Sum {
        let moments = (0..workers).map(|_| Arc::default()).collect();
        Sum { numbers: vec![None; workers], moments, taken: 0 }
    }

    /// Sum over all workers; `None` if the numbers of one are missing.
    fn whole(&self) -> Option<Vec<f32>> {
        let mut all = self.numbers.iter().rev();
        let mut sum = all.next()?.clone()?;
        for numbers in all {
            sum.iter_mut().zip(numbers.as_ref()?).for_each(|(sum, number)| *sum += number);
        }
        Some(sum)
    }
}

/// A worker's place in a meeting.
struct Communicator {
    meeting: Arc<Mutex<Meeting>>,
    rank: usize,
    /// Number of sums so far.
    sums: u64,
    /// Requested sums that are not on their streams yet.
    asked: Vec<Asked>,
    factors: BTreeMap<u32, f32>,
    operations: u32,
}

struct Asked {
    number: u64,
    place: (u64, u64),
    factor: f32,
    stream: usize,
}

static MEETINGS: Mutex<BTreeMap<u64, Arc<Mutex<Meeting>>>> = Mutex::new(BTreeMap::new());
static COMMUNICATORS: Mutex<BTreeMap<usize, Communicator>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// `true` if this thread has begun a group.
    static GROUP: Cell<bool> = const { Cell::new(false) };
}

/// Id that worker 0 sends to the others.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId {
    number: u64,
    rest: [u8; 120],
}

/// The first fields of a configuration.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

fn of<T>(handle: usize, get: impl FnOnce(&mut Communicator) -> Outcome<T>) -> Outcome<T> {
    lock(&COMMUNICATORS).get_mut(&handle).map_or(Err(INVALID_ARGUMENT), get)
}

impl Communicator {
    fn has_joined(&self) -> bool {
        lock(&self.meeting).joined.iter().all(|joined| *joined)
    }

    /// Puts requested sums on their streams; returns `false` if there were none.
    fn enqueue(&mut self) -> Outcome<bool> {
        let asked = std::mem::take(&mut self.asked);
        let is_some = !asked.is_empty();
        for Asked { number, place, factor, stream } in asked {
            let (meeting, rank) = (Arc::clone(&self.meeting), self.rank);
            let moment = {
                let mut meeting = lock(&meeting);
                let workers = meeting.joined.len();
                let sum = meeting.sums.entry(number).or_insert_with(|| Sum::of(workers));
                Arc::clone(&sum.moments[rank])
            };
            let (own, taken) = (Arc::clone(&meeting), meeting);
            let give = move || give(&mut lock(&own), (number, rank), place, factor);
            let take = move || take(&mut lock(&taken), number, place);
            let works = [Work::Compute(Box::new(give)), Work::Wait(moment), Work::Compute(Box::new(take))];
            let mut state = state();
            works.into_iter().try_for_each(|work| state.enqueue(stream, work)).map_err(|_| CUDA_ERROR)?;
        }
        Ok(is_some)
    }
}

/// Adds a worker's numbers; after the last worker's, all continue.
fn give(
    meeting: &mut Meeting,
    (number, rank): (u64, usize),
    place: (u64, u64),
    factor: f32,
) -> Result<(), String> {
    let Some(sum) = meeting.sums.get_mut(&number) else { return Ok(()) };
    // SAFETY: other accesses to the numbers meanwhile are the fault of the device, as they would be on a GPU.
    let mut numbers = unsafe { Numbers::F32.read(place)? };
    numbers.iter_mut().for_each(|number| *number *= factor);
    if let Some(other) = sum.numbers.iter().flatten().find(|other| other.len() != numbers.len()) {
        return Err(format!("workers sum {} and {} numbers", other.len(), numbers.len()));
    }
    sum.numbers[rank] = Some(numbers);
    if sum.numbers.iter().all(Option::is_some) {
        sum.moments.iter().for_each(|moment| moment.happen());
    }
    Ok(())
}

/// Replaces a worker's own numbers by the sum; a sum that was given up leaves garbage.
fn take(meeting: &mut Meeting, number: u64, place: (u64, u64)) -> Result<(), String> {
    let Some(sum) = meeting.sums.get_mut(&number) else { return Ok(()) };
    let numbers = sum.whole().unwrap_or_else(|| vec![f32::NAN; (place.1 / 4) as usize]);
    // SAFETY: as in `give`.
    unsafe { Numbers::F32.write(place, &numbers)? };
    sum.taken += 1;
    if sum.taken == sum.moments.len() {
        meeting.sums.remove(&number);
    }
    Ok(())
}

calls! {
    fn ncclGetVersion(version: Place<'_, c_int>) {
        version.ok_or(INVALID_ARGUMENT)?.write(VERSION);
        Ok(())
    }

    fn ncclGetUniqueId(id: Place<'_, UniqueId>) {
        let mut meetings = lock(&MEETINGS);
        let number = meetings.last_key_value().map_or(1, |(last, _)| last + 1);
        meetings.insert(number, Arc::new(Mutex::new(Meeting { joined: Vec::new(), sums: BTreeMap::new() })));
        id.ok_or(INVALID_ARGUMENT)?.write(UniqueId { number, rest: [0; 120] });
        Ok(())
    }

    fn ncclCommInitRankConfig(
        communicator: Place<'_, usize>, workers: c_int, id: UniqueId, rank: c_int, config: Option<&Config>,
    ) {
        here().map_err(|_| CUDA_ERROR)?;
        let config = config.filter(|config| config.magic == MAGIC).ok_or(INVALID_ARGUMENT)?;
        if config.blocking != 0 || config.size < size_of::<Config>() || config.version < 21_400 {
            return Err(INVALID_ARGUMENT);
        }
        let [workers, rank] = [workers, rank].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let meeting = lock(&MEETINGS).get(&id.number).cloned().ok_or(INVALID_ARGUMENT)?;
        let mut common = lock(&meeting);
        if common.joined.is_empty() {
            common.joined = vec![false; workers.min(1 << 16)];
        }
        let is_free = common.joined.len() == workers && common.joined.get(rank) == Some(&false);
        if !is_free {
            return Err(INVALID_USAGE);
        }
        common.joined[rank] = true;
        drop(common);
        let handle = state().handle();
        let (asked, factors) = (Vec::new(), BTreeMap::new());
        let own = Communicator { meeting, rank, sums: 0, asked, factors, operations: OPERATIONS };
        lock(&COMMUNICATORS).insert(handle, own);
        communicator.ok_or(INVALID_ARGUMENT)?.write(handle);
        Err(IN_PROGRESS)
    }

    fn ncclCommGetAsyncError(communicator: usize, found: Place<'_, u32>) {
        let is_ready = of(communicator, |own| Ok(!own.enqueue()? && own.has_joined()))?;
        found.ok_or(INVALID_ARGUMENT)?.write(if is_ready { 0 } else { IN_PROGRESS });
        Ok(())
    }

    fn ncclRedOpCreatePreMulSum(
        operation: Place<'_, u32>, factor: Option<&f32>, kind: u32, residence: u32, communicator: usize,
    ) {
        let factor = factor.filter(|_| (kind, residence) == (FLOAT, ON_THE_HOST)).ok_or(INVALID_ARGUMENT)?;
        let number = of(communicator, |own| {
            if !own.asked.is_empty() || !own.has_joined() {
                return Err(INVALID_USAGE);
            }
            own.factors.insert(own.operations, *factor);
            own.operations += 1;
            Ok(own.operations - 1)
        })?;
        operation.ok_or(INVALID_ARGUMENT)?.write(number);
        Ok(())
    }

    fn ncclRedOpDestroy(operation: u32, communicator: usize) {
        of(communicator, |own| own.factors.remove(&operation).map(|_| ()).ok_or(INVALID_ARGUMENT))
    }

    fn ncclGroupStart() {
        if GROUP.replace(true) { Err(INVALID_USAGE) } else { Ok(()) }
    }

    fn ncclGroupEnd() {
        Err(if GROUP.replace(false) { IN_PROGRESS } else { INVALID_USAGE })
    }

    fn ncclAllReduce(
        from: u64, to: u64, count: usize, kind: u32, operation: u32, communicator: usize, stream: usize,
    ) {
        here().map_err(|_| CUDA_ERROR)?;
        let place = (from, 4 * count as u64);
        let is_sound = from == to && kind == FLOAT && memory::device(place.0, place.1).is_ok();
        if !is_sound || !GROUP.get() {
            return Err(INVALID_ARGUMENT);
        }
        of(communicator, |own| {
            let factor = *own.factors.get(&operation).ok_or(INVALID_ARGUMENT)?;
            own.asked.push(Asked { number: own.sums, place, factor, stream });
            own.sums += 1;
            Ok(())
        })
    }

    fn ncclCommAbort(communicator: usize) {
        let own = lock(&COMMUNICATORS).remove(&communicator).ok_or(INVALID_ARGUMENT)?;
        let meeting = lock(&own.meeting);
        meeting.sums.values().for_each(|sum| sum.moments[own.rank].happen());
        Ok(())
    }

    fn ncclCommDestroy(communicator: usize) {
        let own = lock(&COMMUNICATORS).remove(&communicator).ok_or(INVALID_ARGUMENT)?;
        if own.asked.is_empty() { Ok(()) } else { Err(INVALID_USAGE) }
    }
}

/// Name of a code.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        0 => c"no error",
        CUDA_ERROR => c"unhandled cuda error",
        2 => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// Text about the last error.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    c"what the name says".as_ptr()
}
