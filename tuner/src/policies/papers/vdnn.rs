//! vDNN (Rhu et al., "Virtualized deep neural networks", in the version arXiv 1602.08124): offloads the inputs X of layers, and
//! brings each back within a window of layers.
//!
//! - *Layers* (§3.3): `vdnn-all` offloads every layer's X; `vdnn-conv` only those of convolution layers. X is the tensors that a
//!   layer reads and did not make. A layer that updates X in place offloads nothing: it "only use\[s\] Y and dY" (§3.2). If
//!   several layers read the same X, the last of them offloads it; the paper speaks of rows of layers only.
//! - *Offload* (§3.2): launched with the layer's forward computation, and "the next layer" waits for its end.
//! - *Prefetch* (§3.2, Figure 8): launched with a layer's backward computation, for the nearest layer before it whose X is away,
//!   but no farther than the next convolution layer; the next layer's backward waits for its end. If this window never reached an
//!   X, it is fetched when a layer needs it, which stalls: §3.1 says no more than that it must be there.
//! - *Convolution algorithms* (§3.3, §5): the static policies are measured with the fastest (p) and with the leanest (m):
//!   `vdnn-all-p`, `vdnn-all-m`, `vdnn-conv-p`, `vdnn-conv-m`. `vdnn-all` and `vdnn-conv` take (p) if it fits, else (m).
//!   Algorithms are an op's alternatives in a trace; if there are none, (m) and (p) are the same.
//! - `vdnn-dyn` (§3.3): the passes of "Dynamic vDNN", see `dynamic`.
//!
//! The paper leaves classifier layers alone because they are small; "the intuitions can also be applied" to them, and here all
//! layers are treated alike. All transfers share one stream there; here offloads have one and prefetches the other, which makes
//! no difference, since one is over before the other begins.

use super::naive::feature_maps;
use super::stages::{Fixed, StageId, Stages, leaves_during, needs, windows};
use crate::decide::gaps::{Alternatives, Gap, GapId, Gaps};
use crate::decide::placement::{Opens, Slot};
use crate::place::realise::{Case, Realised};
use crate::request::{Algorithms, Error, Layers};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId};
use typed_index_collections::{TiSlice, TiVec};

/// The static policies, `vdnn-all` to `vdnn-conv-p`.
pub(crate) fn realise(case: &Case<'_>, layers: Layers, algorithms: Algorithms) -> Result<Realised, Error> {
    let attempt = |alternatives: Alternatives| {
        let gaps = Gaps::new(case.trace, Bytes(case.pool), alternatives);
        case.realise_fixed(&gaps, &fixed(case.trace, &gaps, layers))
    };
    match algorithms {
        Algorithms::Fastest => attempt(Alternatives::Fastest),
        Algorithms::Leanest => attempt(Alternatives::Leanest),
        Algorithms::FastestThatFit => {
            let fastest = attempt(Alternatives::Fastest)?;
            let one_kind = case.trace.ops.iter().all(|op| op.alternatives.is_empty());
            if matches!(fastest, Realised::Fits(_)) || one_kind {
                return Ok(fastest);
            }
            attempt(Alternatives::Leanest)
        }
    }
}

/// `vdnn-dyn`: returns the first of the paper's profiling passes that fits.
///
/// 1. `vdnn-all` with the leanest algorithms shows if the network can be trained at all.
/// 2. The fastest algorithms: nothing offloaded, then `vdnn-conv`, then `vdnn-all`.
/// 3. Greedily, layer by layer, each algorithm downgraded just as far as its layer needs: `vdnn-conv`, then `vdnn-all`.
/// 4. The very first.
pub(crate) fn dynamic(case: &Case<'_>) -> Result<Realised, Error> {
    let leanest = realise(case, Layers::All, Algorithms::Leanest)?;
    if matches!(leanest, Realised::Short(_)) {
        return Ok(leanest);
    }
    let fastest = || Gaps::new(case.trace, Bytes(case.pool), Alternatives::Fastest);
    let gaps = fastest();
    let keep = case.realise_fixed(&gaps, TiSlice::from_ref(&vec![None; gaps.gaps.len()]))?;
    if matches!(keep, Realised::Fits { .. }) {
        return Ok(keep);
    }
    for downgraded in [false, true] {
        for which in [Layers::Conv, Layers::All] {
            let mut gaps = fastest();
            let fixed = fixed(case.trace, &gaps, which);
            if downgraded {
                downgrade(case, &mut gaps, &fixed);
            }
            let found = case.realise_fixed(&gaps, &fixed)?;
            if matches!(found, Realised::Fits { .. }) {
                return Ok(found);
            }
        }
    }
    Ok(leanest)
}

