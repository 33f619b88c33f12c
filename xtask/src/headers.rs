//! `cargo xtask headers` asks NVIDIA's own headers and libraries for what `runtime/src/cuda` takes from them: the types of
//! functions, the values of constants, the sizes of structs, and which functions each library has.
//!
//! The answers stand in `runtime/src/cuda/headers.txt`, which the tests of the runtime hold against the code. So a wrong type
//! is found on any machine, and the headers are needed only where a function or a constant is new. A C++ compiler answers,
//! since it alone knows what macros and typedefs become.
//!
//! What it deliberately does not do: fetch a driver. The driver's functions are those that `cuda.h` declares.

use crate::tools::{last_words, root};
use crate::tree::Tree;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const TABLE: &str = "runtime/src/cuda/table.rs";
const SOURCES: &str = "runtime/src/cuda/";
const ANSWERS: &str = "runtime/src/cuda/headers.txt";

/// The packages of one release of CUDA: its headers, cuBLAS, NVRTC, and a cuDNN and an NCCL for it.
struct Release {
    name: &'static str,
    packages: &'static [&'static str],
}

/// The oldest release that is promised, and that of the first GPU.
const RELEASES: [Release; 2] = [
    Release {
        name: "CUDA 12.0, cuDNN 9.1",
        packages: &[
            "nvidia-cuda-runtime-cu12==12.0.146",
            "nvidia-cuda-nvcc-cu12==12.0.140",
            "nvidia-cuda-nvrtc-cu12==12.0.140",
            "nvidia-cublas-cu12==12.0.2.224",
            "nvidia-cudnn-cu12==9.1.0.70",
            "nvidia-nccl-cu12==2.18.3",
        ],
    },
    Release {
        name: "CUDA 13.0, cuDNN 9.28",
        packages: &[
            "nvidia-cuda-runtime==13.0.96",
            "nvidia-cuda-crt==13.0.88",
            "nvidia-cuda-nvrtc==13.0.88",
            "nvidia-cublas==13.0.2.14",
            "nvidia-cudnn-cu13==9.28.1.4",
            "nvidia-nccl-cu13==2.28.9",
        ],
    },
];

/// Takes headers and libraries out of the packages of a folder; the libraries that only run kernels stay packed.
const UNPACK: &str = r"
import pathlib, re, sys, zipfile
wanted = re.compile(r'nvidia/.*(/include/.*|/lib/lib(cublas|cudnn|nccl|nvrtc)\.so\.\d+)')
for wheel in pathlib.Path(sys.argv[1]).glob('*.whl'):
    with zipfile.ZipFile(wheel) as files:
        files.extractall(sys.argv[1], filter(wanted.fullmatch, files.namelist()))
    wheel.unlink()
";

/// What the sources take from the headers.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    functions: BTreeSet<String>,
    constants: BTreeSet<String>,
    structs: BTreeSet<String>,
}

/// Asks the headers of every release, and writes their answers.
pub fn make(tree: &Tree) -> Result<(), String> {
    let wanted = wanted(tree)?;
    let mut text = format!(
        "# What NVIDIA's headers and libraries say of what {SOURCES} takes from them. Made by `cargo xtask headers`.\n"
    );
    for release in &RELEASES {
        let folder = root().join("target/cuda-headers").join(release.name.replace([' ', ','], "-"));
        fetch(release, &folder)?;
        let answers = ask(&wanted, &folder)?;
        let _ = write!(text, "\n[{}] {}\n{answers}", release.name, release.packages.join(" "));
    }
    std::fs::write(root().join(ANSWERS), text).map_err(|error| format!("cannot write {ANSWERS}: {error}"))
}

