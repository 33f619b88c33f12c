//! The small part of the driver API that the device needs: a context, memory, streams, events, kernels and graphs.
//!
//! Each of these frees itself and keeps its context alive. Calls that enqueue are unsafe if the memory that they name must
//! outlive them: the executor's checked schedules and the device's order of calls ensure that. Every refusal of the driver
//! is returned as a [`Refusal`].
//!
//! Deliberately does not use the default stream for itself, or the bindings' own loader and wrappers (see `table.rs`).

use super::error::{Capability, Refusal};
use super::presence::{DRIVER, Search};
use super::table::{DriverFunctions, call};
use crate::error::Error;
use cudarc::driver::sys::{
    CUctx_st, CUdevice, CUdevice_attribute, CUevent_flags_enum, CUevent_record_flags_enum, CUevent_st,
    CUfunc_st, CUgraphExec_st, CUmod_st, CUstream_flags_enum, CUstream_st, CUstreamCaptureMode,
    cudaError_enum as Of,
};
use memmap2::MmapMut;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// A handle of the driver or a library, usable from any thread.
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: handles are names, not memory of ours; their functions take them from any thread, those of a library one at a
// time, as `libraries` ensures.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// The driver of this machine, started.
pub(super) struct Driver {
    functions: DriverFunctions,
    path: PathBuf,
}

/// Facts about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// Model name.
    pub name: String,
    /// Compute capability, such as 9.0.
    pub capability: Capability,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Total memory.
    pub memory: plimsoll_ir::Bytes,
    /// PCI address, such as `0000:3b:00.0`.
    pub bus: String,
}

impl Driver {
    /// Loads and starts the driver; an error if it sees no device.
    pub(super) fn start(search: &Search) -> Result<Driver, Error> {
        let found = search.load(&DRIVER)?;
        let functions = DriverFunctions::of(&found, &DRIVER)?;
        let driver = Driver { functions, path: found.leak() };
        let no_device = |refusal: &Refusal| {
            refusal.is(Of::CUDA_ERROR_NO_DEVICE) || refusal.is(Of::CUDA_ERROR_INVALID_DEVICE)
        };
        // SAFETY: `cuInit` may be called at any time, and more than once.
        match unsafe { call!(driver, cuInit(0)) } {
            Ok(()) if driver.devices()? > 0 => Ok(driver),
            Err(refusal) if !no_device(&refusal) => Err(Error::device(format!(
                "the driver `{}` does not start: {refusal}; {}",
                driver.path.display(),
                refusal.advice()
            ))),
            _ => Err(Error::device(match std::env::var_os("CUDA_VISIBLE_DEVICES") {
                Some(value) => format!(
                    "CUDA_VISIBLE_DEVICES is `{}`, which leaves no device to see; unset it, or name devices that \
                     `nvidia-smi -L` lists, such as CUDA_VISIBLE_DEVICES=0",
                    value.display()
                ),
                None => format!(
                    "the driver `{}` sees no CUDA device; `nvidia-smi -L` lists those of the machine, and a container must be \
                     given them",
                    driver.path.display()
                ),
            })),
        }
    }