/// Gives every op whose slot overflows the fastest algorithm that fits there, the leanest if none does.
fn downgrade(case: &Case<'_>, gaps: &mut Gaps, fixed: &TiSlice<GapId, Option<Fixed>>) {
    let needs = needs(gaps, &windows(fixed));
    for (at, op) in (0..).map(OpId).zip(&case.trace.ops) {
        let needs = needs[Slot::of(at)];
        if needs > case.pool {
            let room = case.pool.saturating_sub(needs - gaps.workspace[Slot::of(at)]);
            gaps.set_alternative(op, at, room);
        }
    }
}

/// By gap: the layer whose forward stage offloads it, as its X; `None` if it is no X.
fn offloaded(
    trace: &Trace,
    gaps: &Gaps,
    maps: &TiSlice<GapId, bool>,
    stages: &Stages,
    which: Layers,
) -> TiVec<GapId, Option<usize>> {
    let by = |(g, gap): (GapId, &Gap)| {
        let op = &trace.ops[gap.after.op().filter(|_| maps[g])?.index()];
        let (tensor, live) = (gaps.tensor(g), &gaps.lives[gap.live]);
        let stage = stages.of_slot[gap.after];
        let own = live.opens == Opens::Written && stages.of_slot[live.slots.start] == stage;
        let input = op.reads.contains(&tensor) && !op.writes.contains(&tensor) && !own;
        (input && (which == Layers::All || stages.stages[stage].conv)).then_some(stage.index())
    };
    gaps.gaps.iter_enumerated().map(by).collect()
}

/// Returns the slots at which each layer's X leaves and returns.
fn fixed(trace: &Trace, gaps: &Gaps, which: Layers) -> TiVec<GapId, Option<Fixed>> {
    let maps = feature_maps(trace, gaps);
    let stages = Stages::new(trace, gaps, &maps);
    let by = offloaded(trace, gaps, &maps, &stages, which);
    let layers = stages.layers();
    // By layer: the gaps that are away; by stage: those that it is the first to use.
    let mut away: Vec<Vec<GapId>> = vec![Vec::new(); layers];
    let mut used: TiVec<StageId, Vec<GapId>> = vec![Vec::new(); stages.stages.len()].into();
    for (g, layer) in by.iter_enumerated() {
        if let Some(layer) = layer {
            away[*layer].push(g);
            used[stages.of_slot[gaps.gaps[g].before]].push(g);
        }
    }
    let mut prefetched = vec![false; layers];
    let mut candidates = Candidates::new(&stages, &away);
    let mut fixed: TiVec<GapId, Option<Fixed>> = vec![None; gaps.gaps.len()].into();
    let mut fetch = |layer: usize, returns: Slot, by: Slot| {
        let stage = stages.forward(layer);
        away[layer].iter().for_each(|g| fixed[*g] = leaves_during(stage, &gaps.gaps[*g], returns, by));
    };
    for (at, stage) in stages.stages.iter_enumerated().skip(layers) {
        let here = stage.slots.start;
        for &g in &used[at] {
            let layer = by[g].expect("a gap that is away");
            if !prefetched[layer] {
                // On demand, together with all other gaps of its layer.
                prefetched[layer] = true;
                candidates.remove(layer);
                fetch(layer, here, here);
            }
        }
        if let Some(layer) = candidates.find(stage.layer) {
            prefetched[layer] = true;
            candidates.remove(layer);
            fetch(layer, here, stage.slots.end);
        }
    }
    fixed
}

/// Layers that may be prefetched for: those with an absent X that was not prefetched yet.
struct Candidates {
    /// By layer, plus one: the same for a candidate, else one more than some layer below with no candidate between. 0 means none.
    next: Vec<usize>,
    /// By layer: one more than the nearest convolution layer below it, 0 for none.
    conv: Vec<usize>,
}

impl Candidates {
    fn new(stages: &Stages, away: &[Vec<GapId>]) -> Candidates {
        let (mut next, mut conv) = (vec![0], vec![0]);
        for (layer, away) in away.iter().enumerate() {
            next.push(if away.is_empty() { layer } else { layer + 1 });
            conv.push(if stages.forward(layer).conv { layer + 1 } else { conv[layer] });
        }
        Candidates { next, conv }
    }

    fn remove(&mut self, layer: usize) {
        self.next[layer + 1] = layer;
    }

    /// Figure 8: the nearest candidate before a layer, no farther than the nearest convolution layer before it.
    fn find(&mut self, current: usize) -> Option<usize> {
        let current = current.min(self.next.len() - 1);
        let mut at = current;
        while self.next[at] != at {
            // Every second step of the way is shortened for the next time.
            self.next[at] = self.next[self.next[at]];
            at = self.next[at];
        }
        (at > 0 && at >= self.conv[current]).then(|| at - 1)
    }
}
