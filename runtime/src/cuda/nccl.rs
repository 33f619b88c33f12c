//! NCCL: sums over the GPUs of all workers, which never pass through the host.
//!
//! They have a separate stream. The caller requests a sum only once its numbers are complete, and uses it only once it is
//! done. So no other stream waits for this one, and a sum that never ends, since a worker is gone, blocks nothing else. For
//! the same reason no call here blocks: a communicator works in the background, and reports when it accepts more.
//!
//! Deliberately does not promise an order of additions, which is NCCL's own and follows from the connections between GPUs,
//! or count NCCL's own allocations outside the pool against the budget.

use super::CudaDevice;
use super::driver::{Context, CudaStream, Event, Handle, given_back, words_at};
use super::error::Refusal;
use super::presence::{NCCL, Search};
use super::table::{NcclFunctions, call};
use crate::device::{Collective, in_range};
use crate::error::{Error, Kind};
use cudarc::nccl::sys::{
    ncclComm, ncclConfig_v21700, ncclDataType_t, ncclResult_t, ncclScalarResidence_t, ncclUniqueId,
};
use plimsoll_ir::Bytes;
use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::ptr::{from_ref, null, null_mut};
use std::sync::Arc;

/// First number of a configuration, by which NCCL recognises it (`NCCL_CONFIG_INITIALIZER`).
const MAGIC: u32 = 0xcafe_beef;

/// Version of this configuration, 2.18: later ones fill in their additional fields.
const VERSION: u32 = 21_800;

/// A value left to NCCL.
const UNDEFINED: c_int = c_int::MIN;

/// Bytes of the id that worker 0 sends to the others.
const ID: usize = 128;

/// NCCL, and its communicator once the workers have joined.
pub(super) struct Nccl {
    functions: NcclFunctions,
    /// `None` before the workers have joined.
    communicator: Option<Handle<ncclComm>>,
    /// The last operation used, with the bits of its factor. It is a number, since NCCL counts beyond the names in the
    /// bindings.
    operation: Option<(u32, u32)>,
    state: State,
    /// Recorded behind the last sum.
    summed: Event,
    stream: CudaStream,
    context: Arc<Context>,
}

/// Progress of the last request, as last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Perhaps still in the background; perhaps on the stream.
    Asked,
    /// On the stream, followed by the event.
    Enqueued,
    Done,
}

/// NCCL's file and version, or why it is missing.
pub(super) fn look(search: &Search) -> Result<(PathBuf, String), Error> {
    let (functions, path) = find(search)?;
    let mut version = 0;
    // SAFETY: the call writes one number.
    let status = unsafe { (functions.ncclGetVersion)(&mut version) };
    check(&functions, None, "ncclGetVersion", status)
        .map_err(|refusal| refusal.at_start(&path, NCCL.what_to_do))?;
    Ok((path, format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)))
}

fn find(search: &Search) -> Result<(NcclFunctions, PathBuf), Error> {
    let found = search.load(&NCCL)?;
    Ok((NcclFunctions::of(&found, &NCCL)?, found.leak()))
}

/// Converts a refusal, with NCCL's last error.
fn check(
    functions: &NcclFunctions,
    communicator: Option<Handle<ncclComm>>,
    call: &'static str,
    status: u32,
) -> Result<(), Refusal> {
    let raw = communicator.map_or(null_mut(), |communicator| communicator.0);
    // SAFETY: each gives a text, which lives until NCCL's next call in this thread, or null; without a communicator the text
    // is the last error of the thread.
    Refusal::check(call, status, || unsafe {
        [words_at((functions.ncclGetErrorString)(status)), words_at((functions.ncclGetLastError)(raw))]
    })
}

/// Meaning of NCCL's refusal, and a remedy.
fn refused(refusal: &Refusal) -> Error {
    let is = |status: ncclResult_t| refusal.code == status as u32;
    let what_to_do = if is(ncclResult_t::ncclInvalidUsage) {
        "each worker needs a GPU of its own; NCCL_DEBUG=INFO has NCCL say more"
    } else if is(ncclResult_t::ncclRemoteError) {
        "another worker has failed, and says why"
    } else if is(ncclResult_t::ncclSystemError) {
        "the way between the workers fails: NCCL_DEBUG=INFO has NCCL say where, NCCL_SOCKET_IFNAME names the interface to use"
    } else {
        "NCCL_DEBUG=INFO has NCCL say more"
    };
    Error::new(Kind::NotTogether, format!("the workers' GPUs do not sum together: {refusal}; {what_to_do}"))
}

