//! The CUDA kernels on a device, through the driver's own functions: a GPU, or the stand-in library in a folder of
//! `PLIMSOLL_CUDA_LIBRARIES`. Without either, one test reports it, and all fail if `PLIMSOLL_TEST_DEVICE` requires a
//! device.
//!
//! Operands are copied there and back with their guards, so that writes outside operands are detected here too.
//!
//! Deliberately does not use the device of the runtime, whose schedules have separate tests.

use super::harness::{GUARD, Span};
use super::nvrtc::{self, Nvrtc};
use super::text::kernels::{self, Argument, Grid};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use plimsoll_ir::Float;
use plimsoll_ir::program::Call;
use std::collections::HashMap;
use std::ffi::{CString, OsString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

type Address = u64;
type Handle = *mut c_void;

/// A device with the loaded kernels, for one test at a time.
pub struct Device {
    driver: Library,
    context: Handle,
    stream: Handle,
    /// Functions by the kernel's name and the storage of activations.
    functions: HashMap<(String, Float), Handle>,
}

// SAFETY: the driver's handles are names, which any thread may use; the mutex below admits one thread at a time.
unsafe impl Send for Device {}

/// Opens a library from the folders that the environment names, else by the loader.
fn open(file: &str) -> Option<Library> {
    let folders = std::env::var_os("PLIMSOLL_CUDA_LIBRARIES").unwrap_or_default();
    let named = std::env::split_paths(&folders).map(|folder| folder.join(file)).filter(|path| path.is_file());
    let all = named.map(PathBuf::into_os_string).chain([OsString::from(file)]);
    // SAFETY: NVIDIA's libraries and the stand-in may be loaded at any time.
    all.into_iter().find_map(|path| unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.ok())
}

/// The device, started once for all tests, or the reason why there is none.
fn started() -> &'static Result<Mutex<Device>, String> {
    static DEVICE: OnceLock<Result<Mutex<Device>, String>> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let device = Device::start().map(Mutex::new);
        if let (Err(why), Some(asked)) = (&device, std::env::var_os("PLIMSOLL_TEST_DEVICE")) {
            panic!("PLIMSOLL_TEST_DEVICE asks for {asked:?}, and {why}");
        }
        device
    })
}

/// Returns `true` if there is a device.
pub fn is_there() -> bool {
    started().is_ok()
}