/// The names that the sources use.
fn wanted(tree: &Tree) -> Result<Wanted, String> {
    let table = tree.text(TABLE).ok_or_else(|| format!("{TABLE} is missing"))?;
    let file = syn::parse_file(table).map_err(|error| format!("{TABLE}: not read as Rust: {error}"))?;
    let mut wanted = Wanted::default();
    for item in &file.items {
        if let syn::Item::Macro(item) = item
            && item.mac.path.is_ident("functions")
        {
            add_functions(item.mac.tokens.clone(), &mut wanted.functions);
        }
    }
    let sources = tree.ending(".rs").filter(|(path, _)| path.starts_with(SOURCES));
    for (_, text) in sources {
        let words = || text.split(|c: char| !is_of_a_name(c)).map(str::to_owned);
        wanted.constants.extend(text.split("::").skip(1).map(first_word).filter(|word| is_constant(word)));
        wanted.constants.extend(words().filter(|word| word.starts_with("CUDNN_STATUS_")));
        wanted.structs.extend(words().filter(|word| word.ends_with("Perf_t")));
    }
    if wanted.functions.is_empty() {
        return Err(format!("{TABLE} has no functions"));
    }
    Ok(wanted)
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| is_of_a_name(*c)).collect()
}

/// Whether a name of an enum's variant is a constant of NVIDIA's.
fn is_constant(word: &str) -> bool {
    let of_nccl = word
        .strip_prefix("nccl")
        .is_some_and(|rest| rest.starts_with(char::is_uppercase) && !rest.ends_with("_t"));
    of_nccl || ["CU_", "CUDA_", "CUDNN_", "CUBLAS_", "NVRTC_"].iter().any(|start| word.starts_with(start))
}

/// Adds the names before parentheses within braces; one after `as` is a name of the bindings.
fn add_functions(tokens: TokenStream, names: &mut BTreeSet<String>) {
    for tree in tokens {
        let TokenTree::Group(group) = tree else { continue };
        if group.delimiter() != Delimiter::Brace {
            continue;
        }
        let mut before: Vec<String> = Vec::new();
        for tree in group.stream() {
            match tree {
                TokenTree::Ident(name) => before.push(name.to_string()),
                TokenTree::Group(_) => names.extend(before.drain(..).next()),
                _ => before.clear(),
            }
        }
    }
}

/// Puts a release's headers and libraries into a folder, unless they are there.
fn fetch(release: &Release, folder: &Path) -> Result<(), String> {
    let done = folder.join("packages");
    let packages = release.packages.join("\n");
    if std::fs::read_to_string(&done).is_ok_and(|there| there == packages) {
        return Ok(());
    }
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    eprintln!("xtask headers: fetching {}", release.packages.join(", "));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]);
    run(pip.arg(folder).args(release.packages))?;
    run(Command::new("python3").args(["-c", UNPACK]).arg(folder))?;
    std::fs::write(done, packages).map_err(|error| format!("cannot write into {}: {error}", folder.display()))
}

/// What the headers and libraries in a folder say, a line each.
fn ask(wanted: &Wanted, folder: &Path) -> Result<String, String> {
    let (mut includes, mut libraries) = (Vec::new(), Vec::new());
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name == "include" {
                    includes.push(path.clone());
                }
                folders.push(path);
            } else if name.contains(".so.") {
                libraries.push(path);
            }
        }
    }
    libraries.sort();
    let constants = wanted.constants.iter().filter(|name| declares(&includes, name)).cloned().collect();
    let wanted = &Wanted { constants, functions: wanted.functions.clone(), structs: wanted.structs.clone() };
    let source = folder.join("ask.cpp");
    std::fs::write(&source, program(wanted)).map_err(|error| error.to_string())?;
    let binary = folder.join("ask");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut compile = Command::new(compiler);
    compile.args(["-std=c++17", "-w", "-o"]).arg(&binary).arg(&source);
    run(compile.args(includes.iter().map(|path| format!("-I{}", path.display()))))?;
    let mut answers = run(&mut Command::new(&binary))?;
    for library in &libraries {
        answers.push_str(&exported(wanted, library)?);
    }
    Ok(answers)
}

