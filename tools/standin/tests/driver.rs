//! The stand-in by its own calls: its refusals are those of the driver. `schedules` and `swaps` test order and captures.
//!
//! The library's functions are linked here, not loaded; the device loads the same code.

use plimsoll_standin as _;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

// SAFETY: these are the signatures of `src/driver.rs`; references stand for places
// that are written, and all other arguments are numbers.
#[allow(clashing_extern_declarations, reason = "a reference is how a place is given here")]
unsafe extern "C" {
    safe fn cuInit(flags: u32) -> u32;
    safe fn cuGetErrorName(code: u32, name: &mut *const c_char) -> u32;
    safe fn cuDevicePrimaryCtxRetain(context: &mut usize, device: i32) -> u32;
    safe fn cuDevicePrimaryCtxRelease_v2(device: i32) -> u32;
    safe fn cuCtxSetCurrent(context: usize) -> u32;
    safe fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize) -> u32;
    safe fn cuMemAlloc_v2(address: &mut u64, bytes: usize) -> u32;
    safe fn cuMemFree_v2(address: u64) -> u32;
    safe fn cuMemHostRegister_v2(address: *const f32, bytes: usize, flags: u32) -> u32;
    safe fn cuMemHostUnregister(address: *const f32) -> u32;
    safe fn cuMemcpyHtoDAsync_v2(to: u64, from: *const f32, bytes: usize, stream: usize) -> u32;
    safe fn cuMemcpyDtoHAsync_v2(to: *mut f32, from: u64, bytes: usize, stream: usize) -> u32;
    safe fn cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: usize) -> u32;
    safe fn cuStreamCreate(stream: &mut usize, flags: u32) -> u32;
    safe fn cuStreamDestroy_v2(stream: usize) -> u32;
    safe fn cuStreamSynchronize(stream: usize) -> u32;
    safe fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> u32;
    safe fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> u32;
    safe fn cuStreamEndCapture(stream: usize, graph: &mut usize) -> u32;
    safe fn cuEventCreate(event: &mut usize, flags: u32) -> u32;
    safe fn cuEventDestroy_v2(event: usize) -> u32;
    safe fn cuEventRecord(event: usize, stream: usize) -> u32;
    safe fn cuEventElapsedTime(milliseconds: &mut f32, start: usize, end: usize) -> u32;
    safe fn cuModuleLoadData(module: &mut usize, image: *const c_char) -> u32;
    safe fn cuModuleGetFunction(function: &mut usize, module: usize, name: *const c_char) -> u32;
    fn cuLaunchKernel(
        function: usize,
        x: u32,
        y: u32,
        z: u32,
        threads: u32,
        threads_y: u32,
        threads_z: u32,
        shared: u32,
        stream: usize,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
}

/// Header of the PTX of the stand-in's NVRTC.
const HEADER: &CStr = c"// .version 9.0\n";

const TEXT: &CStr = c"
#define KERNEL(name, parameters) static void name parameters
static _Thread_local unsigned BLOCK_X, BLOCK_Y, BLOCK_Z, THREAD, THREADS;
KERNEL(twice_and_more, (float *x, unsigned long long n, float more)) {
    unsigned long long i = (unsigned long long)BLOCK_X * THREADS + THREAD;
    if (i < n) x[i] = 2.0f * x[i] + more;
}
";

const COUNT: usize = 5000;
const BYTES: usize = 4 * COUNT;
const TIMED: u32 = 0;
const NON_BLOCKING: u32 = 1;

/// One context, four streams, a kernel, device memory and pinned host memory; other tests' calls wait.
struct Machine {
    streams: [usize; 4],
    kernel: usize,
    device: u64,
    host: Vec<f32>,
    _alone: MutexGuard<'static, ()>,
}

#[track_caller]
fn good(code: u32) {
    assert_eq!(code, 0, "the driver refused");
}

fn made(make: impl FnOnce(&mut usize) -> u32) -> usize {
    let mut handle = 0;
    good(make(&mut handle));
    handle
}

