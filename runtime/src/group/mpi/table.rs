//! MPI as a table of functions, filled when a library is found at run time: nothing is linked.
//!
//! One table serves three ABIs, which differ in the type of a handle (a pointer, or a number) and in the values of
//! constants. A handle is a word here, and no array of handles and no status crosses. The table has only the functions that
//! messages need, called only by the thread that opened the library.
//!
//! Deliberately does not reduce. A library chooses its own order of sums.

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// A handle of MPI, or a pointer to one of its objects.
type Handle = usize;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Loaded) -> Result<Functions, String> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the function of this name has this type in every MPI, since handles are words or numbers
                        // that a register holds.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>($symbol) };
                        *found.map_err(|error| error.to_string())?
                    },)*
                })
            }
        }
    };
}

functions! {
    init_thread = b"MPI_Init_thread\0"(*mut c_int, *mut c_void, c_int, *mut c_int);
    finalize = b"MPI_Finalize\0"();
    abort = b"MPI_Abort\0"(Handle, c_int);
    comm_rank = b"MPI_Comm_rank\0"(Handle, *mut c_int);
    comm_size = b"MPI_Comm_size\0"(Handle, *mut c_int);
    comm_set_errhandler = b"MPI_Comm_set_errhandler\0"(Handle, Handle);
    error_string = b"MPI_Error_string\0"(c_int, *mut c_char, *mut c_int);
    library_version = b"MPI_Get_library_version\0"(*mut c_char, *mut c_int);
    isend = b"MPI_Isend\0"(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = b"MPI_Irecv\0"(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    iprobe = b"MPI_Iprobe\0"(c_int, c_int, Handle, *mut c_int, *mut c_void);
    test = b"MPI_Test\0"(*mut Handle, *mut c_int, *mut c_void);
}

/// Set of constants of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    /// Open MPI: handles are pointers to objects of the library.
    OpenMpi,
    /// MPICH and its relatives: handles are numbers.
    Mpich,
    /// The ABI of MPI 5.0, `libmpi_abi.so`.
    Standard,
}

/// Constants of an ABI. Those that are handles of Open MPI are looked up in the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constants {
    pub(super) world: Handle,
    pub(super) byte: Handle,
    pub(super) errors_return: Handle,
    pub(super) status_ignore: Handle,
    pub(super) thread_funneled: c_int,
}

impl Abi {
    /// Constants that are numbers; `None` if they are the library's own objects.
    pub(super) fn numbers(self) -> Option<Constants> {
        match self {
            Abi::OpenMpi => None,
            Abi::Mpich => Some(Constants {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                status_ignore: 1,
                thread_funneled: 1,
            }),
            Abi::Standard => Some(Constants {
                world: 0x101,
                byte: 0x247,
                errors_return: 0x143,
                status_ignore: 0,
                thread_funneled: 1024,
            }),
        }
    }
}

/// Most words of one call, 16 KiB. Longer messages use a rendezvous, which took twice as long over TCP when two workers send
/// to each other at once (UCX 1.13, at 0.4 and 1 Gbit/s), and in which the first of several messages under way arrives as
/// late as the last.
pub(super) const CALL_WORDS: usize = 1 << 12;

/// Buffer size for the longest text of any MPI.
const TEXT: usize = 8192;

/// An initialised MPI library.
pub(super) struct Library {
    functions: Functions,
    constants: Constants,
    /// First line of its version text, and its file.
    pub(super) name: String,
    /// `true` if it can continue after a process has died, by user-level failure mitigation (ULFM). The launcher has to
    /// allow it.
    pub(super) outlives: bool,
    pub(super) rank: usize,
    pub(super) workers: usize,
    /// Unloaded last.
    _loaded: Loaded,
}

/// A buffer that MPI reads or writes until all requests are done.
pub(super) struct Moving {
    /// Requests of its parts that are not done, in order.
    requests: VecDeque<Handle>,
    words: Vec<u32>,
}

impl Drop for Moving {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            // MPI still uses it.
            std::mem::forget(std::mem::take(&mut self.words));
        }
    }
}

impl Moving {
    /// Number of its words, from the first on, that were sent or have come.
    pub(super) fn words_done(&self) -> usize {
        let parts = self.words.len().div_ceil(CALL_WORDS) - self.requests.len();
        (parts * CALL_WORDS).min(self.words.len())
    }

    /// The words, once all of them were sent or have come.
    pub(super) fn into_words(mut self) -> Vec<u32> {
        debug_assert!(self.requests.is_empty(), "MPI has them no longer");
        std::mem::take(&mut self.words)
    }
}

/// Name of a library that can be loaded; does not initialise it.
pub(super) fn named(file: &str) -> Result<String, String> {
    let (loaded, functions, _) = load(file, RTLD_LOCAL)?;
    let name = version(&functions, file);
    // Some libraries do not survive being unloaded.
    std::mem::forget(loaded);
    Ok(name)
}

