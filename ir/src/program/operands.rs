//! The operands of each call, as one table: their names in order, their access by the call, and the bytes that each spans.
//!
//! Everything about operands follows from this table: an op's reads and writes and its recompute (`networks/src/lower.rs`),
//! the check that makes a launch safe (`runtime/src/executor.rs`), and the arguments of kernels, which find theirs by name
//! (`runtime/src/cpu/kernels`, `runtime/src/cuda/kernels`).
//!
//! The module deliberately does not define the places of operands ([`super::Operand`] does), or the computation of a call
//! ([`Call`] does).

use super::Hyper;
use super::call::{After, AttentionShape, Call, ConvShape, EmbeddingShape, PoolShape, RotaryShape, RowShape};
use crate::precision::Float;
use crate::units::Bytes;
use std::ops::Deref;

/// A kernel's access to an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Overwrites all of it.
    Write,
    /// Reads its value, and changes it.
    Update,
}

impl Access {
    /// Returns `true` if the operand's previous value matters.
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Returns `true` if the operand's value changes.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// An operand of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandSpec {
    /// Name, as in the call's documentation; unique within the call.
    pub name: &'static str,
    /// Access by the call.
    pub access: Access,
    /// Bytes that it spans with f32 activations. Saturating: a size too large for any memory stays too large.
    pub bytes: Bytes,
    /// `true` for an activation or a gradient of one, which takes the bytes of [`Float`] numbers; all others (parameters,
    /// statistics, masks, tokens, labels) are the same in every precision.
    pub feature_map: bool,
}

impl OperandSpec {
    /// Returns the bytes that it spans with activations in this format. Saturating as [`OperandSpec::bytes`].
    pub fn bytes_in(&self, float: Float) -> Bytes {
        if self.feature_map { Bytes(self.bytes.0 / Float::F32.bytes() * float.bytes()) } else { self.bytes }
    }
}

/// The operands of one call, in the documented order. They lie on the stack, so a launch can get them without allocating.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    specs: [OperandSpec; Operands::MOST],
    count: usize,
}

impl Deref for Operands {
    type Target = [OperandSpec];

    fn deref(&self) -> &[OperandSpec] {
        &self.specs[..self.count]
    }
}

impl Operands {
    /// Most operands of any call.
    const MOST: usize = 9;

    /// Returns the present rows.
    fn of<const N: usize>(rows: [Row; N]) -> Operands {
        const { assert!(N <= Operands::MOST, "a call has more operands than `MOST`") };
        let none = OperandSpec { name: "", access: Access::Read, bytes: Bytes::ZERO, feature_map: false };
        let mut operands = Operands { specs: [none; Operands::MOST], count: 0 };
        for row in rows.into_iter().flatten() {
            operands.specs[operands.count] = row;
            operands.count += 1;
        }
        operands
    }

    /// Returns the position of an operand; `None` if the call, as it is, has no operand of that name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.iter().position(|operand| operand.name == name)
    }

    /// Returns the position of an operand that every call of the kind has.
    ///
    /// # Panics
    /// If the call has no operand of that name.
    pub fn index(&self, name: &str) -> usize {
        self.position(name).unwrap_or_else(|| panic!("no operand `{name}` among {:?}", &**self))
    }
}

