//! The CUDA kernels through NVIDIA's own compiler, if `fetch_cuda_compiler.sh` has put it into the target folder: to PTX,
//! and to machine code for sm_80, sm_90 and sm_120. No GPU is needed.
//!
//! Apart from compiling, this checks that each kernel has the parameters of its launches, and that none spills registers to
//! memory.
//!
//! Deliberately does not fetch anything, or run the compiled code.

use super::text::{kernels, signatures};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use plimsoll_ir::Float;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr::{null, null_mut};

/// Oldest target architecture; the driver compiles its PTX for newer devices.
const VIRTUAL: &str = "compute_80";
const REAL: [&str; 3] = ["sm_80", "sm_90", "sm_120"];

/// The script's folder of the compiler; `None`, with a message, if it is missing.
fn fetched() -> Option<PathBuf> {
    // Programs other than tests have no such folder.
    let target = option_env!("CARGO_TARGET_TMPDIR").and_then(|folder| Path::new(folder).parent());
    let folder = target.map(|target| target.join("cuda-compiler"));
    let fetched = folder.filter(|folder| folder.join("packages").exists());
    if fetched.is_some() {
        return fetched;
    }
    eprintln!("skipped: no CUDA compiler; fetch it with `sh runtime/tests/fetch_cuda_compiler.sh`");
    None
}

/// NVRTC, loaded.
struct Nvrtc(Library);

/// Calls a function of NVRTC by its name and the types of its parameters; returns its status.
macro_rules! call {
    ($nvrtc:expr, $name:expr, $($argument:expr => $kind:ty),*) => {{
        // SAFETY: the parameters are those of NVRTC's header, and the memory that they point at is alive.
        unsafe {
            let function = $nvrtc.0.get::<unsafe extern "C" fn($($kind),*) -> c_int>($name.as_bytes());
            (function.expect("NVRTC has its functions"))($($argument),*)
        }
    }};
}

impl Nvrtc {
    fn load(folder: &Path) -> Nvrtc {
        let open = |name: &str| {
            // SAFETY: NVIDIA's libraries may be loaded at any time.
            unsafe { Library::open(Some(folder.join(name)), RTLD_NOW | RTLD_LOCAL) }.expect("NVRTC loads")
        };
        let files = std::fs::read_dir(folder).expect("it was fetched");
        let names = files.map(|file| file.expect("it is there").file_name().into_string().expect("a name"));
        let mut names: Vec<String> = names.filter(|name| name.starts_with("libnvrtc")).collect();
        // NVRTC asks for its builtins by name alone, and does not search its own folder.
        names.sort_unstable();
        let [builtins, library] = names.try_into().expect("NVRTC and its builtins");
        std::mem::forget(open(&builtins));
        Nvrtc(open(&library))
    }

    /// Returns `true` if it knows an architecture, such as `sm_80`.
    fn knows(&self, architecture: &str) -> bool {
        let mut count = 0;
        assert_eq!(call!(self, "nvrtcGetNumSupportedArchs", &mut count => *mut c_int), 0);
        let mut all = vec![0; count as usize];
        assert_eq!(call!(self, "nvrtcGetSupportedArchs", all.as_mut_ptr() => *mut c_int), 0);
        all.iter().any(|known| architecture.strip_prefix("sm_") == Some(&known.to_string()))
    }

    /// Result of `nvrtcGet<what>` and `nvrtcGet<what>Size`.
    fn get(&self, what: &str, program: *mut c_void) -> Vec<u8> {
        let mut size = 0;
        let name = format!("nvrtcGet{what}");
        let status = call!(self, format!("{name}Size"), program => *mut c_void, &mut size => *mut usize);
        assert_eq!(status, 0, "{what}");
        let mut bytes = vec![0u8; size];
        let status = call!(self, name, program => *mut c_void, bytes.as_mut_ptr() => *mut u8);
        assert_eq!(status, 0, "{what}");
        bytes
    }

    /// Compiles a source as the device does: to PTX for a virtual architecture, to machine code for a real one. `Err` is
    /// the compiler's log.
    fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>, String> {
        let text = |s: &str| CString::new(s).expect("no zero in it");
        let source = text(source);
        let mut program = null_mut();
        // Without a name and headers.
        let status = call!(self, "nvrtcCreateProgram", &mut program => *mut *mut c_void,
            source.as_ptr() => *const c_char, null() => *const c_char, 0 => c_int,
            null() => *const *const c_char, null() => *const *const c_char);
        assert_eq!(status, 0);
        let options = [text(&format!("--gpu-architecture={architecture}")), text("--fmad=false")];
        let addresses = options.each_ref().map(|option| option.as_ptr());
        let status = call!(self, "nvrtcCompileProgram", program => *mut c_void, 2 => c_int,
            addresses.as_ptr() => *const *const c_char);
        if status != 0 {
            return Err(String::from_utf8_lossy(&self.get("ProgramLog", program)).into_owned());
        }
        Ok(self.get(if architecture.starts_with("sm_") { "CUBIN" } else { "PTX" }, program))
    }
}

