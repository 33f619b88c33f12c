//! Search for CUDA's libraries, each before its first use.
//!
//! The order: the folders that the caller names, then those of `PLIMSOLL_CUDA_LIBRARIES`, then the system's loader by name
//! (`LD_LIBRARY_PATH`, its cache), then the usual folders: toolkits, drivers of containers, and the packages `nvidia/*/lib`
//! of the Python installations found. A library is loaded by its path and never unloaded. A missing function is an error
//! with one message, since the bindings' own loader would panic.
//!
//! Deliberately does not link anything, run anything, or search the whole disk.

use crate::error::{Error, Instead, Kind};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Environment variable with a colon-separated list of folders that are searched before all others.
pub const LIBRARIES_VARIABLE: &str = "PLIMSOLL_CUDA_LIBRARIES";

/// A library that the device needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Its description.
    pub(super) library: &'static str,
    /// Its file names, the best first.
    pub(super) files: &'static [&'static str],
    /// Prefix of the names of neighbouring files that it loads by name alone, and would not find.
    pub(super) beside: Option<&'static str>,
    /// A function present in all versions.
    pub(super) probe: &'static CStr,
    /// Remedy if it is missing or too old.
    pub(super) what_to_do: &'static str,
    /// Substitute, if any.
    pub(super) instead: Option<Instead>,
}

impl Wanted {
    /// Error of a library that is missing or too old.
    fn error(&self, fault: impl std::fmt::Display) -> Error {
        let kind = self.instead.map_or(Kind::Device, Kind::Missing);
        Error::new(kind, format!("{fault}; {}", self.what_to_do))
    }
}

pub(super) const DRIVER: Wanted = Wanted {
    library: "the CUDA driver",
    files: &["libcuda.so.1"],
    beside: None,
    probe: c"cuInit",
    what_to_do: "install NVIDIA's driver of version 535 or later",
    instead: Some(Instead::Cpu),
};

/// The compiler of the kernels, for a driver of CUDA 13 or later.
pub(super) const NVRTC: Wanted = Wanted {
    library: "NVRTC, the compiler of the kernels,",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    beside: Some("libnvrtc-builtins.so."),
    probe: c"nvrtcVersion",
    what_to_do: "install it with `pip install nvidia-cuda-nvrtc` or a CUDA toolkit, or name its folder in \
                 PLIMSOLL_CUDA_LIBRARIES",
    instead: None,
};

/// The compiler for a driver of CUDA 12, which does not load the code of a later one.
pub(super) const NVRTC_12: Wanted =
    Wanted { files: &["libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.13"], ..NVRTC };

/// Matrix products, for a driver of CUDA 13 or later.
pub(super) const CUBLAS: Wanted = Wanted {
    library: "cuBLAS",
    files: &["libcublas.so.13", "libcublas.so.12"],
    beside: Some("libcublasLt.so."),
    probe: c"cublasCreate_v2",
    what_to_do: "install it with `pip install nvidia-cublas` or a CUDA toolkit, or name its folder in PLIMSOLL_CUDA_LIBRARIES",
    instead: None,
};

/// cuBLAS for a driver of CUDA 12, which does not run code made for a later one.
pub(super) const CUBLAS_12: Wanted = Wanted { files: &["libcublas.so.12", "libcublas.so.13"], ..CUBLAS };

/// Convolutions. Its parts lie in the same folder, where it finds them itself.
pub(super) const CUDNN: Wanted = Wanted {
    library: "cuDNN",
    files: &["libcudnn.so.9"],
    beside: None,
    probe: c"cudnnCreate",
    what_to_do: "install it with `pip install nvidia-cudnn-cu13` (nvidia-cudnn-cu12 for a driver of CUDA 12), or name its \
                 folder in PLIMSOLL_CUDA_LIBRARIES",
    instead: None,
};

/// Sums over the GPUs of several workers.
pub(super) const NCCL: Wanted = Wanted {
    library: "NCCL",
    files: &["libnccl.so.2"],
    beside: None,
    probe: c"ncclGetVersion",
    what_to_do: "install NCCL 2.18 or later with `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for a driver of CUDA 12), or \
                 name its folder in PLIMSOLL_CUDA_LIBRARIES",
    instead: Some(Instead::Hosts),
};

/// Names for profilers.
pub(super) const NVTX: Wanted = Wanted {
    library: "NVTX",
    files: &["libnvtx3interop.so.1", "libnvToolsExt.so.1"],
    beside: None,
    probe: c"nvtxRangePushA",
    what_to_do: "install it with `pip install nvidia-nvtx` to see the names of ops in Nsight Systems",
    instead: None,
};

