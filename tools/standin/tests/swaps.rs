//! Swapping next to a compute stream with another owner, on the stand-in: every wait of a schedule is kept in any order of
//! the streams; an iteration that ends early leaves nothing behind; and refusals of the driver are reported.
//!
//! The compute stream is the default stream, which is PyTorch's. There the test fills device memory in place of kernels.

#[allow(dead_code, reason = "other tests have more words with it")]
#[path = "schedules/library.rs"]
mod library;

use library::{StandIn, child};
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Stream;
use plimsoll_runtime::Error;
use plimsoll_runtime::cuda::swaps::{PinnedSlab, Progress, SwapCommand, SwapCopy, SwapStreams, Swaps};
use std::sync::Arc;

const DEFAULT_STREAM: usize = 0;

/// Bytes of a tensor.
const SIZE: usize = 4096;

/// A pool of three tensors, a slab of the same size, and the streams.
struct Machine {
    pool: u64,
    slab: PinnedSlab,
    streams: Arc<SwapStreams>,
    library: StandIn,
}

impl Machine {
    fn new() -> Option<Machine> {
        let library = StandIn::open()?;
        let streams = SwapStreams::open(0, &library.options().libraries).expect("the stand-in has a device");
        let slab = streams.pinned(Bytes(3 * SIZE as u64)).expect("there is memory");
        let pool = library.allocate(3 * SIZE);
        Some(Machine { pool, slab, streams, library })
    }

    fn copy(&self, stream: Stream, place: usize, slot: usize, needs: Progress) -> SwapCommand {
        let (device, host) = (self.pool + (place * SIZE) as u64, self.slab.address() + slot * SIZE);
        SwapCommand { stream, needs, copy: SwapCopy { device, host, length: SIZE } }
    }

    /// Sets a tensor's place in the pool to one byte value, on the compute stream.
    fn fill(&self, place: usize, byte: u8) {
        self.fill_on(DEFAULT_STREAM, place, byte);
    }

    fn fill_on(&self, stream: usize, place: usize, byte: u8) {
        self.library.fill(self.pool + (place * SIZE) as u64, byte, SIZE, stream);
    }

    /// Sets all places in the pool and all slots in the slab to one byte value, which erases any earlier iteration.
    fn forget(&self, byte: u8) {
        (0..3).for_each(|place| self.fill(place, byte));
        self.pool();
        // SAFETY: the slab has this many bytes, and the only stream that may use it has just been waited for.
        unsafe { std::ptr::write_bytes(self.slab.address() as *mut u8, byte, 3 * SIZE) };
    }

    /// Byte value of each place in the pool, which must be uniform.
    fn pool(&self) -> Vec<u8> {
        let bytes = self.library.read(self.pool, 3 * SIZE, DEFAULT_STREAM);
        let places: Vec<&[u8]> = bytes.chunks(SIZE).collect();
        places.iter().for_each(|place| assert!(place.iter().all(|byte| byte == &place[0]), "a torn tensor"));
        places.iter().map(|place| place[0]).collect()
    }
}

fn compute(needs: Progress) -> SwapCommand {
    SwapCommand { stream: Stream::Compute, needs, copy: SwapCopy::default() }
}

/// Writes a tensor, swaps it out, overwrites it with a second, and brings the first back to a different place and then to
/// its own.
fn commands(machine: &Machine) -> Vec<SwapCommand> {
    let copy = |stream, place, slot, needs| machine.copy(stream, place, slot, needs);
    vec![
        compute([0, 0, 0]),                      // place 0 := a
        copy(Stream::Offload, 0, 0, [1, 0, 0]),  // a goes out
        compute([1, 1, 0]),                      // place 0 := b
        copy(Stream::Prefetch, 1, 0, [2, 1, 0]), // a is prefetched to place 1
        copy(Stream::Offload, 0, 1, [2, 1, 0]),  // b goes out
        compute([2, 1, 1]),                      // place 1 := a, unchanged: it is read here
        compute([3, 2, 1]),                      // place 0 := c
        copy(Stream::Prefetch, 2, 1, [3, 2, 1]), // b is prefetched to place 2
        compute([4, 2, 2]),                      // the end
    ]
}