impl Call {
    /// Returns the call's operands, in the documented order.
    ///
    /// `ConcatPart` writes only its own channels, so it updates y; the part with `first` 0 comes first and gives y its first
    /// version.
    pub fn operands(&self) -> Operands {
        use Call as C;
        let none = After::default();
        match *self {
            C::ConvForward { shape: s } => conv_forward(&s),
            C::ConvBackwardFilter { shape: s, accumulate } => conv_backward_filter(&s, accumulate),
            C::ConvBackwardData { shape: s, accumulate } => conv_backward_data(&s, accumulate),
            C::BatchNormForward { shape: s, then, .. } => {
                norm_forward(&s, f32s(&[2, s.channels]), Some("beta"), &then)
            }
            C::BatchNormRunning { shape: s, .. } => batch_norm_running(&s),
            C::BatchNormInference { shape: s, .. } => batch_norm_inference(&s),
            C::BatchNormBackward { shape: s, then, accumulate } => {
                norm_backward(&s, f32s(&[2, s.channels]), Some("dbeta"), &then, accumulate)
            }
            C::LayerNormForward { shape: s, .. } => norm_forward(&s, f32s(&[2, s.rows]), Some("beta"), &none),
            C::LayerNormBackward { shape: s, accumulate } => {
                norm_backward(&s, f32s(&[2, s.rows]), Some("dbeta"), &none, accumulate)
            }
            C::RmsNormForward { shape: s, .. } => norm_forward(&s, f32s(&[s.rows]), None, &none),
            C::RmsNormBackward { shape: s, accumulate } => {
                norm_backward(&s, f32s(&[s.rows]), None, &none, accumulate)
            }
            C::ReluForward { elements, .. } | C::ActivationForward { elements, .. } => map(f32s(&[elements])),
            C::ReluBackward { elements, accumulate, .. } => map_backward("y", f32s(&[elements]), accumulate),
            C::ReluMaskForward { elements, .. } => relu_mask_forward(elements),
            C::ReluMaskBackward { elements, accumulate } => relu_mask_backward(elements, accumulate),
            C::ActivationBackward { elements, accumulate, .. } => {
                map_backward("x", f32s(&[elements]), accumulate)
            }
            C::Multiply { elements, accumulate } => of_two(f32s(&[elements]), accumulate),
            C::Add { elements } => of_two(f32s(&[elements]), false),
            C::MaxPoolForward { shape: s } => max_pool_forward(&s),
            C::MaxPoolBackward { shape: s, accumulate } => max_pool_backward(&s, accumulate),
            C::AvgPoolForward { shape: s } => avg_pool_forward(&s),
            C::AvgPoolBackward { shape: s, accumulate } => avg_pool_backward(&s, accumulate),
            C::DropoutForward { elements, .. } => dropout("x", "y", f32s(&[elements]), false),
            C::DropoutBackward { elements, accumulate, .. } => {
                dropout("dy", "dx", f32s(&[elements]), accumulate)
            }
            C::BiasForward { shape: s } => bias_forward(&s),
            C::BiasBackward { shape: s, accumulate } => bias_backward(&s, accumulate),
            C::EmbeddingForward { shape: s } => embedding_forward(&s),
            C::EmbeddingBackward { shape: s, accumulate } => embedding_backward(&s, accumulate),
            C::AttentionForward { shape: s } => attention_forward(&s),
            C::AttentionBackward { shape: s, accumulate } => attention_backward(&s, accumulate),
            C::RotaryForward { shape: s, .. } => map(rotary(&s)),
            C::RotaryBackward { shape: s, accumulate, .. } => only_dy(rotary(&s), rotary(&s), accumulate),
            C::LstmForward { shape: s, first } => lstm_forward(&s, first),
            C::LstmBackward { shape: s, first, last } => lstm_backward(&s, first, last),
            C::ConcatPart { rows, channels, first, total } => {
                let [part, whole] = part(rows, channels, first, total);
                Operands::of([read("x", part), write_or_update(first > 0, "y", whole)])
            }
            C::SplitPart { rows, channels, first, total, accumulate } => {
                let [part, whole] = part(rows, channels, first, total);
                only_dy(whole, part, accumulate)
            }
            C::LrnForward { shape: s, .. } => map(all(&s)),
            C::LrnBackward { shape: s, accumulate, .. } => map_backward("x", all(&s), accumulate),
            C::SoftmaxCrossEntropyForward { shape: s } => loss_forward(&s),
            C::SoftmaxCrossEntropyBackward { shape: s } => loss_backward(&s),
            C::Sgd { elements, .. } => sgd(f32s(&[elements])),
            C::Adamw { elements } => adamw(f32s(&[elements])),
        }
    }
}

impl IntoIterator for Operands {
    type Item = OperandSpec;
    type IntoIter = std::iter::Take<std::array::IntoIter<OperandSpec, { Operands::MOST }>>;

    fn into_iter(self) -> Self::IntoIter {
        self.specs.into_iter().take(self.count)
    }
}

/// A row of the table; `None` if a call, as it is, lacks that operand.
type Row = Option<OperandSpec>;

