//! The driver's calls that the device makes, with the names and the signatures of `cuda.h`.
//!
//! Each is counted, may be answered without being made ([`control`]), makes the checks of every call (`cuInit` was called, a
//! context is current on this thread, nothing failed before), and passes its arguments on. Handles are numbers here: C
//! passes both the same way.
#![allow(non_snake_case, reason = "the names are the driver's")]

use crate::graph::Mode;
use crate::kernels::{self, Launch};
use crate::memory::{self, Host};
use crate::state::{
    DriverState, Event, Recorded, end_context, exchange_interaction, finish, state, wait_a_little,
    wait_for_all,
};
use crate::status::{self, Outcome, sticky};
use crate::stream::{Copy, Direction, Work};
use crate::{control, lock};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Place for a result, if the caller gives one.
type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// The only flags that a stream may have here.
const NON_BLOCKING: c_uint = 1;

/// Full name of the GPU.
const GPU: &str = "GPU-5ca1ab1e-0000-4000-8000-000000000001";

/// The primary context's handle.
const CONTEXT: usize = 0xc0;

static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Number of holders of the primary context.
static HOLDERS: Mutex<u32> = Mutex::new(0);

thread_local! {
    /// The context of this thread.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Defines the calls.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> u32 {
            if let Some(code) = control::enter(stringify!($name)) {
                return code;
            }
            let call = move || -> Outcome { $body };
            call().err().map_or(0, |status| status.0)
        }
    )*};
}

fn put<T>(place: Place<T>, value: T) -> Outcome {
    place.ok_or(status::INVALID_VALUE)?.write(value);
    Ok(())
}

/// Check of every call except `cuInit`.
fn initialised() -> Outcome {
    if INITIALISED.load(Ordering::Relaxed) { Ok(()) } else { Err(status::NOT_INITIALIZED) }
}

/// Check of every call that concerns a device.
pub fn here() -> Outcome {
    initialised()?;
    if CURRENT.get() != CONTEXT || *lock(&HOLDERS) == 0 {
        return Err(status::INVALID_CONTEXT);
    }
    sticky()
}

/// Returns `true` if the context is held.
pub fn is_held() -> bool {
    *lock(&HOLDERS) > 0
}

/// Number of devices that this process sees, from number 0. They share one memory and one context.
static VISIBLE: AtomicI32 = AtomicI32::new(0);

/// Checks that a device is visible.
fn seen(device: c_int) -> Outcome {
    initialised()?;
    if (0..VISIBLE.load(Ordering::Relaxed)).contains(&device) { Ok(()) } else { Err(status::INVALID_DEVICE) }
}

/// Number of the machine's GPUs that are visible, by the driver's rule: everything from the first invalid name on is not
/// visible. A GPU's own name may be abbreviated.
fn visible() -> c_int {
    let machine = std::env::var("PLIMSOLL_STANDIN_GPUS").ok().and_then(|gpus| gpus.parse().ok()).unwrap_or(1);
    let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") else { return machine };
    let is_device = |name: &&str| {
        let name = name.trim();
        let is_gpu = name.len() > "GPU-".len() && GPU.starts_with(name);
        is_gpu
            || name == memory::SLICE
            || name.parse().is_ok_and(|number: c_int| (0..machine).contains(&number))
    };
    visible.split(',').take_while(is_device).count() as c_int
}

/// Text given by the caller.
fn text<'a>(at: *const c_char) -> Outcome<&'a CStr> {
    if at.is_null() {
        return Err(status::INVALID_VALUE);
    }
    // SAFETY: the caller gives a text that ends with a zero and lives during the call, as the interface requires.
    Ok(unsafe { CStr::from_ptr(at) })
}

/// Copies a text, with a final zero, to a buffer of `length` bytes.
fn copy_out(words: &CStr, room: *mut c_char, length: c_int) -> Outcome {
    let bytes = words.to_bytes_with_nul();
    if room.is_null() || usize::try_from(length).is_ok_and(|length| length < bytes.len()) {
        return Err(status::INVALID_VALUE);
    }
    // SAFETY: the caller gives this much room, which was just found to be enough.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), room, bytes.len()) };
    Ok(())
}

/// Enqueues a copy. A copy of pageable memory blocks the caller until it is done, and no capture can hold it.
fn copy(direction: Direction, to: u64, from: u64, bytes: usize, stream: usize) -> Outcome {
    here()?;
    default_stream(stream);
    let copy = Copy { direction, to, from, bytes: bytes as u64 };
    let host = copy.check()?;
    let mut state = state();
    if host == Host::PageLocked {
        return state.enqueue(stream, Work::Copy(copy));
    }
    control::note("pageable copy");
    state.refuse_capturing(stream)?;
    let queue = state.stream(stream)?;
    state.enqueue(stream, Work::Copy(copy))?;
    drop(state);
    finish(&queue);
    sticky()
}

