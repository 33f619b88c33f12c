//! The small part of the driver API that the device needs: a context, memory, streams, events, kernels and graphs.
//!
//! Each of these frees itself and keeps its context alive. Calls that enqueue are unsafe if the memory that they name must
//! outlive them: the executor's checked schedules and the device's order of calls ensure that. Every refusal of the driver
//! is returned as a [`Refusal`].
//!
//! Deliberately does not use the default stream for itself, or the bindings' own loader and wrappers (see `table.rs`).

use super::error::{Capability, Refusal};
use super::presence::{DRIVER, Search};
use super::table::DriverFunctions;
use crate::error::Error;
use cudarc::driver::sys::{
    CUctx_st, CUdevice, CUdevice_attribute, CUevent_flags_enum, CUevent_record_flags_enum, CUevent_st,
    CUfunc_st, CUgraph_st, CUgraphExec_st, CUmod_st, CUstream_flags_enum, CUstream_st, CUstreamCaptureMode,
    cudaError_enum as Of,
};
use memmap2::MmapMut;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;

/// No order with the default stream.
const NON_BLOCKING: u32 = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
const DISABLE_TIMING: u32 = CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;

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
        // SAFETY: `cuInit` may be called at any time, and more than once.
        let started = driver.check("cuInit", unsafe { (driver.functions.cuInit)(0) });
        let no_device = |refusal: &Refusal| {
            refusal.is(Of::CUDA_ERROR_NO_DEVICE) || refusal.is(Of::CUDA_ERROR_INVALID_DEVICE)
        };
        match started {
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
        let status = unsafe { (self.functions.cuDriverGetVersion)(&mut version) };
        self.check("cuDriverGetVersion", status)?;
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Number of devices that the driver sees.
    pub(super) fn devices(&self) -> Result<u32, Refusal> {
        let mut count: c_int = 0;
        // SAFETY: the call writes one number.
        self.check("cuDeviceGetCount", unsafe { (self.functions.cuDeviceGetCount)(&mut count) })?;
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
        let status = unsafe { (self.functions.cuDeviceGet)(&mut device, ordinal as c_int) };
        self.check("cuDeviceGet", status)?;
        Ok(device)
    }

    /// Facts about a device, found without using it.
    pub(super) fn facts(&self, ordinal: u32) -> Result<GpuFacts, Error> {
        let device = self.device(ordinal)?;
        let mut text = [0 as c_char; 256];
        // SAFETY: the call writes at most as many bytes as its length argument says, the last a zero.
        let status =
            unsafe { (self.functions.cuDeviceGetName)(text.as_mut_ptr(), text.len() as c_int, device) };
        self.check("cuDeviceGetName", status)?;
        let name = words(&text);
        // SAFETY: as above.
        let status =
            unsafe { (self.functions.cuDeviceGetPCIBusId)(text.as_mut_ptr(), text.len() as c_int, device) };
        self.check("cuDeviceGetPCIBusId", status)?;
        let bus = words(&text).to_lowercase();
        let mut memory = 0usize;
        // SAFETY: the call writes one number.
        let status = unsafe { (self.functions.cuDeviceTotalMem_v2)(&mut memory, device) };
        self.check("cuDeviceTotalMem", status)?;
        use CUdevice_attribute as A;
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
        let status = unsafe { (self.functions.cuDeviceGetAttribute)(&mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", status)?;
        Ok(u32::try_from(value).unwrap_or_default())
    }

    /// Converts a status to a result.
    fn check(&self, call: &'static str, status: u32) -> Result<(), Refusal> {
        if status == 0 {
            return Ok(());
        }
        let text = |function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text = std::ptr::null();
            // SAFETY: the call writes the address of a text that lives as long as the driver, or fails.
            let known = unsafe { function(status, &mut text) } == 0 && !text.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(self.functions.cuGetErrorName).unwrap_or_else(|| format!("error {status}"));
        let text = text(self.functions.cuGetErrorString)
            .unwrap_or_else(|| "an error that it has no words for".into());
        Err(Refusal { call, code: status, name, text })
    }
}

/// A C string in a field that ends with a zero at the latest.
pub(super) fn words(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
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
        let status = unsafe { (driver.functions.cuDevicePrimaryCtxRetain)(&mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", status).map_err(|refusal| {
            Error::device(format!("cuda:{ordinal} cannot be used: {refusal}; {}", refusal.advice()))
        })?;
        let context = Context { driver, device, raw: Handle(raw) };
        context.enter()?;
        Ok(Arc::new(context))
    }

    fn functions(&self) -> &DriverFunctions {
        &self.driver.functions
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), Refusal> {
        self.driver.check(call, status)
    }

    /// Makes this the context of the thread, as all calls need.
    pub(super) fn enter(&self) -> Result<(), Refusal> {
        // SAFETY: the context is retained as long as the value lives.
        self.check("cuCtxSetCurrent", unsafe { (self.functions().cuCtxSetCurrent)(self.raw.0) })
    }

    /// Free bytes of device memory.
    pub(super) fn free_memory(&self) -> Result<u64, Refusal> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the call writes two numbers.
        let status = unsafe { (self.functions().cuMemGetInfo_v2)(&mut free, &mut total) };
        self.check("cuMemGetInfo", status)?;
        Ok(free as u64)
    }

    /// Gives a resource back. The driver refuses only if the context is lost, and everything with it.
    fn give_back(&self, call: &'static str, status: impl FnOnce(&DriverFunctions) -> u32) {
        let outcome = self.enter().and_then(|()| self.check(call, status(self.functions())));
        if let Err(refusal) = outcome {
            tracing::debug!("while giving back: {refusal}");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`; everything made in it holds the context, and is gone.
        let status = unsafe { (self.functions().cuDevicePrimaryCtxRelease_v2)(self.device) };
        if let Err(refusal) = self.check("cuDevicePrimaryCtxRelease", status) {
            tracing::debug!("while giving back: {refusal}");
        }
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
        let status = unsafe { (context.functions().cuMemAlloc_v2)(&mut address, bytes) };
        context.check("cuMemAlloc", status)?;
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
        self.context.give_back("cuMemFree", |f| unsafe { (f.cuMemFree_v2)(self.address) });
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
        let status =
            unsafe { (context.functions().cuMemHostRegister_v2)(map.as_mut_ptr().cast(), map.len(), 0) };
        context.check("cuMemHostRegister", status)?;
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
        self.context.give_back("cuMemHostUnregister", |f| unsafe { (f.cuMemHostUnregister)(base) });
    }
}

pub(super) struct Event {
    context: Arc<Context>,
    raw: Handle<CUevent_st>,
}

impl Event {
    /// Creates an event with or without time stamps.
    pub(super) fn new(context: &Arc<Context>, timed: bool) -> Result<Event, Refusal> {
        let flags = if timed { 0 } else { DISABLE_TIMING };
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        context.check("cuEventCreate", unsafe { (context.functions().cuEventCreate)(&mut raw, flags) })?;
        Ok(Event { context: Arc::clone(context), raw: Handle(raw) })
    }

    /// Returns `true` if its last recording outside a capture has happened; returns earlier failures of the stream as
    /// errors.
    pub(super) fn has_happened(&self) -> Result<bool, Refusal> {
        // SAFETY: the event lives.
        let status = unsafe { (self.context.functions().cuEventQuery)(self.raw.0) };
        if status == Of::CUDA_ERROR_NOT_READY as u32 {
            return Ok(false);
        }
        self.context.check("cuEventQuery", status).map(|()| true)
    }

    /// Seconds since an earlier event; both must be timed and have happened.
    pub(super) fn seconds_since(&self, earlier: &Event) -> Result<f64, Refusal> {
        let mut milliseconds = 0.0f32;
        // SAFETY: the call writes one number.
        let status = unsafe {
            (self.context.functions().cuEventElapsedTime)(&mut milliseconds, earlier.raw.0, self.raw.0)
        };
        self.context.check("cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once by `new`; the driver keeps the parts that streams still need.
        self.context.give_back("cuEventDestroy", |f| unsafe { (f.cuEventDestroy_v2)(self.raw.0) });
    }
}

/// A stream without order to any other, or one borrowed from another owner.
pub(super) struct CudaStream {
    context: Arc<Context>,
    raw: Handle<CUstream_st>,
    is_borrowed: bool,
}

impl CudaStream {
    /// Creates a stream.
    pub(super) fn new(context: &Arc<Context>) -> Result<CudaStream, Refusal> {
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        let status = unsafe { (context.functions().cuStreamCreate)(&mut raw, NON_BLOCKING) };
        context.check("cuStreamCreate", status)?;
        Ok(CudaStream { context: Arc::clone(context), raw: Handle(raw), is_borrowed: false })
    }

    /// A stream of this context with another owner, who keeps it; 0 is the default stream. The borrower ensures that it
    /// lives.
    pub(super) fn borrowed(context: &Arc<Context>, handle: usize) -> CudaStream {
        let raw = Handle(handle as *mut CUstream_st);
        CudaStream { context: Arc::clone(context), raw, is_borrowed: true }
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), Refusal> {
        self.context.check(call, status)
    }

    /// The raw handle, for libraries that enqueue on it.
    pub(super) fn raw(&self) -> *mut CUstream_st {
        self.raw.0
    }

    /// Waits until the stream is idle; returns earlier failures as errors.
    pub(super) fn synchronise(&self) -> Result<(), Refusal> {
        // SAFETY: the stream lives as long as the value.
        let status = unsafe { (self.context.functions().cuStreamSynchronize)(self.raw.0) };
        self.check("cuStreamSynchronize", status)
    }

    /// Enqueues the recording of an event.
    pub(super) fn record(&self, event: &Event) -> Result<(), Refusal> {
        // SAFETY: both live; the driver keeps the parts of the event that it needs.
        let status = unsafe { (self.context.functions().cuEventRecord)(event.raw.0, self.raw.0) };
        self.check("cuEventRecord", status)
    }

    /// Enqueues the recording of an event at each run of the graph that the stream captures. Nothing within the capture can
    /// wait for it.
    pub(super) fn record_when_launched(&self, event: &Event) -> Result<(), Refusal> {
        let external = CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as c_uint;
        // SAFETY: both live; the holder of the graph keeps the event.
        let status =
            unsafe { (self.context.functions().cuEventRecordWithFlags)(event.raw.0, self.raw.0, external) };
        self.check("cuEventRecordWithFlags", status)
    }

    /// Enqueues a wait for the last recording of an event.
    pub(super) fn wait(&self, event: &Event) -> Result<(), Refusal> {
        // SAFETY: as in `record`.
        let status = unsafe { (self.context.functions().cuStreamWaitEvent)(self.raw.0, event.raw.0, 0) };
        self.check("cuStreamWaitEvent", status)
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
        let status = unsafe {
            (self.context.functions().cuMemcpyHtoDAsync_v2)(device, host.cast(), bytes, self.raw.0)
        };
        self.check("cuMemcpyHtoDAsync", status)
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
        let status = unsafe {
            (self.context.functions().cuMemcpyDtoHAsync_v2)(host.cast(), device, bytes, self.raw.0)
        };
        self.check("cuMemcpyDtoHAsync", status)
    }

    /// Enqueues the filling of device memory with zeros.
    ///
    /// # Safety
    /// As for [`CudaStream::copy_to_device`].
    pub(super) unsafe fn zero(&self, device: u64, bytes: usize) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        let status = unsafe { (self.context.functions().cuMemsetD8Async)(device, 0, bytes, self.raw.0) };
        self.check("cuMemsetD8Async", status)
    }

    /// Enqueues a kernel. Each argument is a cell of 8 bytes; the kernel reads as many of the first ones as its parameter
    /// has.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters, in order; its accesses through them obey the rules of
    /// [`CudaStream::copy_to_device`].
    pub(super) unsafe fn launch(
        &self,
        function: Function,
        blocks: [u32; 3],
        threads: u32,
        arguments: &mut [u64],
    ) -> Result<(), Refusal> {
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
        let [x, y, z] = blocks;
        let launch = self.context.functions().cuLaunchKernel;
        // SAFETY: passed on to the caller; the driver copies the arguments before it returns.
        let status = unsafe {
            launch(function.0.0, x, y, z, threads, 1, 1, 0, self.raw.0, pointers.as_mut_ptr(), null_mut())
        };
        self.check("cuLaunchKernel", status)
    }

    /// Begins a capture: commands enqueued here, and on streams that wait for this one, become a graph and do not run.
    pub(super) fn begin_capture(&self) -> Result<(), Refusal> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the value.
        let status = unsafe { (self.context.functions().cuStreamBeginCapture_v2)(self.raw.0, mode) };
        self.check("cuStreamBeginCapture", status)
    }

    /// Ends the capture; returns the graph, ready to launch.
    pub(super) fn end_capture(&self) -> Result<Graph, Refusal> {
        let functions = self.context.functions();
        let mut graph: *mut CUgraph_st = null_mut();
        // SAFETY: the call writes one handle.
        let status = unsafe { (functions.cuStreamEndCapture)(self.raw.0, &mut graph) };
        self.check("cuStreamEndCapture", status)?;
        let mut raw = null_mut();
        // SAFETY: the graph was made just now.
        let status = unsafe { (functions.cuGraphInstantiateWithFlags)(&mut raw, graph, 0) };
        let instantiated = self.check("cuGraphInstantiate", status);
        // SAFETY: only this function holds the graph, and the executable made from it does not need it.
        self.context.give_back("cuGraphDestroy", |f| unsafe { (f.cuGraphDestroy)(graph) });
        instantiated?;
        Ok(Graph { context: Arc::clone(&self.context), raw: Handle(raw) })
    }

    /// Enqueues a whole graph.
    ///
    /// # Safety
    /// The memory that its commands name lives until they have ended.
    pub(super) unsafe fn launch_graph(&self, graph: &Graph) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        let status = unsafe { (self.context.functions().cuGraphLaunch)(graph.raw.0, self.raw.0) };
        self.check("cuGraphLaunch", status)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.is_borrowed {
            return;
        }
        // SAFETY: made once by `new`.
        self.context.give_back("cuStreamDestroy", |f| unsafe { (f.cuStreamDestroy_v2)(self.raw.0) });
    }
}

/// A graph that can be launched repeatedly.
pub(super) struct Graph {
    context: Arc<Context>,
    raw: Handle<CUgraphExec_st>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once by `end_capture`; a launch that is under way is the driver's to finish.
        self.context.give_back("cuGraphExecDestroy", |f| unsafe { (f.cuGraphExecDestroy)(self.raw.0) });
    }
}

/// Loaded kernels.
pub(super) struct Module {
    context: Arc<Context>,
    raw: Handle<CUmod_st>,
}

/// A kernel of a live module.
#[derive(Clone, Copy)]
pub(super) struct Function(Handle<CUfunc_st>);

impl Module {
    /// Loads a whole cubin, or PTX that ends with a zero.
    pub(super) fn load(context: &Arc<Context>, code: &[u8]) -> Result<Module, Refusal> {
        let mut raw = null_mut();
        // SAFETY: a cubin contains its length, PTX ends with a zero, and the call writes one handle.
        let status = unsafe { (context.functions().cuModuleLoadData)(&mut raw, code.as_ptr().cast()) };
        context.check("cuModuleLoadData", status)?;
        Ok(Module { context: Arc::clone(context), raw: Handle(raw) })
    }

    /// Returns a kernel by its name.
    pub(super) fn function(&self, name: &str) -> Result<Function, Refusal> {
        let name = CString::new(name).expect("a kernel's name has no zero");
        let mut raw = null_mut();
        // SAFETY: the name ends with a zero, and the call writes one handle.
        let status =
            unsafe { (self.context.functions().cuModuleGetFunction)(&mut raw, self.raw.0, name.as_ptr()) };
        self.context.check("cuModuleGetFunction", status)?;
        Ok(Function(Handle(raw)))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once by `load`; the device drops its kernels only while its streams are idle.
        self.context.give_back("cuModuleUnload", |f| unsafe { (f.cuModuleUnload)(self.raw.0) });
    }
}
