//! Measurement of the network between workers, in the rhythm of an iteration: pieces in sequence, each summed by its owner
//! and sent back, as at the end of a backward pass.
//!
//! Exchanging a piece takes two rounds of messages ([`Round::sharded`]), whose time is a line over the bytes. Pieces of two
//! sizes give latency and rate, and pieces of a third size give the error of that line.
//!
//! Deliberately does not compute meanwhile, or copy anything to or from a device.

use super::{Group, GroupError, Node, Piece, TreeSum, equal_pieces};
use plimsoll_ir::exchange::{Interconnect, PIECE_BYTES, Round};
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use std::time::Instant;

/// Numbers in a piece: dominated by messages, dominated by bytes, and between.
const FEW: usize = 1 << 10;
const MANY: usize = PIECE_BYTES.0 as usize / size_of::<f32>();
const BETWEEN: usize = MANY / 4;

/// Number of small pieces per exchange.
const PIECES: usize = 64;

/// Target duration of an exchange of large pieces, and the least number of them; the most is [`PIECES`].
const SECONDS: f64 = 0.25;
const LEAST: usize = 4;

/// Number of exchanges, of which the median counts.
const TIMES: usize = 5;

/// Result of the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Network parameters for predictions.
    pub interconnect: Interconnect,
    /// Measured time of pieces of the third size, divided by the line's prediction.
    pub measured_to_predicted: f64,
}

/// Measures the network between all workers, which call this together; `None` for a single worker. Takes some seconds.
///
/// # Errors
///
/// A worker is lost.
pub fn measure(group: &mut dyn Group) -> Result<Option<Measured>, GroupError> {
    let workers = group.facts().workers;
    if workers == 1 {
        return Ok(None);
    }
    // The first exchange also connects the workers.
    exchange(group, MANY, 1)?;
    let pieces = (SECONDS / exchange(group, MANY, 1)?) as usize;
    let pieces = pieces.clamp(LEAST, PIECES);
    let few = median(group, FEW, PIECES)?;
    let many = median(group, MANY, pieces)?;
    let between = median(group, BETWEEN, pieces)?;
    let interconnect = through(workers, few, many);
    let measured_to_predicted = between / predicted(&interconnect, workers, BETWEEN);
    Ok(Some(Measured { interconnect, measured_to_predicted }))
}

/// Data that a worker sends to reduce a piece of this many numbers; gathering it takes as much again.
fn round(workers: usize, numbers: usize) -> Round {
    Round::sharded(Bytes((numbers * size_of::<f32>()) as u64), workers as u64)
}

/// Predicted seconds of a piece.
fn predicted(interconnect: &Interconnect, workers: usize, numbers: usize) -> f64 {
    2.0 * interconnect.seconds(round(workers, numbers)).0
}

/// Network for which a piece of few numbers and one of many take these seconds. If noise would make the latency negative, it
/// is 0, and the piece of many numbers gives the rate.
fn through(workers: usize, few: f64, many: f64) -> Interconnect {
    let [of_few, of_many] = [FEW, MANY].map(|numbers| round(workers, numbers));
    let slope = (many - few) / (2.0 * (of_many.bytes.to_f64() - of_few.bytes.to_f64()));
    let latency = (few / 2.0 - of_few.bytes.to_f64() * slope) / of_few.messages as f64;
    let (rate, latency) = if slope > 0.0 && latency >= 0.0 {
        (1.0 / slope, latency)
    } else {
        (2.0 * of_many.bytes.to_f64() / many, 0.0)
    };
    Interconnect { bytes_per_second: BytesPerSecond(rate), latency_seconds: Seconds(latency) }
}

/// Median seconds of a piece, the same for all workers.
fn median(group: &mut dyn Group, numbers: usize, pieces: usize) -> Result<f64, GroupError> {
    let mut times: Vec<f64> =
        (0..TIMES).map(|_| exchange(group, numbers, pieces)).collect::<Result<_, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[TIMES / 2])
}

/// Seconds per piece of several exchanged in sequence, at the slowest worker.
fn exchange(group: &mut dyn Group, numbers: usize, pieces: usize) -> Result<f64, GroupError> {
    let facts = group.facts();
    let mut mine = TreeSum::over(facts.workers as u64);
    mine.push(Node::leaf(facts.rank as u64), vec![1.0; numbers * pieces]);
    let piece = |number: usize| {
        let at = number * numbers;
        let shifted = move |share: Piece| Piece {
            number: share.number + (number * facts.workers) as u32,
            elements: at + share.elements.start..at + share.elements.end,
            ..share
        };
        equal_pieces(facts, 0, numbers).into_iter().map(shifted)
    };
    let all: Vec<Piece> = (0..pieces).flat_map(piece).collect();
    let mut sums = vec![0.0; numbers * pieces];
    // All workers begin together.
    group.agree(&[])?;
    let begun = Instant::now();
    for share in &all {
        group.start(share, &mine)?;
        group.advance()?;
    }
    for share in &all {
        group.finish(share, &mut sums[share.elements.clone()])?;
    }
    let seconds = begun.elapsed().as_secs_f64() as f32;
    let said = group.agree(&[seconds.to_bits()])?;
    let slowest = said.iter().flatten().map(|word| f32::from_bits(*word)).fold(0.0, f32::max);
    Ok(f64::from(slowest) / pieces as f64)
}

#[cfg(test)]
mod tests {
    use super::super::{alone, threads};
    use super::*;

    #[test]
    fn a_network_is_found_again() {
        for (workers, rate, latency) in [(2, 1.25e8, 1e-4), (8, 1.25e9, 3e-5), (3, 2.5e7, 0.0)] {
            let interconnect =
                Interconnect { bytes_per_second: BytesPerSecond(rate), latency_seconds: Seconds(latency) };
            let [few, many] = [FEW, MANY].map(|numbers| predicted(&interconnect, workers, numbers));
            let found = through(workers, few, many);
            assert!((found.bytes_per_second.0 / rate - 1.0).abs() < 1e-9, "{found:?}");
            assert!((found.latency_seconds.0 - latency).abs() < 1e-12, "{found:?}");
        }
        // Pieces of many numbers set the rate when those of few took less than no time.
        let found = through(2, 0.0, 1e-3);
        assert_eq!(found.latency_seconds, Seconds::ZERO);
        assert!((predicted(&found, 2, MANY) / 1e-3 - 1.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn all_workers_measure_the_same_and_one_alone_nothing() {
        assert_eq!(measure(&mut *alone()), Ok(None));
        let all: Vec<Measured> = std::thread::scope(|scope| {
            let measured = |mut group: Box<dyn Group>| measure(&mut *group);
            let all: Vec<_> =
                threads(2).into_iter().map(|group| scope.spawn(move || measured(group))).collect();
            let found = |worker: std::thread::ScopedJoinHandle<'_, _>| worker.join().expect("it measures");
            all.into_iter()
                .map(|worker| found(worker).expect("none is lost").expect("there are two"))
                .collect()
        });
        assert_eq!(all[0], all[1]);
        let Measured { interconnect, measured_to_predicted } = all[0];
        assert!(interconnect.to_string().parse::<Interconnect>().is_ok(), "{interconnect}");
        assert!(interconnect.bytes_per_second.0 > 1e6 && measured_to_predicted > 0.0, "{:?}", all[0]);
    }
}