/// Folders in which libraries are searched.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// Folders searched before the system's loader.
    first: Vec<PathBuf>,
    /// `true` if the system's loader is asked.
    loader: bool,
    /// Folders searched after it.
    usual: Vec<PathBuf>,
}

/// A loaded library. It stays loaded until the process ends, since a started driver cannot be unloaded.
pub(super) struct Found {
    library: Library,
    path: PathBuf,
}

impl Search {
    /// The search by the environment's settings, after the folders that the caller names.
    pub(super) fn new(named: &[PathBuf]) -> Search {
        let listed = std::env::var_os(LIBRARIES_VARIABLE).unwrap_or_default();
        let listed = std::env::split_paths(&listed).filter(|folder| !folder.as_os_str().is_empty());
        Search { first: named.iter().cloned().chain(listed).collect(), loader: true, usual: usual_folders() }
    }

    /// A search in one folder only.
    #[cfg(test)]
    pub(super) fn only(folder: &Path) -> Search {
        Search { first: vec![folder.to_owned()], loader: false, usual: Vec::new() }
    }

    /// A search only in the NVIDIA packages that torch installs: those of the PyTorch front's virtual environment, or of
    /// the active one. `None`, with a message, if neither has them.
    #[cfg(test)]
    pub(super) fn of_packages() -> Option<Search> {
        let front = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("python").join(".venv");
        let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
        for prefix in [front].into_iter().chain(active) {
            let usual: Vec<PathBuf> = packaged(vec![prefix]).into_iter().filter(|f| f.is_dir()).collect();
            if usual.iter().any(|folder| folder.join("libcudnn.so.9").is_file()) {
                return Some(Search { first: Vec::new(), loader: false, usual });
            }
        }
        println!(
            "skipped: neither python/.venv nor $VIRTUAL_ENV has NVIDIA's packages; `bash python/test.sh --tools` \
             installs torch, which brings them"
        );
        None
    }

    /// Loads a library from the first place that has it.
    pub(super) fn load(&self, wanted: &Wanted) -> Result<Found, Error> {
        if let Some(found) = load_from(&self.first, wanted)? {
            return Ok(found);
        }
        for file in wanted.files.iter().filter(|_| self.loader) {
            if let Ok(library) = dlopen(OsStr::new(file)) {
                let path = path_of(&library, wanted).unwrap_or_else(|| PathBuf::from(file));
                return Ok(Found { library, path });
            }
        }
        load_from(&self.usual, wanted)?.ok_or_else(|| self.missing(wanted))
    }

    fn missing(&self, wanted: &Wanted) -> Error {
        let shown = |folders: &[PathBuf]| {
            folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let mut places = Vec::new();
        if !self.first.is_empty() {
            places.push(format!("in {}", shown(&self.first)));
        }
        if self.loader {
            places.push("by the system's loader (LD_LIBRARY_PATH and its cache)".to_owned());
        }
        if !self.usual.is_empty() {
            places.push(format!("in {}", shown(&self.usual)));
        }
        wanted.error(format_args!(
            "{} is not on this machine: looked for {} {}",
            wanted.library,
            wanted.files.join(", "),
            places.join(", then ")
        ))
    }
}

impl Found {
    /// Address of a function, or the error that the library is too old.
    pub(super) fn symbol(&self, name: &'static str, wanted: &Wanted) -> Result<*mut c_void, Error> {
        // SAFETY: the symbol is taken as an address only; its caller gives it its type.
        match unsafe { self.library.get::<*mut c_void>(name.as_bytes()) } {
            Ok(symbol) => Ok(symbol.into_raw()),
            Err(_) => {
                Err(wanted.error(format_args!("`{}` is too old: it has no `{name}`", self.path.display())))
            }
        }
    }

