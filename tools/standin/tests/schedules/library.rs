//! The stand-in as a library in a folder, which the device finds, and a test's calls to it.
//!
//! With `PLIMSOLL_TEST_DEVICE=gpu` in the environment, the tests in `bodies` run on a GPU instead: its libraries are found
//! as usual, calls are not counted, and streams are not delayed. A missing GPU is then a failure. The other tests need the
//! stand-in.

use plimsoll_ir::Precision;
use plimsoll_runtime::{CudaDevice, CudaOptions, Error};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The loaded library, or a GPU. It counts and delays for the whole process, so one test holds it at a time.
pub struct StandIn {
    folder: tempfile::TempDir,
    /// Null on a GPU.
    handle: *mut c_void,
    /// A GPU without graphs and with them; later devices share its libraries, which take long to start.
    open: [OnceCell<CudaDevice>; 2],
    _alone: MutexGuard<'static, ()>,
}

impl StandIn {
    /// Opens the library; `None`, with a message, without a C compiler.
    pub fn open() -> Option<StandIn> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        if std::env::var_os("PLIMSOLL_TEST_DEVICE").is_some_and(|device| device == "gpu") {
            let handle = std::ptr::null_mut();
            return Some(StandIn { folder, handle, open: Default::default(), _alone: alone });
        }
        if Command::new("cc").arg("--version").output().is_err() {
            println!("skipped: no C compiler `cc` is on this machine");
            return None;
        }
        let built = built();
        let libraries = ["libcublas.so.13", "libcudnn.so.9", "libnccl.so.2", "libnvtx3interop.so.1"];
        for name in ["libcuda.so.1", "libnvrtc.so.13"].iter().chain(&libraries) {
            std::os::unix::fs::symlink(&built, folder.path().join(name)).expect("a link can be made");
        }
        let path = CString::new(built.into_os_string().into_encoded_bytes()).expect("no zero in a path");
        // SAFETY: the library has no initialisers, and is never unloaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Some(StandIn { folder, handle, open: Default::default(), _alone: alone })
    }

    /// Returns `true` if the environment requires a GPU.
    pub fn is_gpu(&self) -> bool {
        self.handle.is_null()
    }

    /// Options by which the device `cuda` finds it, with a separate cache; every call has one alternative, which gives the
    /// same bits each time.
    pub fn options(&self) -> CudaOptions {
        let folder = self.folder.path().to_owned();
        let cache = Some(folder.join("cache"));
        let libraries = if self.is_gpu() { vec![] } else { vec![folder] };
        CudaOptions { libraries, cache, deterministic: true, ..CudaOptions::default() }
    }

    /// Opens the device `cuda` as usual.
    pub fn open_device(&self, graphs: bool) -> Result<CudaDevice, Error> {
        CudaDevice::open(&CudaOptions { graphs, ..self.options() })
    }

    /// The device `cuda` in a different precision, with graphs.
    pub fn device_in(&self, precision: Precision) -> CudaDevice {
        let options = CudaOptions { precision: Some(precision), ..self.options() };
        CudaDevice::open(&options).expect("nothing stands in the way")
    }

    /// The device `cuda`.
    pub fn device(&self, graphs: bool) -> CudaDevice {
        let open = || self.open_device(graphs).expect("nothing stands in the way");
        if self.is_gpu() {
            let first = self.open[usize::from(graphs)].get_or_init(open);
            return first.another().expect("it is open");
        }
        open()
    }

    /// A function of the library. Its type, which callers know, is that of `tools/standin/src`.
    fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the library is loaded.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null(), "the stand-in has {name:?}");
        assert_eq!(size_of::<F>(), size_of_val(&at));
        // SAFETY: callers give the function's own type.
        unsafe { std::mem::transmute_copy(&at) }
    }

    /// Delays streams by this seed from now on; 0 for no delays.
    pub fn delays(&self, seed: u64) {
        self.function::<extern "C" fn(u64)>(c"plimsoll_standin_delays")(seed);
    }

    /// Makes streams take turns from now on: in one of the fixed orders 1 to 6, or in random ones with a larger number as
    /// the seed; 0 for streams that run independently.
    pub fn order(&self, order: u64) {
        self.function::<extern "C" fn(u64)>(c"plimsoll_standin_order")(order);
    }

    /// Number of times each call was made so far.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let counts: extern "C" fn(*mut u8, usize) -> usize = self.function(c"plimsoll_standin_counts");
        let mut text = vec![0; 1 << 16];
        let length = counts(text.as_mut_ptr(), text.len());
        assert!(length <= text.len());
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        let line = |line: &str| {
            let (name, count) = line.rsplit_once(' ').expect("a name and a count");
            (name.to_owned(), count.parse().expect("a number"))
        };
        text.lines().map(line).collect()
    }

    /// Calls made by `act`.
    pub fn calls_of(&self, act: impl FnOnce()) -> BTreeMap<String, u64> {
        let before = self.counts();
        act();
        let mut after = self.counts();
        after.iter_mut().for_each(|(name, count)| *count -= before.get(name).unwrap_or(&0));
        after.retain(|_, count| *count > 0);
        after
    }

    /// The same, for tests that also run on a GPU, where calls are not counted.
    pub fn counted(&self, act: impl FnOnce()) -> Option<BTreeMap<String, u64>> {
        if self.is_gpu() {
            act();
            return None;
        }
        Some(self.calls_of(act))
    }

    /// Answers the call of this name that follows `after` others with this code instead of making it.
    pub fn answer(&self, name: &CStr, after: u64, code: u32) {
        let answer: extern "C" fn(*const c_char, u64, u32) = self.function(c"plimsoll_standin_answer");
        answer(name.as_ptr(), after, code);
    }

    /// Makes its NVRTC 13.`minor` from now on, with architectures up to `newest`, the capability times 10.
    pub fn compiler(&self, minor: i32, newest: i32) {
        self.function::<extern "C" fn(i32, i32)>(c"plimsoll_standin_compiler")(minor, newest);
    }

    /// Number of times that a range of this path was closed so far, such as `iteration/offload`.
    pub fn ranges(&self, path: &str) -> u64 {
        let path = CString::new(path).expect("a name");
        self.function::<extern "C" fn(*const c_char) -> u64>(c"plimsoll_standin_ranges")(path.as_ptr())
    }

    /// Allocates device memory, as a second user of the context does.
    pub fn allocate(&self, bytes: usize) -> u64 {
        let allocate: extern "C" fn(&mut u64, usize) -> u32 = self.function(c"cuMemAlloc_v2");
        let mut address = 0;
        assert_eq!(allocate(&mut address, bytes), 0, "there is room");
        address
    }

    /// Sets bytes of device memory on a stream, as a second user of the context does.
    pub fn fill(&self, address: u64, byte: u8, bytes: usize, stream: usize) {
        let fill: extern "C" fn(u64, u8, usize, usize) -> u32 = self.function(c"cuMemsetD8Async");
        assert_eq!(fill(address, byte, bytes, stream), 0, "the memory is there");
    }

    /// Reads device memory after all work of a stream.
    pub fn read(&self, address: u64, bytes: usize, stream: usize) -> Vec<u8> {
        let read: extern "C" fn(*mut u8, u64, usize, usize) -> u32 = self.function(c"cuMemcpyDtoHAsync_v2");
        let mut read_bytes = vec![0; bytes];
        assert_eq!(read(read_bytes.as_mut_ptr(), address, bytes, stream), 0, "the memory is there");
        let synchronise: extern "C" fn(usize) -> u32 = self.function(c"cuStreamSynchronize");
        assert_eq!(synchronise(stream), 0, "nothing failed on the stream");
        read_bytes
    }

    /// Sets the rate of copies between host and device from now on, both ways at once or one at a time; 0 for no limit.
    pub fn link(&self, bytes_per_second: u64, is_shared: bool) {
        self.function::<extern "C" fn(u64, bool)>(c"plimsoll_standin_link")(bytes_per_second, is_shared);
    }

    /// Makes a stream, as a second user of the context does.
    pub fn stream(&self) -> usize {
        let create: extern "C" fn(&mut usize, u32) -> u32 = self.function(c"cuStreamCreate");
        let mut stream = 0;
        assert_eq!(create(&mut stream, 1), 0, "a stream can be made");
        stream
    }

    /// Captures the work enqueued on a stream, as a second user of the context does; returns the graph, or the status of a
    /// refused end of the capture.
    pub fn captured(&self, stream: usize, enqueue: impl FnOnce()) -> Result<usize, u32> {
        const OF_ONE_THREAD: u32 = 1;
        let begin: extern "C" fn(usize, u32) -> u32 = self.function(c"cuStreamBeginCapture_v2");
        let end: extern "C" fn(usize, &mut usize) -> u32 = self.function(c"cuStreamEndCapture");
        let instantiate: extern "C" fn(&mut usize, usize, u64) -> u32 =
            self.function(c"cuGraphInstantiateWithFlags");
        assert_eq!(begin(stream, OF_ONE_THREAD), 0, "the stream does not capture yet");
        enqueue();
        let [mut graph, mut executable] = [0; 2];
        match end(stream, &mut graph) {
            0 => assert_eq!(instantiate(&mut executable, graph, 0), 0, "the graph is there"),
            refused => return Err(refused),
        }
        Ok(executable)
    }

    /// Launches a graph on a stream.
    pub fn launch(&self, graph: usize, stream: usize) {
        let launch: extern "C" fn(usize, usize) -> u32 = self.function(c"cuGraphLaunch");
        assert_eq!(launch(graph, stream), 0, "the graph is there");
    }

    /// Returns a query for the number of busy streams.
    pub fn busy(&self) -> impl Fn() -> usize + Send + 'static {
        let busy: extern "C" fn() -> usize = self.function(c"plimsoll_standin_busy");
        move || busy()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if self.is_gpu() {
            return;
        }
        self.delays(0);
        self.order(0);
        self.compiler(0, i32::MAX);
        self.link(0, false);
        self.answer(c"", 0, 0);
    }
}

/// Output of a test of this program in a separate process, for what is read once in a process.
pub fn child(test: &str, environment: &[(&str, &OsStr)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--exact", "--nocapture", test]).envs(environment.iter().copied());
    let output = command.output().expect("a test can be started");
    [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat()
}

/// The library that was built with this test, in the same folder.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let built = test.parent().map(|folder| folder.join("libplimsoll_standin.so"));
    built.filter(|path: &PathBuf| Path::is_file(path)).expect("cargo builds the library beside its tests")
}
