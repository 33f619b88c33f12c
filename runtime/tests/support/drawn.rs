//! Two more small networks, one of tokens and one that gives every pixel a class, and training on drawn inputs of any shape,
//! without a data set.
#![allow(dead_code, reason = "every test binary uses a part")]

use plimsoll_ir::network::{Axis, Extent, LayerKind, Network, NetworkSpec, Window};
use plimsoll_ir::program::{Hyper, Init, Program, Region, Role};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::{Optimizer, UpdateRule};
use plimsoll_networks::{Builder, NetworkError};
use plimsoll_runtime::{Device, Error, Executor, MemoryLayout};
use plimsoll_testing::Random;
use std::collections::BTreeMap;

/// Contents of every region that outlives an iteration: bits of numbers, by name and role.
pub type Outcome = BTreeMap<String, Vec<u32>>;

const VOCABULARY: u32 = 11;
const LENGTH: u32 = 5;

fn spec(name: &str, image: [u32; 2], classes: u32) -> NetworkSpec {
    NetworkSpec { name: name.to_owned(), image, channels: 1, classes }
}

fn pixel(out_channels: u32, bias: bool) -> LayerKind {
    LayerKind::Conv { out_channels, window: Window::square(1, 1, 0), groups: 1, bias }
}

/// Predicts tokens: a table, learned positions, causal attention of two heads that share one head of keys and values and are
/// rotated by their positions, and three steps of a long short-term memory, whose gates share one weight over all steps and
/// whose logits use the table's weight.
pub fn text() -> Network {
    let mut b = Builder::new(&spec("text", [LENGTH, 1], VOCABULARY)).expect("the spec has no zeros");
    let lookup = |first, length| LayerKind::Embedding { vocabulary: VOCABULARY, width: 8, first, length };
    let made = (|| -> Result<_, NetworkError> {
        let tokens = b.images();
        let e = b.add("e", lookup(0, LENGTH), &[tokens])?;
        let p = b.add("p", LayerKind::Bias { over: Extent::Positions, spare: 1 }, &[e])?;
        let n = b.layer_norm("n", p)?;
        let q = b.add("q", pixel(8, true), &[n])?;
        let k = b.add("k", pixel(4, true), &[n])?;
        let [turned, key] = [("qr", q), ("kr", k)]
            .map(|(name, x)| b.add(name, LayerKind::Rotary { width: 4, base: 100.0 }, &[x]));
        // A tensor that is read again after its rotation is not rotated in place.
        let q = b.concat("qkv", &[turned?, key?, k])?;
        let a = b.add("a", LayerKind::Attention { heads: 2, kv_heads: 1, causal: true }, &[q])?;
        let o = b.add("o", pixel(8, true), &[a])?;
        let d = b.add("d", LayerKind::Dropout { probability: 0.3 }, &[o])?;
        let mut rows = vec![b.add("s", LayerKind::Add, &[p, d])?];
        let (mut gates, mut recurrent, mut last) = (None, None, None);
        for step in 0..3 {
            let name = |what: &str| format!("{what}{step}");
            let x = b.add_sharing(&name("x"), lookup(step, 1), &[tokens], e)?;
            let mut g = match gates {
                Some(of) => b.add_sharing(&name("g"), pixel(32, true), &[x], of)?,
                None => b.add(&name("g"), pixel(32, true), &[x])?,
            };
            gates = gates.or(Some(g));
            let Some(h) = last else {
                last = Some(b.add(&name("h"), LayerKind::LstmCell, &[g])?);
                continue;
            };
            let r = match recurrent {
                Some(of) => b.add_sharing(&name("r"), pixel(32, false), &[h], of)?,
                None => b.add(&name("r"), pixel(32, false), &[h])?,
            };
            recurrent = recurrent.or(Some(r));
            g = b.add(&name("t"), LayerKind::Add, &[g, r])?;
            rows.push(b.add(&name("h"), LayerKind::LstmCell, &[g, h])?);
            last = rows.last().copied();
        }
        let c = b.add("c", LayerKind::Concat { along: Axis::Rows }, &rows)?;
        b.add_sharing("l", pixel(VOCABULARY, false), &[c], e)
    })();
    b.finish(made.expect("the shapes agree")).expect("every layer is used")
}

