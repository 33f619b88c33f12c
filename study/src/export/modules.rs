//! Which modules of a PyTorch model to wrap so that the tuned batch fits without the plan, as Python to paste, with what that
//! is predicted to take beside what the plan takes.
//!
//! What it deliberately does not do: follow the plan. A plan decides about every tensor, moves tensors while ops run, and stops
//! recomputing where it has what it needs; what can be wrapped is whole modules ([`plimsoll_tuner::modules`]).

use crate::error::ExportError;
use crate::measure::may_be_off;
use crate::words::visible;
use plimsoll_ir::config::Config;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Momenta, Seconds};
use plimsoll_tuner::modules::{Means, Wrapping, wrap};

/// What modules are wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapper {
    /// `torch.utils.checkpoint`, which recomputes what a module saves.
    Checkpoint,
    /// Hooks of `torch.autograd.graph`, which take what a module saves to the host.
    Offload,
}

/// What an iteration takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Takes {
    /// The most bytes in use.
    pub peak: Bytes,
    /// How long it is.
    pub seconds: Seconds,
}

/// The modules to wrap, and what an iteration is predicted to take then.
#[derive(Clone, Debug, PartialEq)]
pub struct Modules {
    /// What they are wrapped in.
    pub wrapper: Wrapper,
    /// Samples in an iteration.
    pub batch: u64,
    /// The modules' names; none where the batch fits as it is.
    pub names: Vec<String>,
    /// Whether one of them has batch normalisation, whose running statistics a second run of the module would update again.
    pub has_statistics: bool,
    /// With everything kept.
    pub kept: Takes,
    /// With the modules wrapped.
    pub wrapped: Takes,
    /// By the plan.
    pub planned: Takes,
    /// Where the numbers come from, a line each.
    pub notes: Vec<String>,
}

impl Modules {
    /// For the batch and the budget of a config, of which these are the iteration and its valid schedule. Of all sets of
    /// modules that fit the batch into the budget it is the one that takes the least time. Fails where none does, or where the
    /// names of the layers name no modules.
    pub fn new(
        config: &Config,
        trace: &Trace,
        schedule: &Schedule,
        wrapper: Wrapper,
    ) -> Result<Modules, ExportError> {
        if config.momenta == Momenta::Sharded {
            return Err(ExportError::Sharded);
        }
        let means = match wrapper {
            Wrapper::Checkpoint => Means::Recompute,
            Wrapper::Offload => Means::Offload(config.link),
        };
        let wrapping = wrap(trace, config.budget_bytes, means)?;
        let takes = |wrapping: &Wrapping| Takes { peak: wrapping.peak(), seconds: wrapping.seconds() };
        let (wrapped, names) = (takes(&wrapping), wrapping.modules);
        let has_statistics = trace.ops.iter().filter(|op| op.kind.starts_with("bn")).any(|op| {
            let within =
                |name: &String| op.layer.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
            names.iter().any(within)
        });
        let kept = takes(&Wrapping { modules: Vec::new(), trace: trace.clone() });
        let planned = Takes {
            peak: trace.resident_bytes + schedule.pool_bytes,
            seconds: simulate(trace, schedule).makespan(),
        };
        let batch = trace.batch;
        Ok(Modules { wrapper, batch, names, has_statistics, kept, wrapped, planned, notes: Vec::new() })
    }