impl Nccl {
    /// Finds the library.
    fn start(search: &Search, context: &Arc<Context>) -> Result<Nccl, Error> {
        let (functions, _) = find(search)?;
        Ok(Nccl {
            functions,
            communicator: None,
            operation: None,
            state: State::Done,
            summed: Event::new(context, false)?,
            stream: CudaStream::new(context)?,
            context: Arc::clone(context),
        })
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), Error> {
        check(&self.functions, self.communicator, call, status).map_err(|refusal| refused(&refusal))
    }

    /// Checks the status of a call that may go on in the background.
    fn begun(&self, call: &'static str, status: u32) -> Result<(), Error> {
        if status == ncclResult_t::ncclInProgress as u32 { Ok(()) } else { self.check(call, status) }
    }

    fn raw(&self) -> *mut ncclComm {
        self.communicator.expect("the workers have joined").0
    }

    fn join(&mut self, invitation: &[u32], rank: usize, workers: usize) -> Result<(), Error> {
        self.abandon();
        let mut id = ncclUniqueId { internal: [0; ID] };
        let bytes = invitation.iter().flat_map(|word| word.to_le_bytes());
        id.internal.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
        let mut config = ncclConfig_v21700 {
            size: size_of::<ncclConfig_v21700>(),
            magic: MAGIC,
            version: VERSION,
            blocking: 0,
            cgaClusterSize: UNDEFINED,
            minCTAs: UNDEFINED,
            maxCTAs: UNDEFINED,
            netName: null(),
            splitShare: UNDEFINED,
        };
        let mut raw = null_mut();
        let [workers, rank] = [workers, rank].map(|number| number as c_int);
        // SAFETY: the call writes one handle, for the context of this thread, and reads the configuration before it returns.
        let status =
            unsafe { (self.functions.ncclCommInitRankConfig)(&mut raw, workers, id, rank, &mut config) };
        self.communicator = (!raw.is_null()).then_some(Handle(raw));
        self.state = State::Asked;
        self.begun("ncclCommInitRankConfig", status)
    }

    /// Returns `true` if the communicator accepts more.
    fn is_ready(&mut self) -> Result<bool, Error> {
        let mut state = ncclResult_t::ncclSuccess as u32;
        // SAFETY: the communicator lives; the call writes one status.
        unsafe { call!(self, ncclCommGetAsyncError(self.raw(), (&raw mut state).cast())) }?;
        if state == ncclResult_t::ncclInProgress as u32 {
            return Ok(false);
        }
        self.check("ncclCommGetAsyncError", state).map(|()| true)
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        // Even if all is on the stream: failures there, of other workers or on the way, are reported here.
        if self.communicator.is_some() && !self.is_ready()? {
            return Ok(false);
        }
        if self.state == State::Asked {
            self.stream.record(&self.summed)?;
            self.state = State::Enqueued;
        }
        if self.state == State::Enqueued && self.summed.has_happened()? {
            self.state = State::Done;
        }
        Ok(self.state == State::Done)
    }

    /// The operation that multiplies a worker's own numbers by this factor, and adds.
    fn times(&mut self, factor: f32) -> Result<u32, Error> {
        if let Some((_, operation)) = self.operation.filter(|(bits, _)| *bits == factor.to_bits()) {
            return Ok(operation);
        }
        if let Some((_, operation)) = self.operation.take() {
            // SAFETY: the communicator lives, and the calls that used the operation have returned.
            unsafe { call!(self, ncclRedOpDestroy(operation, self.raw())) }?;
        }
        let mut operation = 0u32;
        let (to, by) = ((&raw mut operation).cast(), from_ref(&factor).cast_mut().cast());
        let (float, on_host) = (ncclDataType_t::ncclFloat32, ncclScalarResidence_t::ncclScalarHostImmediate);
        // SAFETY: the communicator lives; the call reads the factor and writes one number.
        unsafe { call!(self, ncclRedOpCreatePreMulSum(to, by, float, on_host, self.raw())) }?;
        self.operation = Some((factor.to_bits(), operation));
        Ok(operation)
    }