/// The device for one test, if there is one.
pub fn device() -> Option<MutexGuard<'static, Device>> {
    // State left by a failed test does not matter to the next.
    started().as_ref().ok().map(|device| device.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reports, as the only test, if the others also run on a device.
#[test]
fn kernels_are_run_on_a_device() {
    if let Err(why) = started() {
        println!("skipped: the CUDA kernels and the device's ways are not run on a device, as {why}");
    }
}

/// Calls a function of the driver by its name and parameter types, and asserts that it succeeds.
macro_rules! driver {
    ($library:expr, $name:ident($($argument:expr => $kind:ty),*)) => {{
        type Function = unsafe extern "C" fn($($kind),*) -> c_int;
        // SAFETY: the parameters are those of the driver's documentation, and the memory that they point at is alive.
        let status = unsafe {
            let function = $library.get::<Function>(stringify!($name).as_bytes());
            (function.expect("every driver has it"))($($argument),*)
        };
        assert_eq!(status, 0, "{}", stringify!($name));
    }};
}

impl Device {
    /// Starts the device; `Err` names the missing part.
    fn start() -> Result<Device, String> {
        let driver = open("libcuda.so.1").ok_or("there is no driver")?;
        // SAFETY: the function's type, as the driver documents it.
        let status = unsafe {
            let init = driver.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit");
            (init.map_err(|error| error.to_string())?)(0)
        };
        if status != 0 {
            return Err(format!("the driver does not start ({status})"));
        }
        let named = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].into_iter().find_map(open);
        let nvrtc = match (named, nvrtc::fetched()) {
            (Some(library), _) => Nvrtc::of(library),
            (None, Some(folder)) => Nvrtc::load(&folder),
            (None, None) => return Err("there is no NVRTC".to_owned()),
        };
        let (mut context, mut stream, mut module, mut ordinal) = (null_mut(), null_mut(), null_mut(), 0);
        driver!(driver, cuDeviceGet(&mut ordinal => *mut c_int, 0 => c_int));
        driver!(driver, cuDevicePrimaryCtxRetain(&mut context => *mut Handle, ordinal => c_int));
        driver!(driver, cuCtxSetCurrent(context => Handle));
        driver!(driver, cuStreamCreate(&mut stream => *mut Handle, 1 => c_uint));
        let mut capability = [0; 2];
        // Capability, major and minor.
        for (number, attribute) in capability.iter_mut().zip([75, 76]) {
            driver!(driver, cuDeviceGetAttribute(number => *mut c_int, attribute => c_int, ordinal => c_int));
        }
        let [major, minor] = capability;
        let old = format!("compute_{major}{minor}");
        let architecture = if major < 8 { &*old } else { nvrtc::VIRTUAL };
        let mut functions = HashMap::new();
        for float in [Float::F32, Float::Bf16] {
            let source = kernels::source(float);
            let ptx = nvrtc.compile(&source, architecture)?;
            driver!(driver, cuModuleLoadData(&mut module => *mut Handle, ptx.as_ptr() => *const u8));
            for (name, _) in super::text::signatures(&source) {
                let symbol = CString::new(name.clone()).expect("a name");
                let mut function = null_mut();
                driver!(driver, cuModuleGetFunction(&mut function => *mut Handle, module => Handle,
                        symbol.as_ptr() => *const c_char));
                functions.insert((name, float), function);
            }
        }
        Ok(Device { driver, context, stream, functions })
    }

    /// Computes a call on operands on the host, with their guards, and copies the results back.
    ///
    /// # Safety
    /// As `plimsoll_runtime::cpu::kernels::run`; each span has [`GUARD`] bytes before it, and padding to a multiple of 256
    /// after it.
    pub unsafe fn run(&self, call: &Call, float: Float, operands: &[Span], workspace: Span) {
        driver!(self.driver, cuCtxSetCurrent(self.context => Handle));
        // Operands in place are one span.
        let mut spans: Vec<Span> = Vec::new();
        for span in operands.iter().chain([&workspace]) {
            if !spans.iter().any(|other| other.at == span.at) {
                spans.push(*span);
            }
        }
        let room = |span: &Span| GUARD + span.len.next_multiple_of(256);
        let mut base: Address = 0;
        let bytes: usize = spans.iter().map(room).sum();
        driver!(self.driver, cuMemAlloc_v2(&mut base => *mut Address, bytes => usize));
        let mut starts = HashMap::new();
        let mut next = base;
        for span in &spans {
            let from = span.at.wrapping_sub(GUARD);
            driver!(self.driver, cuMemcpyHtoDAsync_v2(next => Address, from.cast() => *const c_void,
                    room(span) => usize, self.stream => Handle));
            starts.insert(span.at, next + GUARD as Address);
            next += room(span) as Address;
        }
        for grid in kernels::grids(call, float) {
            self.launch(
                &grid,
                float,
                &operands.iter().map(|s| starts[&s.at]).collect::<Vec<_>>(),
                starts[&workspace.at],
            );
        }
        for span in &spans {
            let (to, from) = (span.at.wrapping_sub(GUARD), starts[&span.at] - GUARD as Address);
            driver!(self.driver, cuMemcpyDtoHAsync_v2(to.cast() => *mut c_void, from => Address,
                    room(span) => usize, self.stream => Handle));
        }
        driver!(self.driver, cuStreamSynchronize(self.stream => Handle));
        driver!(self.driver, cuMemFree_v2(base => Address));
    }

    fn launch(&self, grid: &Grid, float: Float, operands: &[Address], workspace: Address) {
        let value = |argument: &Argument| match *argument {
            Argument::Operand(i) => operands[i],
            Argument::Workspace(at) => workspace + at,
            Argument::U32(n) => u64::from(n),
            Argument::U64(n) => n,
            Argument::F32(v) => u64::from(v.to_bits()),
        };
        let mut values: Vec<u64> = grid.arguments.iter().map(value).collect();
        let mut addresses: Vec<*mut c_void> =
            values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let [x, y, z] = grid.blocks;
        let function = self.functions[&(grid.kernel.to_owned(), float)];
        driver!(self.driver, cuLaunchKernel(function => Handle, x => c_uint, y => c_uint,
                z => c_uint, grid.threads => c_uint, 1 => c_uint, 1 => c_uint, 0 => c_uint,
                self.stream => Handle, addresses.as_mut_ptr() => *mut *mut c_void, null_mut() => *mut *mut c_void));
    }
}