    /// Says where the numbers come from, and what is given up by wrapping modules instead of running the plan.
    pub fn tell(&mut self, config: &Config, from: &str) {
        let Modules { batch, kept, wrapped, planned, .. } = *self;
        let Config { network, device, budget_bytes, .. } = config;
        self.notes = vec![format!(
            "From {from}: {} tuned by Plimsoll on {device}, within {budget_bytes}.",
            network.name
        )];
        if self.names.is_empty() {
            let peak = kept.peak;
            self.notes
                .push(format!("A batch of {batch} keeps everything ({peak}): no module has to be wrapped."));
            return;
        }
        let more = |takes: Takes| {
            let Takes { peak, seconds } = takes;
            format!("{peak} and {seconds} ({:+.1} %)", (seconds / kept.seconds - 1.0) * 100.0)
        };
        let count = self.names.len();
        self.notes.extend([
            format!("An iteration of {batch} that keeps everything takes {} and {}.", kept.peak, kept.seconds),
            format!("With these modules wrapped ({count}) it is predicted to take {}.", more(wrapped)),
            format!("Plimsoll's own plan, which is not exported: {}.", more(planned)),
            "The seconds are those of Plimsoll's ops, each in its fastest alternative. PyTorch's allocator and CUDA's context \
             take memory besides."
                .to_owned(),
            "`model` is yours, or the part of it in which modules have these names: they are those of the tuned network."
                .to_owned(),
        ]);
        if config.modelled {
            let off = may_be_off(config.modelled_error);
            self.notes
                .push(format!("Nothing was measured: that device is modelled from its data sheet; {off}."));
        }
    }

    /// The lines to paste behind those that make the model; comments alone where nothing is to be wrapped.
    pub fn lines(&self) -> String {
        let comments: String = self.notes.iter().map(|note| format!("# {}\n", visible(note))).collect();
        if self.names.is_empty() {
            return comments;
        }
        let names: String = self.names.iter().map(|name| format!("    \"{name}\",\n")).collect();
        let (imports, functions, forward) = match (self.wrapper, self.has_statistics) {
            (Wrapper::Checkpoint, false) => (CHECKPOINT_IMPORTS, "", CHECKPOINT),
            (Wrapper::Checkpoint, true) => (STATISTICS_IMPORTS, STATISTICS, CHECKPOINT_STATISTICS),
            (Wrapper::Offload, _) => (OFFLOAD_IMPORTS, OFFLOAD, OFFLOADED),
        };
        format!(
            "{comments}{imports}\nMODULES = [\n{names}]\n{functions}\n\
             for name in MODULES:\n    module = model.get_submodule(name)\n    module.forward = {forward}\n"
        )
    }
}

const CHECKPOINT_IMPORTS: &str = "\
from functools import partial

from torch.utils.checkpoint import checkpoint
";

const CHECKPOINT: &str = "partial(checkpoint, module.forward, use_reentrant=False)";

const STATISTICS_IMPORTS: &str = "\
import contextlib
from functools import partial

from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint
";

/// A momentum of 0 leaves running statistics as they are, bit by bit. Without them altogether, the module would save other
/// tensors in its second run than in the first, which PyTorch refuses.
const STATISTICS: &str = r#"

@contextlib.contextmanager
def statistics_kept(module):
    """Leaves the running statistics of batch normalisation alone: the first run has updated them."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches


def contexts(module):
    """Of a module's two runs."""
    return contextlib.nullcontext(), statistics_kept(module)

"#;

const CHECKPOINT_STATISTICS: &str = "partial(
        checkpoint, module.forward, use_reentrant=False, context_fn=partial(contexts, module)
    )";

const OFFLOAD_IMPORTS: &str = "\
from functools import wraps

import torch
from torch.autograd.graph import saved_tensors_hooks
";

/// As `save_on_cpu` does, which copies weights, too.
const OFFLOAD: &str = r#"

def to_host(tensor):
    """Takes what is saved to the host, except parameters, which stay on the device anyway."""
    if isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter):
        return tensor.device, tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return tensor.device, host.copy_(tensor)


def to_device(saved):
    device, host = saved
    return host.to(device, non_blocking=True)


def offloaded(forward):
    """A forward pass of which all that is saved waits on the host."""

    @wraps(forward)
    def run(*inputs, **options):
        with saved_tensors_hooks(to_host, to_device):
            return forward(*inputs, **options)

    return run

"#;

const OFFLOADED: &str = "offloaded(module.forward)";
