//! A character model: an embedding, a long short-term memory (Hochreiter and Schmidhuber 1997) and a classifier at every
//! position.
//!
//! The memory is unrolled over all positions of the text, for any length: each step has separate layers, which use the
//! parameters of the first. As in PyTorch its four gates are input, forget, candidate and output; they have one bias, where
//! PyTorch adds two. Each text starts with an empty memory.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Axis, LayerKind, Network, NetworkSpec, Window};

/// Channels of a character.
const EMBEDDING: u32 = 128;
/// Channels of the memory.
const HIDDEN: u32 = 512;
/// Longest text; each position has five layers.
const LONGEST: u32 = 1 << 16;

/// Builds the character model.
pub(super) fn build(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let (text, length) = (b.images(), spec.image[0]);
    if length > LONGEST {
        let why = format!("unrolled over {length} positions it has too many steps; give at most {LONGEST}");
        return Err(NetworkError::of_layer("cell", why));
    }
    let one = Window::square(1, 1, 0);
    let gates = |bias| LayerKind::Conv { out_channels: 4 * HIDDEN, window: one, groups: 1, bias };
    // Owners of the parameters: of the embedding, and of the gates' two products.
    let mut owners: [Option<LayerId>; 3] = [None; 3];
    let mut outputs: Vec<LayerId> = Vec::new();
    for t in 0..length {
        let token = LayerKind::Embedding { vocabulary: spec.classes, width: EMBEDDING, first: t, length: 1 };
        let x = shared(&mut b, &format!("embedding.{t}"), token, text, &mut owners[0])?;
        let mut x = shared(&mut b, &format!("input.{t}"), gates(true), x, &mut owners[1])?;
        let before = outputs.last().copied();
        if let Some(h) = before {
            let h = shared(&mut b, &format!("hidden.{t}"), gates(false), h, &mut owners[2])?;
            x = b.add(&format!("gates.{t}"), LayerKind::Add, &[x, h])?;
        }
        let inputs: Vec<LayerId> = [x].into_iter().chain(before).collect();
        outputs.push(b.add(&format!("cell.{t}"), LayerKind::LstmCell, &inputs)?);
    }
    let mut x = b.add("outputs", LayerKind::Concat { along: Axis::Rows }, &outputs)?;
    x = b.conv("head", x, spec.classes, one, true)?;
    b.finish(x)
}

/// Adds a layer with the parameters of the first of its kind; the first one is its own owner.
fn shared(
    b: &mut Builder,
    name: &str,
    kind: LayerKind,
    input: LayerId,
    owner: &mut Option<LayerId>,
) -> Result<LayerId, NetworkError> {
    match *owner {
        Some(of) => b.add_sharing(name, kind, &[input], of),
        None => {
            let layer = b.add(name, kind, &[input])?;
            *owner = Some(layer);
            Ok(layer)
        }
    }
}