    /// The driver's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Version of CUDA that the driver supports, such as (13, 0).
    pub(super) fn version(&self) -> Result<(u32, u32), Refusal> {
        let mut version: c_int = 0;
        // SAFETY: the call writes one number.
        unsafe { call!(self, cuDriverGetVersion(&mut version)) }?;
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Number of devices that the driver sees.
    pub(super) fn devices(&self) -> Result<u32, Refusal> {
        let mut count: c_int = 0;
        // SAFETY: the call writes one number.
        unsafe { call!(self, cuDeviceGetCount(&mut count)) }?;
        Ok(u32::try_from(count).unwrap_or_default())
    }

    fn device(&self, ordinal: u32) -> Result<CUdevice, Error> {
        let devices = self.devices()?;
        if ordinal >= devices {
            let range = match devices {
                1 => "the only one is cuda:0".to_owned(),
                n => format!("they are cuda:0 to cuda:{}", n - 1),
            };
            return Err(Error::device(format!("there is no device cuda:{ordinal}: {range}")));
        }
        let mut device: CUdevice = 0;
        // SAFETY: the call writes one device; the ordinal is one that there is.
        unsafe { call!(self, cuDeviceGet(&mut device, ordinal as c_int)) }?;
        Ok(device)
    }

    /// Facts about a device, found without using it.
    pub(super) fn facts(&self, ordinal: u32) -> Result<GpuFacts, Error> {
        use CUdevice_attribute as A;
        let device = self.device(ordinal)?;
        let (mut text, mut memory) = ([0 as c_char; 256], 0usize);
        let (at, length) = (text.as_mut_ptr(), text.len() as c_int);
        // SAFETY: the call writes at most as many bytes as its length argument says, the last a zero.
        unsafe { call!(self, cuDeviceGetName(at, length, device)) }?;
        let name = words(&text);
        // SAFETY: as above.
        unsafe { call!(self, cuDeviceGetPCIBusId(at, length, device)) }?;
        let bus = words(&text).to_lowercase();
        // SAFETY: the call writes one number.
        unsafe { call!(self, cuDeviceTotalMem_v2(&mut memory, device)) }?;
        let capability = Capability {
            major: self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)?,
            minor: self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)?,
        };
        let multiprocessors = self.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)?;
        Ok(GpuFacts { name, capability, multiprocessors, memory: plimsoll_ir::Bytes(memory as u64), bus })
    }

    fn attribute(&self, attribute: CUdevice_attribute, device: CUdevice) -> Result<u32, Refusal> {
        let mut value: c_int = 0;
        // SAFETY: the call writes one number.
        unsafe { call!(self, cuDeviceGetAttribute(&mut value, attribute, device)) }?;
        Ok(u32::try_from(value).unwrap_or_default())
    }

    /// Converts a status to a result.
    fn check(&self, call: &'static str, status: u32) -> Result<(), Refusal> {
        let text = |function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text = null();
            // SAFETY: the call writes the address of a text that lives as long as the driver, or fails.
            unsafe { (function(status, &mut text) == 0).then(|| words_at(text)).flatten() }
        };
        let f = &self.functions;
        Refusal::check(call, status, || [text(f.cuGetErrorName), text(f.cuGetErrorString)])
    }
}

/// A C string in a field that ends with a zero at the latest.
pub(super) fn words(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A C string of a library; `None` for null.
///
/// # Safety
/// The text ends with a zero, and lives during the call.
pub(super) unsafe fn words_at(text: *const c_char) -> Option<String> {
    // SAFETY: passed on to the caller.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned())
}

/// The primary context of a device.
pub(super) struct Context {
    driver: Driver,
    device: CUdevice,
    raw: Handle<CUctx_st>,
}

impl Context {
    /// Retains a device's primary context and makes it this thread's.
    pub(super) fn retain(driver: Driver, ordinal: u32) -> Result<Arc<Context>, Error> {
        let device = driver.device(ordinal)?;
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&mut raw, device)) }.map_err(|refusal| {
            Error::device(format!("cuda:{ordinal} cannot be used: {refusal}; {}", refusal.advice()))
        })?;
        let context = Context { driver, device, raw: Handle(raw) };
        context.enter()?;
        Ok(Arc::new(context))
    }

    /// Makes this the context of the thread, as all calls need.
    pub(super) fn enter(&self) -> Result<(), Refusal> {
        // SAFETY: the context is retained as long as the value lives.
        unsafe { call!(self.driver, cuCtxSetCurrent(self.raw.0)) }
    }

    /// Free bytes of device memory.
    pub(super) fn free_memory(&self) -> Result<u64, Refusal> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the call writes two numbers.
        unsafe { call!(self.driver, cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(free as u64)
    }

    /// Gives a resource back. The driver refuses only if the context is lost, and everything with it.
    fn give_back(&self, call: impl FnOnce(&Driver) -> Result<(), Refusal>) {
        given_back(self.enter().and_then(|()| call(&self.driver)));
    }

    /// Makes an object of the driver its value's own, which is destroyed on drop.
    fn own<T>(self: &Arc<Context>, raw: *mut T, destroy: Destroy<T>) -> Owned<T> {
        Owned { context: Arc::clone(self), raw: Handle(raw), destroy }
    }
}