/// Computes of an iteration whose byte values begin with `first`: each waits as its command says.
fn compute_all(
    machine: &Machine,
    swaps: &mut Swaps,
    stream: usize,
    first: u8,
    commands: &[SwapCommand],
) -> Result<(), Error> {
    let fills = [Some(0), Some(1), None, Some(2), None];
    let computes = commands.iter().filter(|command| command.stream == Stream::Compute);
    for (command, fills) in computes.zip(fills) {
        swaps.wait(command.needs[1], command.needs[2])?;
        swaps.began()?;
        if let Some(more) = fills {
            machine.fill_on(stream, 0, first + more);
        }
        swaps.computed()?;
    }
    swaps.finish()
}

/// Runs one iteration, whose byte values begin with `first`.
fn iterate(machine: &Machine, swaps: &mut Swaps, first: u8, is_timed: bool) -> Result<(), Error> {
    // SAFETY: the default stream lives; pool and slab outlive the iteration, which is waited for.
    unsafe { swaps.start(DEFAULT_STREAM, is_timed) }?;
    compute_all(machine, swaps, DEFAULT_STREAM, first, &commands(machine))
}

/// The graph of an iteration whose byte values begin with 10, captured on this stream; or the status of a refused capture.
fn graph(
    machine: &Machine,
    swaps: &mut Swaps,
    stream: usize,
    commands: &[SwapCommand],
) -> Result<usize, u32> {
    machine.library.captured(stream, || {
        // SAFETY: the stream lives; pool and slab outlive the graph's launches, which are waited for.
        unsafe { swaps.start_captured(stream) }.expect("nothing is refused");
        compute_all(machine, swaps, stream, 10, commands).expect("nothing is refused");
    })
}

#[test]
fn all_waits_are_kept_in_whatever_order_the_streams_run() {
    let Some(machine) = Machine::new() else { return };
    let mut swaps = Swaps::new(&machine.streams, &commands(&machine)).expect("events");
    assert_eq!(swaps.count(), 4);
    for order in 0..30 {
        machine.library.order(order);
        let first = 10 + 3 * order as u8;
        iterate(&machine, &mut swaps, first, order % 3 == 0).expect("nothing is refused");
        assert_eq!(machine.pool(), [first + 2, first, first + 1], "order {order}");
    }
    machine.library.order(0);
    for seed in 1..20 {
        machine.library.delays(seed);
        let first = 100 + 3 * seed as u8;
        iterate(&machine, &mut swaps, first, false).expect("nothing is refused");
        assert_eq!(machine.pool(), [first + 2, first, first + 1], "seed {seed}");
    }
    machine.library.delays(0);
}

/// Without one of the schedule's waits, some order of the streams gives different bytes, also in a captured iteration.
#[test]
fn each_wait_is_needed() {
    let Some(machine) = Machine::new() else { return };
    let stream = machine.library.stream();
    for ((command, other), is_captured) in
        [(1, 0), (2, 1), (6, 1)].into_iter().flat_map(|wait| [(wait, false), (wait, true)])
    {
        let mut faulty = commands(&machine);
        faulty[command].needs[other] = 0;
        let mut swaps = Swaps::new(&machine.streams, &faulty).expect("events");
        let graph =
            is_captured.then(|| graph(&machine, &mut swaps, stream, &faulty).expect("it can be captured"));
        let seen = (1..60).any(|order| {
            machine.library.order(0);
            machine.forget(90);
            machine.library.order(order);
            match graph {
                Some(graph) => machine.library.launch(graph, DEFAULT_STREAM),
                None => {
                    // SAFETY: as in `iterate`.
                    unsafe { swaps.start(DEFAULT_STREAM, false) }.expect("nothing is refused");
                    let run = compute_all(&machine, &mut swaps, DEFAULT_STREAM, 10, &faulty);
                    run.expect("nothing is refused");
                }
            }
            let bytes = machine.library.read(machine.pool, 3 * SIZE, DEFAULT_STREAM);
            bytes.chunks(SIZE).zip([12, 10, 11]).any(|(place, byte)| place.iter().any(|b| *b != byte))
        });
        machine.library.order(0);
        assert!(seen, "command {command} need not wait for stream {other}, captured: {is_captured}");
    }
}