fn ptxas(folder: &Path, ptx: &[u8], architecture: &str) -> Output {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let [from, to] = ["kernels.ptx", "kernels.cubin"].map(|name| scratch.path().join(name));
    std::fs::write(&from, ptx).expect("the folder takes a file");
    let architecture = format!("-arch={architecture}");
    let mut command = Command::new(folder.join("ptxas"));
    command.args(["-v", &architecture]).arg(from).arg("-o").arg(to).output().expect("ptxas starts")
}

/// Kernels of a PTX text with the types of their parameters, such as `u64`.
fn entries(ptx: &str) -> Vec<(String, Vec<String>)> {
    let of = |entry: &str| {
        let (name, rest) = entry.split_once('(').expect("an entry has parameters");
        let (parameters, _) = rest.split_once(')').expect("they end");
        let kind = |p: &str| p.split_whitespace().nth(1).expect("a type").trim_start_matches('.').to_owned();
        (name.trim().to_owned(), parameters.split(',').map(kind).collect())
    };
    ptx.split(".visible .entry ").skip(1).map(of).collect()
}

#[test]
fn the_kernels_compile_for_every_architecture() {
    let Some(folder) = fetched() else { return };
    for float in [Float::F32, Float::Bf16] {
        compiles(&folder, &Nvrtc::load(&folder), &kernels::source(float));
    }
}

/// Checks that a device compiles to machine code if its NVRTC knows it, else to PTX, which the driver compiles.
#[test]
fn the_oldest_and_the_newest_compiler_take_the_kernels() {
    let Some(folder) = fetched() else { return };
    for (which, known) in [("oldest", &REAL[..2]), ("newest", &REAL[..])] {
        let nvrtc = Nvrtc::load(&folder.join(which));
        let knows: Vec<&str> = REAL.into_iter().filter(|architecture| nvrtc.knows(architecture)).collect();
        assert_eq!(knows, known, "{which}");
        let to: Vec<&str> = if known.len() < REAL.len() { [known, &[VIRTUAL]].concat() } else { knows };
        // Alternately: with the compiler between them, each architecture gets both.
        for (architecture, float) in to.iter().zip([Float::F32, Float::Bf16].into_iter().cycle()) {
            let code = nvrtc.compile(&kernels::source(float), architecture);
            let code = code.unwrap_or_else(|log| panic!("{which}, {architecture}: {log}"));
            let is_machine_code = code.starts_with(b"\x7fELF");
            assert_eq!(is_machine_code, architecture.starts_with("sm_"), "{which}, {architecture}");
        }
    }
}

/// Asserts that the PTX of a source has the source's kernels, and that no architecture spills.
fn compiles(folder: &Path, nvrtc: &Nvrtc, source: &str) {
    let ptx = nvrtc.compile(source, VIRTUAL).unwrap_or_else(|log| panic!("{log}"));
    let ptx = ptx.strip_suffix(&[0]).expect("a text that ends in a zero");

    let in_ptx = |kind: &str| match kind {
        "unsigned" => "u32".to_owned(),
        "float" => "f32".to_owned(),
        long => {
            assert!(long.ends_with('*') || long == "unsigned long long", "{long}");
            "u64".to_owned()
        }
    };
    let mut written: Vec<(String, Vec<String>)> = signatures(source)
        .into_iter()
        .map(|(name, types)| (name, types.iter().map(|kind| in_ptx(kind)).collect()))
        .collect();
    let mut compiled = entries(&String::from_utf8_lossy(ptx));
    written.sort();
    compiled.sort();
    assert_eq!(compiled, written);

    for architecture in REAL {
        let code = nvrtc.compile(source, architecture).unwrap_or_else(|log| panic!("{log}"));
        assert!(code.starts_with(b"\x7fELF"), "machine code for {architecture}");
        let output = ptxas(folder, ptx, architecture);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let spills: Vec<&str> = said.lines().filter(|line| line.contains("spill")).collect();
        // One line each, and one for each function of the compiler's own that they call.
        assert!(spills.len() >= written.len(), "{said}");
        let none = |line: &&str| line.contains(" 0 bytes spill stores, 0 bytes spill loads");
        assert!(spills.iter().all(none), "{said}");
    }
}

#[test]
fn a_kernel_that_is_wrong_does_not_compile() {
    let Some(folder) = fetched() else { return };
    let nvrtc = Nvrtc::load(&folder);
    let wrong = kernels::source(Float::F32) + "\nKERNEL(wrong, (float *x)) { x = 1.0f; }\n";
    let log = nvrtc.compile(&wrong, VIRTUAL).expect_err("an address is no number");
    assert!(log.contains("float"), "{log}");
    let output =
        ptxas(&folder, b".version 8.0\n.target sm_80\n.address_size 64\n.entry f() { nonsense; }\n", "sm_80");
    assert!(!output.status.success());
}
