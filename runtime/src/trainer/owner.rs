//! Sharded momenta: the pieces of every update that this worker makes for all.
//!
//! Of the pieces that it owns, a worker has parameters and momenta in the host's memory. Once an update is decided, and the sum
//! of such a piece is there, it makes the update of the piece as a device would, and gives the others the new parameters. With
//! them goes the square norm of the gradient, which they have not. Its neighbour has the sum in their place and makes the same
//! update, so that it has a copy of the owner's momenta that costs no message.
//!
//! A worker that is lost takes nothing along: of each piece an owner or its neighbour is left, and both have it as it was
//! before the last update, too. No worker is more than one update ahead of another, since an update is agreed on by workers
//! that have made all of the one before. So the shares of those that are left have a state in common ([`Owner::share`]).
//!
//! So the state of a training lies in two places: what is resident is on every device, and momenta are spread over the workers.
//! Worker 0 has all of them only where it has gathered them, to save them, or where a training goes on from a file.
//!
//! What it deliberately does not do: know of devices, or say when something is exchanged.

use crate::cpu::kernels::update_on_host;
use crate::executor::Part;
use crate::group::Piece;
use crate::noise::square_norm;
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_ir::program::{Region, Role};
use plimsoll_ir::{Bytes, Optimizer, UpdateNumbers};
use std::collections::HashMap;
use std::ops::Range;

/// What a worker has of the parameters that it updates for all.
pub(super) struct Owner {
    /// Its own number, and how many workers there are.
    rank: usize,
    workers: usize,
    /// What the optimizer keeps for each parameter.
    momenta: &'static [Role],
    /// By part.
    parts: Vec<Updated>,
    /// By piece: this worker's own, and copies of the one before it.
    shards: HashMap<u32, Shard>,
    /// All momenta, where they are in one place.
    gathered: Option<Gathered>,
    /// The running statistics of the last two states that a pass began with, each after so many iterations.
    statistics: [(u64, Vec<f32>); 2],
}

/// The parameters of a part, one behind the other, and the pieces that they are cut into.
struct Updated {
    parameters: Vec<Region>,
    pieces: Vec<Piece>,
}

/// A piece, and how it was before the last update.
struct Shard {
    now: Numbers,
    before: Numbers,
}

/// Parameters and momenta after so many iterations.
#[derive(Clone, Default)]
struct Numbers {
    step: u64,
    parameters: Vec<f32>,
    momenta: Vec<Vec<f32>>,
}

/// All momenta after so many iterations: by part, by what the optimizer keeps.
struct Gathered {
    step: u64,
    momenta: Vec<Vec<Vec<f32>>>,
}

/// A decided update, as its owners make it.
#[derive(Clone, Copy)]
pub(super) struct Decided {
    /// The iteration that it ends.
    pub(super) step: u64,
    /// What sums of gradients are multiplied by.
    pub(super) of_labels: f32,
    /// As the optimizer takes them.
    pub(super) numbers: UpdateNumbers,
}

impl Updated {
    fn elements(&self) -> usize {
        self.parameters.iter().map(|region| region.elements() as usize).sum()
    }
}

impl Gathered {
    /// Those of a training that begins, with so many for each parameter.
    fn zeros(parts: &[Updated], momenta: usize) -> Gathered {
        let zeros = |part: &Updated| vec![vec![0.0; part.elements()]; momenta];
        Gathered { step: 0, momenta: parts.iter().map(zeros).collect() }
    }
}

/// What an optimizer keeps for these parameters, as the regions of a program that updates them itself.
pub(super) fn momenta_of<'p, P: Iterator<Item = &'p Region>>(
    kept: &'static [Role],
    parameters: impl Fn() -> P,
) -> impl Iterator<Item = Region> {
    kept.iter()
        .flat_map(move |role| parameters().map(|parameter| Region { role: *role, ..parameter.clone() }))
}

/// Whether a worker of so many owns a piece, or has a copy of it.
fn has(piece: &Piece, rank: usize, workers: usize) -> bool {
    piece.owner == rank || piece.neighbour(workers) == Some(rank)
}

