//! From the kernels' source to code that the driver loads: compiled by NVRTC once, and kept in the user's cache folder.
//!
//! NVRTC makes machine code (a cubin) for the device's own architecture, which every driver of the same major version of
//! CUDA accepts. It makes PTX only if it does not know that architecture: a driver refuses the PTX of a newer NVRTC.
//!
//! The name of a file in the cache depends on all its inputs: the source and the options, the architecture, and the NVRTC
//! that made it (its version and its file). The file ends in its checksum, since a driver reads past the end of a truncated
//! cubin. A cache that cannot be read or written costs only seconds at each start, so that is a line in the log. Code that
//! is damaged, or that the driver refuses, is compiled anew.

use super::driver::{Context, Module};
use super::error::{Capability, Refusal};
use super::presence::{NVRTC, NVRTC_12, Search};
use super::table::{CompilerFunctions, call};
use crate::error::Error;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Disables the contraction of products and sums, so that a kernel's numbers are those of its text on any device.
const OPTIONS: [&CStr; 1] = [c"--fmad=false"];

/// Target of compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The device's own machine code.
    Machine(Capability),
    /// PTX of an older architecture, which the driver compiles to machine code.
    Virtual(Capability),
}

/// NVRTC's name for it: `sm_90`, `compute_90`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, Capability { major, minor }) = match self {
            Target::Machine(capability) => ("sm", capability),
            Target::Virtual(capability) => ("compute", capability),
        };
        write!(f, "{word}_{major}{minor}")
    }
}

/// The kernels that a device runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCode {
    /// Compilation target, such as `sm_90`; `compute_80` is PTX, which the driver compiles to machine code.
    pub target: String,
    /// Cache file; `None` if each start compiles them anew.
    pub kept: Option<PathBuf>,
}

/// NVRTC, loaded.
pub(super) struct Compiler {
    functions: CompilerFunctions,
    path: PathBuf,
    version: (u32, u32),
}

impl Compiler {
    /// Finds and loads the NVRTC for a driver of this version of CUDA.
    pub(super) fn load(search: &Search, driver: (u32, u32)) -> Result<Compiler, Error> {
        let wanted = if driver.0 < 13 { NVRTC_12 } else { NVRTC };
        let found = search.load(&wanted)?;
        let functions = CompilerFunctions::of(&found, &wanted)?;
        let mut compiler = Compiler { functions, path: found.leak(), version: (0, 0) };
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: the call writes two numbers.
        unsafe { call!(compiler, nvrtcVersion(&mut major, &mut minor)) }?;
        compiler.version = (major.unsigned_abs(), minor.unsigned_abs());
        Ok(compiler)
    }

    /// NVRTC's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// NVRTC's version, such as (13, 0).
    pub(super) fn version(&self) -> (u32, u32) {
        self.version
    }