/// `None` without a C compiler.
fn machine() -> Option<Machine> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if std::process::Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler `cc` is on this machine");
        return None;
    }
    good(cuInit(0));
    good(cuCtxSetCurrent(made(|context| cuDevicePrimaryCtxRetain(context, 0))));
    let streams = [0; 4].map(|_| made(|stream| cuStreamCreate(stream, NON_BLOCKING)));
    let code = CString::new([HEADER.to_bytes(), TEXT.to_bytes()].concat()).expect("no zero");
    let module = made(|module| cuModuleLoadData(module, code.as_ptr()));
    let kernel = made(|function| cuModuleGetFunction(function, module, c"twice_and_more".as_ptr()));
    let mut device = 0;
    good(cuMemAlloc_v2(&mut device, BYTES));
    let host: Vec<f32> = (0..COUNT).map(|i| i as f32).collect();
    good(cuMemHostRegister_v2(host.as_ptr(), BYTES, 0));
    Some(Machine { streams, kernel, device, host, _alone: alone })
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A failed context refuses to give anything back; the next one starts afresh.
        let _ = cuMemFree_v2(self.device);
        let _ = cuMemHostUnregister(self.host.as_ptr());
        let _ = self.streams.map(|stream| cuStreamDestroy_v2(stream));
        good(cuDevicePrimaryCtxRelease_v2(0));
    }
}

impl Machine {
    fn bring(&self, stream: usize) -> u32 {
        cuMemcpyHtoDAsync_v2(self.device, self.host.as_ptr(), BYTES, stream)
    }

    fn run_at(&self, device: u64, threads: u32, stream: usize) -> u32 {
        let (mut x, mut n, mut more) = (device, COUNT as u64, 1.0f32);
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut x).cast(), (&raw mut n).cast(), (&raw mut more).cast()];
        let blocks = (COUNT as u32).div_ceil(threads.max(1));
        // SAFETY: the arguments are those of the kernel.
        unsafe {
            cuLaunchKernel(
                self.kernel,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        }
    }

    fn run(&self, stream: usize) -> u32 {
        self.run_at(self.device, 128, stream)
    }
}

fn events() -> [usize; 3] {
    [0; 3].map(|_| made(|event| cuEventCreate(event, TIMED)))
}

/// Checks the status of the last call of a capture; `then` is the status of ending the capture after it.
#[track_caller]
fn check_capture(
    m: &mut Machine,
    steps: impl FnOnce(&mut Machine, [usize; 3]) -> u32,
    gives: u32,
    then: u32,
) {
    let events = events();
    good(cuStreamBeginCapture_v2(m.streams[0], 1));
    assert_eq!(steps(m, events), gives);
    let mut graph = 0;
    assert_eq!(cuStreamEndCapture(m.streams[0], &mut graph), then);
    assert_eq!(graph != 0, then == 0);
    // The streams are as before in any case.
    m.streams.iter().for_each(|stream| assert_eq!(cuStreamEndCapture(*stream, &mut graph), 401));
    m.streams.iter().for_each(|stream| good(cuStreamSynchronize(*stream)));
    events.iter().for_each(|event| good(cuEventDestroy_v2(*event)));
}

/// Adds the second stream to the capture of the first.
fn fork(m: &Machine, events: [usize; 3]) -> u32 {
    good(m.bring(m.streams[0]));
    good(cuEventRecord(events[0], m.streams[0]));
    cuStreamWaitEvent(m.streams[1], events[0], 0)
}