#[test]
fn a_captured_iteration_keeps_all_waits_each_time_it_is_launched() {
    let Some(machine) = Machine::new() else { return };
    let stream = machine.library.stream();
    let mut swaps = Swaps::new(&machine.streams, &commands(&machine)).expect("events");
    iterate(&machine, &mut swaps, 4, true).expect("nothing is refused");
    let graph = graph(&machine, &mut swaps, stream, &commands(&machine)).expect("it can be captured");
    assert_eq!(machine.pool(), [6, 4, 5], "nothing runs while it is captured");
    for order in 0..30 {
        machine.forget(90);
        machine.library.order(order);
        machine.library.launch(graph, DEFAULT_STREAM);
        // Later work of the launching stream comes after the graph.
        if order % 2 == 0 {
            machine.fill(1, 77);
        }
        let expected = if order % 2 == 0 { [12, 77, 11] } else { [12, 10, 11] };
        assert_eq!(machine.pool(), expected, "order {order}");
    }
    machine.library.order(0);
    for seed in 1..20 {
        machine.library.delays(seed);
        machine.forget(91);
        machine.library.launch(graph, stream);
        machine.library.read(machine.pool, SIZE, stream);
        assert_eq!(machine.pool(), [12, 10, 11], "seed {seed}");
    }
    machine.library.delays(0);
    iterate(&machine, &mut swaps, 40, false).expect("the same copies command by command");
    assert_eq!(machine.pool(), [42, 40, 41]);
}

