//! Iterations as CUDA graphs: which are known, and what the device does with the one that runs.
//!
//! An iteration begins with a fork, both transfer streams waiting for the compute stream, and ends with a join, the compute
//! stream waiting for both; so the compute stream alone says when all of it is over, and a capture that begins and ends there
//! takes in all three. The first run of an iteration is enqueued command by command, since drivers load kernels at their
//! first launch, which a capture does not allow; the second is captured, and replayed from then on. Those of a timed iteration
//! have events with time stamps between them, which a graph records each time that it runs. Where graphs are off, all are
//! enqueued one by one.

use super::driver::{Context, CudaStream, Event, Graph};
use super::error::Refusal;
use crate::device::{EventId, IterationId};
use plimsoll_ir::schedule::Stream;
use std::collections::HashMap;
use std::sync::Arc;

/// The three streams, by [`Stream::index`], with what forks and joins them.
pub(super) struct Streams {
    streams: [CudaStream; 3],
    fork: Event,
    joins: [Event; 2],
}

impl Streams {
    /// New ones.
    pub(super) fn new(context: &Arc<Context>) -> Result<Streams, Refusal> {
        let stream = || CudaStream::new(context);
        let event = || Event::new(context, false);
        Ok(Streams {
            streams: [stream()?, stream()?, stream()?],
            fork: event()?,
            joins: [event()?, event()?],
        })
    }

    /// One of them.
    pub(super) fn get(&self, stream: Stream) -> &CudaStream {
        &self.streams[stream.index()]
    }

    /// The stream that forks and joins.
    pub(super) fn compute(&self) -> &CudaStream {
        self.get(Stream::Compute)
    }

    /// From here on the transfer streams are behind the compute stream.
    fn fork(&self) -> Result<(), Refusal> {
        self.compute().record(&self.fork)?;
        [Stream::Offload, Stream::Prefetch].into_iter().try_for_each(|s| self.get(s).wait(&self.fork))
    }

    /// From here on the compute stream is behind the transfer streams.
    fn join(&self) -> Result<(), Refusal> {
        for (stream, event) in [Stream::Offload, Stream::Prefetch].into_iter().zip(&self.joins) {
            self.get(stream).record(event)?;
            self.compute().wait(event)?;
        }
        Ok(())
    }

    /// Waits until all are idle.
    pub(super) fn synchronise(&self) -> Result<(), Refusal> {
        self.streams.iter().map(CudaStream::synchronise).fold(Ok(()), Result::and)
    }
}

/// What is known of an iteration that has run.
enum Known {
    /// It ran once, command by command.
    Once,
    /// Its graph, and the events that it records with time stamps.
    Captured(Graph, Vec<EventId>),
}

/// How the commands of the running iteration are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taking {
    /// There is none: none has begun, or all of it was handed over.
    Nothing,
    /// Each runs as soon as it is enqueued.
    OneByOne(IterationId),
    /// They become a graph.
    Capturing(IterationId),
}

/// All iterations.
pub(super) struct Iterations {
    graphs: bool,
    known: HashMap<IterationId, Known>,
    taking: Taking,
}

/// What follows the beginning of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Its commands are enqueued.
    Commands,
    /// Nothing, it was launched whole.
    Nothing,
}

impl Iterations {
    /// None yet.
    pub(super) fn new(graphs: bool) -> Iterations {
        Iterations { graphs, known: HashMap::new(), taking: Taking::Nothing }
    }

    /// Whether iterations become graphs.
    pub(super) fn graphs(&self) -> bool {
        self.graphs
    }

    /// Forgets all graphs: their addresses are no longer valid. The streams are idle.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Gives back the graphs of timed iterations, which take memory beside the pool: a profile makes dozens, and each is of use
    /// for a few runs. Whoever waits for times has waited for the graph.
    fn forget_timed(&mut self) {
        for (_, known) in self.known.iter_mut().filter(|(id, _)| id.timed) {
            *known = Known::Once;
        }
    }

    /// Whether what is enqueued becomes a graph.
    pub(super) fn is_captured(&self) -> bool {
        matches!(self.taking, Taking::Capturing(_))
    }

    /// The events with time stamps that the graph of an iteration records.
    pub(super) fn recorded(&self, id: IterationId) -> &[EventId] {
        match self.known.get(&id) {
            Some(Known::Captured(_, recorded)) => recorded,
            _ => &[],
        }
    }

    /// Begins an iteration, or launches it whole. A timed one records its `origin` before anything else.
    pub(super) fn begin(
        &mut self,
        id: IterationId,
        streams: &Streams,
        origin: &Event,
    ) -> Result<Next, Refusal> {
        self.taking = Taking::Nothing;
        match self.known.get(&id) {
            Some(Known::Captured(graph, _)) => {
                // SAFETY: the device holds all memory that the graph names, and forgets the graph before it gives any back.
                unsafe { streams.compute().launch_graph(graph) }?;
                return Ok(Next::Nothing);
            }
            Some(Known::Once) => {
                if id.timed {
                    self.forget_timed();
                }
                streams.compute().begin_capture()?;
                self.taking = Taking::Capturing(id);
                if id.timed {
                    streams.compute().record_when_launched(origin)?;
                }
            }
            None => {
                self.taking = Taking::OneByOne(id);
                if id.timed {
                    streams.compute().record(origin)?;
                }
            }
        }
        streams.fork()?;
        Ok(Next::Commands)
    }

    /// Ends the enqueueing; what was captured, with the events that it records with time stamps, is launched. Does nothing
    /// where that is done already. Where the commands were not all taken, `whole` is false, and what was captured is thrown
    /// away.
    pub(super) fn end(
        &mut self,
        streams: &Streams,
        whole: bool,
        recorded: &[EventId],
    ) -> Result<(), Refusal> {
        match std::mem::replace(&mut self.taking, Taking::Nothing) {
            Taking::Nothing => Ok(()),
            Taking::OneByOne(id) => {
                streams.join()?;
                if self.graphs && whole {
                    self.known.insert(id, Known::Once);
                }
                Ok(())
            }
            Taking::Capturing(id) => {
                let joined = streams.join();
                // Also after a refusal: the stream would stay in its capture.
                let graph = streams.compute().end_capture();
                joined?;
                let graph = graph?;
                if whole {
                    // SAFETY: as in `begin`.
                    unsafe { streams.compute().launch_graph(&graph) }?;
                    self.known.insert(id, Known::Captured(graph, recorded.to_vec()));
                }
                Ok(())
            }
        }
    }
}
