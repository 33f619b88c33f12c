//! Transformers: GPT-2 (Radford et al. 2019) as a language model, BERT (Devlin et al. 2019) as a masked language model.
//!
//! Their sizes, learned positions and tied head are the published ones. Three things are simpler: GELU is the exact one,
//! where GPT-2 approximates it by tanh; attention probabilities have no dropout; and how parameters start is the rule of
//! all networks here. BERT sees one segment, of which it learns the first row of its table, and is trained on whatever
//! positions have a label; its second task, whether two segments follow one another, is left out, and with it the pooler.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Extent, LayerKind, Network, NetworkSpec, Window};

/// Dropout of embeddings and of what each branch adds.
const DROPOUT: f32 = 0.1;

/// What sets a transformer apart.
#[derive(Clone, Copy)]
struct Size {
    /// Blocks.
    layers: u32,
    /// Channels.
    width: u32,
    /// Heads of attention.
    heads: u32,
}

/// The network that a spec names, where it names one.
pub(super) fn named(spec: &NetworkSpec) -> Option<Result<Network, NetworkError>> {
    let size = |layers, width, heads| Size { layers, width, heads };
    Some(match spec.name.as_str() {
        "gpt-tiny" => gpt(spec, size(4, 128, 4)),
        "gpt-mini" => gpt(spec, size(6, 384, 6)),
        "gpt" => gpt(spec, size(12, 768, 12)),
        "gpt-medium" => gpt(spec, size(24, 1024, 16)),
        "gpt-large" => gpt(spec, size(36, 1280, 20)),
        "gpt-xl" => gpt(spec, size(48, 1600, 25)),
        "bert-tiny" => bert(spec, size(2, 128, 2)),
        "bert" => bert(spec, size(12, 768, 12)),
        "bert-large" => bert(spec, size(24, 1024, 16)),
        _ => return None,
    })
}

/// GPT-2: normalisation before each branch and once more at the end.
fn gpt(spec: &NetworkSpec, size: Size) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let tokens = table(&mut b, "wte", size.width)?;
    let mut x = positions(&mut b, "wpe", tokens)?;
    x = b.dropout("drop", x, DROPOUT)?;
    for i in 0..size.layers {
        let mut y = b.layer_norm(&format!("h.{i}.ln_1"), x)?;
        y = attention(&mut b, &format!("h.{i}.attn"), y, size, true)?;
        x = b.add(&format!("h.{i}.attn.add"), LayerKind::Add, &[x, y])?;
        y = b.layer_norm(&format!("h.{i}.ln_2"), x)?;
        y = feed_forward(&mut b, &format!("h.{i}.mlp"), y)?;
        x = b.add(&format!("h.{i}.mlp.add"), LayerKind::Add, &[x, y])?;
    }
    x = b.layer_norm("ln_f", x)?;
    x = head(&mut b, x, tokens)?;
    b.finish(x)
}

/// BERT: normalisation after each branch has been added.
fn bert(spec: &NetworkSpec, size: Size) -> Result<Network, NetworkError> {
    let normalised =
        |b: &mut Builder, name: &str, x| b.add(name, LayerKind::LayerNorm { epsilon: 1e-12 }, &[x]);
    let mut b = Builder::new(spec)?;
    let tokens = table(&mut b, "embeddings.word", size.width)?;
    let mut x = positions(&mut b, "embeddings.position", tokens)?;
    let segments = LayerKind::Bias { over: Extent::Channels, spare: 1 };
    x = b.add("embeddings.segment", segments, &[x])?;
    x = normalised(&mut b, "embeddings.norm", x)?;
    x = b.dropout("embeddings.drop", x, DROPOUT)?;
    for i in 0..size.layers {
        let mut y = attention(&mut b, &format!("layer.{i}.attention"), x, size, false)?;
        x = b.add(&format!("layer.{i}.attention.add"), LayerKind::Add, &[x, y])?;
        x = normalised(&mut b, &format!("layer.{i}.attention.norm"), x)?;
        y = feed_forward(&mut b, &format!("layer.{i}.output"), x)?;
        x = b.add(&format!("layer.{i}.output.add"), LayerKind::Add, &[x, y])?;
        x = normalised(&mut b, &format!("layer.{i}.output.norm"), x)?;
    }
    x = linear(&mut b, "transform", x, size.width)?;
    x = b.gelu("transform.gelu", x)?;
    x = normalised(&mut b, "transform.norm", x)?;
    x = head(&mut b, x, tokens)?;
    x = b.add("decoder.bias", LayerKind::Bias { over: Extent::Channels, spare: 0 }, &[x])?;
    b.finish(x)
}

/// Looks up every token of the text.
fn table(b: &mut Builder, name: &str, width: u32) -> Result<LayerId, NetworkError> {
    let (vocabulary, length, text) = (b.classes(), b.shape(b.images()).height, b.images());
    b.add(name, LayerKind::Embedding { vocabulary, width, first: 0, length }, &[text])
}

/// Adds what each position has learned to be.
fn positions(b: &mut Builder, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
    b.add(name, LayerKind::Bias { over: Extent::Positions, spare: 0 }, &[input])
}

/// A fully connected layer at every position.
fn linear(b: &mut Builder, name: &str, input: LayerId, outputs: u32) -> Result<LayerId, NetworkError> {
    b.conv(name, input, outputs, Window::square(1, 1, 0), true)
}

/// Attention of every position to the others, and its projection.
fn attention(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    size: Size,
    causal: bool,
) -> Result<LayerId, NetworkError> {
    let mut x = linear(b, &format!("{name}.qkv"), input, 3 * size.width)?;
    x = b.add(&format!("{name}.heads"), LayerKind::Attention { heads: size.heads, causal }, &[x])?;
    x = linear(b, &format!("{name}.proj"), x, size.width)?;
    b.dropout(&format!("{name}.drop"), x, DROPOUT)
}

/// Two layers at every position, the inner one of four times the width.
fn feed_forward(b: &mut Builder, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
    let width = b.shape(input).channels;
    let mut x = linear(b, &format!("{name}.fc"), input, 4 * width)?;
    x = b.gelu(&format!("{name}.gelu"), x)?;
    x = linear(b, &format!("{name}.proj"), x, width)?;
    b.dropout(&format!("{name}.drop"), x, DROPOUT)
}

/// Logits: how much each position is like each row of the table of tokens.
fn head(b: &mut Builder, input: LayerId, tokens: LayerId) -> Result<LayerId, NetworkError> {
    let (out_channels, window) = (b.classes(), Window::square(1, 1, 0));
    let kind = LayerKind::Conv { out_channels, window, groups: 1, bias: false };
    b.add_sharing("head", kind, &[input], tokens)
}
