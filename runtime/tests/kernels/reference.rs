//! The calls in f64, as slow and plain as the formulas; and a check of their gradients by finite differences.
//!
//! Deliberately does not share anything with the kernels.

use plimsoll_ir::network::{Function, Window};
use plimsoll_ir::program::{AttentionShape, ConvShape, EmbeddingShape, PoolShape, RotaryShape};

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Calls `each(output position, tap, input position)` for each pair of positions joined by a window; positions count batch,
/// rows, columns.
fn joins(
    window: &Window,
    batch: u64,
    input: [u32; 2],
    output: [u32; 2],
    mut each: impl FnMut(usize, usize, usize),
) {
    let [ih, iw] = input.map(i64::from);
    let [oh, ow] = output.map(i64::from);
    let along = |d: usize, o: i64, k: i64| {
        o * i64::from(window.stride[d]) + k * i64::from(window.dilation[d]) - i64::from(window.padding[d])
    };
    for b in 0..batch as i64 {
        for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
            for tap in 0..i64::from(window.size[0] * window.size[1]) {
                let iy = along(0, oy, tap / i64::from(window.size[1]));
                let ix = along(1, ox, tap % i64::from(window.size[1]));
                if (0..ih).contains(&iy) && (0..iw).contains(&ix) {
                    each(
                        ((b * oh + oy) * ow + ox) as usize,
                        tap as usize,
                        ((b * ih + iy) * iw + ix) as usize,
                    );
                }
            }
        }
    }
}

/// Calls `each(y, weight, x)` with the elements of each product of a convolution.
fn products(s: &ConvShape, mut each: impl FnMut(usize, usize, usize)) {
    let [cin, cout, groups] = [s.in_channels, s.out_channels, s.groups].map(|n| n as usize);
    let taps = (s.window.size[0] * s.window.size[1]) as usize;
    let (depth, filters) = (cin / groups, cout / groups);
    joins(&s.window, s.batch, s.input, s.output, |o, tap, i| {
        for out in 0..cout {
            for c in 0..depth {
                each(o * cout + out, (out * taps + tap) * depth + c, i * cin + out / filters * depth + c);
            }
        }
    });
}

pub struct ConvSizes {
    pub x: usize,
    pub weight: usize,
    pub y: usize,
    pub out: usize,
}

pub fn conv_sizes(s: &ConvShape) -> ConvSizes {
    let pixels = |p: [u32; 2]| s.batch as usize * (p[0] * p[1]) as usize;
    let out = s.out_channels as usize;
    ConvSizes {
        x: pixels(s.input) * s.in_channels as usize,
        weight: out * (s.window.size[0] * s.window.size[1] * (s.in_channels / s.groups)) as usize,
        y: pixels(s.output) * out,
        out,
    }
}

pub fn conv(s: &ConvShape, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let n = conv_sizes(s);
    let mut y: Vec<f64> = (0..n.y).map(|i| if s.bias { bias[i % n.out] } else { 0.0 }).collect();
    products(s, |o, w, i| y[o] += weight[w] * x[i]);
    y
}

/// dx, dweight, dbias.
pub fn conv_gradient(s: &ConvShape, x: &[f64], weight: &[f64], dy: &[f64]) -> [Vec<f64>; 3] {
    let n = conv_sizes(s);
    let (mut dx, mut dw, mut db) = (vec![0.0; n.x], vec![0.0; n.weight], vec![0.0; n.out]);
    products(s, |o, w, i| {
        dx[i] += weight[w] * dy[o];
        dw[w] += x[i] * dy[o];
    });
    dy.iter().enumerate().for_each(|(i, d)| db[i % n.out] += d);
    [dx, dw, db]
}

/// A normalisation of rows of channels.
pub struct Norm {
    pub channels: usize,
    pub epsilon: f64,
    /// Each row is normalised by itself, otherwise each channel.
    pub by_row: bool,
    /// The mean is subtracted first.
    pub centred: bool,
}

