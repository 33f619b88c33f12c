//! Layrub (Jin et al., "Layer-centric memory reuse and data migration for extreme-scale deep learning on many-core
//! architectures", TACO 2018): offloads every layer's activation after its last reader, loads it one layer ahead.
//!
//! - `layrub-inter` (§3.3, §4.1, Algorithm 1): the Tracer counts the later layers that refer to an activation. When the forward
//!   pass has brought the count to 0, the activation is offloaded, and the streams are synchronised before the next layer. The
//!   offload and the forward computation of the layer that refers to it last are queued together (lines 8 to 15) and the
//!   activation is only read there, so they run in parallel; one that no other layer refers to leaves when its own layer has
//!   written it. While the backward pass of layer *l* runs, the activations that layer *l* - 1 needs are loaded, and the streams
//!   are synchronised (lines 22 to 25). Layers are runs of ops, as in `stages.rs`; the layer before is the previous run in the
//!   order of the backward pass, so that a layer's second run is served as well.
//! - `layrub-intra` (§3.2, §4.2): a layer's neuron gradient takes the place of its neuron data. A trace defines its tensors, and
//!   the ops that update them in place; no schedule can change that, and one that puts both into one place although the op reads
//!   one and writes the other would not be valid. The rest of the idea for a planner is that dead bytes are free at once, which
//!   addresses do for every policy. So on a given trace it keeps everything. If Plimsoll makes the trace, the rest of §3.1 and
//!   §4.2 is done there: the parameter gradient before the neuron gradient, a mask in place of ReLU's output.
//! - `layrub-hybrid` (§3.4): both, and therefore, on a given trace, `layrub-inter`.
//!
//! Nothing here considers the budget: the paper's strategies use a fixed amount of memory.

use super::naive::feature_maps;
use super::stages::{Fixed, Stages, leaves_during};
use crate::decide::gaps::{Gap, GapId, Gaps};
use crate::decide::placement::Slot;
use crate::place::realise::{Case, Realised};
use crate::request::Error;
use plimsoll_ir::trace::Trace;
use typed_index_collections::TiVec;

/// `layrub-inter` and `layrub-hybrid`.
pub(crate) fn inter(case: &Case<'_>) -> Result<Realised, Error> {
    let gaps = case.gaps();
    case.realise_fixed(&gaps, &fixed(case.trace, &gaps))
}

fn fixed(trace: &Trace, gaps: &Gaps) -> TiVec<GapId, Option<Fixed>> {
    let maps = feature_maps(trace, gaps);
    let stages = Stages::new(trace, gaps, &maps);
    let window = |(g, gap): (GapId, &Gap)| {
        if !maps[g] {
            return None;
        }
        let user = stages.of_slot[gap.before];
        let during = &stages.stages[stages.of_slot[gap.after.max(Slot(1))]];
        let earlier = &stages.stages[user.previous()?];
        leaves_during(during, gap, earlier.slots.start, stages.stages[user].slots.start)
    };
    gaps.gaps.iter_enumerated().map(window).collect()
}
