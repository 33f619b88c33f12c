//! Derives the facts of each layer for the walk from the rules of its kind (`../layers`).

use crate::layers::rules;
use crate::walk::{Facts, Fused, LowerOptions, Mode, ReluStorage};
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Layer, LayerKind, Network};

/// Returns the facts of a network's layers.
pub(super) fn facts(network: &Network, options: &LowerOptions) -> Facts {
    let count = network.layers.len();
    let evaluate = options.mode == Mode::Evaluate;
    let mut facts = Facts {
        source: (0..count).map(LayerId::new).collect(),
        trained: vec![false; count],
        last_reader: vec![None; count],
        kept: vec![false; count],
        masked: vec![false; count],
        fused: vec![Fused::default(); count],
        adds_up: vec![false; count],
    };
    let readers = readers(network);
    for (i, layer) in network.layers.iter().enumerate() {
        let inputs: Vec<LayerId> = layer.inputs.iter().map(|input| facts.source(*input)).collect();
        facts.trained[i] = !evaluate
            && (layer.parameters > 0
                || layer.shares.is_some()
                || inputs.iter().any(|v| facts.trained[v.index()]));
        // An earlier batch normalisation has fused it.
        if facts.hands_on(LayerId::new(i)) {
            continue;
        }
        let rules = rules(&layer.kind);
        if rules.hands_on(options.mode) {
            facts.source[i] = inputs[0];
            continue;
        }
        for (at, input) in inputs.iter().take(rules.reads(inputs.len())).enumerate() {
            facts.last_reader[input.index()] = Some(LayerId::new(i));
            let reads_input = rules.backward_reads(at, &|input| facts.trained[inputs[input].index()]);
            facts.kept[input.index()] |= reads_input && !evaluate;
        }
        if options.fuse && !evaluate && matches!(layer.kind, LayerKind::BatchNorm { .. }) {
            fuse(network, &mut facts, &readers, LayerId::new(i), inputs[0]);
        }
    }
    for (i, layer) in network.layers.iter().enumerate() {
        let own = rules(&layer.kind).may_mask() && !facts.hands_on(LayerId::new(i));
        if facts.trained[i] && (own || facts.fused[i].relu.is_some()) {
            facts.masked[i] = match options.relu {
                ReluStorage::Mask => true,
                ReluStorage::Output => false,
                ReluStorage::Auto => !facts.kept[i],
            };
            facts.kept[i] |= !facts.masked[i];
        }
    }
    let mut given = vec![false; count];
    for (i, layer) in network.layers.iter().enumerate().rev() {
        let owner = layer.shares.map_or(i, LayerId::index);
        facts.adds_up[i] = std::mem::replace(&mut given[owner], true);
    }
    facts
}

/// Returns, by layer, the number of layers that take its output.
fn readers(network: &Network) -> Vec<usize> {
    let mut readers = vec![0; network.layers.len()];
    network.layers.iter().flat_map(|layer| &layer.inputs).for_each(|input| readers[input.index()] += 1);
    readers
}

/// Fuses into a batch normalisation of `x` the sum, the ReLU, or both, that follow it one after the other, if no other layer
/// reads the outputs between them. They follow immediately, so the other term of the sum exists by then (of two
/// normalisations that are added, the later one fuses the sum), and gradients are summed in the same order as without fusing.
/// A sum whose other term is x itself is not fused: its gradient would be summed in a different order.
fn fuse(network: &Network, facts: &mut Facts, readers: &[usize], norm: LayerId, x: LayerId) {
    let mut fused = Fused::default();
    let mut last = norm;
    let next = |last: LayerId| {
        let next = LayerId::new(last.index() + 1);
        let layer = network.layers.get(next.index())?;
        let alone = readers[last.index()] == 1 && layer.inputs.contains(&last);
        alone.then_some((next, layer))
    };
    if let Some((sum, Layer { kind: LayerKind::Add, inputs, .. })) = next(last)
        && let Some(other) = inputs.iter().find(|input| **input != norm)
        && facts.source(*other) != x
    {
        fused.sum = Some((sum, *other));
        last = sum;
    }
    if let Some((relu, Layer { kind: LayerKind::Relu { ceiling }, .. })) = next(last) {
        fused.relu = Some((relu, *ceiling));
    }
    for layer in fused.layers() {
        facts.source[layer.index()] = norm;
    }
    if let Some((_, other)) = fused.sum {
        let other = facts.source(other);
        facts.last_reader[other.index()] = Some(norm);
    }
    facts.fused[norm.index()] = fused;
}