/// The names of activations and of their gradients, in every call that has an operand of the name. The `kept` operand of a
/// ReLU is an activation or a mask.
const FEATURE_MAPS: &str = "x y dx dy a b qkv dqkv differences logits dlogits gates activated dgates previous dprevious \
                            cell dcell h dh r dr";

fn row(name: &'static str, access: Access, bytes: u64) -> Row {
    Some(OperandSpec {
        name,
        access,
        bytes: Bytes(bytes),
        feature_map: FEATURE_MAPS.split(' ').any(|map| map == name),
    })
}

fn read(name: &'static str, bytes: u64) -> Row {
    row(name, Access::Read, bytes)
}

fn write(name: &'static str, bytes: u64) -> Row {
    row(name, Access::Write, bytes)
}

fn update(name: &'static str, bytes: u64) -> Row {
    row(name, Access::Update, bytes)
}

/// Returns an operand that is overwritten, or added to.
fn write_or_update(accumulate: bool, name: &'static str, bytes: u64) -> Row {
    if accumulate { update(name, bytes) } else { write(name, bytes) }
}

/// Returns a row that is present under a condition.
fn only_if(condition: bool, row: Row) -> Row {
    row.filter(|_| condition)
}

/// Returns the bytes of a product of this many f32 or i32, saturating.
fn f32s(factors: &[u64]) -> u64 {
    factors.iter().fold(4, |product: u64, f| product.saturating_mul(*f))
}

/// Returns the bytes of all elements of rows.
fn all(s: &RowShape) -> u64 {
    f32s(&[s.rows, s.channels])
}

fn hyper() -> Row {
    read("hyper", f32s(&[Hyper::WORDS]))
}

/// Returns x -> y, of one size.
fn map(x: u64) -> Operands {
    Operands::of([read("x", x), write("y", x)])
}

/// Returns kept, dy -> dx, all of one size; kept is an input or output of the forward pass.
fn map_backward(kept: &'static str, x: u64, accumulate: bool) -> Operands {
    Operands::of([read(kept, x), read("dy", x), write_or_update(accumulate, "dx", x)])
}

/// Returns the bytes of x, y, weight, bias of a convolution.
fn conv(s: &ConvShape) -> [u64; 4] {
    let [height, width] = s.input.map(u64::from);
    let [rows, columns] = s.output.map(u64::from);
    let taps = u64::from(s.window.size[0]) * u64::from(s.window.size[1]);
    let (inner, outer) = (u64::from(s.in_channels), u64::from(s.out_channels));
    [
        f32s(&[s.batch, height, width, inner]),
        f32s(&[s.batch, rows, columns, outer]),
        f32s(&[outer, taps, inner / u64::from(s.groups.max(1))]),
        f32s(&[outer]),
    ]
}

fn conv_forward(s: &ConvShape) -> Operands {
    let [x, y, weight, bias] = conv(s);
    Operands::of([read("x", x), read("weight", weight), only_if(s.bias, read("bias", bias)), write("y", y)])
}

fn conv_backward_filter(s: &ConvShape, accumulate: bool) -> Operands {
    let [x, y, weight, bias] = conv(s);
    let [dweight, dbias] =
        [("dweight", weight), ("dbias", bias)].map(|(name, n)| write_or_update(accumulate, name, n));
    Operands::of([read("x", x), read("dy", y), dweight, only_if(s.bias, dbias)])
}

fn conv_backward_data(s: &ConvShape, accumulate: bool) -> Operands {
    let [x, y, weight, _] = conv(s);
    Operands::of([read("dy", y), read("weight", weight), write_or_update(accumulate, "dx", x)])
}

/// Returns the bytes of a mask of one bit per element of rows.
fn mask_bytes(s: &RowShape) -> u64 {
    s.rows.saturating_mul(s.channels).div_ceil(8)
}

fn norm_forward(s: &RowShape, stats: u64, shift: Option<&'static str>, then: &After) -> Operands {
    let (x, c) = (all(s), f32s(&[s.channels]));
    Operands::of([
        read("x", x),
        read("gamma", c),
        shift.and_then(|beta| read(beta, c)),
        only_if(then.add, read("r", x)),
        write("y", x),
        write("stats", stats),
        only_if(then.masks(), write("mask", mask_bytes(s))),
    ])
}

