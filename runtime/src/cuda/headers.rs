//! The tables of functions and the constants of this folder, compared with NVIDIA's headers and libraries.
//!
//! The compiler checks the types of `table.rs` against the bindings; the bindings may be wrong, or of a different release.
//! `headers.txt` lists the types, values and sizes that a C++ compiler finds in the real headers of the oldest supported
//! release and of a newer one, and the functions that their libraries export. A new function or constant needs a line for
//! each release, made from the headers and libraries of these packages of PyPI:
//!
//! - CUDA 12.0: nvidia-cuda-runtime-cu12 12.0.146, nvidia-cuda-nvcc-cu12 12.0.140, nvidia-cuda-nvrtc-cu12 12.0.140,
//!   nvidia-cublas-cu12 12.0.2.224, nvidia-cudnn-cu12 9.1.0.70, nvidia-nccl-cu12 2.18.3;
//! - CUDA 13.0: nvidia-cuda-runtime 13.0.96, nvidia-cuda-crt 13.0.88, nvidia-cuda-nvrtc 13.0.88, nvidia-cublas 13.0.2.14,
//!   nvidia-cudnn-cu13 9.28.1.4, nvidia-nccl-cu13 2.28.9.
//!
//! Types are printed by `abi::__cxa_demangle` of `typeid`, exported functions by `nm -D`.
//!
//! Deliberately does not read a header, or load a library. So these tests run on any machine.

use super::table::{CompilerFunctions, CublasFunctions, CudnnFunctions, DriverFunctions, NcclFunctions};
use cudarc::cublas::sys as cublas;
use cudarc::cudnn::sys as cudnn;
use cudarc::driver::sys as driver;
use cudarc::nccl::sys as nccl;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ANSWERS: &str = include_str!("headers.txt");

/// Type that stands for every status: any enum.
const STATUS: &str = "enum";

/// A function of a table: its name, the types of its arguments, and its result's type.
pub(super) type Signature = (&'static str, &'static [&'static str], &'static str);

/// Constants by name, with the bindings' values.
macro_rules! constants {
    ($($of:path { $($name:ident)* })*) => {{
        let mut all: BTreeMap<&str, i64> = BTreeMap::new();
        $({ use $of as Of; $(all.insert(stringify!($name), Of::$name as i64);)* })*
        all
    }};
}

/// All constants of the libraries that this folder uses, and the statuses that it distinguishes by number.
fn constants() -> BTreeMap<&'static str, i64> {
    constants! {
        driver::cudaError_enum {
            CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE CUDA_ERROR_DEVICE_UNAVAILABLE CUDA_ERROR_ECC_UNCORRECTABLE
            CUDA_ERROR_ILLEGAL_ADDRESS CUDA_ERROR_INVALID_DEVICE CUDA_ERROR_INVALID_PTX
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_LAUNCH_TIMEOUT
            CUDA_ERROR_NOT_READY CUDA_ERROR_NO_BINARY_FOR_GPU CUDA_ERROR_NO_DEVICE CUDA_ERROR_OPERATING_SYSTEM
            CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_STUB_LIBRARY CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            CUDA_ERROR_SYSTEM_NOT_READY CUDA_ERROR_UNKNOWN CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        }
        driver::CUstream_flags_enum { CU_STREAM_NON_BLOCKING }
        driver::CUevent_flags_enum { CU_EVENT_DISABLE_TIMING }
        driver::CUevent_record_flags_enum { CU_EVENT_RECORD_EXTERNAL }
        driver::CUstreamCaptureMode_enum { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL }
        driver::CUdevice_attribute_enum {
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        }
        cublas::cublasComputeType_t { CUBLAS_COMPUTE_32F CUBLAS_COMPUTE_32F_FAST_TF32 }
        cublas::cublasGemmAlgo_t { CUBLAS_GEMM_DFALT }
        cublas::cublasMath_t { CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION }
        cublas::cublasOperation_t { CUBLAS_OP_N CUBLAS_OP_T }
        cublas::cudaDataType_t { CUDA_R_32F CUDA_R_16BF }
        nccl::ncclResult_t {
            ncclSuccess ncclSystemError ncclInternalError ncclInvalidUsage ncclRemoteError ncclInProgress
        }
        nccl::ncclDataType_t { ncclFloat32 }
        nccl::ncclScalarResidence_t { ncclScalarHostImmediate }
        cudnn::cudnnDataType_t { CUDNN_DATA_FLOAT CUDNN_DATA_BFLOAT16 }
        cudnn::cudnnTensorFormat_t { CUDNN_TENSOR_NCHW CUDNN_TENSOR_NHWC }
        cudnn::cudnnConvolutionMode_t { CUDNN_CROSS_CORRELATION }
        cudnn::cudnnMathType_t { CUDNN_DEFAULT_MATH CUDNN_FMA_MATH CUDNN_TENSOR_OP_MATH }
        cudnn::cudnnConvolutionFwdAlgo_t {
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
            CUDNN_CONVOLUTION_FWD_ALGO_GEMM CUDNN_CONVOLUTION_FWD_ALGO_DIRECT CUDNN_CONVOLUTION_FWD_ALGO_FFT
            CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD
            CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED CUDNN_CONVOLUTION_FWD_ALGO_COUNT
        }
        cudnn::cudnnConvolutionBwdDataAlgo_t {
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT
        }
        cudnn::cudnnConvolutionBwdFilterAlgo_t {
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT
        }
    }
}

