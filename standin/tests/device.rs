//! The device `cuda` by its own calls, on the stand-in: exact memory, what it refuses and in which words, what it captures,
//! and that it gives everything back.

#[allow(dead_code, reason = "other tests have more words with it")]
#[path = "schedules/library.rs"]
mod library;

use library::StandIn;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Stream;
use plimsoll_runtime::{
    Begun, CudaDevice, CudaError, CudaOptions, Device, DeviceError, EventId, IterationId, MemoryLayout, Room,
};
use std::collections::BTreeMap;

const PLAIN: IterationId = IterationId { number: 0, timed: false };
const TIMED: IterationId = IterationId { number: 0, timed: true };

fn layout(resident: u64, pool: u64, host: u64) -> MemoryLayout {
    MemoryLayout { resident: Bytes(resident), pool: Bytes(pool), host: Bytes(host) }
}

/// A device with a little memory and room for two events.
fn ready(library: &StandIn, graphs: bool) -> CudaDevice {
    let mut device = library.device(graphs);
    device.allocate(layout(1000, 24, 7)).expect("it is small");
    device.reserve(Room { events: 2, commands: 4 }).expect("there is room");
    device
}

/// An iteration of two events on two streams, that one waits for the other.
fn iterate(device: &mut CudaDevice, iteration: IterationId) -> (Begun, Result<(), DeviceError>) {
    let begun = device.begin(iteration);
    if begun == Begun::Enqueue {
        device.record(Stream::Offload, EventId(0));
        device.wait(Stream::Compute, EventId(0));
        device.record(Stream::Compute, EventId(1));
    }
    (begun, device.synchronise())
}

fn count(calls: &BTreeMap<String, u64>, name: &str) -> u64 {
    calls.get(name).copied().unwrap_or_default()
}

#[test]
fn memory_is_one_piece_of_each_kind_and_holds_zeros() {
    let Some(library) = StandIn::open() else { return };
    let mut device = library.device(true);
    let free = device.free_memory().expect("it is known");
    let calls = library.calls_of(|| device.allocate(layout(1000, 24, 7)).expect("it is small"));
    assert!(device.free_memory().expect("it is known") < free);
    assert_eq!((count(&calls, "cuMemAlloc_v2"), count(&calls, "cuMemHostRegister_v2")), (1, 1), "{calls:?}");
    let mut held = [1u8; 1024];
    device.read(Bytes(0), &mut held).expect("it is inside");
    assert_eq!(held, [0; 1024]);
    let data: Vec<u8> = (0..100).collect();
    device.write(Bytes(924), &data).expect("it is inside");
    device.read(Bytes(0), &mut held).expect("it is inside");
    assert_eq!((&held[..924], &held[924..]), (&[0; 924][..], &data[..]));
    for result in [device.write(Bytes(925), &data), device.read(Bytes(u64::MAX), &mut held)] {
        assert!(matches!(result, Err(DeviceError::OutOfRange { .. })), "{result:?}");
    }
}