#[test]
fn captures_refuse_what_they_cannot_hold() {
    let Some(mut m) = machine() else { return };
    let m = &mut m;
    // The capture must end on its own stream, with all that was joined.
    check_capture(m, |m, e| fork(m, e), 0, 904);
    check_capture(m, |m, e| fork(m, e).max(cuStreamEndCapture(m.streams[1], &mut 0)), 903, 901);
    // Captured work does not run, so waiting for it is refused.
    check_capture(m, |m, _| cuStreamSynchronize(m.streams[0]), 900, 901);
    check_capture(m, |m, e| fork(m, e).max(cuStreamSynchronize(m.streams[1])), 900, 901);
    check_capture(m, |m, e| fork(m, e).max(cuEventElapsedTime(&mut 0.0, e[0], e[0])), 907, 901);
    // Memory cannot be allocated or freed, and after that nothing can be captured.
    check_capture(m, |_, _| cuMemAlloc_v2(&mut 0, 256), 900, 901);
    check_capture(
        m,
        |m, _| {
            let _ = cuMemFree_v2(m.device);
            m.bring(m.streams[0])
        },
        901,
        901,
    );
    // Pageable memory cannot be captured.
    let pageable = [0f32; 16];
    check_capture(m, |m, _| cuMemcpyHtoDAsync_v2(m.device, pageable.as_ptr(), 64, m.streams[0]), 900, 901);
    // The capture must not depend on anything outside.
    let outside = |m: &mut Machine, e: [usize; 3]| {
        good(cuEventRecord(e[2], m.streams[3]));
        cuStreamWaitEvent(m.streams[0], e[2], 0)
    };
    check_capture(m, outside, 905, 901);
    // A wait for an event that was never recorded does nothing.
    check_capture(m, |m, e| cuStreamWaitEvent(m.streams[0], e[2], 0), 0, 0);
    // The default stream cannot take part.
    check_capture(m, |m, e| fork(m, e).max(cuStreamWaitEvent(0, e[0], 0)), 906, 901);
    // Two captures cannot merge.
    let merge = |m: &mut Machine, e: [usize; 3]| {
        good(cuStreamBeginCapture_v2(m.streams[2], 1));
        good(cuEventRecord(e[2], m.streams[2]));
        let given = cuStreamWaitEvent(m.streams[0], e[2], 0);
        assert_eq!(cuStreamEndCapture(m.streams[2], &mut 0), 901);
        given
    };
    check_capture(m, merge, 902, 901);
    // The same thread must begin and end it.
    let context = made(|context| cuDevicePrimaryCtxRetain(context, 0));
    let elsewhere = |m: &mut Machine, _: [usize; 3]| {
        let stream = m.streams[0];
        let end = move || {
            good(cuCtxSetCurrent(context));
            cuStreamEndCapture(stream, &mut 0)
        };
        std::thread::spawn(end).join().expect("no panic")
    };
    check_capture(m, elsewhere, 908, 901);
    good(cuDevicePrimaryCtxRelease_v2(0));
}

#[test]
fn what_does_not_fit_is_refused_at_once() {
    let Some(mut m) = machine() else { return };
    let (stream, device, host) = (m.streams[0], m.device, m.host.as_mut_ptr());
    let at = |first: usize| m.host.as_ptr().wrapping_add(first);
    // Out of range, on either side.
    assert_eq!(cuMemcpyHtoDAsync_v2(device + 4, host, BYTES, stream), 1);
    assert_eq!(cuMemcpyHtoDAsync_v2(device, at(1), BYTES, stream), 1);
    assert_eq!(cuMemsetD8Async(device, 0, BYTES + 1, stream), 1);
    // In the wrong direction.
    assert_eq!(cuMemcpyHtoDAsync_v2(host as u64, device as *const f32, 64, stream), 1);
    assert_eq!(cuMemcpyDtoHAsync_v2(device as *mut f32, host as u64, 64, stream), 1);
    // To freed memory.
    let mut dead = 0;
    good(cuMemAlloc_v2(&mut dead, 4096));
    good(cuMemFree_v2(dead));
    assert_eq!(cuMemcpyHtoDAsync_v2(dead, host, 64, stream), 1);
    assert_eq!(cuMemFree_v2(dead), 1);
    // More memory than the device has.
    let (mut free, mut total) = (0, 0);
    good(cuMemGetInfo_v2(&mut free, &mut total));
    assert!(free < total);
    assert_eq!(cuMemAlloc_v2(&mut dead, free + 1), 2);
    // Invalid number of blocks.
    assert_eq!(m.run_at(device, 0, stream), 1);
    assert_eq!(m.run_at(device, 1025, stream), 1);
    // Invalid handles.
    assert_eq!(m.run(77), 400);
    assert_eq!(cuEventRecord(77, stream), 400);
    assert_eq!(cuMemHostRegister_v2(at(8), 64, 0), 712);
    // A different thread has no context yet.
    let refused = std::thread::spawn(move || cuStreamSynchronize(stream)).join().expect("no panic");
    assert_eq!(refused, 201);
    good(m.bring(stream));
    good(cuStreamSynchronize(stream));
}

#[test]
fn a_kernel_on_dead_memory_ends_the_context() {
    let Some(m) = machine() else { return };
    let mut dead = 0;
    good(cuMemAlloc_v2(&mut dead, BYTES));
    good(cuMemFree_v2(dead));
    good(m.run_at(dead, 128, m.streams[0]));
    assert_eq!(cuStreamSynchronize(m.streams[0]), 700);
    assert_eq!(m.bring(m.streams[1]), 700, "it stays");
    let mut name = null();
    good(cuGetErrorName(700, &mut name));
    // SAFETY: the name is a text that lives as long as the library.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    drop(m);
    let again = machine().expect("there was a compiler before");
    good(again.run(again.streams[0]));
    good(cuStreamSynchronize(again.streams[0]));
}
