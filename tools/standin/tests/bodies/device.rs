//! The device `cuda` by its own calls: exact memory, refusals and their messages, captures, and the release of everything.
//!
//! `super::Place` is the stand-in, which counts the driver's calls, or a GPU, which does not.

use super::Place;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Stream;
use plimsoll_runtime::{
    Begun, CudaDevice, CudaOptions, Device, Error, EventId, IterationId, Kind, MemoryKind, MemoryLayout, Room,
};

pub const PLAIN: IterationId = IterationId { number: 0, timed: false };
const TIMED: IterationId = IterationId { number: 0, timed: true };

/// More than a driver holds in reserve.
const LARGE: u64 = 256 << 20;

fn layout(resident: u64, pool: u64, host: u64) -> MemoryLayout {
    MemoryLayout {
        resident: Bytes(resident),
        pool: Bytes(pool),
        host: Bytes(host),
        ..MemoryLayout::default()
    }
}

/// A device with a little memory and room for two events.
pub fn ready(place: &Place, graphs: bool) -> CudaDevice {
    let mut device = place.device(graphs);
    device.allocate(layout(1000, 24, 7)).expect("it is small");
    device.reserve(Room { events: 2, commands: 4 }).expect("there is room");
    device
}

/// An iteration of two events on two streams, one of which waits for the other.
pub fn iterate(device: &mut CudaDevice, iteration: IterationId) -> (Begun, Result<(), Error>) {
    let begun = device.begin(iteration);
    if begun == Begun::Enqueue {
        device.record(Stream::Offload, EventId(0));
        device.wait(Stream::Compute, EventId(0));
        device.record(Stream::Compute, EventId(1));
    }
    (begun, device.synchronise())
}

/// Asserts these numbers of calls, if calls are counted.
fn made(place: &Place, expected: &[(&str, u64)], act: impl FnOnce()) {
    let Some(calls) = place.counted(act) else { return };
    for (name, count) in expected {
        assert_eq!(calls.get(*name).copied().unwrap_or_default(), *count, "{name} in {calls:?}");
    }
}

#[test]
fn memory_is_one_piece_of_each_kind_and_holds_zeros() {
    let Some(place) = Place::open() else { return };
    let mut device = place.device(true);
    let free = device.free_memory().expect("it is known");
    device.allocate(layout(0, LARGE, 0)).expect("it is not too large");
    assert!(device.free_memory().expect("it is known") + Bytes(LARGE) <= free);
    made(&place, &[("cuMemAlloc_v2", 1), ("cuMemHostRegister_v2", 1)], || {
        device.allocate(layout(1000, 24, 7)).expect("it is small");
    });
    let mut held = [1u8; 1024];
    device.read(Bytes(0), &mut held).expect("it is inside");
    assert_eq!(held, [0; 1024]);
    let data: Vec<u8> = (0..100).collect();
    device.write(Bytes(924), &data).expect("it is inside");
    device.read(Bytes(0), &mut held).expect("it is inside");
    assert_eq!((&held[..924], &held[924..]), (&[0; 924][..], &data[..]));
    for result in [device.write(Bytes(925), &data), device.read(Bytes(u64::MAX), &mut held)] {
        assert_eq!(result.map_err(|error| error.kind), Err(Kind::Internal));
    }
}