/// Counts a use of the default stream.
fn default_stream(stream: usize) {
    if DriverState::is_default(stream) {
        control::note("default stream");
    }
}

/// Status of a stream's capture: 1 while it captures, 2 after its capture was broken; and the number of the capture.
fn capture_status(stream: usize) -> Outcome<(c_uint, c_ulonglong)> {
    here()?;
    let mut state = state();
    state.stream(stream)?;
    let capture = state.capture_of(stream);
    Ok(capture.map_or((0, 0), |(handle, held)| (1 + c_uint::from(held.broken), handle as c_ulonglong)))
}

/// Text of a code, chosen by `which` of the two.
fn say(
    code: u32,
    place: Place<*const c_char>,
    which: impl Fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Outcome {
    let found = status::words(code).map(which).ok_or(status::INVALID_VALUE)?;
    put(place, found.as_ptr())
}

// The driver, the device and its context.
calls! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(status::INVALID_VALUE);
        }
        let visible = visible();
        if visible == 0 {
            return Err(status::NO_DEVICE);
        }
        VISIBLE.store(visible, Ordering::Relaxed);
        INITIALISED.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn cuGetErrorName(code: u32, name: Place<*const c_char>) {
        say(code, name, |(name, _)| name)
    }

    fn cuGetErrorString(code: u32, words: Place<*const c_char>) {
        say(code, words, |(_, words)| words)
    }

    fn cuDriverGetVersion(version: Place<c_int>) {
        put(version, 13000)
    }

    fn cuDeviceGetCount(count: Place<c_int>) {
        initialised()?;
        put(count, VISIBLE.load(Ordering::Relaxed))
    }

    fn cuDeviceGet(device: Place<c_int>, ordinal: c_int) {
        seen(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetName(room: *mut c_char, length: c_int, device: c_int) {
        seen(device)?;
        copy_out(if memory::is_slice() { c"Plimsoll stand-in MIG 1g.1gb" } else { c"Plimsoll stand-in" }, room, length)
    }

    fn cuDeviceGetPCIBusId(room: *mut c_char, length: c_int, device: c_int) {
        seen(device)?;
        copy_out(c"0000:00:00.0", room, length)
    }

    fn cuDeviceTotalMem_v2(bytes: Place<usize>, device: c_int) {
        seen(device)?;
        put(bytes, memory::info().1 as usize)
    }

    fn cuDeviceGetAttribute(value: Place<c_int>, attribute: c_int, device: c_int) {
        seen(device)?;
        // Multiprocessors; compute capability, major and minor.
        let known = BTreeMap::from([(16, 2), (75, 9), (76, 0)]);
        put(value, *known.get(&attribute).ok_or(status::INVALID_VALUE)?)
    }

    fn cuDevicePrimaryCtxRetain(context: Place<usize>, device: c_int) {
        seen(device)?;
        *lock(&HOLDERS) += 1;
        put(context, CONTEXT)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        seen(device)?;
        let mut holders = lock(&HOLDERS);
        *holders = holders.checked_sub(1).ok_or(status::INVALID_CONTEXT)?;
        if *holders == 0 {
            end_context();
        }
        Ok(())
    }

    fn cuCtxSetCurrent(context: usize) {
        initialised()?;
        if context != 0 && (context != CONTEXT || *lock(&HOLDERS) == 0) {
            return Err(status::INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }
}

// Memory and copies.
calls! {
    fn cuMemGetInfo_v2(free: Place<usize>, total: Place<usize>) {
        here()?;
        let info = memory::info();
        put(free, info.0 as usize)?;
        put(total, info.1 as usize)
    }

    fn cuMemAlloc_v2(address: Place<u64>, bytes: usize) {
        here()?;
        state().refuse_in_captures()?;
        put(address, memory::allocate(bytes as u64)?)
    }

    fn cuMemFree_v2(address: u64) {
        here()?;
        state().refuse_in_captures()?;
        if address == 0 {
            return Ok(());
        }
        wait_for_all();
        memory::free(address)
    }

    fn cuMemHostRegister_v2(address: u64, bytes: usize, _flags: c_uint) {
        here()?;
        state().refuse_in_captures()?;
        memory::register(address, bytes as u64)
    }

    fn cuMemHostUnregister(address: u64) {
        here()?;
        state().refuse_in_captures()?;
        memory::unregister(address)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(Direction::HostToDevice, to, from, bytes, stream)
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(Direction::DeviceToHost, to, from, bytes, stream)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(Direction::DeviceToDevice, to, from, bytes, stream)
    }

    fn cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: usize) {
        here()?;
        default_stream(stream);
        memory::device(address, bytes as u64)?;
        state().enqueue(stream, Work::Fill { address, byte, bytes: bytes as u64 })
    }
}

// Streams, events and captures.
calls! {
    fn cuStreamCreate(stream: Place<usize>, flags: c_uint) {
        here()?;
        // With any other flags a stream is ordered with the default stream, which the stand-in does not model.
        if flags != NON_BLOCKING {
            return Err(status::INVALID_VALUE);
        }
        put(stream, state().start_stream())
    }

    fn cuStreamDestroy_v2(stream: usize) {
        here()?;
        let mut state = state();
        state.refuse_capturing(stream)?;
        // It still completes its pending work.
        let closed = state.streams.remove(&stream).ok_or(status::INVALID_HANDLE)?;
        closed.close();
        Ok(())
    }

    fn cuStreamSynchronize(stream: usize) {
        here()?;
        default_stream(stream);
        let queue = {
            let mut state = state();
            state.refuse_capturing(stream)?;
            state.stream(stream)?
        };
        finish(&queue);
        sticky()
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {
        here()?;
        default_stream(stream);
        if flags != 0 {
            return Err(status::INVALID_VALUE);
        }
        state().wait(stream, event)
    }

    fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) {
        here()?;
        state().begin_capture(stream, Mode::of(mode).ok_or(status::INVALID_VALUE)?)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Place<c_uint>) {
        let mode = mode.ok_or(status::INVALID_VALUE)?;
        // SAFETY: the caller gives the wanted mode, as the interface requires.
        let wanted = Mode::of(unsafe { mode.assume_init_read() }).ok_or(status::INVALID_VALUE)?;
        mode.write(exchange_interaction(wanted) as c_uint);
        Ok(())
    }

    fn cuStreamEndCapture(stream: usize, graph: Place<usize>) {
        here()?;
        let mut state = state();
        let ended = state.end_capture(stream)?;
        let handle = state.handle();
        state.graphs.insert(handle, ended);
        put(graph, handle)
    }

    fn cuStreamIsCapturing(stream: usize, status: Place<c_uint>) {
        put(status, capture_status(stream)?.0)
    }

    // No facts about the graph in progress are given.
    fn cuStreamGetCaptureInfo_v2(
        stream: usize, status: Place<c_uint>, id: Place<c_ulonglong>, _graph: *const c_void, _after: *const c_void,
        _count: *const c_void,
    ) {
        let (now, capture) = capture_status(stream)?;
        put(status, now)?;
        if id.is_some() { put(id, capture) } else { Ok(()) }
    }

    fn cuEventCreate(event: Place<usize>, flags: c_uint) {
        here()?;
        // The flags may only select blocking synchronisation and no timing.
        if flags & !3 != 0 {
            return Err(status::INVALID_VALUE);
        }
        let mut state = state();
        let handle = state.handle();
        state.events.insert(handle, Event { timed: flags & 2 == 0, last: Recorded::Never });
        put(event, handle)
    }

    fn cuEventDestroy_v2(event: usize) {
        here()?;
        state().events.remove(&event).map(|_| ()).ok_or(status::INVALID_HANDLE)
    }

    fn cuEventRecord(event: usize, stream: usize) {
        here()?;
        default_stream(stream);
        state().record(event, stream)
    }

    fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) {
        here()?;
        default_stream(stream);
        match flags {
            0 => state().record(event, stream),
            1 => state().record_external(event, stream),
            _ => Err(status::INVALID_VALUE),
        }
    }

    fn cuEventQuery(event: usize) {
        here()?;
        wait_a_little();
        match state().moment(event)? {
            Some(moment) if moment.at().is_none() => Err(status::NOT_READY),
            _ => sticky(),
        }
    }

    fn cuEventElapsedTime(milliseconds: Place<f32>, start: usize, end: usize) {
        here()?;
        let mut state = state();
        let mut at = |event: usize| {
            if !state.events.get(&event).ok_or(status::INVALID_HANDLE)?.timed {
                return Err(status::INVALID_HANDLE);
            }
            state.moment(event)?.ok_or(status::INVALID_HANDLE)?.at().ok_or(status::NOT_READY)
        };
        let (start, end) = (at(start)?, at(end)?);
        let seconds = match end.checked_duration_since(start) {
            Some(later) => later.as_secs_f64(),
            None => -(start - end).as_secs_f64(),
        };
        put(milliseconds, (seconds * 1e3) as f32)
    }
}

// Modules, kernels and graphs.
calls! {
    fn cuModuleLoadData(module: Place<usize>, image: *const c_char) {
        here()?;
        let code = text(image)?.to_string_lossy();
        let (header, words) = code.split_once('\n').ok_or(status::INVALID_PTX)?;
        // Machine code runs on its own architecture; a driver accepts PTX that is no newer than itself.
        match (header.strip_prefix("\x7fELF sm_"), header.strip_prefix("// .version 9.")) {
            (Some("90"), _) | (_, Some("0")) => (),
            (Some(_), _) => return Err(status::NO_BINARY_FOR_GPU),
            (_, Some(_)) => return Err(status::UNSUPPORTED_PTX_VERSION),
            (None, None) => return Err(status::INVALID_PTX),
        }
        let functions = kernels::load(words).map_err(|why| {
            eprintln!("stand-in: {why}");
            status::INVALID_PTX
        })?;
        let mut state = state();
        let handle = state.handle();
        state.modules.insert(handle, functions.into_iter().collect());
        put(module, handle)
    }

    fn cuModuleUnload(module: usize) {
        here()?;
        state().modules.remove(&module).map(|_| ()).ok_or(status::INVALID_HANDLE)
    }

    fn cuModuleGetFunction(function: Place<usize>, module: usize, name: *const c_char) {
        here()?;
        let name = text(name)?.to_string_lossy();
        let mut state = state();
        let found = state.modules.get(&module).ok_or(status::INVALID_HANDLE)?.get(&*name).cloned();
        let found = found.ok_or(status::NOT_FOUND)?;
        let handle = state.handle();
        state.functions.insert(handle, found);
        put(function, handle)
    }

    fn cuLaunchKernel(
        function: usize, x: c_uint, y: c_uint, z: c_uint, threads: c_uint, threads_y: c_uint, threads_z: c_uint,
        shared: c_uint, stream: usize, arguments: *const *const c_void, extra: *const *const c_void,
    ) {
        here()?;
        default_stream(stream);
        let mut state = state();
        let function = state.functions.get(&function).cloned().ok_or(status::INVALID_HANDLE)?;
        let blocks = [x, y, z];
        let fits = (1..1 << 31).contains(&x) && [y, z].iter().all(|n| (1..1 << 16).contains(n));
        let flat = (threads_y, threads_z, shared) == (1, 1, 0) && (1..=function.threads_max).contains(&threads);
        if !fits || !flat || !extra.is_null() || (arguments.is_null() && !function.kinds.is_empty()) {
            return Err(status::INVALID_VALUE);
        }
        let read = |(at, kind): (usize, &kernels::Kind)| {
            // SAFETY: the caller gives the address of a value for each parameter of the kernel, as the interface requires.
            unsafe { kind.read((*arguments.add(at)).cast()) }
        };
        let arguments = function.kinds.iter().enumerate().map(read).collect();
        state.enqueue(stream, Work::Launch(Launch { function, blocks, threads, arguments }))
    }

    fn cuGraphGetNodes(graph: usize, nodes: *const c_void, count: Place<usize>) {
        here()?;
        if !nodes.is_null() {
            return Err(status::INVALID_VALUE); // only the number is returned
        }
        put(count, state().graphs.get(&graph).ok_or(status::INVALID_HANDLE)?.len())
    }

    fn cuGraphInstantiateWithFlags(executable: Place<usize>, graph: usize, _flags: c_ulonglong) {
        here()?;
        let mut state = state();
        let made = state.graphs.get(&graph).cloned().ok_or(status::INVALID_HANDLE)?;
        let handle = state.handle();
        state.executables.insert(handle, made);
        put(executable, handle)
    }

    fn cuGraphLaunch(executable: usize, stream: usize) {
        here()?;
        default_stream(stream);
        let mut state = state();
        let graph = state.executables.get(&executable).cloned().ok_or(status::INVALID_HANDLE)?;
        state.enqueue(stream, Work::Compute(Box::new(move || {
            graph.run();
            Ok(())
        })))
    }

    fn cuGraphExecDestroy(executable: usize) {
        here()?;
        state().executables.remove(&executable).map(|_| ()).ok_or(status::INVALID_HANDLE)
    }

    fn cuGraphDestroy(graph: usize) {
        here()?;
        state().graphs.remove(&graph).map(|_| ()).ok_or(status::INVALID_HANDLE)
    }
}
