//! From the kernels' source to PTX: compiled by NVRTC once, and kept in the user's cache folder.
//!
//! A text in the cache is named by everything that it follows from: the source and the options, the compute capability, and
//! the NVRTC that made it (its version and its file). A cache that cannot be read or written costs seconds at each start and
//! nothing else, so that is a line in the log; a text that the driver does not take is compiled anew.

use super::driver::{Context, Module};
use super::error::{Capability, CudaError, Refusal, advice};
use super::presence::{NVRTC, NVRTC_12, Search};
use super::table::CompilerFunctions;
use std::ffi::{CStr, CString, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Products and sums are not contracted, so that a kernel's numbers are those of its text on any device.
const OPTIONS: [&CStr; 1] = [c"--fmad=false"];

/// NVRTC, loaded.
pub(super) struct Compiler {
    functions: CompilerFunctions,
    path: PathBuf,
    version: (u32, u32),
}

impl Compiler {
    /// Finds and loads the one for a driver of this version of CUDA.
    pub(super) fn load(search: &Search, driver: (u32, u32)) -> Result<Compiler, CudaError> {
        let wanted = if driver.0 < 13 { NVRTC_12 } else { NVRTC };
        let found = search.load(&wanted)?;
        let functions = CompilerFunctions::of(&found, &wanted)?;
        let mut compiler = Compiler { functions, path: found.leak(), version: (0, 0) };
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: the call writes two numbers.
        let status = unsafe { (compiler.functions.nvrtcVersion)(&mut major, &mut minor) };
        compiler.check("nvrtcVersion", status)?;
        compiler.version = (major.unsigned_abs(), minor.unsigned_abs());
        Ok(compiler)
    }

    /// Where it lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, such as (13, 0).
    pub(super) fn version(&self) -> (u32, u32) {
        self.version
    }

    fn check(&self, call: &str, status: u32) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        Err(CudaError::Compile { path: self.path.clone(), log: format!("{call} gave {status}") })
    }

    /// The newest virtual architecture that it knows and the device can run.
    fn architecture(&self, device: &str, capability: Capability) -> Result<Capability, CudaError> {
        let mut count: c_int = 0;
        // SAFETY: the call writes one number.
        self.check("nvrtcGetNumSupportedArchs", unsafe {
            (self.functions.nvrtcGetNumSupportedArchs)(&mut count)
        })?;
        let mut known: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: the call writes as many numbers as it said.
        self.check("nvrtcGetSupportedArchs", unsafe {
            (self.functions.nvrtcGetSupportedArchs)(known.as_mut_ptr())
        })?;
        let known =
            known.iter().map(|n| n.unsigned_abs()).map(|n| Capability { major: n / 10, minor: n % 10 });
        newest(&known.collect::<Vec<_>>(), capability).map_err(|least| CudaError::Capability {
            path: self.path.clone(),
            least,
            device: device.to_owned(),
            capability,
        })
    }

    /// Compiles to PTX.
    fn compile(&self, source: &str, architecture: Capability) -> Result<CString, CudaError> {
        let source = CString::new(source).expect("the kernels have no zero");
        let Capability { major, minor } = architecture;
        let target =
            CString::new(format!("--gpu-architecture=compute_{major}{minor}")).expect("it has no zero");
        let options: Vec<*const c_char> =
            [target.as_c_str()].into_iter().chain(OPTIONS).map(CStr::as_ptr).collect();
        let f = &self.functions;
        let mut program = null_mut();
        // SAFETY: texts end with a zero and live until the program is destroyed; the call writes one handle.
        let status = unsafe {
            (f.nvrtcCreateProgram)(&mut program, source.as_ptr(), c"plimsoll.cu".as_ptr(), 0, null(), null())
        };
        self.check("nvrtcCreateProgram", status)?;
        // SAFETY: the program was made just now; there are as many options as are told.
        let compiled = unsafe { (f.nvrtcCompileProgram)(program, options.len() as c_int, options.as_ptr()) };
        // SAFETY: of both pairs of calls the first writes a number, the second as many bytes.
        let text = unsafe {
            if compiled == 0 {
                self.text(program, "nvrtcGetPTX", f.nvrtcGetPTXSize, f.nvrtcGetPTX)
            } else {
                let log =
                    self.text(program, "nvrtcGetProgramLog", f.nvrtcGetProgramLogSize, f.nvrtcGetProgramLog);
                let log = log.map(|log| log.to_string_lossy().trim().to_owned()).unwrap_or_default();
                let log = if log.is_empty() { format!("nvrtcCompileProgram gave {compiled}") } else { log };
                Err(CudaError::Compile { path: self.path.clone(), log })
            }
        };
        // SAFETY: the program was made above and is not used again.
        let destroyed = unsafe { (f.nvrtcDestroyProgram)(&mut program) };
        text.and_then(|text| self.check("nvrtcDestroyProgram", destroyed).map(|()| text))
    }

    /// A text of a program.
    ///
    /// # Safety
    /// `size` writes a number for `program`, and `get` as many bytes.
    unsafe fn text<P: Copy>(
        &self,
        program: P,
        call: &str,
        size: unsafe extern "C" fn(P, *mut usize) -> u32,
        get: unsafe extern "C" fn(P, *mut c_char) -> u32,
    ) -> Result<CString, CudaError> {
        let mut bytes = 0usize;
        // SAFETY: passed on to the caller.
        self.check(call, unsafe { size(program, &mut bytes) })?;
        let mut text = vec![0u8; bytes];
        // SAFETY: passed on to the caller.
        self.check(call, unsafe { get(program, text.as_mut_ptr().cast()) })?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        text.truncate(end);
        Ok(CString::new(text).expect("it was cut at its first zero"))
    }

    /// The kernels as a module of a device: from the cache where it has them, else compiled, and then kept there.
    pub(super) fn module(
        &self,
        context: &Arc<Context>,
        source: &str,
        device: (&str, Capability),
        cache: Option<&Path>,
    ) -> Result<Module, CudaError> {
        let architecture = self.architecture(device.0, device.1)?;
        let file = cache.map(|folder| folder.join(self.name(source, architecture)));
        if let Some(ptx) = file.as_deref().and_then(kept) {
            match Module::load(context, &ptx) {
                Ok(module) => return Ok(module),
                Err(refusal) => {
                    tracing::debug!("compiling the kernels anew, as those kept are refused: {refusal}");
                }
            }
        }
        let ptx = self.compile(source, architecture)?;
        let refused = |refusal: Refusal| {
            let what_to_do = advice(refusal.code);
            CudaError::Load { refusal, what_to_do }
        };
        let module = Module::load(context, &ptx).map_err(refused)?;
        if let Some(file) = file
            && let Err(error) = keep(&file, &ptx)
        {
            tracing::debug!("the compiled kernels are not kept in {}: {error}", file.display());
        }
        Ok(module)
    }

    /// The name of a text in the cache.
    fn name(&self, source: &str, architecture: Capability) -> String {
        let mut hasher = DefaultHasher::new();
        (source, OPTIONS, &self.path).hash(&mut hasher);
        let (Capability { major, minor }, version) = (architecture, self.version);
        format!(
            "kernels-compute_{major}{minor}-nvrtc{}.{}-{:016x}.ptx",
            version.0,
            version.1,
            hasher.finish()
        )
    }
}

