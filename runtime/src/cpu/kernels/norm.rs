//! Batch normalisation: forward, running statistics, inference, backward.
//!
//! Statistics are computed in chunks of rows that fit a core's caches: in each the mean, then the squared distances from it,
//! so that no large numbers are subtracted; chunks are joined by the formula of Chan, Golub and LeVeque (1979) in f64, in
//! order.
//!
//! Deliberately does not synchronise statistics between workers.

use super::Run;
use super::elementwise::{mask_of, pass_where_set_from, relu};
use super::maps::Map;
use super::threads::Threads;
use super::vector::{Ptr, map_rows, sum_rows};
use plimsoll_ir::program::{After, RowShape};

/// Elements of a chunk of rows, and least number of its rows: with fewer, the chunks' sums would be as large as a tensor.
const CHUNK: usize = 1 << 14;
const LEAST: usize = 8;

/// Division of rows into chunks.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    pub rows: usize,
    pub channels: usize,
    rows_of_chunk: usize,
}

impl Chunks {
    /// Chunks of at most this many rows.
    pub fn of(shape: &RowShape, most: usize) -> Chunks {
        let [rows, channels] = [shape.rows, shape.channels].map(|n| n as usize);
        Chunks { rows, channels, rows_of_chunk: (CHUNK / channels.max(1)).clamp(LEAST, most) }
    }

    /// Elements of the largest chunk of an activation.
    pub fn elements(self) -> usize {
        self.rows_of_chunk.min(self.rows) * self.channels
    }

    /// Number of its elements.
    pub fn count(self) -> usize {
        self.rows.div_ceil(self.rows_of_chunk)
    }

    /// Rows of a chunk: the last may have fewer.
    fn len(self, chunk: usize) -> usize {
        self.rows_of_chunk.min(self.rows - chunk * self.rows_of_chunk)
    }

    /// Chunks of at most this size that begin with a byte of a mask.
    fn of_whole_bytes(self) -> Chunks {
        Chunks { rows_of_chunk: self.rows_of_chunk / 8 * 8, ..self }
    }

    /// Calls `work(chunk, first element, rows, lane)` for each.
    pub fn each(self, threads: &Threads, work: impl Fn(usize, usize, usize, usize) + Sync) {
        threads.each(self.count(), |chunk, lane| {
            work(chunk, chunk * self.rows_of_chunk * self.channels, self.len(chunk), lane);
        });
    }
}

/// Division of rows into chunks.
pub(super) fn chunks(shape: &RowShape) -> Chunks {
    Chunks::of(shape, usize::MAX)
}

/// Floats of workspace: two numbers for each channel of each chunk, and two for each channel.
pub(super) fn scratch(shape: &RowShape) -> usize {
    let chunks = chunks(shape);
    2 * chunks.channels * (chunks.count() + 1)
}

/// [`scratch`] of the backward pass, and a chunk for each lane for the gradient behind a ReLU, if no operand has room for
/// it.
pub(super) fn backward_scratch(shape: &RowShape, then: &After, accumulate: bool, lanes: usize) -> usize {
    let buffers = then.relu.is_some() && !then.add && accumulate;
    scratch(shape) + if buffers { lanes * chunks(shape).elements() } else { 0 }
}

/// Elements at which a gradient passes.
#[derive(Clone, Copy)]
enum Gate {
    /// All elements.
    Open,
    /// Elements at which an output of a ReLU is above 0 and below this ceiling.
    Output(Map, f32),
    /// Elements whose bit is set.
    Mask(Ptr<u8>),
}

impl Gate {
    /// `to = dy` where it passes, else 0, for `len` elements whose first has the number `start`; `to` may be dy.
    ///
    /// # Safety
    /// Live memory of that length, which nothing else writes, and the lane is the task's own.
    unsafe fn pass(self, dy: Ptr<f32>, to: Ptr<f32>, start: usize, len: usize, lane: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Gate::Open => map_rows([dy], [], to, 1, len, |[dy], []| dy),
                Gate::Output(y, ceiling) => {
                    let y = y.read(start, len, lane);
                    let passed = move |[y, dy]: [f32; 2], []: [f32; 0]| {
                        if y > 0.0 && y < ceiling { dy } else { 0.0 }
                    };
                    map_rows([y, dy], [], to, 1, len, passed);
                }
                Gate::Mask(mask) => pass_where_set_from(start, mask, dy, to, len),
            }
        }
    }
}

