//! Kernels: the device's own text, compiled by the machine's C compiler, and run thread after thread.
//!
//! The text uses only the common part of CUDA C++ and C11 (`dialect.cu` of the device explains it): a kernel begins a line
//! with `KERNEL(name, (parameters))`. The text is followed by a function for each kernel that takes the arguments as words,
//! and calls it for every thread of every block. The compiled library is kept by its text in a folder next to the stand-in's
//! own file, so that a second process does not compile it again.
//!
//! Does not run blocks at the same time, and cannot: a schedule cannot cause faults within a kernel.

use crate::memory;
use std::ffi::{CStr, CString, OsStr};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Kind of a parameter, for passing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A device address.
    Pointer,
    /// 8 bytes.
    Wide,
    /// 4 bytes.
    Narrow,
}

impl Kind {
    /// Reads an argument.
    ///
    /// # Safety
    /// `at` points at a value of this kind.
    pub unsafe fn read(self, at: *const u8) -> u64 {
        // SAFETY: as the caller promises; it may be unaligned.
        unsafe {
            match self {
                Kind::Pointer | Kind::Wide => at.cast::<u64>().read_unaligned(),
                Kind::Narrow => u64::from(at.cast::<u32>().read_unaligned()),
            }
        }
    }
}

/// A kernel as declared in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared {
    name: String,
    /// Type and kind of each parameter.
    parameters: Vec<(String, Kind)>,
}

/// Runs all threads of a launch: arguments, blocks, threads of a block.
type Run = unsafe extern "C" fn(*const u64, *const u32, u32);

/// A kernel that can be launched.
pub struct Function {
    name: String,
    run: Run,
    /// Kinds of its parameters.
    pub kinds: Vec<Kind>,
    /// Largest number of threads of a block.
    pub threads_max: u32,
}

/// A launch with its arguments at the time of enqueueing.
pub struct Launch {
    pub function: Arc<Function>,
    pub blocks: [u32; 3],
    pub threads: u32,
    pub arguments: Vec<u64>,
}

impl Launch {
    /// Runs it; an error if an argument points to no allocation.
    pub fn run(&self) -> Result<(), String> {
        let Function { name, run, kinds, .. } = &*self.function;
        let mut words = self.arguments.clone();
        for (at, (word, kind)) in words.iter_mut().zip(kinds).enumerate() {
            if *kind == Kind::Pointer && *word != 0 {
                let storage = memory::device(*word, 0)
                    .map_err(|_| format!("argument {at} of `{name}`, {word:#x}, is not in live memory"))?;
                *word = storage as u64;
            }
        }
        // SAFETY: the function was made for these parameters, there is a word for each, and every pointer leads into a live
        // allocation. The kernel must stay within it, as on a device.
        unsafe { run(words.as_ptr(), self.blocks.as_ptr(), self.threads) };
        Ok(())
    }
}

/// Compiled kernels of a text. The error is the compiler's message.
pub fn load(text: &str) -> Result<Vec<(String, Arc<Function>)>, String> {
    let declared = declared(text)?;
    let library = compile(text)?;
    let path =
        CString::new(library.into_os_string().into_encoded_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the library has no initialisers; it stays loaded for as long as the process lives.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("{path:?} was compiled and cannot be loaded"));
    }
    let threads_max = bound(text);
    let mut functions = Vec::new();
    for Declared { name, parameters } in declared {
        let symbol = CString::new(format!("standin_{name}")).map_err(|error| error.to_string())?;
        // SAFETY: the handle was just opened.
        let at = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        if at.is_null() {
            return Err(format!("`{name}` was compiled and is not there"));
        }
        // SAFETY: the symbol is a function of this type: its text was written by `launchers`.
        let run = unsafe { std::mem::transmute::<*mut libc::c_void, Run>(at) };
        let kinds = parameters.into_iter().map(|(_, kind)| kind).collect();
        functions.push((name.clone(), Arc::new(Function { name, run, kinds, threads_max })));
    }
    Ok(functions)
}

/// Largest number of threads of a block: the text's bound for the real compiler, or the limit of every device.
fn bound(text: &str) -> u32 {
    let said = text.split_once("__launch_bounds__(").and_then(|(_, rest)| rest.split_once(')'));
    said.and_then(|(number, _)| number.trim().parse().ok()).unwrap_or(1024)
}

/// Every kernel that a text declares.
fn declared(text: &str) -> Result<Vec<Declared>, String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("KERNEL(") {
        if at > 0 && text.as_bytes()[at - 1] != b'\n' {
            continue;
        }
        let rest = &text[at + "KERNEL(".len()..];
        let whole = rest.split_once(',').and_then(|(name, rest)| {
            let (parameters, _) = rest.trim_start().strip_prefix('(')?.split_once(')')?;
            Some((name.trim().to_owned(), parameters))
        });
        let Some((name, parameters)) = whole else {
            return Err(format!(
                "no KERNEL(name, (parameters)): {}",
                rest.lines().next().unwrap_or_default()
            ));
        };
        let parameters = parameters.split(',').map(str::trim).filter(|p| !p.is_empty()).map(parameter);
        let parameters = parameters.collect::<Result<_, _>>().map_err(|why| format!("`{name}`: {why}"))?;
        found.push(Declared { name, parameters });
    }
    Ok(found)
}