/// Gives each pixel one of three classes: down by a pooling that reaches beyond the image, a convolution twice with one
/// weight, up again by a transposed one, concatenated with the earlier activation; ReLUs with a ceiling.
pub fn maps() -> Network {
    let mut b = Builder::new(&spec("maps", [8, 7], 3)).expect("the spec has no zeros");
    let three =
        || LayerKind::Conv { out_channels: 6, window: Window::square(3, 1, 1), groups: 1, bias: true };
    let made = (|| -> Result<_, NetworkError> {
        let a = b.add("a", three(), &[b.images()])?;
        let r = b.add("r", LayerKind::Relu { ceiling: 0.5 }, &[a])?;
        let m = b.add("m", LayerKind::MaxPool { window: Window::square(3, 2, 0), ceil: true }, &[r])?;
        let f = b.add("f", three(), &[m])?;
        let k = b.add("k", LayerKind::Relu { ceiling: 6.0 }, &[f])?;
        let g = b.add_sharing("g", three(), &[k], f)?;
        let window = Window { size: [2, 3], stride: [2, 2], padding: [0, 0], dilation: [1, 1] };
        let u = b.add("u", LayerKind::ConvTranspose { out_channels: 5, window }, &[g])?;
        let v = b.add("v", LayerKind::Bias { over: Extent::Channels, spare: 0 }, &[u])?;
        let c = b.concat("c", &[r, v])?;
        let d = b.add("d", LayerKind::Dropout { probability: 0.4 }, &[c])?;
        b.add("o", pixel(3, true), &[d])
    })();
    b.finish(made.expect("the shapes agree")).expect("every layer is used")
}

fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// A number from -1 to 1.
fn number(random: &mut Random) -> f32 {
    random.below(2001) as f32 / 1000.0 - 1.0
}

fn start(region: &Region, random: &mut Random) -> Vec<u8> {
    bytes((0..region.elements()).map(|_| {
        let value = match region.role {
            Role::Parameter(Init::Constant(value)) | Role::State(value) => value,
            Role::Parameter(_) => 0.5 * number(random),
            Role::Gradient | Role::Metrics => f32::NAN,
            Role::Momentum | Role::FirstMoment | Role::SecondMoment | Role::Hyper => 0.0,
        };
        value.to_bits()
    }))
}

/// Trains on drawn inputs, the same for the same network and batch; returns the device's contents after `iterations`.
pub fn train(
    network: &Network,
    program: &Program,
    schedule: &Schedule,
    device: Box<dyn Device>,
    iterations: u32,
) -> Result<Outcome, Error> {
    let mut executor = trained(network, program, schedule, device, iterations)?;
    let outlives = |region: &&Region| region.role != Role::Hyper && region.role != Role::Gradient;
    outcome(&mut executor, program.resident.iter().filter(outlives))
}

/// Executor after this many iterations.
fn trained(
    network: &Network,
    program: &Program,
    schedule: &Schedule,
    device: Box<dyn Device>,
    iterations: u32,
) -> Result<Executor, Error> {
    let mut executor = Executor::new(device, MemoryLayout::of(program, schedule))?;
    let loaded = executor.load(program, schedule)?;
    let mut random = Random::new(5);
    for region in &program.resident {
        executor.write_region(region, &start(region, &mut random))?;
    }
    let (batch, tokens) = (program.trace.batch, network.takes_tokens());
    let elements = batch * network.layers[0].output.elements();
    let (rule, rate) = match Region::optimizer_of(&program.resident) {
        Optimizer::Sgd => (UpdateRule::Sgd { momentum: 0.9, weight_decay: 1e-3 }, 0.05),
        adamw => (UpdateRule::usual(adamw), 2e-3),
    };
    for step in 0..iterations {
        let classes = u64::from(network.spec.classes);

        let labels =
            bytes((0..batch * network.labels()).map(|_| (random.below(classes + 1) as u32).wrapping_sub(1)));
        let images = bytes(
            (0..elements)
                .map(|_| if tokens { random.below(classes) as u32 } else { number(&mut random).to_bits() }),
        );
        let update = rule.numbers(rate, u64::from(step));
        let hyper = Hyper { seed_low: 7, seed_high: 8, step, update };
        executor.write_region(program.hyper(), &hyper.to_bytes())?;
        executor.write_images(&loaded, &images)?;
        executor.write_labels(&loaded, &labels)?;
        executor.run(&loaded)?;
    }
    Ok(executor)
}

/// Gradients of all parameters after one iteration on drawn inputs, the same for the same network and batch.
pub fn gradients(
    network: &Network,
    program: &Program,
    schedule: &Schedule,
    device: Box<dyn Device>,
) -> Result<Outcome, Error> {
    let mut executor = trained(network, program, schedule, device, 1)?;
    outcome(&mut executor, program.resident.iter().filter(|region| region.role == Role::Gradient))
}

/// Contents of some regions.
fn outcome<'a>(executor: &mut Executor, regions: impl Iterator<Item = &'a Region>) -> Result<Outcome, Error> {
    let mut outcome = Outcome::new();
    for region in regions {
        let mut held = vec![0; region.bytes().0 as usize];
        executor.read_region(region, &mut held)?;
        let words = held.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
        outcome.insert(format!("{} {:?}", region.name, region.role), words);
    }
    Ok(outcome)
}

/// Numbers whose bits an outcome holds.
pub fn numbers(outcome: &Outcome) -> impl Iterator<Item = (&str, Vec<f32>)> {
    outcome.iter().map(|(name, bits)| (name.as_str(), bits.iter().map(|b| f32::from_bits(*b)).collect()))
}