impl Norm {
    fn group(&self, i: usize) -> usize {
        if self.by_row { i / self.channels } else { i % self.channels }
    }

    /// Means of the elements that are normalised together.
    fn means(&self, values: &[f64]) -> Vec<f64> {
        let groups = if self.by_row { values.len() / self.channels } else { self.channels };
        let mut means = vec![0.0; groups];
        values.iter().enumerate().for_each(|(i, v)| means[self.group(i)] += v);
        means.iter().map(|sum| sum * groups as f64 / values.len() as f64).collect()
    }

    fn shifts(&self, values: &[f64]) -> Vec<f64> {
        self.means(&values.iter().map(|v| if self.centred { *v } else { 0.0 }).collect::<Vec<_>>())
    }

    /// y; the mean that was subtracted and 1 / sqrt(variance + epsilon), of each row or channel.
    pub fn forward(&self, x: &[f64], gamma: &[f64], beta: &[f64]) -> [Vec<f64>; 3] {
        let mean = self.shifts(x);
        let moved = |i: usize| x[i] - mean[self.group(i)];
        let variance = self.means(&(0..x.len()).map(|i| moved(i).powi(2)).collect::<Vec<_>>());
        let inverse: Vec<f64> = variance.iter().map(|v| 1.0 / (v + self.epsilon).sqrt()).collect();
        let y =
            |i: usize| moved(i) * inverse[self.group(i)] * gamma[i % self.channels] + beta[i % self.channels];
        [(0..x.len()).map(y).collect(), mean, inverse]
    }

    /// dx, dgamma, dbeta.
    pub fn gradient(&self, x: &[f64], gamma: &[f64], dy: &[f64]) -> [Vec<f64>; 3] {
        let c = self.channels;
        let [xhat, _, inverse] = self.forward(x, &vec![1.0; c], &vec![0.0; c]);
        let scaled: Vec<f64> = dy.iter().enumerate().map(|(i, dy)| dy * gamma[i % c]).collect();
        let (shift, slope) = (self.shifts(&scaled), self.means(&product(&scaled, &xhat)));
        let dx = |i: usize| {
            let group = self.group(i);
            inverse[group] * (scaled[i] - shift[group] - xhat[i] * slope[group])
        };
        let dx = (0..x.len()).map(dx).collect();
        [dx, bias_gradient(c, &product(dy, &xhat)), bias_gradient(c, dy)]
    }
}

/// The normal distribution and its density: by Marsaglia's series (2004), whose terms all have one sign, or by its limit
/// where its density is 0 in f64.
fn normal(x: f64) -> (f64, f64) {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() > 8.0 {
        return (if x < 0.0 { 0.0 } else { 1.0 }, density);
    }
    let (mut term, mut sum) = (x, 0.0);
    for n in 1..200 {
        sum += term;
        term *= x * x / f64::from(2 * n + 1);
    }
    (0.5 + density * sum, density)
}

pub fn activation(function: Function, x: &[f64]) -> Vec<f64> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let f = |x: f64| match function {
        Function::Gelu => x * normal(x).0,
        Function::Silu => x * sigmoid(x),
    };
    x.iter().map(|x| f(*x)).collect()
}

pub fn activation_gradient(function: Function, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let tanh = |x: f64| (x / 2.0).tanh();
    let slope = |x: f64| match function {
        Function::Gelu => {
            let (p, density) = normal(x);
            p + x * density
        }
        Function::Silu => (1.0 + tanh(x)) / 2.0 + x * (1.0 - tanh(x) * tanh(x)) / 4.0,
    };
    x.iter().zip(dy).map(|(x, dy)| dy * slope(*x)).collect()
}

pub fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// y, and the tap of the first maximum.
pub fn max_pool(s: &PoolShape, x: &[f64]) -> (Vec<f64>, Vec<u8>) {
    let c = s.channels as usize;
    let outputs = s.batch as usize * (s.output[0] * s.output[1]) as usize * c;
    let (mut y, mut places) = (vec![f64::NEG_INFINITY; outputs], vec![0; outputs]);
    joins(&s.window, s.batch, s.input, s.output, |o, tap, i| {
        for k in 0..c {
            if x[i * c + k] > y[o * c + k] {
                (y[o * c + k], places[o * c + k]) = (x[i * c + k], tap as u8);
            }
        }
    });
    (y, places)
}

