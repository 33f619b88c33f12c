//! Iterations as CUDA graphs: those known, and the treatment of the running one.
//!
//! An iteration begins with a fork, in which both transfer streams wait for the compute stream, and ends with a join, in
//! which the compute stream waits for both. So the compute stream alone shows the end of an iteration, and a capture that
//! begins and ends there includes all three. The first run of an iteration is enqueued command by command, since drivers
//! load kernels at their first launch, which a capture does not allow. The second is captured, and replayed from then on. A
//! timed iteration has events with time stamps between the commands, which a graph records at each run. With graphs off,
//! all commands are enqueued one by one.

use super::driver::{Context, CudaStream, Event, Graph};
use super::error::Refusal;
use crate::device::{Begun, EventId, IterationId};
use plimsoll_ir::schedule::Stream;
use std::collections::HashMap;
use std::sync::Arc;

/// The three streams, by [`Stream::index`], and the events that fork and join them.
pub(super) struct Streams {
    streams: [CudaStream; 3],
    fork: Event,
    joins: [Event; 2],
}

impl Streams {
    /// Creates the streams.
    pub(super) fn new(context: &Arc<Context>) -> Result<Streams, Refusal> {
        let stream = || CudaStream::new(context);
        let event = || Event::new(context, false);
        Ok(Streams {
            streams: [stream()?, stream()?, stream()?],
            fork: event()?,
            joins: [event()?, event()?],
        })
    }

    pub(super) fn get(&self, stream: Stream) -> &CudaStream {
        &self.streams[stream.index()]
    }

    /// The stream that forks and joins.
    pub(super) fn compute(&self) -> &CudaStream {
        self.get(Stream::Compute)
    }

    /// Puts the transfer streams behind the compute stream.
    fn fork(&self) -> Result<(), Refusal> {
        self.compute().record(&self.fork)?;
        [Stream::Offload, Stream::Prefetch].into_iter().try_for_each(|s| self.get(s).wait(&self.fork))
    }

    /// Puts the compute stream behind the transfer streams.
    fn join(&self) -> Result<(), Refusal> {
        for (stream, event) in [Stream::Offload, Stream::Prefetch].into_iter().zip(&self.joins) {
            self.get(stream).record(event)?;
            self.compute().wait(event)?;
        }
        Ok(())
    }

    /// Waits until all streams are idle.
    pub(super) fn synchronise(&self) -> Result<(), Refusal> {
        self.streams.iter().map(CudaStream::synchronise).fold(Ok(()), Result::and)
    }
}

/// State of an iteration that has run.
enum Known {
    /// Ran once, command by command.
    Once,
    /// Its graph, and the events with time stamps that it records.
    Captured(Graph, Vec<EventId>),
}

pub(super) struct Iterations {
    graphs: bool,
    known: HashMap<IterationId, Known>,
    /// The iteration that is being enqueued, and `true` if its commands become a graph, instead of running as soon as they
    /// are enqueued.
    taking: Option<(IterationId, bool)>,
}

impl Iterations {
    /// No iterations yet.
    pub(super) fn new(graphs: bool) -> Iterations {
        Iterations { graphs, known: HashMap::new(), taking: None }
    }

    /// Returns `true` if iterations become graphs.
    pub(super) fn graphs(&self) -> bool {
        self.graphs
    }

    /// Forgets all graphs, whose addresses are no longer valid. The streams must be idle.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Frees the graphs of timed iterations, which take memory outside the pool: a profile makes dozens, each useful for a
    /// few runs only. The caller has waited for the graph before its times.
    fn forget_timed(&mut self) {
        for (_, known) in self.known.iter_mut().filter(|(id, _)| id.timed) {
            *known = Known::Once;
        }
    }

    /// Returns `true` if enqueued commands become a graph.
    pub(super) fn is_captured(&self) -> bool {
        matches!(self.taking, Some((_, true)))
    }

    /// Events with time stamps that an iteration's graph records.
    pub(super) fn recorded(&self, id: IterationId) -> &[EventId] {
        match self.known.get(&id) {
            Some(Known::Captured(_, recorded)) => recorded,
            _ => &[],
        }
    }

    /// Begins an iteration, or launches it whole. A timed iteration records its `origin` first.
    pub(super) fn begin(
        &mut self,
        id: IterationId,
        streams: &Streams,
        origin: &Event,
    ) -> Result<Begun, Refusal> {
        self.taking = None;
        match self.known.get(&id) {
            Some(Known::Captured(graph, _)) => {
                // SAFETY: the device holds all memory that the graph names, and forgets the graph before it gives any back.
                unsafe { streams.compute().launch_graph(graph) }?;
                return Ok(Begun::Replayed);
            }
            Some(Known::Once) => {
                if id.timed {
                    self.forget_timed();
                }
                streams.compute().begin_capture()?;
                self.taking = Some((id, true));
                if id.timed {
                    streams.compute().record_when_launched(origin)?;
                }
            }
            None => {
                self.taking = Some((id, false));
                if id.timed {
                    streams.compute().record(origin)?;
                }
            }
        }
        streams.fork()?;
        Ok(Begun::Enqueue)
    }

    /// Ends the enqueueing; launches a captured iteration, which records these events with time stamps. Does nothing if
    /// already ended. `whole` is false if some commands were not taken; a capture is then thrown away.
    pub(super) fn end(
        &mut self,
        streams: &Streams,
        whole: bool,
        recorded: &[EventId],
    ) -> Result<(), Refusal> {
        let Some((id, captures)) = self.taking.take() else { return Ok(()) };
        let joined = streams.join();
        // Even after a refusal: otherwise the stream would stay in its capture.
        let graph = captures.then(|| streams.compute().end_capture());
        joined?;
        match graph.transpose()? {
            Some(graph) if whole => {
                // SAFETY: as in `begin`.
                unsafe { streams.compute().launch_graph(&graph) }?;
                self.known.insert(id, Known::Captured(graph, recorded.to_vec()));
            }
            None if self.graphs && whole => drop(self.known.insert(id, Known::Once)),
            _ => {}
        }
        Ok(())
    }
}
