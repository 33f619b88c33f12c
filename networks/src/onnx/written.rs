//! The way back of weights: the tensors of a network under the names of its file's initialisers, in their shapes.
//!
//! An initialiser can be written where the network has each of its elements exactly once, however they lie there: transposed,
//! with channels inside, or in parts that belong to several layers. Where it cannot, the tensors of all layers that have a part
//! of it are written as layers have them (`../weights.rs`), and a note says why.
//!
//! What this file deliberately does not do: read numbers. A file without weights is enough.

use super::constant::{Traced, traced};
use super::graph::Graph;
use super::source::{Source, on_device};
use super::tensor;
use crate::order::Order;
use crate::weights::{FileTensor, LayerTensor, Part, file_tensors};
use plimsoll_ir::network::Network;
use std::collections::{BTreeMap, BTreeSet};

/// No more names are told of each reason.
const TOLD: usize = 4;

/// The tensors of a network as a file of weights has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The tensors; their names are distinct.
    pub tensors: Vec<FileTensor>,
    /// What the user should know: which have the names of layers, and why.
    pub notes: Vec<String>,
}

/// Why a tensor of a layer is in no initialiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    /// The file has none for it.
    Absent,
    /// The file computes it.
    Computed,
    /// Other layers have the same elements.
    Apart,
    /// It is a part of an initialiser, the rest of which the network does not have.
    Part,
    /// The initialiser has a name that a tensor of another layer is written under.
    Name,
    /// It lies in an initialiser together with one that is in none.
    Together,
}

impl Why {
    fn in_words(self) -> &'static str {
        match self {
            Why::Absent => "the ONNX file does not have them",
            Why::Computed => "the ONNX file computes them from its initialisers",
            Why::Apart => "they are one initialiser of the ONNX file and were trained apart",
            Why::Part => "they are a part of an initialiser, and the network does not have the rest",
            Why::Name => "another tensor is written under the name of their initialiser",
            Why::Together => "they share an initialiser with one of the other tensors",
        }
    }
}

/// What becomes of each initialiser and of each tensor of a layer.
struct Sorting<'g> {
    graph: &'g Graph,
    /// The tensors as layers have them, by name.
    of_layers: BTreeMap<String, FileTensor>,
    /// What layers have of each initialiser.
    parts: BTreeMap<usize, Vec<Part>>,
    /// Those that are in no initialiser.
    lost: BTreeMap<String, Why>,
}

/// The tensors of a network with these sources.
pub fn written(graph: &Graph, network: &Network, sources: &[Source]) -> Written {
    let of_layers = file_tensors(network).into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let mut sorting = Sorting { graph, of_layers, parts: BTreeMap::new(), lost: BTreeMap::new() };
    for source in sources {
        sorting.place(network, source);
    }
    sorting.lose();
    sorting.finish(network)
}