    /// Keeps the library loaded for good; returns its path.
    pub(super) fn leak(self) -> PathBuf {
        std::mem::forget(self.library);
        self.path
    }
}

fn dlopen(name: &OsStr) -> Result<Library, libloading::Error> {
    // SAFETY: NVIDIA's libraries may be loaded at any time; their initialisers touch nothing of ours.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
}

/// Loads a library from the first folder that has it; `None` if no folder does.
fn load_from(folders: &[PathBuf], wanted: &Wanted) -> Result<Option<Found>, Error> {
    for folder in folders {
        for file in wanted.files {
            if let Some(found) = load_file(&folder.join(file), wanted)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Loads a file; `None` if there is no such file.
fn load_file(path: &Path, wanted: &Wanted) -> Result<Option<Found>, Error> {
    if !path.is_file() {
        return Ok(None);
    }
    if let (Some(start), Some(folder)) = (wanted.beside, path.parent()) {
        load_beside(folder, start);
    }
    let library = dlopen(path.as_os_str()).map_err(|why| {
        Error::device(format!(
            "`{}` cannot be loaded: {why}; mend it, or remove its folder from where libraries are searched",
            path.display()
        ))
    })?;
    let found = Found { library, path: path.to_owned() };
    found.symbol(wanted.probe.to_str().expect("a C name"), wanted)?;
    Ok(Some(found))
}

/// Loads a library's neighbours for good, so that the loader knows them by name. If that fails the library itself reports
/// it at first use.
fn load_beside(folder: &Path, start: &str) {
    let named =
        |path: &&PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(start.as_bytes()));
    for path in entries(folder).iter().filter(named) {
        match dlopen(path.as_os_str()) {
            Ok(library) => std::mem::forget(library),
            Err(error) => tracing::debug!("beside it: {error}"),
        }
    }
}

/// File of a library, found by the loader from the address of one of its functions.
fn path_of(library: &Library, wanted: &Wanted) -> Option<PathBuf> {
    // SAFETY: the symbol is taken as an address only.
    let address = unsafe { library.get::<*mut c_void>(wanted.probe.to_bytes_with_nul()) }.ok()?.into_raw();
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `info` has room for the result, and `dladdr` writes all of it unless it returns 0.
    let name = unsafe {
        (libc::dladdr(address, info.as_mut_ptr()) != 0)
            .then(|| info.assume_init().dli_fname)
            .filter(|n| !n.is_null())?
    };
    // SAFETY: a name given by `dladdr` is a C string that lives as long as the library, which the caller holds.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Existing folders in which drivers, toolkits and Python packages put these libraries.
fn usual_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(std::env::var_os(variable).map(|root| Path::new(&root).join("lib64")));
    }
    // Windows' subsystem for Linux, containers, and the toolkit.
    folders
        .extend(["/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/cuda/lib64"].map(PathBuf::from));
    folders.extend(packaged(python_prefixes()));
    folders.retain(|folder| folder.is_dir());
    folders
}

/// Library folders of NVIDIA's packages in these Python installations.
fn packaged(prefixes: Vec<PathBuf>) -> Vec<PathBuf> {
    let packages = python_packages(prefixes);
    packages.iter().flat_map(|folder| entries(&folder.join("nvidia"))).map(|one| one.join("lib")).collect()
}

/// The Python installations that the environment names.
fn python_prefixes() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = Vec::new();
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        prefixes.extend(std::env::var_os(variable).map(PathBuf::from));
    }
    // The prefix of `python3` on the path, and of the target of that link.
    for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        let python = folder.join("python3");
        if python.is_file() {
            prefixes.extend(folder.parent().map(Path::to_owned));
            let real = python.canonicalize().ok();
            prefixes
                .extend(real.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned));
        }
    }
    prefixes.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    prefixes
}

/// Their `site-packages` and `dist-packages`, without duplicates.
fn python_packages(prefixes: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for prefix in prefixes {
        let pythons = entries(&prefix.join("lib"));
        let pythons =
            pythons.iter().filter(|p| p.file_name().is_some_and(|n| n.as_bytes().starts_with(b"python3")));
        for packages in pythons.flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]) {
            if packages.is_dir() && !found.contains(&packages) {
                found.push(packages);
            }
        }
    }
    found
}