#[test]
fn what_does_not_fit_is_told_in_bytes_and_less_fits_afterwards() {
    let Some(place) = Place::open() else { return };
    let mut device = place.device(true);
    let total = device.facts().memory.expect("a GPU has some");
    for (wanted, kind) in
        [(layout(0, total.0 + 1, 0), MemoryKind::Device), (layout(0, 16, 1 << 50), MemoryKind::PinnedHost)]
    {
        match device.allocate(wanted) {
            Err(Error { kind: Kind::OutOfMemory { what, needed, available }, .. }) => {
                assert_eq!((what, needed), (kind, wanted.device().max(wanted.host)));
                assert!(available > Bytes::ZERO && available < needed, "{available}");
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
    device.allocate(layout(16, 16, 16)).expect("what was refused holds nothing");
}

#[test]
fn an_iteration_is_captured_at_its_second_run_and_replayed_from_the_third() {
    use Begun::{Enqueue, Replayed};
    let Some(place) = Place::open() else { return };
    let mut device = ready(&place, true);
    let calls = [("cuStreamBeginCapture_v2", 1), ("cuGraphInstantiateWithFlags", 1), ("cuGraphLaunch", 3)];
    made(&place, &calls, || {
        let runs: Vec<_> = (0..4).map(|_| iterate(&mut device, PLAIN)).collect();
        assert_eq!(runs, [Enqueue, Enqueue, Replayed, Replayed].map(|begun| (begun, Ok(()))));
    });
    if let Some(replay) = place.counted(|| drop(iterate(&mut device, PLAIN))) {
        let expected = ["cuCtxSetCurrent", "cuGraphLaunch", "cuStreamSynchronize"];
        assert!(replay.keys().all(|name| expected.contains(&name.as_str())), "{replay:?}");
    }
    // A graph is gone with the memory that it names.
    device.allocate(layout(16, 0, 0)).expect("it is small");
    assert_eq!(iterate(&mut device, PLAIN), (Enqueue, Ok(())));
}

#[test]
fn iterations_without_graphs_are_never_captured() {
    let Some(place) = Place::open() else { return };
    for iteration in [TIMED, PLAIN] {
        let mut device = ready(&place, false);
        let times = if iteration.timed { 6 } else { 0 };
        made(&place, &[("cuStreamBeginCapture_v2", 0), ("cuEventElapsedTime", times)], || {
            for _ in 0..3 {
                assert_eq!(iterate(&mut device, iteration), (Begun::Enqueue, Ok(())));
            }
        });
        assert_times_in_order(&mut device, iteration);
    }
}

/// Asserts that the two events of a timed iteration happened in order, after its start.
fn assert_times_in_order(device: &mut CudaDevice, iteration: IterationId) {
    if iteration.timed {
        let [first, second] = [0, 1].map(|n| device.event_seconds(EventId(n)).0);
        assert!(0.0 <= first && first <= second, "{first} {second}");
    }
}

#[test]
fn a_timed_iteration_is_a_graph_too_and_has_new_times_each_time() {
    use Begun::{Enqueue, Replayed};
    let Some(place) = Place::open() else { return };
    let mut device = ready(&place, true);
    let calls = [
        ("cuStreamBeginCapture_v2", 1),
        ("cuEventRecordWithFlags", 3),
        ("cuGraphLaunch", 3),
        ("cuEventElapsedTime", 8),
    ];
    made(&place, &calls, || {
        for begun in [Enqueue, Enqueue, Replayed, Replayed] {
            assert_eq!(iterate(&mut device, TIMED), (begun, Ok(())));
            assert_times_in_order(&mut device, TIMED);
        }
    });
    // An untimed iteration in between has no times, and erases none.
    iterate(&mut device, PLAIN).1.expect("it runs");
    assert_eq!(iterate(&mut device, TIMED), (Replayed, Ok(())));
    assert_times_in_order(&mut device, TIMED);
}

/// Graphs take memory outside the pool, and a profile times dozens of iterations.
#[test]
fn of_timed_iterations_one_graph_is_kept() {
    use Begun::{Enqueue, Replayed};
    let Some(place) = Place::open() else { return };
    let mut device = ready(&place, true);
    let other = IterationId { number: TIMED.number + 1, timed: true };
    for begun in [Enqueue, Enqueue, Replayed] {
        assert_eq!(iterate(&mut device, PLAIN), (begun, Ok(())));
    }
    made(&place, &[("cuGraphInstantiateWithFlags", 3), ("cuGraphExecDestroy", 2)], || {
        for (iteration, begun) in [
            (TIMED, Enqueue),
            (TIMED, Enqueue),
            (TIMED, Replayed),
            (other, Enqueue),
            (TIMED, Replayed),
            (other, Enqueue),
            (other, Replayed),
            (TIMED, Enqueue),
            (TIMED, Replayed),
            (PLAIN, Replayed),
        ] {
            assert_eq!(iterate(&mut device, iteration), (begun, Ok(())), "{iteration:?}");
            if iteration.timed {
                assert_times_in_order(&mut device, iteration);
            }
        }
    });
}

#[test]
fn everything_is_given_back() {
    let Some(place) = Place::open() else { return };
    let free = || place.device(true).free_memory().expect("it is known");
    let before = free();
    let calls = place.counted(|| {
        let mut device = ready(&place, true);
        (0..3).for_each(|_| iterate(&mut device, PLAIN).1.expect("it runs"));
        iterate(&mut device, TIMED).1.expect("it runs");
        device.allocate(layout(64, 2 * LARGE, 64)).expect("it is not too large");
    });
    assert!(free() + Bytes(LARGE) > before, "memory is still held");
    let Some(calls) = calls else { return };
    let count = |name: &str| calls.get(name).copied().unwrap_or_default();
    for (taken, given) in [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostRegister_v2", "cuMemHostUnregister"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuModuleLoadData", "cuModuleUnload"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        ("cuStreamEndCapture", "cuGraphDestroy"),
    ] {
        assert!(count(taken) > 0, "{taken} in {calls:?}");
        assert_eq!(count(taken), count(given), "{taken}, {given}");
    }
}

#[test]
fn kernels_are_compiled_once_and_anew_where_what_is_kept_is_refused() {
    let Some(place) = Place::open() else { return };
    let cache = tempfile::tempdir().expect("there is a folder for temporary files");
    let options = CudaOptions { cache: Some(cache.path().to_owned()), ..place.options() };
    let compiled = |times: u64| {
        let calls = [("nvrtcCompileProgram", times), ("nvrtcDestroyProgram", times)];
        made(&place, &calls, || drop(CudaDevice::open(&options).expect("nothing stands in the way")));
    };
    compiled(1);
    compiled(0);
    let kept: Vec<_> = std::fs::read_dir(&cache).expect("a cache").collect();
    let [Ok(file)] = &kept[..] else { panic!("one file: {kept:?}") };
    let good = std::fs::read(file.path()).expect("a file");
    std::fs::write(file.path(), "no kernel").expect("a file");
    compiled(1);
    assert_eq!(std::fs::read(file.path()).expect("a file"), good);
    compiled(0);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let Some(place) = Place::open() else { return };
    let options = CudaOptions { ordinal: 99, ..place.options() };
    let error = CudaDevice::open(&options).err().expect("no machine has a hundred devices");
    assert!(error.message.starts_with("there is no device cuda:99: the"), "{error}");
}