/// Statuses that `libraries` distinguishes, whose names in the bindings change between releases.
const STATUSES: [(&str, i64); 9] = [
    ("CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", 1002),
    ("CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", 1008),
    ("CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER", 3005),
    ("CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART", 3006),
    ("CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH", 3007),
    ("CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING", 3008),
    ("CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE", 3009),
    ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", 4003),
    ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", 4004),
];

/// Facts of one release, from `headers.txt`.
#[derive(Default)]
struct Release {
    name: &'static str,
    functions: BTreeMap<&'static str, &'static str>,
    constants: BTreeMap<&'static str, i64>,
    structs: BTreeMap<&'static str, usize>,
    exported: BTreeSet<&'static str>,
}

fn releases() -> Vec<Release> {
    let mut releases: Vec<Release> = Vec::new();
    for line in ANSWERS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((name, _)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            releases.push(Release { name, ..Release::default() });
            continue;
        }
        let release = releases.last_mut().expect("a release comes first");
        let (kind, rest) = line.split_once(' ').expect("a kind and what it is about");
        let (name, says) = rest.split_once([' ', '(']).unwrap_or((rest, ""));
        match kind {
            "function" => drop(release.functions.insert(name, says)),
            "constant" => drop(release.constants.insert(name, says.parse().expect("a number"))),
            "struct" => drop(release.structs.insert(name, says.parse().expect("a number of bytes"))),
            "library" => release.exported.extend(says.split(' ')),
            other => panic!("headers.txt has a line of kind `{other}`"),
        }
    }
    assert_eq!(releases.len(), 2, "an old and a new release");
    releases
}

/// C name of one of our types, as the compiler prints it.
fn in_c(ours: &str) -> String {
    if let Some(rest) = ours.strip_prefix("*const ") {
        return format!("{} const*", in_c(rest));
    }
    if let Some(rest) = ours.strip_prefix("*mut ") {
        return format!("{}*", in_c(rest));
    }
    let name = ours.rsplit("::").next().unwrap_or(ours).trim();
    let plain = match name {
        "()" | "c_void" => "void",
        "c_int" | "CUdevice" => "int",
        "c_longlong" => "long long",
        "c_uint" => "unsigned int",
        "u32" => STATUS,
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "usize" => "unsigned long",
        "c_ulonglong" | "CUdeviceptr" => "unsigned long long",
        "f32" => "float",
        "CUcontext" => "CUctx_st*",
        "CUevent" => "CUevent_st*",
        "CUfunction" => "CUfunc_st*",
        "CUgraph" => "CUgraph_st*",
        "CUgraphExec" => "CUgraphExec_st*",
        "CUmodule" => "CUmod_st*",
        "CUstream" | "cudaStream_t" => "CUstream_st*",
        "ncclComm_t" => "ncclComm*",
        "ncclUniqueId" | "ncclConfig_t" => name,
        "nvrtcProgram" => "_nvrtcProgram*",
        "cublasHandle_t" => "cublasContext*",
        "cudnnHandle_t" => "cudnnContext*",
        "CUdevice_attribute" | "CUstreamCaptureMode" => return format!("enum {name}_enum"),
        "cudnnConvolutionFwdAlgoPerf_t" => "cudnnConvolutionFwdAlgoPerfStruct",
        "cudnnConvolutionBwdDataAlgoPerf_t" => "cudnnConvolutionBwdDataAlgoPerfStruct",
        "cudnnConvolutionBwdFilterAlgoPerf_t" => "cudnnConvolutionBwdFilterAlgoPerfStruct",
        _ => match name.strip_suffix("Descriptor_t") {
            Some(of) => return format!("{of}Struct*"),
            None => return format!("enum {name}"),
        },
    };
    plain.to_owned()
}

/// Returns `true` if a header's signature, `(arguments) -> returned` without the first parenthesis, is ours.
fn agrees((_, arguments, returned): &Signature, header: &str) -> bool {
    let (theirs, gives) = header.split_once(") -> ").expect("arguments and a result");
    let theirs = theirs.split(", ").filter(|argument| !argument.is_empty());
    let ours = arguments.iter().map(|argument| in_c(argument));
    let same = |(ours, theirs): (String, &str)| {
        // Each release of NCCL extends its configuration, and accepts an older one.
        let is_config =
            ours == "ncclConfig_t*" && theirs.starts_with("ncclConfig_v") && theirs.ends_with('*');
        ours == theirs
            || is_config
            || (ours == STATUS && theirs.starts_with("enum ") && !theirs.ends_with('*'))
    };
    theirs.clone().count() == arguments.len() && ours.zip(theirs).all(same) && same((in_c(returned), gives))
}