    /// Begins in-place sums of all workers' numbers at these addresses.
    ///
    /// # Safety
    /// Each address has this many f32 numbers, in memory that lives until the sums are done or abandoned, and nothing else
    /// touches them until then.
    unsafe fn sum(&mut self, places: &[(u64, usize)], factor: f32) -> Result<(), Error> {
        let operation = self.times(factor)?;
        let (float, stream, communicator) =
            (ncclDataType_t::ncclFloat32, self.stream.raw().cast(), self.raw());
        // SAFETY: it takes nothing.
        unsafe { call!(self, ncclGroupStart()) }?;
        let all = places.iter().try_for_each(|&(address, numbers)| {
            let at = address as *mut std::ffi::c_void;
            // SAFETY: the communicator and the stream live; the rest is passed on to the caller.
            let status = unsafe {
                (self.functions.ncclAllReduce)(at, at, numbers, float, operation, communicator, stream)
            };
            self.begun("ncclAllReduce", status)
        });
        self.state = State::Asked;
        // SAFETY: it takes nothing; a group that was started is ended.
        let ended = unsafe { (self.functions.ncclGroupEnd)() };
        all.and(self.begun("ncclGroupEnd", ended))
    }

    /// Ends any operation begun, at any stage, and waits until it no longer touches memory; each worker does so for itself.
    fn abandon(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            // SAFETY: the communicator lives, and is not used any more.
            let status = unsafe { (self.functions.ncclCommAbort)(communicator.0) };
            given_back(self.begun("ncclCommAbort", status));
            (self.operation, self.state) = (None, State::Done);
        }
        given_back(self.context.enter().and_then(|()| self.stream.synchronise()));
    }

    /// Waits until no operation touches memory any more; abandons one that may never end.
    pub(super) fn quiesce(&mut self) {
        if self.state != State::Done {
            self.abandon();
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.quiesce();
        if let Some(communicator) = self.communicator.take() {
            // SAFETY: the communicator lives, no operation is under way, and it is not used any more.
            let status = unsafe { (self.functions.ncclCommDestroy)(communicator.0) };
            given_back(self.begun("ncclCommDestroy", status));
        }
    }
}

impl CudaDevice {
    /// Returns this device as one of several workers whose GPUs sum by NCCL.
    ///
    /// # Errors
    ///
    /// NCCL is missing, or too old.
    pub fn with_nccl(mut self, libraries: &[PathBuf]) -> Result<CudaDevice, Error> {
        self.gpu.context.enter()?;
        self.nccl = Some(Nccl::start(&Search::new(libraries), &self.gpu.context)?);
        Ok(self)
    }

    fn nccl(&mut self) -> Result<&mut Nccl, Error> {
        self.gpu.context.enter()?;
        Ok(self.nccl.as_mut().expect("who has none is asked for none"))
    }
}

impl Collective for CudaDevice {
    fn invite(&mut self) -> Result<Vec<u32>, Error> {
        let nccl = self.nccl()?;
        let mut id = ncclUniqueId { internal: [0; ID] };
        // SAFETY: the call writes one id.
        unsafe { call!(nccl, ncclGetUniqueId(&mut id)) }?;
        let bytes = id.internal.map(|byte| byte as u8);
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn join(&mut self, invitation: &[u32], rank: usize, workers: usize) -> Result<(), Error> {
        self.nccl()?.join(invitation, rank, workers)
    }

    fn is_ready(&mut self) -> Result<bool, Error> {
        self.nccl()?.is_ready()
    }

    fn sum(&mut self, ranges: &[(Bytes, u64)], factor: f32) -> Result<(), Error> {
        for (offset, numbers) in ranges {
            in_range(*offset, Bytes(4 * numbers), self.memory.layout().device())?;
        }
        let places: Vec<(u64, usize)> =
            ranges.iter().map(|(offset, numbers)| (self.memory.device(*offset), *numbers as usize)).collect();
        // SAFETY: the ranges were checked; the memory is given back behind `Nccl::quiesce`; the caller keeps commands off
        // the numbers of a sum until it is done.
        unsafe { self.nccl()?.sum(&places, factor) }
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        self.nccl()?.is_done()
    }

    fn abandon(&mut self) {
        match self.nccl() {
            Ok(nccl) => nccl.abandon(),
            Err(error) => tracing::debug!("{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nccl_refuses_says_what_to_do() {
        let check = |status: ncclResult_t, part: &str| {
            let (name, text) = ("invalid usage".to_owned(), "Duplicate GPU detected".to_owned());
            let refusal = Refusal { call: "ncclCommInitRankConfig", code: status as u32, name, text };
            let words = refused(&refusal).to_string();
            assert!(
                words.contains("ncclCommInitRankConfig: Duplicate GPU detected (invalid usage); "),
                "{words}"
            );
            assert!(words.contains(part), "{words}");
        };
        check(ncclResult_t::ncclInvalidUsage, "a GPU of its own");
        check(ncclResult_t::ncclRemoteError, "another worker has failed");
        check(ncclResult_t::ncclSystemError, "NCCL_SOCKET_IFNAME");
        check(ncclResult_t::ncclInternalError, "has NCCL say more");
    }
}