fn norm_backward(
    s: &RowShape,
    stats: u64,
    shift: Option<&'static str>,
    then: &After,
    accumulate: bool,
) -> Operands {
    let (x, c) = (all(s), f32s(&[s.channels]));
    let kept = read("kept", if then.masks() { mask_bytes(s) } else { x });
    let kept = kept.map(|spec| OperandSpec { feature_map: !then.masks(), ..spec });
    Operands::of([
        read("x", x),
        read("dy", x),
        read("gamma", c),
        read("stats", stats),
        only_if(then.relu.is_some(), kept),
        write_or_update(accumulate, "dx", x),
        write("dgamma", c),
        shift.and_then(|dbeta| write(dbeta, c)),
        only_if(then.add, write("dr", x)),
    ])
}

fn batch_norm_running(s: &RowShape) -> Operands {
    let (c, stats) = (f32s(&[s.channels]), f32s(&[2, s.channels]));
    let [mean, variance] = ["running mean", "running variance"].map(|name| update(name, c));
    Operands::of([read("stats", stats), mean, variance])
}

fn batch_norm_inference(s: &RowShape) -> Operands {
    let (x, c) = (all(s), f32s(&[s.channels]));
    let [mean, variance] = ["running mean", "running variance"].map(|name| read(name, c));
    Operands::of([read("x", x), read("gamma", c), read("beta", c), mean, variance, write("y", x)])
}

fn relu_mask_forward(elements: u64) -> Operands {
    let x = f32s(&[elements]);
    Operands::of([read("x", x), write("y", x), write("mask", elements.div_ceil(8))])
}

fn relu_mask_backward(elements: u64, accumulate: bool) -> Operands {
    let (x, mask) = (f32s(&[elements]), read("mask", elements.div_ceil(8)));
    Operands::of([mask, read("dy", x), write_or_update(accumulate, "dx", x)])
}

/// Returns a, b -> y, of one size.
fn of_two(y: u64, accumulate: bool) -> Operands {
    Operands::of([read("a", y), read("b", y), write_or_update(accumulate, "y", y)])
}

/// Returns the bytes of x, y, places of a pooling.
fn pool(s: &PoolShape) -> [u64; 3] {
    let [height, width] = s.input.map(u64::from);
    let [rows, columns] = s.output.map(u64::from);
    let channels = u64::from(s.channels);
    let y = f32s(&[s.batch, rows, columns, channels]);
    [f32s(&[s.batch, height, width, channels]), y, y / 4]
}

fn max_pool_forward(s: &PoolShape) -> Operands {
    let [x, y, places] = pool(s);
    Operands::of([read("x", x), write("y", y), write("places", places)])
}

fn max_pool_backward(s: &PoolShape, accumulate: bool) -> Operands {
    let [x, y, places] = pool(s);
    Operands::of([read("places", places), read("dy", y), write_or_update(accumulate, "dx", x)])
}

fn avg_pool_forward(s: &PoolShape) -> Operands {
    let [x, y, _] = pool(s);
    Operands::of([read("x", x), write("y", y)])
}

fn avg_pool_backward(s: &PoolShape, accumulate: bool) -> Operands {
    let [x, y, _] = pool(s);
    only_dy(y, x, accumulate)
}

fn dropout(from: &'static str, to: &'static str, bytes: u64, accumulate: bool) -> Operands {
    Operands::of([hyper(), read(from, bytes), write_or_update(accumulate, to, bytes)])
}

fn bias_forward(s: &RowShape) -> Operands {
    Operands::of([read("x", all(s)), read("bias", f32s(&[s.channels])), write("y", all(s))])
}

fn bias_backward(s: &RowShape, accumulate: bool) -> Operands {
    Operands::of([read("dy", all(s)), write_or_update(accumulate, "dbias", f32s(&[s.channels]))])
}

/// Returns the bytes of tokens, table, looked-up rows. Positions beyond the sample require more tokens than there are, and
/// are refused for that.
fn embedding(s: &EmbeddingShape) -> [u64; 3] {
    let length = s.length.max(s.first.saturating_add(s.count));
    [f32s(&[s.batch, length]), f32s(&[s.vocabulary, s.width]), f32s(&[s.batch, s.count, s.width])]
}