impl Sorting<'_> {
    /// Notes where the elements of a layer's tensor lie in the file.
    fn place(&mut self, network: &Network, source: &Source) {
        let layer = network.layer(source.layer);
        let name = format!("{}.{}", layer.name, source.part);
        let Some(tensor) = self.of_layers.get(&name).filter(|_| layer.shares.is_none()) else { return };
        let [Part { of, .. }] = &tensor.parts[..] else { return };
        let of = of.clone();
        let count = source.runs.iter().map(|(steps, _)| steps).product::<u64>();
        let whole = [count, source.constant.elements()] == [of.elements; 2];
        let Some(all) = traced(&source.constant).filter(|_| whole) else {
            self.lost.insert(name, Why::Computed);
            return;
        };
        let order = on_device(&source.runs);
        for Traced { initialiser, in_file, in_constant } in all {
            let part = Part { of: of.clone(), in_file, on_device: within(&order, in_constant) };
            self.parts.entry(initialiser).or_default().push(part);
        }
    }

    /// Finds all that is in no initialiser, until nothing more is lost with it.
    fn lose(&mut self) {
        let Sorting { graph, of_layers, parts, lost } = self;
        let placed: BTreeSet<&str> = parts.values().flatten().map(|part| part.of.name.as_str()).collect();
        for name in of_layers.keys().filter(|name| !placed.contains(name.as_str())) {
            lost.entry(name.clone()).or_insert(Why::Absent);
        }
        for (initialiser, parts) in &*parts {
            if let Some(why) = uneven(graph, *initialiser, parts) {
                add(lost, parts, why);
            }
        }
        loop {
            let before = lost.len();
            parts.retain(|at, parts| {
                let name = graph.initialisers[*at].name.as_str();
                let elsewhere = parts.iter().any(|part| part.of.name != name);
                let why = if name == METADATA || elsewhere && lost.contains_key(name) {
                    Why::Name
                } else if parts.iter().any(|part| lost.contains_key(&part.of.name)) {
                    Why::Together
                } else {
                    return true;
                };
                add(lost, parts, why);
                false
            });
            if lost.len() == before {
                return;
            }
        }
    }

    /// Initialisers in the order of the file, then what is in none in the order of layers, with a note for each reason.
    fn finish(self, network: &Network) -> Written {
        let mut tensors: Vec<FileTensor> = Vec::new();
        for (at, parts) in self.parts {
            let held = &self.graph.initialisers[at];
            tensors.push(FileTensor { name: held.name.clone(), shape: tensor::dims(held), parts });
        }
        let lost = file_tensors(network).into_iter().filter(|tensor| self.lost.contains_key(&tensor.name));
        tensors.extend(lost);
        let mut reasons: BTreeMap<Why, Vec<String>> = BTreeMap::new();
        for (name, why) in self.lost {
            reasons.entry(why).or_default().push(name);
        }
        let note = |(why, names): (Why, Vec<String>)| {
            let told = names[..names.len().min(TOLD)].join(", ");
            let more = match names.len() {
                all if all > TOLD => format!(", ... ({all} in all)"),
                _ => String::new(),
            };
            format!(
                "these tensors have the names and shapes of Plimsoll's layers, since {}: {told}{more}",
                why.in_words()
            )
        };
        Written { tensors, notes: reasons.into_iter().map(note).collect() }
    }
}

/// The tensors of layers that have these parts are in no initialiser; those that were not already, for this reason.
fn add(lost: &mut BTreeMap<String, Why>, parts: &[Part], why: Why) {
    for part in parts {
        lost.entry(part.of.name.clone()).or_insert(why);
    }
}

/// What safetensors files have under this name is no tensor.
const METADATA: &str = "__metadata__";

/// The places in an order of those of its elements that stand at these.
fn within(order: &Order, at: Order) -> Order {
    match at {
        Order::Strided { .. } => order.clone(),
        Order::Listed(chosen) => {
            let mut all = Vec::new();
            order.each(|place| all.push(place));
            Order::Listed(chosen.into_iter().filter_map(|at| all.get(at).copied()).collect())
        }
    }
}

/// Why layers have not each element of an initialiser exactly once, if so.
fn uneven(graph: &Graph, initialiser: usize, parts: &[Part]) -> Option<Why> {
    let elements = tensor::elements(&tensor::dims(&graph.initialisers[initialiser])).unwrap_or(0);
    if let [part] = parts
        && part.in_file.is_permutation(elements)
    {
        return None;
    }
    let held: u64 = parts.iter().map(|part| held(&part.of, &part.in_file)).sum();
    let mut had = vec![false; usize::try_from(elements).unwrap_or(0)];
    let mut twice = false;
    for part in parts {
        part.in_file.each(|place| match had.get_mut(place) {
            Some(had) if !*had => *had = true,
            _ => twice = true,
        });
    }
    if twice {
        return Some(Why::Apart);
    }
    (held != elements).then_some(Why::Part)
}

/// How many elements of a layer's tensor lie in these places.
fn held(of: &LayerTensor, in_file: &Order) -> u64 {
    match in_file {
        Order::Strided { .. } => of.elements,
        Order::Listed(places) => places.len() as u64,
    }
}