    fn check(&self, call: &str, status: u32) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        Err(self.not_compiled(&format!("{call} gave {status}")))
    }

    /// Error of kernels that do not compile: a bug of ours, or an NVRTC that reads them differently.
    fn not_compiled(&self, log: &str) -> Error {
        Error::device(format!("the kernels do not compile with NVRTC `{}`: {log}", self.path.display()))
    }

    /// Compilation target: the device's own architecture if NVRTC knows it, else the newest that the device can run.
    fn target(&self, device: &str, capability: Capability) -> Result<Target, Error> {
        let mut count: c_int = 0;
        // SAFETY: the call writes one number.
        unsafe { call!(self, nvrtcGetNumSupportedArchs(&mut count)) }?;
        let mut known: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: the call writes as many numbers as it said.
        unsafe { call!(self, nvrtcGetSupportedArchs(known.as_mut_ptr())) }?;
        let known =
            known.iter().map(|n| n.unsigned_abs()).map(|n| Capability { major: n / 10, minor: n % 10 });
        target(&known.collect::<Vec<_>>(), capability).map_err(|least| {
            Error::device(format!(
                "NVRTC `{}` makes code for compute capability {least} at least, and {device} has {capability}; put an older \
                 NVRTC first with PLIMSOLL_CUDA_LIBRARIES=FOLDER",
                self.path.display()
            ))
        })
    }

    /// Compiles to a cubin, or to PTX that ends with a zero.
    fn compile(&self, source: &str, target: Target) -> Result<Vec<u8>, Error> {
        let source = CString::new(source).expect("the kernels have no zero");
        let architecture = CString::new(format!("--gpu-architecture={target}")).expect("it has no zero");
        let options: Vec<*const c_char> =
            [architecture.as_c_str()].into_iter().chain(OPTIONS).map(CStr::as_ptr).collect();
        let f = &self.functions;
        let (mut program, text, file) = (null_mut(), source.as_ptr(), c"plimsoll.cu".as_ptr());
        // SAFETY: texts end with a zero and live until the program is destroyed; the call writes one handle.
        unsafe { call!(self, nvrtcCreateProgram(&mut program, text, file, 0, null(), null())) }?;
        // SAFETY: the program was made just now; the count is that of the options.
        let compiled = unsafe { (f.nvrtcCompileProgram)(program, options.len() as c_int, options.as_ptr()) };
        // SAFETY: in each pair of calls the first writes a number, the second as many bytes.
        let code = unsafe {
            match target {
                _ if compiled != 0 => {
                    let (size, get) = (f.nvrtcGetProgramLogSize, f.nvrtcGetProgramLog);
                    let log = self.bytes(program, "nvrtcGetProgramLog", size, get).unwrap_or_default();
                    let log = String::from_utf8_lossy(&log);
                    let log = log.trim_end_matches('\0').trim();
                    let gave = format!("nvrtcCompileProgram gave {compiled}");
                    Err(self.not_compiled(if log.is_empty() { &gave } else { log }))
                }
                Target::Machine(_) => {
                    self.bytes(program, "nvrtcGetCUBIN", f.nvrtcGetCUBINSize, f.nvrtcGetCUBIN)
                }
                Target::Virtual(_) => self.bytes(program, "nvrtcGetPTX", f.nvrtcGetPTXSize, f.nvrtcGetPTX),
            }
        };
        // SAFETY: the program was made above and is not used again.
        let destroyed = unsafe { (f.nvrtcDestroyProgram)(&mut program) };
        code.and_then(|code| self.check("nvrtcDestroyProgram", destroyed).map(|()| code))
    }

    /// Bytes of one product of a program.
    ///
    /// # Safety
    /// `size` writes a number for `program`, and `get` as many bytes.
    unsafe fn bytes<P: Copy>(
        &self,
        program: P,
        call: &str,
        size: unsafe extern "C" fn(P, *mut usize) -> u32,
        get: unsafe extern "C" fn(P, *mut c_char) -> u32,
    ) -> Result<Vec<u8>, Error> {
        let mut count = 0usize;
        // SAFETY: passed on to the caller.
        self.check(call, unsafe { size(program, &mut count) })?;
        let mut bytes = vec![0u8; count];
        // SAFETY: passed on to the caller.
        self.check(call, unsafe { get(program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    /// The kernels as a module of a device: from the cache if it has them, else compiled and then cached.
    pub(super) fn module(
        &self,
        context: &Arc<Context>,
        source: &str,
        device: (&str, Capability),
        cache: Option<&Path>,
    ) -> Result<(Module, KernelCode), Error> {
        let target = self.target(device.0, device.1)?;
        if let Target::Virtual(known) = target {
            let (major, minor) = self.version;
            tracing::warn!(
                "NVRTC {major}.{minor} is older than {} ({}): its driver compiles the kernels from those of {known}",
                device.0,
                device.1
            );
        }
        let code_in = |kept| KernelCode { target: target.to_string(), kept };
        let file = cache.map(|folder| folder.join(self.name(source, target)));
        if let Some(code) = file.as_deref().and_then(kept) {
            match Module::load(context, &code) {
                Ok(module) => return Ok((module, code_in(file))),
                Err(refusal) => {
                    tracing::debug!("compiling the kernels anew, as those kept are refused: {refusal}");
                }
            }
        }
        let code = self.compile(source, target)?;
        let refused = |refusal: Refusal| {
            Error::device(format!("the driver does not load the kernels: {refusal}; {}", refusal.advice()))
        };
        let module = Module::load(context, &code).map_err(refused)?;
        let kept = file.filter(|file| {
            let kept = keep(file, &code);
            if let Err(error) = &kept {
                tracing::debug!("the compiled kernels are not kept in {}: {error}", file.display());
            }
            kept.is_ok()
        });
        Ok((module, code_in(kept)))
    }

    /// File name of code in the cache.
    fn name(&self, source: &str, target: Target) -> String {
        let mut hasher = DefaultHasher::new();
        (source, OPTIONS, &self.path).hash(&mut hasher);
        let ((major, minor), digest) = (self.version, hasher.finish());
        format!("kernels-{target}-nvrtc{major}.{minor}-{digest:016x}")
    }
}

/// The device's own architecture if known, else the newest that the device can run; as error, the least known if it can run
/// none.
fn target(known: &[Capability], device: Capability) -> Result<Target, Capability> {
    if known.contains(&device) {
        return Ok(Target::Machine(device));
    }
    let least = known.iter().copied().min().unwrap_or(device);
    known.iter().copied().filter(|k| *k <= device).max().map(Target::Virtual).ok_or(least)
}

/// Code in the cache; `None` if missing or damaged.
fn kept(file: &Path) -> Option<Vec<u8>> {
    let mut code = std::fs::read(file).ok()?;
    let checksum = code.split_off(code.len().checked_sub(size_of::<u32>())?);
    (crc32fast::hash(&code).to_le_bytes() == checksum[..]).then_some(code)
}

/// Writes code to the cache atomically: concurrent processes see it complete or not at all.
fn keep(file: &Path, code: &[u8]) -> std::io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let part = file.with_extension(format!("{}-{number}.part", std::process::id()));
    std::fs::write(&part, [code, &crc32fast::hash(code).to_le_bytes()].concat())?;
    std::fs::rename(&part, file).inspect_err(|_| drop(std::fs::remove_file(&part)))
}

/// The user's folder for compiled code: `$XDG_CACHE_HOME/plimsoll` or `~/.cache/plimsoll`; `None` without a home.
pub fn user_cache() -> Option<PathBuf> {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let root = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(root.join("plimsoll"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(number: u32) -> Capability {
        Capability { major: number / 10, minor: number % 10 }
    }

    #[test]
    fn the_device_s_own_architecture_is_taken_or_the_newest_before_it() {
        let known = [75, 80, 90, 100, 120].map(capability);
        assert_eq!(target(&known, capability(90)), Ok(Target::Machine(capability(90))));
        assert_eq!(target(&known, capability(89)), Ok(Target::Virtual(capability(80))));
        assert_eq!(target(&known, capability(130)), Ok(Target::Virtual(capability(120))));
        assert_eq!(target(&known, capability(70)), Err(capability(75)));
        assert_eq!(Target::Machine(capability(90)).to_string(), "sm_90");
        assert_eq!(Target::Virtual(capability(120)).to_string(), "compute_120");
    }

    /// NVIDIA's own NVRTC, if `runtime/tests/fetch_cuda_compiler.sh` has put it there.
    fn fetched() -> Option<Compiler> {
        let program = std::env::current_exe().expect("a test has a file");
        let folder = program.ancestors().nth(3).expect("it lies in the target folder").join("cuda-compiler");
        if !folder.join("packages").exists() {
            println!("skipped: no CUDA compiler; fetch it with `sh runtime/tests/fetch_cuda_compiler.sh`");
            return None;
        }
        Some(Compiler::load(&Search::only(&folder), (13, 0)).expect("it loads"))
    }

    #[test]
    fn the_real_compiler_takes_the_kernels_and_says_what_it_does_not_take() {
        let Some(compiler) = fetched() else { return };
        assert_eq!(compiler.version(), (13, 0));
        let own = compiler.target("a device", capability(90)).expect("it is not too old");
        assert_eq!(own, Target::Machine(capability(90)));
        let source = super::super::kernels::source(plimsoll_ir::Float::F32);
        let cubin = compiler.compile(&source, own).expect("the kernels compile");
        assert!(cubin.starts_with(b"\x7fELF") && cubin.windows(4).any(|name| name == b"sgd\0"));
        let ptx = compiler.compile(&source, Target::Virtual(capability(90))).expect("the kernels compile");
        let ptx = String::from_utf8(ptx).expect("PTX is text");
        assert!(ptx.contains(".target sm_90") && ptx.contains(".visible .entry sgd("), "{}", &ptx[..400]);
        assert!(ptx.ends_with('\0'), "the driver reads to the zero");
        let error = compiler.compile("no kernel at all", own).expect_err("that is no C");
        assert!(error.message.contains("plimsoll.cu"), "{error}");
        let old = compiler.target("an old device", capability(50)).expect_err("NVRTC 13 begins at 7.5");
        assert!(old.to_string().contains("an old device has 5.0"), "{old}");
    }

    #[test]
    fn what_is_kept_is_found_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("deeper").join("kernels-sm_90-nvrtc13.0-0");
        assert_eq!(kept(&file), None);
        let code: Vec<u8> = (0..200).collect();
        keep(&file, &code).expect("it can be written");
        assert_eq!(kept(&file).as_deref(), Some(&code[..]));
        assert_eq!(std::fs::read_dir(file.parent().expect("a parent")).expect("a folder").count(), 1);
        let whole = std::fs::read(&file).expect("it was written");
        for length in 0..whole.len() {
            std::fs::write(&file, &whole[..length]).expect("it can be written");
            assert_eq!(kept(&file), None, "the first {length} bytes");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 1;
            std::fs::write(&file, &other).expect("it can be written");
            assert_eq!(kept(&file), None, "byte {at} is another");
        }
    }

    #[test]
    fn two_that_write_at_once_leave_one_that_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kernels");
        let codes = [vec![1u8; 100_000], vec![2u8; 100_000]];
        std::thread::scope(|scope| {
            for code in &codes {
                scope.spawn(|| (0..20).for_each(|_| keep(&file, code).expect("it can be written")));
            }
        });
        assert!(codes.contains(&kept(&file).expect("one of them is there")));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "no part is left");
    }
}