/// `sums = sum over all rows of x` for each channel, or added to `sums`: the gradient of a bias.
///
/// # Safety
/// x has the shape, `sums` its channels, `scratch` the size that [`scratch`] gives; nothing else touches them.
pub(super) unsafe fn channel_sums(shape: &RowShape, accumulate: bool, run: &Run) {
    let ([x, sums], scratch) = (run.all(["dy", "dbias"]), run.scratch);
    let chunks = chunks(shape);
    let c = chunks.channels;
    chunks.each(run.threads, |chunk, start, rows, _| {
        // SAFETY: the caller's promise; each chunk writes its own sums.
        unsafe { sum_rows([x.at(start)], [], scratch.at(chunk * c), rows, c, |[x], []| x) };
    });
    for channel in 0..c {
        // SAFETY: written by the tasks above, which are done.
        let sum: f64 =
            (0..chunks.count()).map(|k| f64::from(unsafe { scratch.at(k * c + channel).get() })).sum();
        let to = sums.at(channel);
        // SAFETY: the caller's promise.
        unsafe { to.set(if accumulate { to.get() + sum as f32 } else { sum as f32 }) };
    }
}

/// y = (x - mean) * gamma / sqrt(variance + epsilon) + beta, with the batch's statistics, which go to `stats`; then the
/// following steps.
///
/// # Safety
/// Live operands of the shape that do not overlap, except that y may be the added activation; and the workspace.
pub(super) unsafe fn forward(shape: &RowShape, epsilon: f32, then: &After, run: &Run) {
    let [gamma, beta, stats] = run.all(["gamma", "beta", "stats"]);
    let ([x, y], scratch) = (run.maps(["x", "y"]), run.scratch);
    let (r, ceiling) = (then.add.then(|| run.map("r")), then.relu.map(|relu| relu.ceiling));
    let mask = then.masks().then(|| run.at::<u8>("mask"));
    let chunks = chunks(shape);
    let c = chunks.channels;
    chunks.each(run.threads, |chunk, start, rows, lane| {
        let (mean, squares) = (scratch.at(2 * c * chunk), scratch.at(2 * c * chunk + c));
        // SAFETY: the caller's promise; each chunk writes its own mean and squares.
        unsafe {
            let x = x.read(start, rows * c, lane);
            sum_rows([x], [], mean, rows, c, |[x], []| x);
            let share = 1.0 / rows as f32;
            map_rows([mean], [], mean, 1, c, move |[sum], []| sum * share);
            sum_rows([x], [mean], squares, rows, c, |[x], [mean]| (x - mean) * (x - mean));
        }
    });
    let scale = scratch.at(2 * c * chunks.count());
    for channel in 0..c {
        // SAFETY: written by the tasks above, which are done; `stats` and `scale` have a place for each channel.
        unsafe {
            let [mean, variance] = join(chunks, scratch.at(channel));
            let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
            stats.at(channel).set(mean as f32);
            stats.at(c + channel).set(inverse as f32);
            scale.at(channel).set((inverse * f64::from(gamma.at(channel).get())) as f32);
        }
    }
    let parameters = [stats, scale, beta];
    chunks.of_whole_bytes().each(run.threads, |_, start, rows, lane| {
        let normal = |x: f32, [mean, scale, beta]: [f32; 3]| (x - mean) * scale + beta;
        // SAFETY: the caller's promise; chunks share neither elements nor bytes of the mask.
        unsafe {
            let (from, to) = (x.read(start, rows * c, lane), y.place(start, lane));
            match (r.map(|r| r.read(start, rows * c, lane)), ceiling) {
                (None, None) => map_rows([from], parameters, to, rows, c, |[x], p| normal(x, p)),
                (None, Some(ceiling)) => {
                    map_rows([from], parameters, to, rows, c, |[x], p| relu(normal(x, p), ceiling));
                }
                (Some(r), None) => map_rows([from, r], parameters, to, rows, c, |[x, r], p| normal(x, p) + r),
                (Some(r), Some(ceiling)) => {
                    map_rows([from, r], parameters, to, rows, c, |[x, r], p| relu(normal(x, p) + r, ceiling));
                }
            }
            y.store(start, rows * c, lane);
            if let (Some(mask), Some(ceiling)) = (mask, ceiling) {
                // Mask of y as stored.
                mask_of(ceiling, y.read(start, rows * c, lane), mask.at(start / 8), rows * c);
            }
        }
    });
}