pub fn max_pool_gradient(s: &PoolShape, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let c = s.channels as usize;
    let (_, places) = max_pool(s, x);
    let mut dx = vec![0.0; x.len()];
    joins(&s.window, s.batch, s.input, s.output, |o, tap, i| {
        for k in 0..c {
            if usize::from(places[o * c + k]) == tap {
                dx[i * c + k] += dy[o * c + k];
            }
        }
    });
    dx
}

pub fn avg_pool(s: &PoolShape, x: &[f64]) -> Vec<f64> {
    let c = s.channels as usize;
    let mut y = vec![0.0; s.batch as usize * (s.output[0] * s.output[1]) as usize * c];
    let taps = f64::from(s.window.size[0] * s.window.size[1]);
    joins(&s.window, s.batch, s.input, s.output, |o, _, i| {
        (0..c).for_each(|k| y[o * c + k] += x[i * c + k] / taps);
    });
    y
}

pub fn avg_pool_gradient(s: &PoolShape, dy: &[f64]) -> Vec<f64> {
    let c = s.channels as usize;
    let mut dx = vec![0.0; s.batch as usize * (s.input[0] * s.input[1]) as usize * c];
    let taps = f64::from(s.window.size[0] * s.window.size[1]);
    joins(&s.window, s.batch, s.input, s.output, |o, _, i| {
        (0..c).for_each(|k| dx[i * c + k] += dy[o * c + k] / taps);
    });
    dx
}

/// size, alpha, beta, bias.
pub type LrnNumbers = (u32, f64, f64, f64);

fn lrn_divisors(channels: usize, (size, alpha, _, bias): LrnNumbers, x: &[f64]) -> Vec<f64> {
    let reach = i64::from(size) / 2;
    (0..x.len() as i64)
        .map(|i| {
            let c = i % channels as i64;
            let near = (c - reach..=c + reach).filter(|j| (0..channels as i64).contains(j));
            bias + alpha / f64::from(size) * near.map(|j| x[(i - c + j) as usize].powi(2)).sum::<f64>()
        })
        .collect()
}

pub fn lrn(channels: usize, numbers: LrnNumbers, x: &[f64]) -> Vec<f64> {
    x.iter().zip(lrn_divisors(channels, numbers, x)).map(|(x, d)| x * d.powf(-numbers.2)).collect()
}

/// dx from each output's derivative by each input that it sees, one by one.
pub fn lrn_gradient(channels: usize, numbers: LrnNumbers, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let (size, alpha, beta, _) = numbers;
    let d = lrn_divisors(channels, numbers, x);
    let mut dx = vec![0.0; x.len()];
    for i in 0..x.len() {
        for j in 0..x.len() {
            if i / channels == j / channels && i.abs_diff(j) <= size as usize / 2 {
                dx[j] -= dy[i] * x[i] * beta * d[i].powf(-beta - 1.0) * alpha / f64::from(size) * 2.0 * x[j];
            }
        }
        dx[i] += dy[i] * d[i].powf(-beta);
    }
    dx
}

/// probabilities - one-hot, 0 for samples that do not count; and mean loss, right answers, samples that count.
pub fn softmax_cross_entropy(channels: usize, logits: &[f64], labels: &[i32]) -> (Vec<f64>, [f64; 3]) {
    let mut differences = Vec::new();
    let mut metrics = [0.0; 3];
    for (row, label) in logits.chunks(channels).zip(labels) {
        let sum: f64 = row.iter().map(|v| v.exp()).sum();
        let hot = |c: usize| if *label == c as i32 { 1.0 } else { 0.0 };
        let counts = if *label < 0 { 0.0 } else { 1.0 };
        differences.extend(row.iter().enumerate().map(|(c, v)| counts * (v.exp() / sum - hot(c))));
        if *label >= 0 {
            let label = *label as usize;
            metrics[0] -= (row[label].exp() / sum).ln();
            let first_largest = (0..channels).rev().max_by(|a, b| row[*a].total_cmp(&row[*b]));
            metrics[1] += if first_largest == Some(label) { 1.0 } else { 0.0 };
            metrics[2] += 1.0;
        }
    }
    metrics[0] /= f64::max(metrics[2], 1.0);
    (differences, metrics)
}

