//! NVRTC: lets the C compiler check that a text compiles, and returns the text itself as the code, after a line that names
//! the target: `// .version 9.0` is PTX, as new as this NVRTC; `\x7fELF sm_90` is machine code.

use crate::{kernels, lock};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Mutex;

const SUCCESS: u32 = 0;
const INVALID_INPUT: u32 = 3;
const INVALID_PROGRAM: u32 = 4;
const INVALID_OPTION: u32 = 5;
const COMPILATION: u32 = 6;

/// A text, its target, and the compiler's output.
struct Program {
    text: CString,
    /// Value of the option: `sm_90`, `compute_90`.
    target: String,
    log: CString,
}

impl Program {
    fn code(&self, header: &str) -> CString {
        let code = [header.as_bytes(), b"\n", self.text.as_bytes()].concat();
        CString::new(code).unwrap_or_default()
    }

    /// Machine code; `None` if the target is not a machine.
    fn cubin(&self) -> Option<CString> {
        self.target.starts_with("sm_").then(|| self.code(&format!("\x7fELF {}", self.target)))
    }

    fn ptx(&self) -> CString {
        self.code(&format!("// .version 9.{}", *lock(&MINOR)))
    }
}

static PROGRAMS: Mutex<BTreeMap<usize, Program>> = Mutex::new(BTreeMap::new());

/// Place for a result, if the caller gives one.
type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

fn put<T>(place: Place<T>, value: T) -> Result<(), u32> {
    place.ok_or(INVALID_INPUT)?.write(value);
    Ok(())
}

/// Reads a property of a program.
fn of<T>(program: usize, get: impl FnOnce(&mut Program) -> T) -> Result<T, u32> {
    lock(&PROGRAMS).get_mut(&program).map(get).ok_or(INVALID_PROGRAM)
}

/// Copies a text and its final zero to a buffer with room for it.
fn copy_out(text: &CStr, room: *mut c_char) -> Result<(), u32> {
    if room.is_null() {
        return Err(INVALID_INPUT);
    }
    // SAFETY: the caller queried the size first and gives this much room, as the interface requires.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), room, text.to_bytes_with_nul().len()) };
    Ok(())
}

calls! {
    fn nvrtcVersion(major: Place<c_int>, minor: Place<c_int>) {
        put(major, 13)?;
        put(minor, *lock(&MINOR))
    }

    fn nvrtcGetNumSupportedArchs(count: Place<c_int>) {
        put(count, known().len() as c_int)
    }

    fn nvrtcGetSupportedArchs(room: *mut c_int) {
        if room.is_null() {
            return Err(INVALID_INPUT);
        }
        // SAFETY: the caller queried their number first and gives this much room.
        unsafe { std::ptr::copy_nonoverlapping(known().as_ptr(), room, known().len()) };
        Ok(())
    }

    fn nvrtcCreateProgram(
        program: Place<usize>, text: *const c_char, _name: *const c_char, headers: c_int,
        _texts: *const *const c_char, _names: *const *const c_char,
    ) {
        if text.is_null() || headers != 0 {
            return Err(INVALID_INPUT);
        }
        // SAFETY: the caller gives a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(text) }.to_owned();
        let mut programs = lock(&PROGRAMS);
        let handle = programs.keys().last().map_or(1, |last| last + 1);
        programs.insert(handle, Program { text, target: String::new(), log: CString::default() });
        put(program, handle)
    }

    fn nvrtcCompileProgram(program: usize, count: c_int, options: *const *const c_char) {
        for at in 0..usize::try_from(count).map_err(|_| INVALID_INPUT)? {
            // SAFETY: the caller gives `count` options, each of which ends with a zero.
            let option = unsafe { CStr::from_ptr(*options.add(at)) };
            let option = option.to_string_lossy();
            if !option.starts_with('-') {
                return Err(INVALID_OPTION);
            }
            if let Some(target) = option.strip_prefix("--gpu-architecture=") {
                let number = target.strip_prefix("sm_").or(target.strip_prefix("compute_"));
                let number = number.and_then(|number| number.parse().ok()).ok_or(INVALID_OPTION)?;
                if !known().contains(&number) {
                    return Err(INVALID_OPTION);
                }
                of(program, |program| target.clone_into(&mut program.target))?;
            }
        }
        let text = of(program, |program| program.text.clone())?;
        let outcome = kernels::load(&text.to_string_lossy());
        let log = outcome.as_ref().err().cloned().unwrap_or_default().replace('\0', " ");
        of(program, |program| program.log = CString::new(log).unwrap_or_default())?;
        outcome.map(|_| ()).map_err(|_| COMPILATION)
    }

    fn nvrtcGetCUBINSize(program: usize, size: Place<usize>) {
        put(size, of(program, |program| program.cubin())?.map_or(0, |cubin| cubin.as_bytes_with_nul().len()))
    }

    fn nvrtcGetCUBIN(program: usize, room: *mut c_char) {
        copy_out(&of(program, |program| program.cubin())?.ok_or(INVALID_PROGRAM)?, room)
    }

    fn nvrtcGetPTXSize(program: usize, size: Place<usize>) {
        put(size, of(program, |program| program.ptx().as_bytes_with_nul().len())?)
    }

    fn nvrtcGetPTX(program: usize, room: *mut c_char) {
        of(program, |program| copy_out(&program.ptx(), room))?
    }

    fn nvrtcGetProgramLogSize(program: usize, size: Place<usize>) {
        put(size, of(program, |program| program.log.as_bytes_with_nul().len())?)
    }

    fn nvrtcGetProgramLog(program: usize, room: *mut c_char) {
        of(program, |program| copy_out(&program.log, room))?
    }

    fn nvrtcDestroyProgram(program: Place<usize>) {
        // SAFETY: the caller gives the place that `nvrtcCreateProgram` wrote.
        let handle = unsafe { program.ok_or(INVALID_PROGRAM)?.assume_init_read() };
        lock(&PROGRAMS).remove(&handle).map(|_| ()).ok_or(INVALID_PROGRAM)
    }
}

/// Compute capabilities, times 10, for which a real NVRTC of this version makes code.
const ARCHITECTURES: [c_int; 5] = [75, 80, 86, 90, 100];

/// Minor version of this NVRTC: 13.0 unless a test chooses a different one.
static MINOR: Mutex<c_int> = Mutex::new(0);

/// Newest architecture that it knows.
static NEWEST: Mutex<c_int> = Mutex::new(c_int::MAX);

fn known() -> &'static [c_int] {
    let newest = *lock(&NEWEST);
    &ARCHITECTURES[..ARCHITECTURES.partition_point(|known| *known <= newest)]
}

/// Makes this NVRTC 13.`minor` from now on, with architectures up to `newest` (capability times 10).
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_compiler(minor: c_int, newest: c_int) {
    (*lock(&MINOR), *lock(&NEWEST)) = (minor, newest);
}

/// Meaning of a code.
#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        SUCCESS => c"NVRTC_SUCCESS",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR unknown",
    };
    text.as_ptr()
}