/// Logs the refusal to take a resource back.
pub(super) fn given_back(outcome: Result<(), impl std::fmt::Display>) {
    if let Err(refusal) = outcome {
        tracing::debug!("while giving back: {refusal}");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`; everything made in it holds the context, and is gone.
        given_back(unsafe { call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.device)) });
    }
}

/// The function that destroys an object.
type Destroy<T> = unsafe extern "C" fn(*mut T) -> u32;

/// An object of the driver, destroyed on drop.
struct Owned<T> {
    context: Arc<Context>,
    raw: Handle<T>,
    destroy: Destroy<T>,
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made once, with its own function; the driver keeps the parts of events that streams still need, and
        // finishes graphs that are under way; the device drops kernels only while its streams are idle.
        let destroy =
            |driver: &Driver| driver.check("destroying an object", unsafe { (self.destroy)(self.raw.0) });
        self.context.give_back(destroy);
    }
}

pub(super) struct DeviceMemory {
    context: Arc<Context>,
    address: u64,
}

impl DeviceMemory {
    /// Allocates exactly these bytes, at least 1, with undefined contents.
    pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory, Refusal> {
        let mut address = 0;
        // SAFETY: the call writes one address.
        unsafe { call!(context.driver, cuMemAlloc_v2(&mut address, bytes)) }?;
        Ok(DeviceMemory { context: Arc::clone(context), address })
    }

    /// Start address.
    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated once by `allocate`; the device drops memory only while its streams are idle.
        self.context.give_back(|driver| unsafe { call!(driver, cuMemFree_v2(self.address)) });
    }
}

/// Host memory that the device reads and writes directly.
pub(super) struct PinnedMemory {
    context: Arc<Context>,
    map: MmapMut,
}

impl PinnedMemory {
    /// Pins a mapping with the default flags: cached, and for this context.
    pub(super) fn pin(context: &Arc<Context>, mut map: MmapMut) -> Result<PinnedMemory, Refusal> {
        // SAFETY: the mapping is the value's own and is unpinned before it is unmapped.
        unsafe { call!(context.driver, cuMemHostRegister_v2(map.as_mut_ptr().cast(), map.len(), 0)) }?;
        Ok(PinnedMemory { context: Arc::clone(context), map })
    }

    /// Start address.
    pub(super) fn base(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let base: *mut c_void = self.map.as_mut_ptr().cast();
        // SAFETY: pinned once by `pin`; the device drops memory only while its streams are idle.
        self.context.give_back(|driver| unsafe { call!(driver, cuMemHostUnregister(base)) });
    }
}

pub(super) struct Event(Owned<CUevent_st>);

impl Event {
    /// Creates an event with or without time stamps.
    pub(super) fn new(context: &Arc<Context>, timed: bool) -> Result<Event, Refusal> {
        let flags = if timed { 0 } else { CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32 };
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { call!(context.driver, cuEventCreate(&mut raw, flags)) }?;
        Ok(Event(context.own(raw, context.driver.functions.cuEventDestroy_v2)))
    }

    /// Returns `true` if its last recording outside a capture has happened; returns earlier failures of the stream as
    /// errors.
    pub(super) fn has_happened(&self) -> Result<bool, Refusal> {
        // SAFETY: the event lives.
        match unsafe { call!(self.0.context.driver, cuEventQuery(self.0.raw.0)) } {
            Err(refusal) if refusal.is(Of::CUDA_ERROR_NOT_READY) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Seconds since an earlier event; both must be timed and have happened.
    pub(super) fn seconds_since(&self, earlier: &Event) -> Result<f64, Refusal> {
        let (mut milliseconds, [from, to]) = (0.0f32, [earlier, self].map(|event| event.0.raw.0));
        // SAFETY: the call writes one number.
        unsafe { call!(self.0.context.driver, cuEventElapsedTime(&mut milliseconds, from, to)) }?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

/// A stream without order to any other, or one borrowed from another owner.
pub(super) struct CudaStream {
    context: Arc<Context>,
    raw: Handle<CUstream_st>,
    /// `None` for a borrowed stream.
    _owned: Option<Owned<CUstream_st>>,
}

impl CudaStream {
    /// Creates a stream, which has no order with the default stream.
    pub(super) fn new(context: &Arc<Context>) -> Result<CudaStream, Refusal> {
        let mut raw = null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the call writes one handle.
        unsafe { call!(context.driver, cuStreamCreate(&mut raw, flags)) }?;
        let owned = context.own(raw, context.driver.functions.cuStreamDestroy_v2);
        Ok(CudaStream { context: Arc::clone(context), raw: Handle(raw), _owned: Some(owned) })
    }

    /// A stream of this context with another owner, who keeps it; 0 is the default stream. The borrower ensures that it
    /// lives.
    pub(super) fn borrowed(context: &Arc<Context>, handle: usize) -> CudaStream {
        let raw = Handle(handle as *mut CUstream_st);
        CudaStream { context: Arc::clone(context), raw, _owned: None }
    }

    /// The raw handle, for libraries that enqueue on it.
    pub(super) fn raw(&self) -> *mut CUstream_st {
        self.raw.0
    }

    fn driver(&self) -> &Driver {
        &self.context.driver
    }

    /// Waits until the stream is idle; returns earlier failures as errors.
    pub(super) fn synchronise(&self) -> Result<(), Refusal> {
        // SAFETY: the stream lives as long as the value.
        unsafe { call!(self.driver(), cuStreamSynchronize(self.raw.0)) }
    }

    /// Enqueues the recording of an event.
    pub(super) fn record(&self, event: &Event) -> Result<(), Refusal> {
        // SAFETY: both live; the driver keeps the parts of the event that it needs.
        unsafe { call!(self.driver(), cuEventRecord(event.0.raw.0, self.raw.0)) }
    }

    /// Enqueues the recording of an event at each run of the graph that the stream captures. Nothing within the capture can
    /// wait for it.
    pub(super) fn record_when_launched(&self, event: &Event) -> Result<(), Refusal> {
        let external = CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as c_uint;
        // SAFETY: both live; the holder of the graph keeps the event.
        unsafe { call!(self.driver(), cuEventRecordWithFlags(event.0.raw.0, self.raw.0, external)) }
    }

    /// Enqueues a wait for the last recording of an event.
    pub(super) fn wait(&self, event: &Event) -> Result<(), Refusal> {
        // SAFETY: as in `record`.
        unsafe { call!(self.driver(), cuStreamWaitEvent(self.raw.0, event.0.raw.0, 0)) }
    }

    /// Enqueues a copy of host memory to the device.
    ///
    /// # Safety
    /// Both ranges lie in live memory until the copy has ended, and only accesses ordered by events touch them.
    pub(super) unsafe fn copy_to_device(
        &self,
        device: u64,
        host: *const u8,
        bytes: usize,
    ) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        unsafe { call!(self.driver(), cuMemcpyHtoDAsync_v2(device, host.cast(), bytes, self.raw.0)) }
    }

    /// Enqueues a copy of device memory to the host.
    ///
    /// # Safety
    /// As for [`CudaStream::copy_to_device`].
    pub(super) unsafe fn copy_to_host(
        &self,
        host: *mut u8,
        device: u64,
        bytes: usize,
    ) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        unsafe { call!(self.driver(), cuMemcpyDtoHAsync_v2(host.cast(), device, bytes, self.raw.0)) }
    }

    /// Enqueues the filling of device memory with zeros.
    ///
    /// # Safety
    /// As for [`CudaStream::copy_to_device`].
    pub(super) unsafe fn zero(&self, device: u64, bytes: usize) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        unsafe { call!(self.driver(), cuMemsetD8Async(device, 0, bytes, self.raw.0)) }
    }

    /// Enqueues a kernel, with blocks along x. Each argument is a cell of 8 bytes; the kernel reads as many of the first ones
    /// as its parameter has.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters, in order; its accesses through them obey the rules of
    /// [`CudaStream::copy_to_device`].
    pub(super) unsafe fn launch(
        &self,
        function: Function,
        [x, y, z]: [u32; 3],
        threads: u32,
        arguments: &mut [u64],
    ) -> Result<(), Refusal> {
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
        let (f, stream, pointers) = (function.0.0, self.raw.0, pointers.as_mut_ptr());
        // SAFETY: passed on to the caller; the driver copies the arguments before it returns.
        unsafe {
            call!(self.driver(), cuLaunchKernel(f, x, y, z, threads, 1, 1, 0, stream, pointers, null_mut()))
        }
    }

    /// Begins a capture: commands enqueued here, and on streams that wait for this one, become a graph and do not run.
    pub(super) fn begin_capture(&self) -> Result<(), Refusal> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the value.
        unsafe { call!(self.driver(), cuStreamBeginCapture_v2(self.raw.0, mode)) }
    }

    /// Ends the capture; returns the graph, ready to launch.
    pub(super) fn end_capture(&self) -> Result<Graph, Refusal> {
        let (mut graph, mut raw) = (null_mut(), null_mut());
        // SAFETY: the call writes one handle.
        unsafe { call!(self.driver(), cuStreamEndCapture(self.raw.0, &mut graph)) }?;
        // Destroyed at the end of this function: the executable made from it does not need it.
        let _graph = self.context.own(graph, self.driver().functions.cuGraphDestroy);
        // SAFETY: the graph was made just now; the call writes one handle.
        unsafe { call!(self.driver(), cuGraphInstantiateWithFlags(&mut raw, graph, 0)) }?;
        Ok(Graph(self.context.own(raw, self.driver().functions.cuGraphExecDestroy)))
    }

    /// Enqueues a whole graph.
    ///
    /// # Safety
    /// The memory that its commands name lives until they have ended.
    pub(super) unsafe fn launch_graph(&self, graph: &Graph) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        unsafe { call!(self.driver(), cuGraphLaunch(graph.0.raw.0, self.raw.0)) }
    }
}

/// A graph that can be launched repeatedly.
pub(super) struct Graph(Owned<CUgraphExec_st>);

/// Loaded kernels.
pub(super) struct Module(Owned<CUmod_st>);

/// A kernel of a live module.
#[derive(Clone, Copy)]
pub(super) struct Function(Handle<CUfunc_st>);

impl Module {
    /// Loads a whole cubin, or PTX that ends with a zero.
    pub(super) fn load(context: &Arc<Context>, code: &[u8]) -> Result<Module, Refusal> {
        let mut raw = null_mut();
        // SAFETY: a cubin contains its length, PTX ends with a zero, and the call writes one handle.
        unsafe { call!(context.driver, cuModuleLoadData(&mut raw, code.as_ptr().cast())) }?;
        Ok(Module(context.own(raw, context.driver.functions.cuModuleUnload)))
    }

    /// Returns a kernel by its name.
    pub(super) fn function(&self, name: &str) -> Result<Function, Refusal> {
        let name = CString::new(name).expect("a kernel's name has no zero");
        let (mut raw, module) = (null_mut(), self.0.raw.0);
        // SAFETY: the name ends with a zero, and the call writes one handle.
        unsafe { call!(self.0.context.driver, cuModuleGetFunction(&mut raw, module, name.as_ptr())) }?;
        Ok(Function(Handle(raw)))
    }
}