/// The functions of all tables.
fn tables() -> impl Iterator<Item = &'static Signature> {
    let driver = DriverFunctions::SIGNATURES.iter().chain(CompilerFunctions::SIGNATURES);
    let libraries = CublasFunctions::SIGNATURES.iter().chain(CudnnFunctions::SIGNATURES);
    driver.chain(libraries).chain(NcclFunctions::SIGNATURES)
}

#[test]
fn functions_have_the_types_of_the_headers() {
    for release in releases() {
        for signature in tables() {
            let name = signature.0;
            let says = release.functions.get(name);
            let says = says.unwrap_or_else(|| panic!("headers.txt lacks {name}: add it for each release"));
            assert!(
                agrees(signature, says),
                "{}: {name}({says}, and the table has {signature:?}",
                release.name
            );
        }
    }
}

#[test]
fn the_libraries_have_the_functions() {
    for release in releases() {
        // No package has the driver's library.
        let driver: Vec<&str> = DriverFunctions::SIGNATURES.iter().map(|(name, ..)| *name).collect();
        for (name, ..) in tables().filter(|(name, ..)| !driver.contains(name)) {
            assert!(release.exported.contains(name), "{}: no library has {name}", release.name);
        }
    }
}

#[test]
fn constants_and_structs_have_the_values_of_the_headers() {
    let sizes = [
        ("cudnnConvolutionFwdAlgoPerf_t", size_of::<cudnn::cudnnConvolutionFwdAlgoPerf_t>()),
        ("cudnnConvolutionBwdDataAlgoPerf_t", size_of::<cudnn::cudnnConvolutionBwdDataAlgoPerf_t>()),
        ("cudnnConvolutionBwdFilterAlgoPerf_t", size_of::<cudnn::cudnnConvolutionBwdFilterAlgoPerf_t>()),
    ];
    for release in releases() {
        for (name, ours) in constants() {
            assert_eq!(release.constants.get(name), Some(&ours), "{}: {name}", release.name);
        }
        for (name, ours) in STATUSES {
            let theirs = release.constants.get(name).copied();
            // One status is newer than cuDNN 9.1.
            let may_lack = name == "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED" && release.name.ends_with("9.1");
            assert_eq!(theirs.or(may_lack.then_some(ours)), Some(ours), "{}: {name}", release.name);
        }
        for (name, ours) in sizes {
            assert_eq!(release.structs.get(name), Some(&ours), "{}: {name}", release.name);
        }
        assert_eq!(release.structs.len(), sizes.len(), "structs of {}", release.name);
    }
}

/// Checks that every constant of the code is compared; no other test would notice one that is not.
#[test]
fn every_constant_that_is_used_is_compared() {
    let compared = constants();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda")];
    let mut used = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)
            .expect("the sources are there")
            .map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&entry).expect("a source");
                let of_a_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
                used.extend(
                    text.split("::")
                        .skip(1)
                        .map(|rest| rest.chars().take_while(of_a_name).collect::<String>()),
                );
            }
        }
    }
    used.retain(|name| {
        let of_nccl = name
            .strip_prefix("nccl")
            .is_some_and(|rest| rest.starts_with(char::is_uppercase) && !rest.ends_with("_t"));
        of_nccl || ["CU_", "CUDA_", "CUDNN_", "CUBLAS_", "NVRTC_"].iter().any(|start| name.starts_with(start))
    });
    assert!(used.len() > 30, "{used:?}");
    let missing: Vec<&String> = used.iter().filter(|name| !compared.contains_key(name.as_str())).collect();
    assert!(missing.is_empty(), "add to `constants` and to headers.txt: {missing:?}");
}

#[test]
fn another_type_number_or_order_of_arguments_is_found() {
    let header = "int*, enum CUdevice_attribute_enum, int) -> enum cudaError_enum";
    let has = |arguments: &'static [&'static str], returned| agrees(&("f", arguments, returned), header);
    assert!(has(&["*mut c_int", "CUdevice_attribute", "CUdevice"], "u32"));
    assert!(!has(&["*mut c_int", "CUdevice_attribute"], "u32"), "one less");
    assert!(!has(&["*mut c_int", "CUdevice", "CUdevice_attribute"], "u32"), "another order");
    assert!(
        !has(&["*const c_int", "CUdevice_attribute", "CUdevice"], "u32"),
        "what is written is not constant"
    );
    assert!(!has(&["*mut c_int", "CUdevice_attribute", "usize"], "u32"), "another width");
    assert!(!has(&["*mut c_int", "CUdevice_attribute", "CUdevice"], "usize"), "another result");
}