pub fn softmax_cross_entropy_gradient(differences: &[f64], labels: &[i32]) -> Vec<f64> {
    let counted = labels.iter().filter(|l| **l >= 0).count().max(1) as f64;
    differences.iter().map(|difference| difference / counted).collect()
}

/// min(max(x, 0), ceiling).
pub fn relu(ceiling: f64, x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.clamp(0.0, ceiling)).collect()
}

pub fn relu_gradient(ceiling: f64, x: &[f64], dy: &[f64]) -> Vec<f64> {
    x.iter().zip(dy).map(|(x, dy)| if *x > 0.0 && *x < ceiling { *dy } else { 0.0 }).collect()
}

/// y of a dropout that keeps these; dx is the same function of dy.
pub fn dropout(probability: f64, kept: &[bool], x: &[f64]) -> Vec<f64> {
    kept.iter().zip(x).map(|(kept, x)| if *kept { x / (1.0 - probability) } else { 0.0 }).collect()
}

/// `whole`, with rows of `total`, with the channels from `first` on replaced by `part`.
pub fn joined([first, channels, total]: [usize; 3], part: &[f64], whole: &[f64]) -> Vec<f64> {
    let mut joined = whole.to_vec();
    for (row, part) in joined.chunks_mut(total).zip(part.chunks(channels)) {
        row[first..first + channels].copy_from_slice(part);
    }
    joined
}

/// The channels of each row from `first` on.
pub fn taken([first, channels, total]: [usize; 3], whole: &[f64]) -> Vec<f64> {
    whole.chunks(total).flat_map(|row| row[first..first + channels].to_vec()).collect()
}

pub fn bias(channels: usize, x: &[f64], bias: &[f64]) -> Vec<f64> {
    x.iter().enumerate().map(|(i, x)| x + bias[i % channels]).collect()
}

pub fn bias_gradient(channels: usize, dy: &[f64]) -> Vec<f64> {
    (0..channels).map(|c| dy.iter().skip(c).step_by(channels).sum()).collect()
}

/// Calls `each(element of y, element of the table)` for the elements that a lookup copies.
fn lookups(s: &EmbeddingShape, tokens: &[i32], mut each: impl FnMut(usize, usize)) {
    let [length, first, count, width] = [s.length, s.first, s.count, s.width].map(|n| n as usize);
    for (sample, tokens) in tokens.chunks(length).enumerate() {
        for (i, token) in tokens[first..first + count].iter().enumerate() {
            for c in 0..width {
                each((sample * count + i) * width + c, *token as usize * width + c);
            }
        }
    }
}

pub fn embedding(s: &EmbeddingShape, tokens: &[i32], weight: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; (s.batch * s.count * s.width) as usize];
    lookups(s, tokens, |to, from| y[to] = weight[from]);
    y
}

pub fn embedding_gradient(s: &EmbeddingShape, tokens: &[i32], dy: &[f64]) -> Vec<f64> {
    let mut dweight = vec![0.0; (s.vocabulary * s.width) as usize];
    lookups(s, tokens, |from, to| dweight[to] += dy[from]);
    dweight
}

/// Index of the elements of one head of one sample.
struct Head<'a> {
    shape: &'a AttentionShape,
    sample: usize,
    head: usize,
}