/// Type and kind of a parameter.
fn parameter(text: &str) -> Result<(String, Kind), String> {
    let name = text.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
    let of = name.replace("RESTRICT", "").split_whitespace().collect::<Vec<_>>().join(" ");
    let kind = match of.as_str() {
        pointer if pointer.ends_with('*') => Kind::Pointer,
        "u64" | "unsigned long long" => Kind::Wide,
        "unsigned" | "float" => Kind::Narrow,
        _ => return Err(format!("`{text}` is no pointer, unsigned, unsigned long long or float")),
    };
    Ok((of, kind))
}

/// Text of the functions that call the kernels.
fn launchers(declared: &[Declared]) -> String {
    let mut text = String::new();
    for Declared { name, parameters } in declared {
        let argument = |(at, (of, _)): (usize, &(String, Kind))| format!("*({of} const *)&a[{at}]");
        let arguments: Vec<String> = parameters.iter().enumerate().map(argument).collect();
        let arguments = arguments.join(", ");
        let _ = write!(
            text,
            "\nvoid standin_{name}(const unsigned long long *a, const unsigned *blocks, unsigned threads) {{\n\
             \x20   THREADS = threads;\n\
             \x20   for (unsigned z = 0; z < blocks[2]; z++)\n\
             \x20   for (unsigned y = 0; y < blocks[1]; y++)\n\
             \x20   for (unsigned x = 0; x < blocks[0]; x++)\n\
             \x20   for (unsigned t = 0; t < threads; t++) {{\n\
             \x20       BLOCK_X = x; BLOCK_Y = y; BLOCK_Z = z; THREAD = t;\n\
             \x20       {name}({arguments});\n\
             \x20   }}\n}}\n"
        );
    }
    text
}

/// Compiles a text with its launchers; returns the library's path.
fn compile(text: &str) -> Result<PathBuf, String> {
    let whole = format!("{text}\n{}", launchers(&declared(text)?));
    let mut hasher = DefaultHasher::new();
    whole.hash(&mut hasher);
    let name = format!("{:016x}", hasher.finish());
    let folder = own_folder()?.join("standin-kernels");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let library = folder.join(format!("{name}.so"));
    if !library.exists() {
        // Another process may compile the same: each writes its own file and the last rename wins.
        let own = folder.join(format!("{name}-{}", std::process::id()));
        build(&whole, &own, &library)?;
    }
    Ok(library)
}

/// Folder of the file from which this code was loaded: the stand-in, or a test that is linked to it.
fn own_folder() -> Result<PathBuf, String> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `found` has room for the result, all of which is written unless the call returns 0; the name ends with a zero
    // and lives as long as this code is loaded.
    let name = unsafe {
        if libc::dladdr(own_folder as *const libc::c_void, found.as_mut_ptr()) == 0 {
            return Err("the loader does not know the stand-in's file".into());
        }
        CStr::from_ptr(found.assume_init().dli_fname)
    };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    // A linked test has the name with which it was started, which may have no folder.
    Ok(path.parent().filter(|folder| folder.is_dir()).map_or_else(std::env::temp_dir, Path::to_owned))
}

fn build(text: &str, own: &Path, library: &Path) -> Result<(), String> {
    let (source, made) = (own.with_extension("c"), own.with_extension("so"));
    std::fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
    let flags = ["-std=gnu11", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"];
    let output = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&made).arg("-lm").output();
    let output = output.map_err(|error| format!("cc: {error}"))?;
    let _ = std::fs::remove_file(&source);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::rename(&made, library).map_err(|error| format!("{}: {error}", library.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_from_the_text() {
        let text = "#define KERNEL(name, parameters) static void name parameters\n\
                    KERNEL(add, (const float *RESTRICT a, unsigned char *b, u64 n,\n  unsigned m, float s)) {}\n\
                    KERNEL(none, ()) {}\n";
        let found = declared(text).expect("both are well formed");
        let names: Vec<&str> = found.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["add", "none"]);
        let kinds: Vec<Kind> = found[0].parameters.iter().map(|(_, kind)| *kind).collect();
        use Kind::{Narrow, Pointer, Wide};
        assert_eq!(kinds, [Pointer, Pointer, Wide, Narrow, Narrow]);
        assert_eq!(found[0].parameters[0].0, "const float *");
        let wrong = declared("\nKERNEL(bad, (double x)) {}").expect_err("a double is not passed");
        assert!(wrong.contains("`bad`") && wrong.contains("double x"), "{wrong}");
        assert!(declared("KERNEL(bad)").is_err());
    }

    #[test]
    fn the_bound_of_the_text_holds() {
        assert_eq!(bound("__launch_bounds__(256)"), 256);
        assert_eq!(bound(""), 1024);
    }
}
