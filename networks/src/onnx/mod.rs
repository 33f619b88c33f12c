//! Networks from ONNX files, as `torch.onnx` writes them: the architecture becomes a [`Network`] of our layers, and our
//! lowering derives the training iteration from it, as for the networks of the zoo.
//!
//! ONNX has images as (batch, channels, rows, columns), we have channels innermost. The layers are the same; only what a
//! weight's position means differs. [`read`] does not read weights: a file needs no data for them, only for the numbers
//! from which it computes shapes and masks; those may lie in other files of its folder.
//!
//! ```text
//! bytes ─weigh, Graph::open─▶ Graph ─survey─▶ all that is not read, at once
//!                               │ import: node by node
//!                               ▼
//!            values (value.rs): constants (fold.rs), random numbers (drawn.rs), views of a layer's output (view.rs);
//!            layers (operators.rs, transformer.rs, rotary.rs)
//!                               ▼
//!                            Network, and a copy of the file that holds its architecture alone
//! ```
//!
//! Where each tensor of a layer comes from (source.rs) is also the way back, to the file's own names (written.rs).
//!
//! What is read: convolutions, products with weights, batch, layer and RMS normalisation, ReLU and its kin, GELU, sigmoids,
//! SiLU and their imitations of lines, poolings, dropout, stochastic depth, sums, products of two outputs of one shape or of
//! channels by one value each, scales, concatenations, parts, local response normalisation, embeddings, learned positions and
//! tokens, multi-head attention with or without a causal mask, also of heads that share keys and values, rotary position
//! embeddings in halves, and whatever only moves elements about or computes shapes. Whatever else changes a number is refused
//! with its node. Read with a note to the user: floats of 16 and 64 bits (all is computed in 32), dropout within attention
//! (left out), a softmax at the end (the loss has it), normalisations without a shift (they get one), scales and biases that
//! several layers have (each gets its own). Batch normalisation and dropout are read as in training, whether the file was
//! exported for training or not. Constants that are added are biases, tensors of the file that are multiplied by are scales;
//! both are trained. Convolutions without a normalisation before their activation are noted, since exporters fold it away.
//!
//! What this folder deliberately does not do: open files, or run anything.

mod constant;
mod drawn;
mod error;
mod fold;
mod graph;
mod import;
mod layout;
mod operators;
mod proto;
mod rotary;
mod source;
mod survey;
mod tensor;
mod transformer;
mod value;
mod view;
mod weigh;
mod written;

pub use constant::ReadExternal;
pub use error::{OnnxError, Trouble};
pub use tensor::External;
pub use written::Written;

use constant::Numbers;
use graph::Graph;
use plimsoll_ir::network::{Network, NetworkSpec};
use std::collections::BTreeMap;

/// What stands in the name of every network from a file, between the file's name and the hash of its architecture.
const MARK: &str = ".onnx-";

/// What to read.
pub struct OnnxSource<'a> {
    /// The file's bytes.
    pub file: Vec<u8>,
    /// What the network is called: the file's name without its ending.
    pub name: &'a str,
    /// The image size, or the number of positions and 1, where the file leaves it open.
    pub image: Option<[u32; 2]>,
    /// Reads data that lie in another file of the folder. For an architecture it is asked only for numbers from which shapes
    /// and masks are computed; it must refuse what is outside the folder by way of a link; other paths never come to it.
    pub external: ReadExternal<'a>,
}

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxNetwork {
    /// The network. Its spec's name ends with a hash of the architecture, so that it names no other.
    pub network: Network,
    /// What the user should know: what was left out.
    pub notes: Vec<String>,
    /// An ONNX file of the same architecture without weights, from which the same network is read.
    pub architecture: Vec<u8>,
}

/// Reads a network.
///
/// # Errors
///
/// Whatever bytes are given: [`OnnxError`] says what is wrong with them, or names all that no layer does.
pub fn read(source: OnnxSource<'_>) -> Result<OnnxNetwork, OnnxError> {
    let OnnxSource { file, name, image, external } = source;
    let graph = Graph::open(file)?;
    survey::survey(&graph)?;
    let read = import::import(&graph, image, Numbers::new(&graph, external))?;
    let architecture = graph.architecture(&read.numbers.read());
    let mut network = read.network;
    network.spec.name = full_name(name, &architecture);
    Ok(OnnxNetwork { network, notes: read.notes, architecture })
}

/// Reads the weights that a file has for a network: by layer and part, such as `conv1.weight`, in the order in which they lie
/// on the device. None where the file's layers are not the network's. Tensors that the file does not have are left out.
///
/// # Errors
///
/// The file cannot be read as a network, or lacks the numbers of a weight, or has them in a type or size of no use.
pub fn weights(
    source: OnnxSource<'_>,
    network: &Network,
) -> Result<Option<BTreeMap<String, Vec<f32>>>, OnnxError> {
    of_network(source, network, |_, read| source::numbers(network, &read.sources, &read.numbers))
}

/// The tensors of a network as a file of weights has them that belongs to this one: under the names of its initialisers and in
/// their shapes, where that can be. None where the file's layers are not the network's. The file needs no weights.
///
/// # Errors
///
/// The file cannot be read as a network.
pub fn written(source: OnnxSource<'_>, network: &Network) -> Result<Option<Written>, OnnxError> {
    of_network(source, network, |graph, read| Ok(written::written(graph, network, &read.sources)))
}

/// What is made of a file that was read; none where its layers are not the network's.
fn of_network<T>(
    source: OnnxSource<'_>,
    network: &Network,
    make: impl FnOnce(&Graph, &import::Read<'_>) -> Result<T, OnnxError>,
) -> Result<Option<T>, OnnxError> {
    let OnnxSource { file, image, external, .. } = source;
    let graph = Graph::open(file)?;
    survey::survey(&graph)?;
    let read = import::import(&graph, image, Numbers::new(&graph, external))?;
    let sizes = |spec: &NetworkSpec| (spec.image, spec.channels, spec.classes);
    if read.network.layers != network.layers || sizes(&read.network.spec) != sizes(&network.spec) {
        return Ok(None);
    }
    make(&graph, &read).map(Some)
}

/// Whether a network's name is that of one from a file; the name that it was read by.
pub fn name_in_file(name: &str) -> Option<&str> {
    let (file, hash) = name.rsplit_once(MARK)?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    is_hash.then_some(file)
}

/// A name that is fit for a file, of which the architecture is a part.
fn full_name(name: &str, architecture: &[u8]) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let clean: String = name.chars().take(60).map(allowed).collect();
    let stem = clean.trim_start_matches('.');
    let stem = if stem.is_empty() { "network" } else { stem };
    format!("{stem}{MARK}{:016x}", hash(architecture))
}

/// The FNV-1a hash of some bytes: it tells one file from the next, and need not withstand anybody.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
