//! Transformers: GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023) as language models, BERT (Devlin et al. 2019) as a
//! masked language model.
//!
//! Their sizes, learned positions and tied head are the published ones. Three things are simpler: GELU is exact, where GPT-2
//! approximates it by tanh; attention probabilities have no dropout; and parameters start by the rule of all networks here.
//! BERT sees one segment, of which it learns the first row of its table, and is trained on all positions with a label; its
//! second task, to tell if two segments follow one another, is left out, and with it the pooler.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Extent, Function, LayerKind, Network, NetworkSpec, Window};

/// Dropout of embeddings and of each branch's output.
const DROPOUT: f32 = 0.1;

/// The dimensions of a transformer.
#[derive(Clone, Copy)]
struct Size {
    /// Blocks.
    layers: u32,
    width: u32,
    /// Heads of attention.
    heads: u32,
}

/// The further dimensions of a Llama.
#[derive(Clone, Copy)]
struct Llama {
    /// Heads of keys, and of values.
    kv_heads: u32,
    /// Channels within the feed-forward part.
    inner: u32,
}

/// Returns the network that a spec names, if it names one.
pub(super) fn named(spec: &NetworkSpec) -> Option<Result<Network, NetworkError>> {
    let size = |layers, width, heads| Size { layers, width, heads };
    Some(match spec.name.as_str() {
        "gpt-tiny" => gpt(spec, size(4, 128, 4)),
        "gpt-mini" => gpt(spec, size(6, 384, 6)),
        "gpt" => gpt(spec, size(12, 768, 12)),
        "gpt-medium" => gpt(spec, size(24, 1024, 16)),
        "gpt-large" => gpt(spec, size(36, 1280, 20)),
        "gpt-xl" => gpt(spec, size(48, 1600, 25)),
        "llama-tiny" => llama(spec, size(4, 128, 4), Llama { kv_heads: 2, inner: 352 }),
        "tinyllama" => llama(spec, size(22, 2048, 32), Llama { kv_heads: 4, inner: 5632 }),
        "bert-tiny" => bert(spec, size(2, 128, 2)),
        "bert" => bert(spec, size(12, 768, 12)),
        "bert-large" => bert(spec, size(24, 1024, 16)),
        _ => return None,
    })
}

/// Builds GPT-2: normalisation before each branch and again at the end.
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

/// Builds Llama as in Hugging Face: root mean square normalisation, positions that rotate queries and keys, keys and values
/// that heads share, a gate in the feed-forward part, no bias, and an untied head.
fn llama(spec: &NetworkSpec, size: Size, llama: Llama) -> Result<Network, NetworkError> {
    let Llama { kv_heads, inner } = llama;
    let linear =
        |b: &mut Builder, name: &str, x, outputs| b.conv(name, x, outputs, Window::square(1, 1, 0), false);
    let norm = |b: &mut Builder, name: &str, x| b.add(name, LayerKind::RmsNorm { epsilon: 1e-5 }, &[x]);
    let of_head = size.width / size.heads;
    let mut b = Builder::new(spec)?;
    let mut x = table(&mut b, "embed_tokens", size.width)?;
    for i in 0..size.layers {
        let name = |part: &str| format!("layers.{i}.{part}");
        let mut y = norm(&mut b, &name("input_layernorm"), x)?;
        let q = linear(&mut b, &name("self_attn.q_proj"), y, size.width)?;
        let k = linear(&mut b, &name("self_attn.k_proj"), y, kv_heads * of_head)?;
        let v = linear(&mut b, &name("self_attn.v_proj"), y, kv_heads * of_head)?;
        let rotary = LayerKind::Rotary { width: of_head, base: 1e4 };
        let q = b.add(&name("self_attn.q_rotary"), rotary.clone(), &[q])?;
        let k = b.add(&name("self_attn.k_rotary"), rotary, &[k])?;
        y = b.concat(&name("self_attn.qkv"), &[q, k, v])?;
        let heads = LayerKind::Attention { heads: size.heads, kv_heads, causal: true };
        y = b.add(&name("self_attn.heads"), heads, &[y])?;
        y = linear(&mut b, &name("self_attn.o_proj"), y, size.width)?;
        x = b.add(&name("self_attn.add"), LayerKind::Add, &[x, y])?;
        y = norm(&mut b, &name("post_attention_layernorm"), x)?;
        let gate = linear(&mut b, &name("mlp.gate_proj"), y, inner)?;
        let gate = b.add(&name("mlp.act_fn"), Function::Silu.layer(), &[gate])?;
        let up = linear(&mut b, &name("mlp.up_proj"), y, inner)?;
        y = b.add(&name("mlp.gated"), LayerKind::Multiply, &[gate, up])?;
        y = linear(&mut b, &name("mlp.down_proj"), y, size.width)?;
        x = b.add(&name("mlp.add"), LayerKind::Add, &[x, y])?;
    }
    x = norm(&mut b, "norm", x)?;
    let classes = b.classes();
    x = linear(&mut b, "lm_head", x, classes)?;
    b.finish(x)
}

/// Builds BERT: normalisation after each branch has been added.
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

/// Adds the learned value of each position.
fn positions(b: &mut Builder, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
    b.add(name, LayerKind::Bias { over: Extent::Positions, spare: 0 }, &[input])
}

/// Adds a fully connected layer at every position.
fn linear(b: &mut Builder, name: &str, input: LayerId, outputs: u32) -> Result<LayerId, NetworkError> {
    b.conv(name, input, outputs, Window::square(1, 1, 0), true)
}

/// Adds attention of every position to the others, and its projection.
fn attention(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    size: Size,
    causal: bool,
) -> Result<LayerId, NetworkError> {
    let mut x = linear(b, &format!("{name}.qkv"), input, 3 * size.width)?;
    x = b.add(
        &format!("{name}.heads"),
        LayerKind::Attention { heads: size.heads, kv_heads: size.heads, causal },
        &[x],
    )?;
    x = linear(b, &format!("{name}.proj"), x, size.width)?;
    b.dropout(&format!("{name}.drop"), x, DROPOUT)
}

/// Adds two layers at every position, the inner one of four times the width.
fn feed_forward(b: &mut Builder, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
    let width = b.shape(input).channels;
    let mut x = linear(b, &format!("{name}.fc"), input, 4 * width)?;
    x = b.gelu(&format!("{name}.gelu"), x)?;
    x = linear(b, &format!("{name}.proj"), x, width)?;
    b.dropout(&format!("{name}.drop"), x, DROPOUT)
}

/// Adds logits: the similarity of each position to each row of the table of tokens.
fn head(b: &mut Builder, input: LayerId, tokens: LayerId) -> Result<LayerId, NetworkError> {
    let (out_channels, window) = (b.classes(), Window::square(1, 1, 0));
    let kind = LayerKind::Conv { out_channels, window, groups: 1, bias: false };
    b.add_sharing("head", kind, &[input], tokens)
}
