//! Derives the facts of each layer for the walk from the rules of its kind (`../layers`).

use crate::draw::branch_before;
use crate::error::NetworkError;
use crate::layers::rules;
use crate::walk::{Facts, Fused, LowerOptions, Mode, ReluStorage};
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Layer, LayerKind, Network};
use plimsoll_ir::program::Branch;

/// Returns the facts of a network's layers.
pub(super) fn facts(network: &Network, options: &LowerOptions) -> Result<Facts, NetworkError> {
    let count = network.layers.len();
    let evaluate = options.mode == Mode::Evaluate;
    let branch = branches(network);
    let mut facts = Facts {
        source: (0..count).map(LayerId::new).collect(),
        absent: absent(network, options, &branch)?,
        branch,
        trained: vec![false; count],
        last_reader: vec![None; count],
        kept: vec![false; count],
        masked: vec![false; count],
        fused: vec![Fused::default(); count],
        adds_up: vec![false; count],
    };
    let readers = readers(network, &facts.absent);
    for (i, layer) in network.layers.iter().enumerate() {
        if facts.absent[i] {
            continue;
        }
        let present = layer.inputs.iter().filter(|input| !facts.absent[input.index()]);
        let inputs: Vec<LayerId> = present.map(|input| facts.source(*input)).collect();
        facts.trained[i] = !evaluate
            && (layer.parameters > 0
                || layer.shares.is_some()
                || inputs.iter().any(|v| facts.trained[v.index()]));
        // An earlier batch normalisation has fused it.
        if facts.hands_on(LayerId::new(i)) {
            continue;
        }
        let rules = rules(&layer.kind);
        if rules.hands_on(inputs.len(), options.mode) {
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
    for (i, layer) in network.layers.iter().enumerate().rev().filter(|(i, _)| !facts.absent[*i]) {
        let owner = layer.shares.map_or(i, LayerId::index);
        facts.adds_up[i] = std::mem::replace(&mut given[owner], true);
    }
    Ok(facts)
}

/// Returns, by layer, the number of present layers that take its output.
fn readers(network: &Network, absent: &[bool]) -> Vec<usize> {
    let mut readers = vec![0; network.layers.len()];
    for (_, layer) in network.layers.iter().enumerate().filter(|(i, _)| !absent[*i]) {
        layer.inputs.iter().for_each(|input| readers[input.index()] += 1);
    }
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
        (alone && !facts.absent[next.index()]).then_some((next, layer))
    };
    if let Some((sum, Layer { kind: LayerKind::Add, inputs, .. })) = next(last)
        && let Some(other) = inputs.iter().find(|input| **input != norm)
        && !facts.absent[other.index()]
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

/// Returns, by layer, the branch of stochastic depth whose end all paths from the layer to the loss pass; the first such on
/// the way.
fn branches(network: &Network) -> Vec<Option<Branch>> {
    let mut all: Vec<Option<Vec<LayerId>>> = vec![None; network.layers.len()];
    for (i, layer) in network.layers.iter().enumerate().rev() {
        let (id, mut behind) = (LayerId::new(i), all[i].clone().unwrap_or_default());
        if branch_before(id, &layer.kind).is_some() {
            behind.insert(0, id);
        }
        for input in &layer.inputs {
            let on_all = &mut all[input.index()];
            match on_all {
                Some(known) => known.retain(|end| behind.contains(end)),
                None => *on_all = Some(behind.clone()),
            }
        }
    }
    let first = |ends: Option<Vec<LayerId>>| {
        let end = *ends?.first()?;
        branch_before(end, &network.layer(end).kind)
    };
    all.into_iter().map(first).collect()
}

/// Returns the layers that a draw omits. A dropped output is 0, which only a sum with one other term left can omit.
fn absent(
    network: &Network,
    options: &LowerOptions,
    branch: &[Option<Branch>],
) -> Result<Vec<bool>, NetworkError> {
    let mut absent = vec![false; network.layers.len()];
    let Some(draw) = options.draw.filter(|_| options.mode == Mode::Train) else {
        return Ok(absent);
    };
    let mut needed = vec![false; network.layers.len()];
    *needed.last_mut().expect("a network ends in its loss") = true;
    for (i, layer) in network.layers.iter().enumerate().rev() {
        absent[i] = !needed[i] || draw.drops(LayerId::new(i), &layer.kind);
        if !absent[i] {
            layer.inputs.iter().for_each(|input| needed[input.index()] = true);
        }
    }
    for (i, layer) in network.layers.iter().enumerate().filter(|(i, _)| !absent[*i]) {
        let left = layer.inputs.iter().filter(|input| !absent[input.index()]).count();
        if left < layer.inputs.len() && !(layer.kind == LayerKind::Add && left == 1) {
            let why = format!(
                "the draw of iteration {} drops what it takes; only a sum of which one term is left can be lowered for a \
                 draw, so lower for all draws",
                draw.step
            );
            return Err(NetworkError::of_layer(&network.layers[i].name, why));
        }
    }
    // Ops for every draw leave running statistics unchanged if one branch is dropped, and know of one branch only.
    let stays = |i: usize| branch[i].is_some_and(|branch| branch.is_dropped(draw.seed, draw.step));
    let moves =
        |(i, layer): &(usize, &Layer)| absent[*i] && rules(&layer.kind).needs_variance() && !stays(*i);
    if let Some((_, layer)) = network.layers.iter().enumerate().find(moves) {
        let why = format!(
            "the draw of iteration {} drops more than the branch that its running statistics are of, so lower for all draws",
            draw.step
        );
        return Err(NetworkError::of_layer(&layer.name, why));
    }
    Ok(absent)
}