impl Owner {
    /// Of the worker with this number of so many, at the start of a training by this optimizer; of each part with its pieces.
    pub(super) fn new<'p>(
        (rank, workers): (usize, usize),
        optimizer: Optimizer,
        parts: impl Iterator<Item = (&'p Part, &'p [Piece])>,
    ) -> Owner {
        // Of running statistics nobody makes an update.
        let updated = |(part, pieces): (&Part, &[Piece])| Updated {
            parameters: part.updated.clone(),
            pieces: pieces.iter().filter(|piece| piece.held).cloned().collect(),
        };
        let (momenta, parts) = (Role::kept_by(optimizer), parts.map(updated).collect::<Vec<_>>());
        let gathered = Some(Gathered::zeros(&parts, momenta.len()));
        let statistics = Default::default();
        Owner { rank, workers, momenta, parts, shards: HashMap::new(), gathered, statistics }
    }

    /// The momenta as regions, such as a program has them that updates parameters itself; they lie on no device.
    pub(super) fn regions(&self) -> impl Iterator<Item = Region> {
        momenta_of(self.momenta, || self.parts.iter().flat_map(|part| &part.parameters))
    }

    /// The iterations after which all momenta are in one place.
    pub(super) fn gathered_at(&self) -> Option<u64> {
        self.gathered.as_ref().map(|gathered| gathered.step)
    }

    /// All momenta that are in one place, region by region as [`Owner::regions`] names them, in bytes; none where they are not.
    pub(super) fn bytes_of(&self, region: &Region) -> Option<&[u8]> {
        let (part, role, range) = self.place(region)?;
        Some(cast_slice(&self.gathered.as_ref()?.momenta[part][role][range]))
    }

    /// Whether a region is one of them.
    pub(super) fn holds(&self, region: &Region) -> bool {
        self.place(region).is_some()
    }

    /// Takes a momentum, as a training goes on that has done so many iterations; the data have its region's length.
    pub(super) fn take(&mut self, step: u64, region: &Region, data: &[u8]) {
        let Some((part, role, range)) = self.place(region) else { return };
        let (parts, momenta) = (&self.parts, self.momenta.len());
        let gathered = self.gathered.get_or_insert_with(|| Gathered::zeros(parts, momenta));
        gathered.step = step;
        cast_slice_mut(&mut gathered.momenta[part][role][range]).copy_from_slice(data);
    }

    /// Where a momentum is: part, number of what the optimizer keeps, and numbers of the part.
    fn place(&self, region: &Region) -> Option<(usize, usize, Range<usize>)> {
        let role = self.momenta.iter().position(|role| *role == region.role)?;
        self.parts.iter().enumerate().find_map(|(number, part)| {
            let mut begin = 0;
            for parameter in &part.parameters {
                let end = begin + parameter.elements() as usize;
                if parameter.name == region.name {
                    return Some((number, role, begin..end));
                }
                begin = end;
            }
            None
        })
    }

    /// All momenta in words, which worker 0 gives to all; it has them in one place.
    pub(super) fn words(&self) -> Vec<u32> {
        let all = self.gathered.iter().flat_map(|gathered| gathered.momenta.iter().flatten());
        all.flat_map(|numbers| cast_slice::<f32, u32>(numbers)).copied().collect()
    }

    /// How many words that are.
    pub(super) fn words_of_all(&self) -> usize {
        self.momenta.len() * self.parts.iter().map(Updated::elements).sum::<usize>()
    }

    /// Takes what it has to have of all momenta in words, and of all parameters by part, after so many iterations. Worker 0
    /// still has all of them, until the next update.
    pub(super) fn begin(&mut self, step: u64, mut words: &[u32], parameters: &[Vec<f32>]) {
        self.shards.clear();
        self.statistics = Default::default();
        for (part, parameters) in self.parts.iter().zip(parameters) {
            let (own, others) = words.split_at(self.momenta.len() * part.elements());
            words = others;
            let kept: Vec<&[f32]> = match part.elements() {
                0 => Vec::new(),
                elements => own.chunks_exact(elements).map(cast_slice).collect(),
            };
            let (rank, workers) = (self.rank, self.workers);
            for piece in part.pieces.iter().filter(|piece| has(piece, rank, workers)) {
                let of_piece = |numbers: &[f32]| numbers[piece.elements.clone()].to_vec();
                let momenta = kept.iter().map(|numbers| of_piece(numbers)).collect();
                let now = Numbers { step, parameters: of_piece(parameters), momenta };
                self.shards.insert(piece.number, Shard { now, before: Numbers::default() });
            }
        }
        self.gathered = self.gathered.take().filter(|_| self.rank == 0);
    }

    /// The bytes of numbers of what it owns and copies, as it is and as it was before an update.
    pub(super) fn bytes_of_share(&self) -> Bytes {
        let pieces = self.parts.iter().flat_map(|part| &part.pieces);
        let own = pieces.filter(|piece| has(piece, self.rank, self.workers));
        let elements: usize = own.map(|piece| piece.elements.len()).sum();
        Bytes(2 * 4 * (1 + self.momenta.len() as u64) * elements as u64)
    }

    /// Makes the update of a piece that it has from the sum of its gradients: the square norm of the gradient, and the new
    /// parameters, as [`made`] reads them.
    pub(super) fn make(&mut self, piece: &Piece, sum: &[f32], decided: &Decided) -> Vec<u32> {
        self.gathered = None;
        let gradient: Vec<f32> = sum.iter().map(|number| number * decided.of_labels).collect();
        let Shard { now, before } = self.shards.get_mut(&piece.number).expect("it has it");
        before.clone_from(now);
        now.step = decided.step + 1;
        update_on_host(decided.numbers, &mut now.parameters, &gradient, &mut now.momenta);
        let square = square_norm(&gradient).to_bits();
        let parameters = cast_slice(&now.parameters).iter().copied();
        [square as u32, (square >> 32) as u32].into_iter().chain(parameters).collect()
    }

    /// Puts back what the update that ends this iteration has changed.
    pub(super) fn undo(&mut self, step: u64) {
        for Shard { now, before } in self.shards.values_mut().filter(|shard| shard.now.step > step) {
            std::mem::swap(now, before);
        }
    }

    /// Notes the running statistics of the state after so many iterations.
    pub(super) fn note_statistics(&mut self, step: u64, numbers: &[f32]) {
        if self.statistics[1].0 != step || self.statistics[1].1.is_empty() {
            self.statistics.swap(0, 1);
        }
        let (of, kept) = &mut self.statistics[1];
        *of = step;
        kept.clear();
        kept.extend_from_slice(numbers);
    }

    /// What this worker has of the last two states (`shares.rs`): of each after how many iterations, which region, from which
    /// of its numbers on, and the numbers. The regions of the running statistics are given.
    pub(super) fn share(&self, statistics: &[Region]) -> Vec<(u64, Region, usize, &[f32])> {
        let mut found = Vec::new();
        for piece in self.parts.iter().flat_map(|part| part.pieces.iter().map(move |piece| (part, piece))) {
            let (Updated { parameters, .. }, Piece { number, elements, .. }) = piece;
            let Some(Shard { now, before }) = self.shards.get(number) else { continue };
            for numbers in [now, before].into_iter().filter(|numbers| !numbers.parameters.is_empty()) {
                let mut begin = 0;
                for region in parameters {
                    let end = begin + region.elements() as usize;
                    let both = begin.max(elements.start)..end.min(elements.end);
                    if !both.is_empty() {
                        let own = both.start - elements.start..both.end - elements.start;
                        let from = both.start - begin;
                        found.push((numbers.step, region.clone(), from, &numbers.parameters[own.clone()]));
                        for (role, kept) in self.momenta.iter().zip(&numbers.momenta) {
                            let momentum = Region { role: *role, ..region.clone() };
                            found.push((numbers.step, momentum, from, &kept[own.clone()]));
                        }
                    }
                    begin = end;
                }
            }
        }
        for (step, numbers) in &self.statistics {
            let mut rest = numbers.as_slice();
            for region in statistics {
                let Some((own, others)) = rest.split_at_checked(region.elements() as usize) else { break };
                rest = others;
                found.push((*step, region.clone(), 0, own));
            }
        }
        found
    }

    /// Its own momenta in words, piece by piece.
    pub(super) fn own_words(&self) -> Vec<u32> {
        let own = self.parts.iter().flat_map(|part| &part.pieces).filter(|piece| piece.owner == self.rank);
        let numbers = own.flat_map(|piece| &self.shards[&piece.number].now.momenta);
        numbers.flat_map(|numbers| cast_slice::<f32, u32>(numbers)).copied().collect()
    }

    /// Takes what every worker has of the momenta after so many iterations, by rank; false where it is not all of them.
    pub(super) fn gather(&mut self, step: u64, said: &[Vec<u32>]) -> bool {
        let mut rest: Vec<&[u32]> = said.iter().map(Vec::as_slice).collect();
        let mut all = Vec::new();
        for part in &self.parts {
            let mut momenta = vec![vec![0.0; part.elements()]; self.momenta.len()];
            for piece in &part.pieces {
                for numbers in &mut momenta {
                    let Some(words) = rest.get_mut(piece.owner) else { return false };
                    let Some((own, others)) = words.split_at_checked(piece.elements.len()) else {
                        return false;
                    };
                    *words = others;
                    numbers[piece.elements.clone()].copy_from_slice(cast_slice(own));
                }
            }
            all.push(momenta);
        }
        self.gathered = Some(Gathered { step, momenta: all });
        rest.iter().all(|words| words.is_empty())
    }
}

