//! AccUDNN's cluster by goodput: the update with the most progress a second, compared with the one with the most images a
//! second.

use crate::accudnn::{WORKERS, alone, delta};
use crate::plot::Plot;
use crate::subjects::Scale;
use crate::table::{Table, cells, note, percent};
use plimsoll::ir::Seconds;
use plimsoll::tuner::goodput::{best_passes, efficiency};

/// Gradient noise scales, in samples. They grow as a network learns.
const NOISE: [f64; 4] = [100.0, 300.0, 1000.0, 10_000.0];

/// Update size with a known learning rate, in samples.
const BASE_BATCH: u64 = 256;

/// Most passes of a worker in an update.
const PASSES: u64 = 64;

/// Eight workers, each of which makes passes of the same number of samples.
struct Cluster {
    /// A batch and the seconds of its pass, twice: passes of other batches lie on the line through both.
    passes: [(f64, f64); 2],
    /// Seconds of an update besides its passes.
    delta: f64,
}

impl Cluster {
    fn pass(&self, batch: u64) -> f64 {
        let [(few, short), (many, long)] = self.passes;
        short + (long - short) / (many - few) * (batch as f64 - few)
    }

    fn update(&self, batch: u64, passes: u64) -> Seconds {
        Seconds(passes as f64 * self.pass(batch) + self.delta)
    }

    fn images_per_second(&self, (batch, passes): (u64, u64)) -> f64 {
        8.0 * (batch * passes) as f64 / self.update(batch, passes).0
    }

    fn goodput(&self, noise: f64, (batch, passes): (u64, u64)) -> f64 {
        self.images_per_second((batch, passes)) * efficiency(noise, BASE_BATCH, 8 * batch * passes)
    }

    /// Returns the batch of a pass, and the passes, with the highest goodput.
    fn best(&self, noise: f64, most: u64) -> (u64, u64) {
        let updates = |batch| [1, 2, 4].map(|passes| self.update(batch, passes));
        let all = (1..=most).map(|batch| (batch, best_passes(noise, 8 * batch, updates(batch), PASSES)));
        let better =
            |a: &(u64, u64), b: &(u64, u64)| self.goodput(noise, *a).total_cmp(&self.goodput(noise, *b));
        all.max_by(better).expect("there are batches")
    }
}

pub fn updates(_: &Scale) -> Table {
    let plot = Plot::new("Goodput of AccUDNN's update over the best", "gradient noise scale", "share");
    let mut table = Table::new(
        "AccUDNN §6.3 D, Table 2, modelled from its rows: passes on the line through Caffe's and AccUDNN's batch on one GPU, Δ \
         of Caffe-PS. Goodput is images/s by the efficiency of an update (Pollux), (phi + 256) / (phi + B), phi being the \
         gradient noise scale and B the samples of an update: images of updates of 256. Each worker makes up to 64 passes of a \
         batch up to AccUDNN's.",
        "network | noise scale | best update | images/s | efficiency | goodput | AccUDNN's update | images/s | \
         efficiency | goodput | AccUDNN's is less by",
        plot,
    );
    for row @ (network, caffe, one, _, batch, _) in WORKERS {
        let passes = [(caffe, one), (batch, alone(network))].map(|(k, rate)| (k as f64, k as f64 / rate));
        let cluster = Cluster { passes, delta: delta(&row) };
        for noise in NOISE {
            let (best, theirs) = (cluster.best(noise, batch), (batch, 1));
            let cells = |update: (u64, u64)| {
                let samples = 8 * update.0 * update.1;
                let [images, good] = [cluster.images_per_second(update), cluster.goodput(noise, update)];
                cells![format!("8 x {} x {} = {samples}", update.1, update.0), format!("{images:.0}");
                    percent(efficiency(noise, BASE_BATCH, samples)), format!("{good:.0}")]
            };
            let share = cluster.goodput(noise, theirs) / cluster.goodput(noise, best);
            table.plot.over(&noise.to_string(), [(network, Some(share))]);
            let row = [cells![network, noise], cells(best), cells(theirs), cells![percent(1.0 - share)]];
            table.alone(row.concat());
            table.advantage(format!("{network}, goodput at a noise scale of {noise}"), 1.0 / share);
        }
    }
    note!(table;
        "Where the noise scale is large, every image counts, and workers make several passes of AccUDNN's batch for one \
         exchange. Where it is small, the largest batch has the most images/s and not the most progress.");
    table
}