impl Head<'_> {
    fn all(shape: &AttentionShape) -> impl Iterator<Item = Head<'_>> {
        let heads = shape.heads as usize;
        (0..shape.batch as usize * heads).map(move |n| Head { shape, sample: n / heads, head: n % heads })
    }

    fn width(&self) -> usize {
        (self.shape.width / self.shape.heads) as usize
    }

    /// Channel `c` of the head at position `i`: in y, and of query, key and value in qkv.
    fn y(&self, i: usize, c: usize) -> usize {
        let row = self.sample * self.shape.length as usize + i;
        row * self.shape.width as usize + self.head * self.width() + c
    }

    fn qkv(&self, part: usize, i: usize, c: usize) -> usize {
        let row = self.sample * self.shape.length as usize + i;
        let [heads, kv_heads] = [self.shape.heads, self.shape.kv_heads].map(|n| n as usize);
        let shared = self.head * kv_heads / heads;
        let head = [self.head, heads + shared, heads + kv_heads + shared][part];
        (row * (heads + 2 * kv_heads) + head) * self.width() + c
    }

    /// Row of position `i` of the head, counted through all heads.
    fn row(&self, i: usize) -> usize {
        (self.sample * self.shape.heads as usize + self.head) * self.shape.length as usize + i
    }

    /// Positions seen by position `i`.
    fn seen(&self, i: usize) -> std::ops::Range<usize> {
        0..if self.shape.causal { i + 1 } else { self.shape.length as usize }
    }
}

/// Products of the query at a position with the key at each position that it sees.
fn products_of_keys(h: &Head<'_>, qkv: &[f64], i: usize) -> Vec<f64> {
    h.seen(i).map(|j| (0..h.width()).map(|c| qkv[h.qkv(0, i, c)] * qkv[h.qkv(1, j, c)]).sum()).collect()
}

/// The largest product of a row, the sum of exponentials, and the probabilities.
fn softmax_of(products: &[f64], root: f64) -> (f64, f64, Vec<f64>) {
    let largest = products.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = products.iter().map(|v| ((v - largest) / root).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    (largest, sum, exponentials.iter().map(|e| e / sum).collect())
}

/// y; the largest product of each row and 1 / the sum of its exponentials, side by side.
pub fn attention(s: &AttentionShape, qkv: &[f64]) -> [Vec<f64>; 2] {
    let mut y = vec![0.0; (s.batch * s.length * s.width) as usize];
    let mut stats = vec![0.0; (s.batch * s.heads * s.length * 2) as usize];
    for h in Head::all(s) {
        for i in 0..s.length as usize {
            let (largest, sum, p) = softmax_of(&products_of_keys(&h, qkv, i), (h.width() as f64).sqrt());
            stats[2 * h.row(i)] = largest;
            stats[2 * h.row(i) + 1] = 1.0 / sum;
            for (j, p) in p.into_iter().enumerate() {
                (0..h.width()).for_each(|c| y[h.y(i, c)] += p * qkv[h.qkv(2, j, c)]);
            }
        }
    }
    [y, stats]
}

/// dqkv: the scores' gradient from the derivative of each probability of a row by each of its scores.
pub fn attention_gradient(s: &AttentionShape, qkv: &[f64], dy: &[f64]) -> Vec<f64> {
    let mut dqkv = vec![0.0; qkv.len()];
    for h in Head::all(s) {
        let root = (h.width() as f64).sqrt();
        for i in 0..s.length as usize {
            let (_, _, p) = softmax_of(&products_of_keys(&h, qkv, i), root);
            let dp = |j: usize| -> f64 { (0..h.width()).map(|c| dy[h.y(i, c)] * qkv[h.qkv(2, j, c)]).sum() };
            let dp: Vec<f64> = h.seen(i).map(dp).collect();
            for j in h.seen(i) {
                let slope = |k: usize| if k == j { 1.0 } else { 0.0 } - p[j];
                let dscore: f64 = h.seen(i).map(|k| dp[k] * p[k] * slope(k)).sum();
                for c in 0..h.width() {
                    dqkv[h.qkv(0, i, c)] += dscore / root * qkv[h.qkv(1, j, c)];
                    dqkv[h.qkv(1, j, c)] += dscore / root * qkv[h.qkv(0, i, c)];
                    dqkv[h.qkv(2, j, c)] += p[j] * dy[h.y(i, c)];
                }
            }
        }
    }
    dqkv
}

/// Each pair of channels as a complex number, times one of length 1, or with `back` its conjugate.
pub fn rotary(s: &RotaryShape, base: f32, back: bool, x: &[f64]) -> Vec<f64> {
    let [length, channels, width] = [s.length, s.channels, s.width].map(|n| n as usize);
    let mut y = vec![0.0; x.len()];
    for (at, y) in y.iter_mut().enumerate() {
        let (position, channel) = (at / channels % length, at % channels % width);
        let second = channel >= width / 2;
        let pair = if second { channel - width / 2 } else { channel };
        let angle = position as f64 * f64::from(base).powf(-2.0 * pair as f64 / width as f64);
        let sine = if back { -angle.sin() } else { angle.sin() };
        *y = match second {
            false => x[at] * angle.cos() - x[at + width / 2] * sine,
            true => x[at] * angle.cos() + x[at - width / 2] * sine,
        };
    }
    y
}

/// h, cell, activated.
pub fn lstm(channels: usize, gates: &[f64], previous: &[f64]) -> [Vec<f64>; 3] {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut h, mut cells, mut activated) = (Vec::new(), Vec::new(), vec![0.0; gates.len()]);
    for (i, previous) in previous.iter().enumerate() {
        let gate = |k: usize| (i / channels * 4 + k) * channels + i % channels;
        let [input, forget, output] = [0, 1, 3].map(|k| sigmoid(gates[gate(k)]));
        let candidate = gates[gate(2)].tanh();
        let cell = forget * previous + input * candidate;
        for (k, value) in [input, forget, candidate, output].into_iter().enumerate() {
            activated[gate(k)] = value;
        }
        cells.push(cell);
        h.push(output * cell.tanh());
    }
    [h, cells, activated]
}