/// What an owner has made of a piece: the square norm of its gradient, and its parameters; none where they are not so many.
pub(super) fn made(words: &[u32], elements: usize) -> Option<(f64, &[f32])> {
    let ([low, high], parameters) = words.split_first_chunk()?;
    let square = f64::from_bits(u64::from(*high) << 32 | u64::from(*low));
    (parameters.len() == elements).then(|| (square, cast_slice(parameters)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::UpdateRule;
    use plimsoll_ir::program::Init;

    fn region(name: &str, elements: u64) -> Region {
        Region {
            name: name.into(),
            role: Role::Parameter(Init::Constant(0.0)),
            offset: Bytes::ZERO,
            shape: vec![elements],
        }
    }

    /// Two workers, a part of two parameters in two pieces, by AdamW.
    fn owners() -> [Owner; 2] {
        [0, 1].map(|rank| {
            let piece = |number: u32, elements| Piece {
                number,
                owner: number as usize,
                needed: 0,
                held: true,
                elements,
            };
            let parameters = vec![region("a", 2), region("b", 3)];
            let parts = vec![Updated { parameters, pieces: vec![piece(0, 0..3), piece(1, 3..5)] }];
            let zeros = vec![vec![vec![0.0; 5]; 2]];
            let gathered = Some(Gathered { step: 0, momenta: zeros });
            let momenta = Role::kept_by(Optimizer::Adamw);
            let (workers, statistics) = (2, Default::default());
            Owner { rank, workers, momenta, parts, shards: HashMap::new(), gathered, statistics }
        })
    }

    fn bytes_of(owner: &Owner) -> Vec<(Role, String, Option<Vec<u8>>)> {
        let regions = owner.regions().collect::<Vec<_>>().into_iter();
        regions.map(|r| (r.role, r.name.clone(), owner.bytes_of(&r).map(<[u8]>::to_vec))).collect()
    }

    #[test]
    fn momenta_are_gathered_as_they_were_given_out_and_an_update_is_undone() {
        let [mut first, mut second] = owners();
        for (number, region) in first.regions().collect::<Vec<_>>().iter().enumerate() {
            let numbers: Vec<f32> = (0..region.elements()).map(|k| (10 * number) as f32 + k as f32).collect();
            first.take(4, region, cast_slice(&numbers));
        }
        assert_eq!(first.gathered_at(), Some(4));
        let (given, parameters) = (bytes_of(&first), vec![vec![1.0, 2.0, 3.0, 4.0, 5.0]]);
        let words = first.words();
        assert_eq!(words.len(), first.words_of_all());
        [&mut first, &mut second].into_iter().for_each(|owner| owner.begin(4, &words, &parameters));
        assert_eq!((first.gathered_at(), second.gathered_at()), (Some(4), None));
        let numbers = UpdateRule::usual(Optimizer::Adamw).numbers(0.1, 4);
        let decided = Decided { step: 4, of_labels: 2.0, numbers };
        for owner in [&mut first, &mut second] {
            let piece = owner.parts[0].pieces[owner.rank].clone();
            let sum = vec![3.0; piece.elements.len()];
            let words = owner.make(&piece, &sum, &decided);
            let (square, changed) = made(&words, sum.len()).expect("it is whole");
            assert_eq!(square, 36.0 * sum.len() as f64);
            assert!(changed.iter().zip(&parameters[0][piece.elements]).all(|(now, before)| now < before));
            assert_eq!(made(&words, sum.len() + 1), None);
        }
        assert_eq!(first.gathered_at(), None, "they are no longer those of now");
        let mut gather = |step, undo: bool| {
            if undo {
                [&mut first, &mut second].into_iter().for_each(|owner| owner.undo(step));
            }
            let said = [first.own_words(), second.own_words()];
            assert!(first.gather(step, &said));
            assert!(!first.gather(step, &said[..1]) && !first.gather(step, &[said[0].clone(), vec![0; 9]]));
            assert!(first.gather(step, &said));
            bytes_of(&first)
        };
        assert_ne!(gather(5, false), given);
        assert_eq!(gather(4, true), given);
        assert_eq!(gather(4, true), given, "an update is undone once");
    }
}
