//! Published training throughputs compared with the model of their device: the rows, the ratio of each, and the error of the
//! rows outside the fit.
//!
//! Everything here is computed, nothing is timed: the same rows give the same numbers on any machine. This file deliberately
//! prints nothing, and does not fit a generation's shares (`fit.rs`).

use plimsoll::ir::Precision;
use plimsoll::ir::network::{Network, NetworkSpec, Window};
use plimsoll::ir::program::{Call, Program};
use plimsoll::ir::trace::Phase;
use plimsoll::networks::{Builder, LowerOptions, build, lower, usual};
use plimsoll::tuner::model::devices::{ENOUGH, GENERATIONS, Generation, Modelled, SHEETS, SIBLINGS, Sheet};

/// Published throughputs, with their sources.
const TABLE: &str = include_str!("published.csv");

/// Networks that a generation is fitted to; all others are held out.
pub const FITTED: [&str; 3] = ["resnet50", "vgg16", "bert-large"];

/// Source whose throughputs are held out for every network: Caffe's batch normalisation is two layers of several passes each.
const HELD_OUT: &str = "accudnn";

/// One published throughput.
#[derive(Clone, Debug)]
pub struct Row {
    pub sheet: &'static Sheet,
    pub network: String,
    /// Length of its text, if unusual.
    pub length: Option<u32>,
    /// Its classes, if unusual.
    pub classes: Option<u32>,
    /// Samples of an iteration.
    pub batch: u64,
    /// `true` if products were in TF32.
    pub tf32: bool,
    /// `true` if the library could run convolutions by transforms.
    pub fast_alternatives: bool,
    /// Seconds of an iteration.
    pub seconds: f64,
    /// `true` if these seconds include the update.
    pub updates: bool,
    /// Source: a key of the table's head.
    pub source: String,
}

/// Returns all rows.
pub fn rows() -> Vec<Row> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| row(line).unwrap_or_else(|| panic!("a row like the others: {line}"))).collect()
}

/// Returns the keys of the sources in the table's head, each with its address.
pub fn sources() -> Vec<(&'static str, &'static str)> {
    TABLE.lines().filter_map(|line| line.strip_prefix("# source ")?.split_once(": ")).collect()
}

fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.split(',').collect();
    let [device, network, image, classes, batch, arithmetic, kernels, figure, unit, passes, source] =
        cells[..]
    else {
        return None;
    };
    let sheet = SHEETS.iter().chain(&SIBLINGS).find(|sheet| sheet.name == device)?;
    let other = |cell: &str| if cell == "-" { Some(None) } else { cell.parse().ok().map(Some) };
    let (batch, figure): (u64, f64) = (batch.parse().ok()?, figure.parse().ok()?);
    let seconds = match unit {
        "ms" => figure / 1e3,
        "samples" => batch as f64 / figure,
        _ => return None,
    };
    let tf32 = ["f32", "tf32"].iter().position(|known| *known == arithmetic)? == 1;
    let fast_alternatives = ["direct", "all"].iter().position(|known| *known == kernels)? == 1;
    let updates = ["no update", "all"].iter().position(|known| *known == passes)? == 1;
    let (network, source) = (network.to_owned(), source.to_owned());
    let (length, classes) = (other(image)?, other(classes)?);
    Some(Row { sheet, network, length, classes, batch, tf32, fast_alternatives, seconds, updates, source })
}

impl Row {
    /// Returns `true` if the model was fitted to this row.
    pub fn is_fitted(&self) -> bool {
        FITTED.contains(&self.network.as_str()) && self.source != HELD_OUT
    }

    /// Returns the device's model.
    pub fn device(&self) -> Modelled {
        let precision = if self.tf32 { Precision::Tf32 } else { Precision::F32 };
        Modelled { precision, fast_alternatives: self.fast_alternatives, ..Modelled::new(self.sheet) }
    }

    /// Returns one iteration, without seconds.
    pub fn program(&self) -> Program {
        let device = self.device();
        let alternatives = |call: &Call| device.alternatives(call);
        let options = LowerOptions { alternatives: &alternatives, ..LowerOptions::default() };
        lower(&self.network(), self.batch, &options).expect("a sound batch")
    }

    fn network(&self) -> Network {
        if self.network == "alexnet-owt" {
            return alexnet_owt();
        }
        let mut spec = usual(&self.network).expect("a network of the zoo");
        spec.image = self.length.map_or(spec.image, |length| [length, 1]);
        spec.classes = self.classes.unwrap_or(spec.classes);
        build(&spec).expect("a sound network")
    }