/// dgates, dprevious.
pub fn lstm_gradient(
    channels: usize,
    gates: &[f64],
    previous: &[f64],
    dh: &[f64],
    dcell: &[f64],
) -> [Vec<f64>; 2] {
    let [_, cells, a] = lstm(channels, gates, previous);
    let (mut dgates, mut dprevious) = (vec![0.0; gates.len()], Vec::new());
    for i in 0..previous.len() {
        let gate = |k: usize| (i / channels * 4 + k) * channels + i % channels;
        let [input, forget, candidate, output] = [0, 1, 2, 3].map(|k| a[gate(k)]);
        let t = cells[i].tanh();
        let d = dcell[i] + dh[i] * output * (1.0 - t * t);
        dgates[gate(0)] = d * candidate * input * (1.0 - input);
        dgates[gate(1)] = d * previous[i] * forget * (1.0 - forget);
        dgates[gate(2)] = d * input * (1.0 - candidate * candidate);
        dgates[gate(3)] = dh[i] * t * output * (1.0 - output);
        dprevious.push(d * forget);
    }
    [dgates, dprevious]
}

/// Asserts that `gradient` is that of `sum(weights * f(x))`, by central differences.
pub fn assert_gradient(
    what: &str,
    x: &[f64],
    weights: &[f64],
    gradient: &[f64],
    f: impl Fn(&[f64]) -> Vec<f64>,
) {
    const STEP: f64 = 1e-5;
    let loss = |x: &[f64]| -> f64 { f(x).iter().zip(weights).map(|(y, w)| y * w).sum() };
    let scale = gradient.iter().fold(1e-3f64, |a, b| a.max(b.abs()));
    for i in 0..x.len() {
        let moved = |by: f64| {
            let mut x = x.to_vec();
            x[i] += by;
            loss(&x)
        };
        let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        assert!(
            (slope - gradient[i]).abs() < 1e-6 * scale,
            "{what}: element {i}: {} but {slope}",
            gradient[i]
        );
    }
}