fn load(file: &str, symbols: c_int) -> Result<(Loaded, Functions, Constants), String> {
    // SAFETY: the initialisers of an MPI library require nothing of us. Its plugins look for its symbols among the global
    // ones.
    let loaded =
        unsafe { Loaded::open(Some(file), RTLD_NOW | symbols) }.map_err(|error| error.to_string())?;
    let object = |symbol: &[u8]| {
        // SAFETY: only the address is taken.
        unsafe { loaded.get::<*mut c_void>(symbol) }.ok().map(|found| found.into_raw() as Handle)
    };
    let own = object(b"ompi_mpi_comm_world\0");
    let abi = match own {
        Some(_) => Abi::OpenMpi,
        None if file.contains("_abi") => Abi::Standard,
        None => Abi::Mpich,
    };
    let missing = || format!("{file} lacks objects of Open MPI");
    let constants = match abi.numbers() {
        Some(constants) => constants,
        None => Constants {
            world: own.ok_or_else(missing)?,
            byte: object(b"ompi_mpi_byte\0").ok_or_else(missing)?,
            errors_return: object(b"ompi_mpi_errors_return\0").ok_or_else(missing)?,
            status_ignore: 0,
            thread_funneled: 1,
        },
    };
    let functions = Functions::of(&loaded)?;
    Ok((loaded, functions, constants))
}

/// Text that a call writes into a buffer of [`TEXT`] bytes, with its length.
fn text_of(write: impl FnOnce(*mut c_char, *mut c_int)) -> String {
    let (mut text, mut length) = (vec![0u8; TEXT], 0);
    write(text.as_mut_ptr().cast(), &raw mut length);
    String::from_utf8_lossy(&text[..usize::try_from(length).unwrap_or(0).min(TEXT)]).into_owned()
}

fn version(functions: &Functions, file: &str) -> String {
    let text = text_of(|text, length| {
        // SAFETY: the buffer has the size of the longest text; this function may be called at any time.
        unsafe { (functions.library_version)(text, length) };
    });
    let words = text.split(['\n', ',', '\0']).next().unwrap_or_default();
    format!("{} ({file})", words.split_whitespace().collect::<Vec<_>>().join(" "))
}

impl Library {
    /// Loads a library and initialises it, on the thread that then makes all calls.
    pub(super) fn begin(file: &str) -> Result<Library, String> {
        let (loaded, functions, constants) = load(file, RTLD_GLOBAL)?;
        let name = version(&functions, file);
        // SAFETY: it is not called.
        let outlives = unsafe { loaded.get::<*mut c_void>(b"MPIX_Comm_revoke\0") }.is_ok();
        let (rank, workers) = (0, 0);
        let mut library = Library { functions, constants, name, outlives, rank, workers, _loaded: loaded };
        let mut given = 0;
        let wanted = constants.thread_funneled;
        // SAFETY: MPI takes no arguments of the program, and is begun once, by the thread that calls it.
        let code = unsafe { (library.functions.init_thread)(null_mut(), null_mut(), wanted, &raw mut given) };
        library.succeeded("MPI_Init_thread", code)?;
        if given < wanted {
            return Err(format!("MPI_Init_thread: {} allows no threads beside its own", library.name));
        }
        let (mut rank, mut workers) = (0, 0);
        let world = constants.world;
        // SAFETY: the handles are the library's, and the results have room.
        let codes = unsafe {
            [
                (library.functions.comm_set_errhandler)(world, constants.errors_return),
                (library.functions.comm_rank)(world, &raw mut rank),
                (library.functions.comm_size)(world, &raw mut workers),
            ]
        };
        codes.into_iter().try_for_each(|code| library.succeeded("MPI_Comm_size", code))?;
        (library.rank, library.workers) = (rank as usize, workers as usize);
        Ok(library)
    }

    fn succeeded(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let text = text_of(|text, length| {
            // SAFETY: the buffer has the size of the longest text.
            unsafe { (self.functions.error_string)(code, text, length) };
        });
        Err(format!("{call}: {text}"))
    }

    /// Begins to send words to a worker.
    pub(super) fn send(&self, to: usize, tag: c_int, words: Vec<u32>) -> Result<Moving, String> {
        let Constants { world, byte, .. } = self.constants;
        self.moving("MPI_Isend", words, |start, bytes, request| {
            // SAFETY: the words stay where they are until the request is done, or for ever (`Moving`); the count fits.
            unsafe { (self.functions.isend)(start, bytes, byte, to as c_int, tag, world, request) }
        })
    }