/// Mean and biased variance of a channel from those of its chunks; `parts` is the first chunk's mean of the channel.
///
/// # Safety
/// The means and squared distances of all chunks are written.
unsafe fn join(chunks: Chunks, parts: Ptr<f32>) -> [f64; 2] {
    let (mut rows, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for chunk in 0..chunks.count() {
        // SAFETY: the caller's promise.
        let [m, s] = [0, chunks.channels]
            .map(|i| f64::from(unsafe { parts.at(2 * chunks.channels * chunk + i).get() }));
        let more = chunks.len(chunk) as f64;
        let apart = m - mean;
        squares += s + apart * apart * rows * more / (rows + more);
        rows += more;
        mean += apart * more / rows;
    }
    [mean, squares / rows]
}

/// Moves the running mean and variance towards the batch's.
///
/// # Safety
/// Live operands of the shape's channels that do not overlap.
pub(super) unsafe fn running(shape: &RowShape, epsilon: f32, momentum: f32, run: &Run) {
    let stats = run.f("stats");
    let mean_and_variance = run.all(["running mean", "running variance"]);
    let c = shape.channels as usize;
    // One row has a variance of 0, biased or not.
    let unbias = shape.rows as f64 / (shape.rows as f64 - 1.0).max(1.0);
    for channel in 0..c {
        // SAFETY: the caller's promise.
        unsafe {
            let inverse = f64::from(stats.at(c + channel).get());
            let variance = (1.0 / (inverse * inverse) - f64::from(epsilon)).max(0.0) * unbias;
            for (state, now) in mean_and_variance.iter().zip([stats.at(channel).get(), variance as f32]) {
                let old = state.at(channel).get();
                state.at(channel).set(old + momentum * (now - old));
            }
        }
    }
}

/// y = (x - running mean) * gamma / sqrt(running variance + epsilon) + beta.
///
/// # Safety
/// Live operands of the shape; y may be x.
pub(super) unsafe fn inference(shape: &RowShape, epsilon: f32, run: &Run) {
    let [x, gamma, beta, y] = run.all(["x", "gamma", "beta", "y"]);
    let [mean, variance] = run.all(["running mean", "running variance"]);
    let chunks = chunks(shape);
    chunks.each(run.threads, |_, start, rows, _| {
        let normal = move |[x]: [f32; 1], [gamma, beta, mean, variance]: [f32; 4]| {
            (x - mean) * (gamma / (variance + epsilon).sqrt()) + beta
        };
        let parameters = [gamma, beta, mean, variance];
        // SAFETY: the caller's promise; chunks do not overlap.
        unsafe { map_rows([x.at(start)], parameters, y.at(start), rows, chunks.channels, normal) };
    });
}

/// With n rows and xhat = (x - mean) / sqrt(variance + epsilon): dbeta = sum dy, dgamma = sum dy * xhat,
/// dx = gamma / sqrt(variance + epsilon) * (dy - dbeta / n - xhat * dgamma / n). Here dy is the part that passes the gate,
/// which is also `dr`. The first pass stores it there, or else in dx, for the second to read; if dx is added to, each pass
/// computes it again, chunk by chunk.
///
/// # Safety
/// Live operands of the shape, and [`backward_scratch`]; dx may be dy, or `dr` may.
pub(super) unsafe fn backward(shape: &RowShape, then: &After, accumulate: bool, run: &Run) {
    let gate = match then.relu {
        None => Gate::Open,
        Some(relu) if relu.mask => Gate::Mask(run.at("kept")),
        Some(relu) => Gate::Output(run.map("kept"), relu.ceiling),
    };
    let dr = then.add.then(|| run.map("dr"));
    let ([x, dy, dx], scratch) = (run.maps(["x", "dy", "dx"]), run.scratch);
    let [gamma, stats, dgamma, dbeta] = run.all(["gamma", "stats", "dgamma", "dbeta"]);
    let chunks = chunks(shape);
    let c = chunks.channels;
    let (mean, inverse) = (stats, stats.at(c));
    let buffers = scratch.at(self::scratch(shape));
    let passed = |gate: Gate, dy: Ptr<f32>, start: usize, len: usize, lane: usize| {
        if matches!(gate, Gate::Open) {
            return dy;
        }
        let to = buffers.at(lane * chunks.elements());
        // SAFETY: the caller's promise; if no operand has room, each lane has a buffer.
        unsafe { gate.pass(dy, to, start, len, lane) };
        to
    };
    let room = dr.or((!accumulate && !matches!(gate, Gate::Open)).then_some(dx));
    chunks.each(run.threads, |chunk, start, rows, lane| {
        let (sum, product) = (scratch.at(2 * c * chunk), scratch.at(2 * c * chunk + c));
        // SAFETY: the caller's promise; each chunk writes its own sums.
        unsafe {
            let [x, dy] = [x, dy].map(|map| map.read(start, rows * c, lane));
            let dy = match room {
                Some(room) => {
                    let to = room.place(start, lane);
                    gate.pass(dy, to, start, rows * c, lane);
                    room.store(start, rows * c, lane);
                    to
                }
                None => passed(gate, dy, start, rows * c, lane),
            };
            sum_rows([dy], [], sum, rows, c, |[dy], []| dy);
            sum_rows([x, dy], [mean], product, rows, c, |[x, dy], [mean]| (x - mean) * dy);
        }
    });
    let slope = scratch.at(2 * c * chunks.count());
    let share = 1.0 / chunks.rows as f64;
    for channel in 0..c {
        // SAFETY: written by the tasks above, which are done; outputs and `slope` have a place for each channel.
        unsafe {
            let [sum, product] = [0, c].map(|i| {
                (0..chunks.count()).map(|k| f64::from(scratch.at(2 * c * k + i + channel).get())).sum::<f64>()
            });
            let inverse = f64::from(inverse.at(channel).get());
            dbeta.at(channel).set(sum as f32);
            dgamma.at(channel).set((product * inverse) as f32);
            // The chunks' sums are no longer needed: the means of dy and of dy * xhat / sqrt(...) replace them.
            slope.at(channel).set((product * inverse * inverse * share) as f32);
            slope.at(c + channel).set((sum * share) as f32);
        }
    }
    let parameters = [mean, inverse, gamma, slope, slope.at(c)];
    let (dy, gate) = room.map_or((dy, gate), |room| (room, Gate::Open));
    chunks.each(run.threads, |_, start, rows, lane| {
        let gradient = |x: f32, dy: f32, [mean, inverse, gamma, slope, shift]: [f32; 5]| {
            gamma * inverse * (dy - shift - (x - mean) * slope)
        };
        // SAFETY: the caller's promise; chunks do not overlap.
        unsafe {
            let [x, dy] = [x, dy].map(|map| map.read(start, rows * c, lane));
            let dy = passed(gate, dy, start, rows * c, lane);
            let to = dx.read_if(accumulate, start, rows * c, lane);
            if accumulate {
                map_rows([x, dy, to], parameters, to, rows, c, move |[x, dy, dx], p| dx + gradient(x, dy, p));
            } else {
                map_rows([x, dy], parameters, to, rows, c, move |[x, dy], p| gradient(x, dy, p));
            }
            dx.store(start, rows * c, lane);
        }
    });
}