/// Entries of a folder, sorted by name; empty if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(folder).into_iter().flatten();
    let mut found: Vec<PathBuf> = read.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(search: &Search, wanted: &Wanted) -> Error {
        search.load(wanted).err().expect("there is no such library")
    }

    #[test]
    fn what_is_missing_is_named_with_the_folders_and_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = refused(&Search::only(folder.path()), &DRIVER);
        assert_eq!(error.kind, Kind::Missing(Instead::Cpu));
        let text = error.to_string();
        let shown = folder.path().display().to_string();
        for part in ["the CUDA driver", "libcuda.so.1", shown.as_str(), "install"] {
            assert!(text.contains(part), "`{part}` in: {text}");
        }
        let everywhere = Search { loader: true, ..Search::only(folder.path()) };
        let unknown = Wanted { files: &["libplimsoll-no-such.so.9"], ..DRIVER };
        assert!(refused(&everywhere, &unknown).to_string().contains("LD_LIBRARY_PATH"));
    }

    #[test]
    fn libraries_of_kernels_that_are_missing_or_too_old_say_what_to_install() {
        let folder = tempfile::tempdir().expect("a folder");
        let shown = folder.path().display().to_string();
        let check = |wanted: &Wanted, parts: &[&str]| {
            let error = refused(&Search::only(folder.path()), wanted);
            let text = error.to_string();
            assert!(error.kind == Kind::Device && !text.contains('\n'), "{text}");
            for part in parts.iter().chain([&shown.as_str()]) {
                assert!(text.contains(part), "`{part}` in: {text}");
            }
        };
        check(&CUDNN, &["cuDNN is not on this machine", "libcudnn.so.9", "pip install nvidia-cudnn-cu13"]);
        check(&CUBLAS, &["cuBLAS", "libcublas.so.13, libcublas.so.12", "pip install nvidia-cublas"]);
        check(&CUBLAS_12, &["libcublas.so.12, libcublas.so.13"]);
        let nccl = refused(&Search::only(folder.path()), &NCCL);
        assert_eq!(nccl.kind, Kind::Missing(Instead::Hosts));
        assert!(nccl.to_string().contains("pip install nvidia-nccl-cu13"), "{nccl}");
        // Any library serves as one that lacks everything.
        let libc = Wanted { files: &["libc.so.6"], probe: c"malloc", ..DRIVER };
        let system = Search { first: Vec::new(), loader: true, usual: Vec::new() };
        let found = system.load(&libc).expect("every Linux has it");
        for file in ["libcudnn.so.9", "libcublas.so.12"] {
            std::os::unix::fs::symlink(&found.path, folder.path().join(file)).expect("a link");
        }
        check(&CUDNN, &["libcudnn.so.9", "too old", "cudnnCreate"]);
        check(&CUBLAS, &["libcublas.so.12", "too old", "cublasCreate_v2"]);
    }

    /// The wheels that torch installs into a virtual environment: each library is found there by its name there, with the
    /// neighbours that it loads, and has every function.
    #[test]
    fn the_wheels_of_a_virtual_environment_are_found() {
        use super::super::compile::Compiler;
        use super::super::table::{CublasFunctions, CudnnFunctions};
        let Some(search) = Search::of_packages() else { return };
        let of_wheels = |path: &Path| {
            let inside = path.components().any(|part| part.as_os_str() == "site-packages");
            assert!(inside, "{}", path.display());
        };
        let cublas = search.load(&CUBLAS).expect("cuBLAS");
        of_wheels(&cublas.path);
        drop(CublasFunctions::of(&cublas, &CUBLAS).map(|_| cublas.leak()).expect("all of them"));
        let cudnn = search.load(&CUDNN).expect("cuDNN");
        of_wheels(&cudnn.path);
        drop(CudnnFunctions::of(&cudnn, &CUDNN).map(|_| cudnn.leak()).expect("all of them"));
        let compiler = Compiler::load(&search, (13, 0)).expect("NVRTC");
        of_wheels(compiler.path());
        assert!(compiler.version() >= (12, 0), "{:?}", compiler.version());
        // No wheel brings a driver.
        let missing = refused(&search, &DRIVER);
        assert_eq!(missing.kind, Kind::Missing(Instead::Cpu), "{missing}");
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libcuda.so.1");
        std::fs::write(&path, "no library").expect("a file");
        let error = refused(&Search::only(folder.path()), &DRIVER);
        assert!(error.message.contains(&format!("`{}` cannot be loaded: ", path.display())), "{error}");
    }

    #[test]
    fn a_library_without_a_function_is_too_old() {
        // Any library will do: the machine's own C library has no cuInit.
        let folder = tempfile::tempdir().expect("a folder");
        let libc = Wanted { files: &["libc.so.6"], probe: c"malloc", ..DRIVER };
        let system = Search { first: Vec::new(), loader: true, usual: Vec::new() };
        let found = system.load(&libc).expect("every Linux has it");
        assert!(found.path.is_absolute(), "{}", found.path.display());
        std::os::unix::fs::symlink(&found.path, folder.path().join("libcuda.so.1")).expect("a link");
        let error = refused(&Search::only(folder.path()), &DRIVER);
        assert!(error.message.contains("too old: it has no `cuInit`"), "{error}");
    }

    #[test]
    fn named_folders_come_first() {
        let search = Search::new(&[PathBuf::from("/named")]);
        assert_eq!(search.first.first(), Some(&PathBuf::from("/named")));
        assert!(search.loader);
    }
}