fn embedding_forward(s: &EmbeddingShape) -> Operands {
    let [tokens, weight, y] = embedding(s);
    Operands::of([read("tokens", tokens), read("weight", weight), write("y", y)])
}

fn embedding_backward(s: &EmbeddingShape, accumulate: bool) -> Operands {
    let [tokens, weight, y] = embedding(s);
    Operands::of([read("tokens", tokens), read("dy", y), write_or_update(accumulate, "dweight", weight)])
}

/// Returns the bytes of qkv, y, stats. Heads that do not share the channels evenly require more than there is, and are
/// refused for that.
fn attention(s: &AttentionShape) -> [u64; 3] {
    let even = |all: u64, parts: u64| parts > 0 && all.is_multiple_of(parts);
    let fits = even(s.width, s.heads) && even(s.heads, s.kv_heads);
    let of = |width: u64| f32s(&[s.batch, s.length, if fits { width } else { u64::MAX }]);
    [of(s.qkv_width()), of(s.width), f32s(&[s.batch, s.heads, s.length, 2])]
}

fn attention_forward(s: &AttentionShape) -> Operands {
    let [qkv, y, stats] = attention(s);
    Operands::of([read("qkv", qkv), write("y", y), write("stats", stats)])
}

fn attention_backward(s: &AttentionShape, accumulate: bool) -> Operands {
    let [qkv, y, stats] = attention(s);
    let dqkv = write_or_update(accumulate, "dqkv", qkv);
    Operands::of([read("qkv", qkv), read("stats", stats), read("dy", y), dqkv])
}

/// Returns the bytes of rotated heads. Heads of an odd width, or that do not fill the channels, require more than there is.
fn rotary(s: &RotaryShape) -> u64 {
    let fits = s.width > 0 && s.width.is_multiple_of(2) && s.channels.is_multiple_of(s.width);
    if fits { f32s(&[s.elements()]) } else { u64::MAX }
}

/// Returns the bytes of a cell, and of the gates.
fn lstm(s: &RowShape) -> [u64; 2] {
    [all(s), all(s).saturating_mul(4)]
}

fn lstm_forward(s: &RowShape, first: bool) -> Operands {
    let [cell, gates] = lstm(s);
    let previous = only_if(!first, read("previous", cell));
    Operands::of([
        read("gates", gates),
        previous,
        write("h", cell),
        write("cell", cell),
        write("activated", gates),
    ])
}

fn lstm_backward(s: &RowShape, first: bool, last: bool) -> Operands {
    let [cell, gates] = lstm(s);
    Operands::of([
        read("activated", gates),
        only_if(!first, read("previous", cell)),
        read("cell", cell),
        read("dh", cell),
        only_if(!last, read("dcell", cell)),
        write("dgates", gates),
        only_if(!first, write("dprevious", cell)),
    ])
}

/// Returns the bytes of a part and of the whole. A part that reaches beyond the whole requires more than the whole has, and
/// is refused for that.
fn part(rows: u64, channels: u64, first: u64, total: u64) -> [u64; 2] {
    [channels, total.max(first.saturating_add(channels))].map(|n| f32s(&[rows, n]))
}

/// Returns dy -> dx, for backward passes that need nothing else.
fn only_dy(dy: u64, dx: u64, accumulate: bool) -> Operands {
    Operands::of([read("dy", dy), write_or_update(accumulate, "dx", dx)])
}

fn loss_forward(s: &RowShape) -> Operands {
    let (logits, labels) = (all(s), f32s(&[s.rows]));
    let metrics = write("metrics", f32s(&[3]));
    Operands::of([read("logits", logits), read("labels", labels), write("differences", logits), metrics])
}

fn loss_backward(s: &RowShape) -> Operands {
    let (logits, labels) = (all(s), f32s(&[s.rows]));
    Operands::of([read("differences", logits), read("labels", labels), write("dlogits", logits)])
}

fn sgd(n: u64) -> Operands {
    Operands::of([hyper(), update("parameter", n), read("gradient", n), update("momentum", n)])
}

fn adamw(n: u64) -> Operands {
    let [first, second] = ["first moment", "second moment"].map(|name| update(name, n));
    Operands::of([hyper(), update("parameter", n), read("gradient", n), first, second])
}