/// The newest of the known capabilities that a device can run, or the least that is known where it can run none.
fn newest(known: &[Capability], device: Capability) -> Result<Capability, Capability> {
    let least = known.iter().copied().min().unwrap_or(device);
    known.iter().copied().filter(|k| *k <= device).max().ok_or(least)
}

/// A text in the cache.
fn kept(file: &Path) -> Option<CString> {
    CString::new(std::fs::read(file).ok()?).ok()
}

/// Puts a text into the cache whole: others see it complete or not at all.
fn keep(file: &Path, ptx: &CStr) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let part = file.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, ptx.to_bytes())?;
    std::fs::rename(&part, file).inspect_err(|_| drop(std::fs::remove_file(&part)))
}

/// The user's folder for what can be compiled anew: `$XDG_CACHE_HOME/plimsoll` or `~/.cache/plimsoll`; none without a home.
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
    fn the_newest_architecture_that_a_device_runs_is_taken() {
        let known = [75, 80, 90, 100, 120].map(capability);
        assert_eq!(newest(&known, capability(90)), Ok(capability(90)));
        assert_eq!(newest(&known, capability(89)), Ok(capability(80)));
        assert_eq!(newest(&known, capability(130)), Ok(capability(120)));
        assert_eq!(newest(&known, capability(70)), Err(capability(75)));
    }

    /// NVIDIA's own NVRTC, where `runtime/tests/fetch_cuda_compiler.sh` has put it.
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
        let architecture = compiler.architecture("a device", capability(90)).expect("it is not too old");
        assert_eq!(architecture, capability(90));
        let ptx =
            compiler.compile(&super::super::kernels::source(), architecture).expect("the kernels compile");
        let ptx = ptx.to_str().expect("PTX is text");
        assert!(ptx.contains(".target sm_90") && ptx.contains(".visible .entry sgd("), "{}", &ptx[..400]);
        let error = compiler.compile("no kernel at all", architecture).expect_err("that is no C");
        assert!(matches!(&error, CudaError::Compile { log, .. } if log.contains("plimsoll.cu")), "{error}");
        let old = compiler.architecture("an old device", capability(50)).expect_err("NVRTC 13 begins at 7.5");
        assert!(old.to_string().contains("an old device has 5.0"), "{old}");
    }

    #[test]
    fn what_is_kept_is_found_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("deeper").join("a.ptx");
        assert_eq!(kept(&file), None);
        keep(&file, c"text").expect("it can be written");
        assert_eq!(kept(&file).as_deref(), Some(c"text"));
        assert_eq!(std::fs::read_dir(file.parent().expect("a parent")).expect("a folder").count(), 1);
    }
}