#[test]
fn a_capture_that_ends_early_leaves_nothing_behind() {
    const INVALIDATED: u32 = 901;
    const UNJOINED: u32 = 904;
    let Some(machine) = Machine::new() else { return };
    let stream = machine.library.stream();
    let mut swaps = Swaps::new(&machine.streams, &commands(&machine)).expect("events");
    iterate(&machine, &mut swaps, 1, false).expect("nothing is refused");
    // Aborted halfway: the streams are joined, so that the capture ends, and nothing in it ever runs.
    let ended = machine.library.captured(stream, || {
        // SAFETY: as in `graph`; it is never launched.
        unsafe { swaps.start_captured(stream) }.expect("nothing is refused");
        machine.fill_on(stream, 0, 50);
        swaps.computed().expect("nothing is refused");
        swaps.abort();
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(machine.pool(), [3, 1, 2]);
    iterate(&machine, &mut swaps, 4, false).expect("nothing is refused");
    assert_eq!(machine.pool(), [6, 4, 5]);
    // Ended without its joins: the driver refuses the capture.
    let ended = machine.library.captured(stream, || {
        // SAFETY: as above.
        unsafe { swaps.start_captured(stream) }.expect("nothing is refused");
        swaps.computed().expect("nothing is refused");
    });
    assert_eq!(ended, Err(UNJOINED));
    // Refusals within a capture are reported, and the next iteration is complete.
    for call in [c"cuMemcpyDtoHAsync_v2", c"cuEventRecord", c"cuStreamWaitEvent"] {
        let ended = machine.library.captured(stream, || {
            machine.library.answer(call, 1, 700);
            // SAFETY: as above.
            let started = unsafe { swaps.start_captured(stream) };
            let refused = started.and_then(|()| (0..5).try_for_each(|_| swaps.computed()));
            let error = refused.expect_err("a call was refused").to_string();
            assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
            swaps.abort();
        });
        // A stream that did not join the capture cannot be joined back.
        assert!(matches!(ended, Ok(_) | Err(INVALIDATED)), "{call:?}: {ended:?}");
        iterate(&machine, &mut swaps, 7, false).expect("nothing is refused");
        assert_eq!(machine.pool(), [9, 7, 8]);
    }
}

#[test]
fn timed_iterations_have_spans_in_the_order_of_the_waits() {
    let Some(machine) = Machine::new() else { return };
    let mut swaps = Swaps::new(&machine.streams, &commands(&machine)).expect("events");
    iterate(&machine, &mut swaps, 1, false).expect("nothing is refused");
    assert_eq!(swaps.spans(), Ok(None), "it was not timed");
    iterate(&machine, &mut swaps, 4, true).expect("nothing is refused");
    let [compute, out, back] = swaps.spans().expect("nothing is refused").expect("it was timed");
    assert_eq!((compute.len(), out.len(), back.len()), (5, 2, 2));
    assert!(compute.iter().chain(&out).chain(&back).all(|(start, end)| start <= end && *start >= 0.0));
    assert!(compute[0].1 <= out[0].0 && out[0].1 <= compute[1].0, "{compute:?} {out:?}");
    assert!(out[1].1 <= back[1].0 && back[1].1 <= compute[4].0, "{out:?} {back:?}");
    assert_eq!(swaps.spans(), Ok(None), "they are told once");
    iterate(&machine, &mut swaps, 7, false).expect("nothing is refused");
    assert_eq!(machine.pool(), [9, 7, 8]);
}

#[test]
fn an_iteration_that_ends_early_copies_no_more_and_the_next_one_is_whole() {
    let Some(machine) = Machine::new() else { return };
    let mut swaps = Swaps::new(&machine.streams, &commands(&machine)).expect("events");
    for order in 0..7 {
        machine.library.order(order);
        iterate(&machine, &mut swaps, 1, false).expect("nothing is refused");
        // SAFETY: as in `iterate`.
        unsafe { swaps.start(DEFAULT_STREAM, order % 2 == 0) }.expect("nothing is refused");
        machine.fill(0, 50);
        swaps.computed().expect("nothing is refused");
        swaps.abort();
        // Later work of the compute stream is behind the copy that was under way.
        machine.fill(0, 60);
        assert_eq!(machine.pool(), [60, 1, 2], "order {order}");
        iterate(&machine, &mut swaps, 4, false).expect("nothing is refused");
        assert_eq!(machine.pool(), [6, 4, 5], "order {order}");
    }
    machine.library.order(0);
}

#[test]
fn what_the_driver_refuses_comes_out_and_memory_is_given_back() {
    let Some(machine) = Machine::new() else { return };
    for call in [c"cuMemcpyDtoHAsync_v2", c"cuMemcpyHtoDAsync_v2", c"cuEventRecord", c"cuStreamWaitEvent"] {
        let mut swaps = Swaps::new(&machine.streams, &commands(&machine)).expect("events");
        machine.library.answer(call, 1, 700);
        let error = iterate(&machine, &mut swaps, 1, false).expect_err("a call was refused").to_string();
        assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        iterate(&machine, &mut swaps, 4, false).expect("the refusal is told once");
        assert_eq!(machine.pool(), [6, 4, 5]);
    }
    for (code, says) in [(2, "pinned host memory"), (801, "cannot be page-locked")] {
        machine.library.answer(c"cuMemHostRegister_v2", 0, code);
        let error = machine.streams.pinned(Bytes(4096)).err().expect("it was refused").to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(machine.streams.pinned(Bytes(1 << 60)).is_err(), "no host has that much");
    let slab = machine.streams.pinned(Bytes::ZERO).expect("nothing is page-locked");
    assert_eq!((slab.address(), slab.bytes()), (0, Bytes::ZERO));
    let calls =
        machine.library.calls_of(|| drop(machine.streams.pinned(Bytes(4096)).expect("there is memory")));
    assert_eq!((calls["cuMemHostRegister_v2"], calls["cuMemHostUnregister"]), (1, 1));
}

#[test]
fn two_ways_that_share_the_link_are_told_from_two_that_do_not() {
    const RATE: u64 = 64 << 20; // a copy takes 64 ms, far longer than this machine's own work
    let Some(machine) = Machine::new() else { return };
    for (is_shared, least, most) in [(false, 1.5, 2.2), (true, 0.7, 1.2)] {
        machine.library.link(RATE, is_shared);
        let rates = machine.streams.rates(Bytes(4 << 20)).expect("nothing is refused");
        let shares = rates.together.iter().zip(&rates.alone).map(|(together, alone)| together.0 / alone.0);
        let shares: f64 = shares.sum();
        assert!((least..=most).contains(&shares), "shared: {is_shared}, {shares}: {rates:?}");
        let of_link = rates.alone.map(|alone| alone.0 / RATE as f64);
        assert!(of_link.iter().all(|share| (0.5..1.01).contains(share)), "{of_link:?}");
    }
    machine.library.link(0, false);
}

/// The driver reads the variable once per process, so each value has a separate process: this test again.
#[test]
fn a_slice_has_its_own_memory_and_name_and_nobody_elses_processes() {
    const CHILD: &str = "PLIMSOLL_STANDIN_CHILD";
    let Some(library) = StandIn::open() else { return };
    if std::env::var_os(CHILD).is_some() {
        let survey = plimsoll_runtime::cuda::survey().expect("the stand-in has a device");
        let (facts, health) = &survey.devices[0];
        let (memory, others) = (health.memory_bytes.best, health.others.len());
        return println!("{} of {}, {memory:?}, {others} others", facts.name, facts.memory);
    }
    for (value, expected) in [
        ("0", "Plimsoll stand-in of 4 GiB, Some(Bytes(4294967296)), 1 others"),
        ("GPU-5ca1ab1e", "Plimsoll stand-in of 4 GiB, Some(Bytes(4294967296)), 1 others"),
        ("MIG-5ca1ab1e-0000-4000-8000-000000000002", "Plimsoll stand-in MIG 1g.1gb of 1 GiB, None, 0 others"),
    ] {
        let folder = &library.options().libraries[0];
        let name = "libnvidia-ml.so.1";
        let built = std::fs::read_link(folder.join("libcuda.so.1")).expect("it is a link");
        let _ = std::os::unix::fs::symlink(built, folder.join(name));
        let said = child(
            "a_slice_has_its_own_memory_and_name_and_nobody_elses_processes",
            &[
                ("CUDA_VISIBLE_DEVICES", value.as_ref()),
                ("PLIMSOLL_CUDA_LIBRARIES", folder.as_ref()),
                ("PLIMSOLL_STANDIN_HEALTH", "other=4242:3221225472:/usr/bin/python3".as_ref()),
                (CHILD, "1".as_ref()),
            ],
        );
        assert!(said.contains(expected), "{value}: {said}");
    }
}

#[test]
fn rates_are_measured_both_ways_and_leave_nothing_behind() {
    let Some(machine) = Machine::new() else { return };
    let calls = machine.library.calls_of(|| {
        let rates = machine.streams.rates(Bytes(1 << 20)).expect("nothing is refused");
        let all = [rates.alone, rates.together].concat();
        assert!(all.iter().all(|rate| rate.0.is_finite() && rate.0 > 0.0), "{rates:?}");
    });
    assert_eq!(calls["cuMemAlloc_v2"], calls["cuMemFree_v2"]);
    assert_eq!(calls["cuMemHostRegister_v2"], calls["cuMemHostUnregister"]);
    assert_eq!(calls["cuMemcpyDtoHAsync_v2"], calls["cuMemcpyHtoDAsync_v2"]);
}