/// Whether cuDNN's headers have a status, whose number grows from release to release. Other names must be there.
fn declares(includes: &[PathBuf], name: &str) -> bool {
    let headers = includes.iter().map(|folder| folder.join("cudnn_graph.h"));
    let mut texts = headers.filter_map(|path| std::fs::read_to_string(path).ok());
    !name.starts_with("CUDNN_STATUS_") || texts.any(|text| text.contains(name))
}

/// The wanted functions that a library has, in one line.
fn exported(wanted: &Wanted, library: &PathBuf) -> Result<String, String> {
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let names = listed.lines().filter_map(|line| line.split_whitespace().last());
    let names = names.map(|name| name.split('@').next().unwrap_or(name));
    let found: BTreeSet<&str> = names.filter(|name| wanted.functions.contains(*name)).collect();
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("library {name} {}\n", found.into_iter().collect::<Vec<_>>().join(" ")))
}

/// A program that prints what its headers say. Nothing is linked: only types are asked for.
fn program(wanted: &Wanted) -> String {
    let mut text = String::from(
        r#"#include <cxxabi.h>
#include <iostream>
#include <string>
#include <typeinfo>
// Numbers of 16 bits need a header of yet another package, and no function of the tables takes one.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
typedef struct __half __half;
typedef struct __nv_bfloat16 __nv_bfloat16;
// As a C program sees them: for C++, cuBLAS adds functions of the same names.
extern "C" {
#undef __cplusplus
#include <cuda.h>
#include <nvrtc.h>
#include <cublas_v2.h>
#include <cudnn.h>
#include <nccl.h>
}
template <class T> struct Tag {};  // has a name where its type is only declared
template <class T> std::string name() {
  using namespace std;
  if constexpr (is_const_v<T>) return name<remove_const_t<T>>() + " const";
  if constexpr (is_pointer_v<T>) return name<remove_pointer_t<T>>() + "*";
  string tag = abi::__cxa_demangle(typeid(Tag<T>).name(), nullptr, nullptr, nullptr);
  return (is_enum_v<T> ? "enum " : "") + tag.substr(4, tag.size() - 5);
}
template <class T> struct Function;
template <class R, class... A> struct Function<R(A...)> {
  static void show(const char *as) {
    std::string list;
    ((list += (list.empty() ? "" : ", ") + name<A>()), ...);
    std::cout << "function " << as << "(" << list << ") -> " << name<R>() << "\n";
  }
};
int main() {
"#,
    );
    for function in &wanted.functions {
        let _ = writeln!(text, "  Function<decltype({function})>::show(\"{function}\");");
    }
    for constant in &wanted.constants {
        let _ =
            writeln!(text, "  std::cout << \"constant {constant} \" << (long long){constant} << \"\\n\";");
    }
    for of in &wanted.structs {
        let _ = writeln!(text, "  std::cout << \"struct {of} \" << sizeof({of}) << \"\\n\";");
    }
    text.push_str("}\n");
    text
}

/// What a command printed.
fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot start {program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} failed, {}", last_words(&output)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_table_and_of_the_sources_are_found() {
        let table = "functions! { T of b, status S; bound { cuInit(c_uint); cuOld as cuOld_v2 (*mut f32, A); } unbound {} \
                     plain { cuSay(u32) -> *const c_char; } } use x::cudnnXPerf_t;";
        let used = "let a = A::CUDNN_DATA_FLOAT; let b = \"CUDA_VISIBLE_DEVICES\"; static CUBLAS_12: Wanted = A::CU_LAST;";
        let tree = Tree::of(&[(TABLE, table), ("runtime/src/cuda/a.rs", used), ("b.rs", "A::CU_OTHER")]);
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = Wanted {
            functions: set(&["cuInit", "cuOld", "cuSay"]),
            constants: set(&["CUDNN_DATA_FLOAT", "CU_LAST"]),
            structs: set(&["cudnnXPerf_t"]),
        };
        assert_eq!(wanted(&tree), Ok(expected));
    }

    #[test]
    fn a_table_without_functions_is_an_error() {
        assert_eq!(wanted(&Tree::of(&[(TABLE, "")])), Err(format!("{TABLE} has no functions")));
    }
}