    /// Returns the seconds that a model of the device predicts, with each op in its fastest alternative.
    pub fn modelled(&self, program: &mut Program, device: &Modelled) -> f64 {
        device.fill(program);
        let counts = |phase: Phase| self.updates || phase != Phase::Update;
        let ops = program.trace.ops.iter().filter(|op| counts(op.phase));
        let fastest =
            |seconds: f64, alternatives: &mut dyn Iterator<Item = f64>| alternatives.fold(seconds, f64::min);
        ops.map(|op| {
            fastest(op.seconds.0, &mut op.alternatives.iter().map(|alternative| alternative.seconds.0))
        })
        .sum()
    }

    /// Returns the modelled speed over the published speed.
    pub fn ratio(&self) -> f64 {
        self.seconds / self.modelled(&mut self.program(), &self.device())
    }
}

/// Returns AlexNet of Krizhevsky's "one weird trick", for images of 224x224 padded by 2.
fn alexnet_owt() -> Network {
    let spec = NetworkSpec { name: "alexnet-owt".to_owned(), image: [224; 2], channels: 3, classes: 1000 };
    let make = || {
        let mut b = Builder::new(&spec)?;
        let mut x = b.images();
        let convolutions = [
            (64, Window::square(11, 4, 2), true),
            (192, Window::square(5, 1, 2), true),
            (384, Window::square(3, 1, 1), false),
            (384, Window::square(3, 1, 1), false),
            (256, Window::square(3, 1, 1), true),
        ];
        for (i, (channels, window, pooled)) in (1..).zip(convolutions) {
            x = b.conv(&format!("conv{i}"), x, channels, window, true)?;
            x = b.relu(&format!("relu{i}"), x)?;
            if pooled {
                x = b.max_pool(&format!("pool{i}"), x, Window::square(3, 2, 0))?;
            }
        }
        for i in [6, 7] {
            x = b.fully_connected(&format!("fc{i}"), x, 4096)?;
            x = b.relu(&format!("relu{i}"), x)?;
            x = b.dropout(&format!("drop{i}"), x, 0.5)?;
        }
        x = b.fully_connected("fc8", x, 1000)?;
        b.finish(x)
    };
    make().expect("a sound network")
}

/// A row with its ratio.
pub struct Judged {
    /// Published throughput.
    pub row: Row,
    /// Modelled speed over published speed.
    pub ratio: f64,
}

/// Returns all rows with their ratios.
pub fn judged() -> Vec<Judged> {
    rows().into_iter().map(|row| Judged { ratio: row.ratio(), row }).collect()
}

/// Distribution of ratios about 1.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Number of ratios.
    pub count: usize,
    /// Geometric mean.
    pub mean: f64,
    /// Ratio farthest from 1.
    pub worst: f64,
    /// Error that nine of ten ratios do not exceed, as a share, if their logarithms are normally distributed about 0.
    pub error: f64,
}

/// Returns the distribution of these ratios about 1; `None` if there are none.
pub fn spread<'a>(judged: impl Iterator<Item = &'a Judged>) -> Option<Spread> {
    const NINE_OF_TEN: f64 = 1.645;
    let logs: Vec<f64> = judged.map(|one| one.ratio.ln()).collect();
    let count = logs.len();
    let worst = logs.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()))?.exp();
    let mean = (logs.iter().sum::<f64>() / count as f64).exp();
    let square = logs.iter().map(|log| log * log).sum::<f64>() / count as f64;
    Some(Spread { count, mean, worst, error: (NINE_OF_TEN * square.sqrt()).exp() - 1.0 })
}

/// Returns the held-out rows of a generation, in one arithmetic.
pub fn held_out<'a>(all: &'a [Judged], of: &'a Generation, tf32: bool) -> impl Iterator<Item = &'a Judged> {
    all.iter().filter(move |one| {
        one.row.sheet.generation.name == of.name && one.row.tf32 == tf32 && !one.row.is_fitted()
    })
}

/// Returns the error that a generation should state, in f32 and in TF32: that of its held-out rows if there are at least
/// [`ENOUGH`]; with fewer, at least that of all generations' held-out rows; with none, at least the largest of any generation.
pub fn to_state(all: &[Judged], of: &Generation) -> [f64; 2] {
    let held = || all.iter().filter(|one| !one.row.is_fitted());
    let together = spread(held()).map_or(1.0, |spread| spread.error);
    let largest = GENERATIONS.iter().flat_map(|other| [false, true].map(|tf32| (other, tf32)));
    let largest = largest.filter_map(|(other, tf32)| spread(held_out(all, other, tf32)));
    let largest = largest.map(|spread| spread.error).fold(together, f64::max);
    [false, true].map(|tf32| match spread(held_out(all, of, tf32)) {
        Some(own) if own.count >= ENOUGH => own.error,
        Some(own) => own.error.max(together),
        None => largest,
    })
}