#[test]
fn what_does_not_fit_is_told_in_bytes_and_less_fits_afterwards() {
    let Some(library) = StandIn::open() else { return };
    let mut device = library.device(true);
    let total = device.facts().memory.expect("a GPU has some");
    for (wanted, kind) in [(layout(0, total.0 + 1, 0), "device"), (layout(0, 16, 1 << 50), "pinned host")] {
        match device.allocate(wanted) {
            Err(DeviceError::OutOfMemory { what, needed, available }) => {
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
    let Some(library) = StandIn::open() else { return };
    let mut device = ready(&library, true);
    let mut runs = Vec::new();
    let calls = library.calls_of(|| {
        runs = (0..4).map(|_| iterate(&mut device, PLAIN)).collect();
    });
    use Begun::{Enqueue, Replayed};
    assert_eq!(runs, [Enqueue, Enqueue, Replayed, Replayed].map(|begun| (begun, Ok(()))));
    let graphs = ["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch"];
    assert_eq!(graphs.map(|name| count(&calls, name)), [1, 1, 3], "{calls:?}");
    let replay = library.calls_of(|| drop(iterate(&mut device, PLAIN)));
    let expected = ["cuCtxSetCurrent", "cuGraphLaunch", "cuStreamSynchronize"];
    assert!(replay.keys().all(|name| expected.contains(&name.as_str())), "{replay:?}");
    // What a graph names is gone with the memory.
    device.allocate(layout(16, 0, 0)).expect("it is small");
    assert_eq!(iterate(&mut device, PLAIN), (Enqueue, Ok(())));
}

#[test]
fn timed_iterations_and_those_without_graphs_are_never_captured() {
    let Some(library) = StandIn::open() else { return };
    for (graphs, iteration) in [(true, TIMED), (false, TIMED), (false, PLAIN)] {
        let mut device = ready(&library, graphs);
        let calls = library.calls_of(|| {
            for _ in 0..3 {
                assert_eq!(iterate(&mut device, iteration), (Begun::Enqueue, Ok(())));
            }
        });
        assert_eq!(count(&calls, "cuStreamBeginCapture_v2"), 0, "{calls:?}");
        assert_eq!(count(&calls, "cuEventElapsedTime") > 0, iteration.timed, "{calls:?}");
        if iteration.timed {
            let [first, second] = [0, 1].map(|n| device.event_seconds(EventId(n)).0);
            assert!(0.0 <= first && first <= second, "{first} {second}");
        }
    }
}

#[test]
fn a_graph_that_is_refused_is_an_error_and_the_next_iteration_is_captured() {
    let Some(library) = StandIn::open() else { return };
    let mut device = ready(&library, true);
    assert_eq!(iterate(&mut device, PLAIN), (Begun::Enqueue, Ok(())));
    library.answer(c"cuGraphInstantiateWithFlags", 0, 2);
    let error = iterate(&mut device, PLAIN).1.expect_err("no graph was made").to_string();
    assert!(error.contains("cuGraphInstantiate") && error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    assert_eq!(iterate(&mut device, PLAIN), (Begun::Enqueue, Ok(())));
    assert_eq!(iterate(&mut device, PLAIN), (Begun::Replayed, Ok(())));
}

#[test]
fn what_the_driver_says_in_an_iteration_comes_out_of_it_with_what_to_do() {
    let Some(library) = StandIn::open() else { return };
    for call in [c"cuEventRecord", c"cuStreamWaitEvent", c"cuStreamSynchronize"] {
        let mut device = ready(&library, true);
        library.answer(call, 0, 700);
        let (begun, outcome) = iterate(&mut device, PLAIN);
        let error = outcome.expect_err("a call was refused").to_string();
        assert_eq!(begun, Begun::Enqueue);
        let says = [call.to_str().expect("a name"), "CUDA_ERROR_ILLEGAL_ADDRESS", "from the checkpoint"];
        assert!(says.iter().all(|words| error.contains(words)), "{error}");
        assert_eq!(iterate(&mut device, PLAIN).1, Ok(()), "the failure is told once");
    }
}

#[test]
fn everything_is_given_back() {
    let Some(library) = StandIn::open() else { return };
    let calls = library.calls_of(|| {
        let mut device = ready(&library, true);
        (0..3).for_each(|_| iterate(&mut device, PLAIN).1.expect("it runs"));
        iterate(&mut device, TIMED).1.expect("it runs");
        device.allocate(layout(64, 64, 64)).expect("it is small");
    });
    for (taken, given) in [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostRegister_v2", "cuMemHostUnregister"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuModuleLoadData", "cuModuleUnload"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        ("cuStreamEndCapture", "cuGraphDestroy"),
        ("nvrtcCreateProgram", "nvrtcDestroyProgram"),
    ] {
        assert!(count(&calls, taken) > 0, "{taken} in {calls:?}");
        assert_eq!(count(&calls, taken), count(&calls, given), "{taken}, {given}");
    }
}

#[test]
fn kernels_are_compiled_once_and_anew_where_what_is_kept_is_refused() {
    let Some(library) = StandIn::open() else { return };
    let compiled = || count(&library.calls_of(|| drop(library.device(true))), "nvrtcCompileProgram");
    assert_eq!((compiled(), compiled()), (1, 0));
    let kept: Vec<_> = std::fs::read_dir(library.cache()).expect("a cache").collect();
    let [Ok(file)] = &kept[..] else { panic!("one file: {kept:?}") };
    std::fs::write(file.path(), "no kernel").expect("a file");
    assert_eq!((compiled(), compiled()), (1, 0));
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let Some(library) = StandIn::open() else { return };
    let options = CudaOptions { ordinal: 3, libraries: library.folders(), ..CudaOptions::default() };
    let error = CudaDevice::open(&options).err().expect("there is one device");
    assert_eq!(error, CudaError::Ordinal { ordinal: 3, devices: 1 });
}