    /// Begins to receive as many words from a worker as there is room for.
    pub(super) fn receive(&self, from: usize, tag: c_int, room: Vec<u32>) -> Result<Moving, String> {
        let Constants { world, byte, .. } = self.constants;
        self.moving("MPI_Irecv", room, |start, bytes, request| {
            // SAFETY: as in `send`; nobody reads the words before the request is done.
            unsafe { (self.functions.irecv)(start, bytes, byte, from as c_int, tag, world, request) }
        })
    }

    /// Begins to move words, part by part: `begin` gets start, bytes and request of each part.
    fn moving(
        &self,
        call: &str,
        words: Vec<u32>,
        begin: impl Fn(*mut c_void, c_int, *mut Handle) -> c_int,
    ) -> Result<Moving, String> {
        let mut moving = Moving { requests: VecDeque::new(), words };
        for part in moving.words.chunks_mut(CALL_WORDS) {
            let mut request = 0;
            let code = begin(part.as_mut_ptr().cast(), size_of_val(part) as c_int, &raw mut request);
            self.succeeded(call, code)?;
            moving.requests.push_back(request);
        }
        Ok(moving)
    }

    /// Returns `true` if all of it was sent, or has come.
    pub(super) fn is_done(&self, moving: &mut Moving) -> Result<bool, String> {
        while let Some(request) = moving.requests.front_mut() {
            let mut done = 0;
            // SAFETY: the request is not done; the status is the constant that requests none.
            let code = unsafe {
                (self.functions.test)(request, &raw mut done, self.constants.status_ignore as *mut c_void)
            };
            self.succeeded("MPI_Test", code)?;
            if done == 0 {
                return Ok(false);
            }
            moving.requests.pop_front();
        }
        Ok(true)
    }

    /// Returns `true` if a message of a worker waits to be received.
    pub(super) fn waits(&self, from: usize, tag: c_int) -> Result<bool, String> {
        let mut waits = 0;
        let Constants { world, status_ignore, .. } = self.constants;
        // SAFETY: the handle is the library's; the status is the constant that requests none.
        let code = unsafe {
            (self.functions.iprobe)(from as c_int, tag, world, &raw mut waits, status_ignore as *mut c_void)
        };
        self.succeeded("MPI_Iprobe", code)?;
        Ok(waits != 0)
    }

    /// Ends MPI, once all workers do.
    pub(super) fn end(self) -> Result<(), String> {
        // SAFETY: nothing is under way, and no call follows.
        let code = unsafe { (self.functions.finalize)() };
        let ended = self.succeeded("MPI_Finalize", code);
        // The code of threads that it left running must stay loaded.
        std::mem::forget(self);
        ended
    }

    /// Ends all workers with this exit code, including this process if the library works as it should.
    pub(super) fn abort(&self, exit: u8) {
        // SAFETY: the handle is the library's.
        unsafe { (self.functions.abort)(self.constants.world, c_int::from(exit)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Numeric value of a constant in a header.
    fn defined(header: &str, name: &str) -> Option<usize> {
        let line = header.lines().find(|line| {
            let mut words = line.split_whitespace();
            let first = words.next();
            first == Some("#define") && words.next() == Some(name)
                || first == Some(name) && line.contains('=')
        })?;
        let text = line.split(name).nth(1)?;
        let text = text
            .rsplit([')', '='])
            .map(str::trim)
            .find(|part| part.starts_with(|c: char| c.is_ascii_digit()))?;
        let text = text.trim_end_matches(',');
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| usize::from_str_radix(hex, 16).ok())
    }

    #[test]
    fn numbers_are_those_of_the_headers() {
        let headers = [
            (Abi::Mpich, "/usr/include/x86_64-linux-gnu/mpich/mpi.h"),
            (Abi::Mpich, "/usr/include/aarch64-linux-gnu/mpich/mpi.h"),
            (Abi::Standard, "/usr/include/mpi_abi.h"),
        ];
        let mut compared = 0;
        for (abi, path) in headers {
            let Ok(header) = fs::read_to_string(path) else { continue };
            compared += 1;
            let constants = abi.numbers().expect("they are numbers");
            for (name, value) in [
                ("MPI_COMM_WORLD", constants.world),
                ("MPI_BYTE", constants.byte),
                ("MPI_ERRORS_RETURN", constants.errors_return),
                ("MPI_STATUS_IGNORE", constants.status_ignore),
                ("MPI_THREAD_FUNNELED", constants.thread_funneled as usize),
            ] {
                // `((MPI_Comm)0x44000000)`, `(MPI_Status *)1`, `1` and `= 1024,`.
                let line = header.lines().find(|line| line.contains(name));
                assert_eq!(defined(&header, name), Some(value), "{abi:?}: {line:?}");
            }
        }
        if compared == 0 {
            println!("skipped: no MPI has its headers here");
        }
    }
}
