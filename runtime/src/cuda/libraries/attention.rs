//! Attention whose products cuBLAS computes: batches of heads of one sample, between our own kernels for the scores.
//!
//! The scratch is that of our own kernels, followed by cuBLAS's. Scores that a mask leaves out are computed too, and our
//! kernels replace them by zeros.
//!
//! If activations are bf16, the factors are either widened from them, or are f32 intermediate results.
//!
//! Deliberately does not batch over samples: the distance between heads changes from a sample's last head to the next
//! sample's first.

use super::super::kernels::Argument;
use super::super::kernels::attention::{Matrix, Product, Step, steps};
use super::cublas::{Batch, scratch};
use super::ints;
use plimsoll_ir::program::Call;
use plimsoll_ir::{Bytes, Float};

/// A call, ready to enqueue.
pub(super) struct Attention {
    pub(super) steps: Vec<Step>,
    /// Start and bytes of cuBLAS's scratch.
    pub(super) of_cublas: (u64, Bytes),
}

impl Attention {
    /// `None` for other calls, and if a length exceeds cuBLAS's integers.
    pub(super) fn of(call: &Call, float: Float, most: u64) -> Option<Attention> {
        let (steps, own) = steps(call, float)?;
        let mut results = 0;
        for step in &steps {
            if let Step::Product(product) = step {
                // All batches of a product have the same lengths.
                batch(product, 0, 1)?;
                let [rows, columns, _] = product.sides;
                results = rows.saturating_mul(columns).max(results);
            }
        }
        Some(Attention { steps, of_cublas: (own.0, scratch(results, most)) })
    }

    /// Total scratch.
    pub(super) fn workspace(&self) -> Bytes {
        self.of_cublas.1 + Bytes(self.of_cublas.0)
    }
}

/// Calls `go` with each batch of a product and the addresses of its first matrices: one member of each group of one sample.
pub(super) fn batches<E>(
    product: &Product,
    addresses: &[u64],
    workspace: u64,
    mut go: impl FnMut(&Batch, [u64; 3]) -> Result<(), E>,
) -> Result<(), E> {
    let (kv_heads, end) = (product.shape.kv_heads, product.first + product.groups);
    let mut first = product.first;
    while first < end {
        let (sample, head) = (first / kv_heads, first % kv_heads);
        let count = (kv_heads - head).min(end - first);
        for member in 0..product.shape.group() {
            let at = |matrix: &Matrix| {
                let tensor = match matrix.tensor {
                    Argument::Operand(number) => addresses[number],
                    Argument::Workspace(offset) => workspace + offset,
                    Argument::U32(_) | Argument::U64(_) | Argument::F32(_) => {
                        unreachable!("a tensor is an address")
                    }
                };
                let floats = matrix.start.wrapping_add(sample.wrapping_mul(matrix.of_sample));
                let floats = floats.wrapping_add(head * matrix.of_group + member * matrix.of_member);
                tensor.wrapping_add(floats.wrapping_mul(4))
            };
            // `Attention::of` has checked that there is one.
            let Some(batch) = batch(product, member, count) else { continue };
            // Column-major, our product is that of the transposed factors in the other order.
            go(&batch, [at(&product.b), at(&product.a), at(&product.c)])?;
        }
        first += count;
    }
    Ok(())
}

/// Batch of `count` products of one member each; `None` if a length exceeds cuBLAS's integers.
///
/// Row-major c = a b; column-major, where our matrix is its own transpose, c = b a.
fn batch(product: &Product, member: u64, count: u64) -> Option<Batch> {
    let [rows, columns, depth] = product.sides;
    let Product { a, b, c, .. } = product;
    // Stride of a row if columns are adjacent; if rows are adjacent, the matrix is passed as transposed.
    let leading = |matrix: &Matrix| if matrix.of_column == 1 { matrix.of_row } else { matrix.of_column };
    let [m, n, k, count] = ints([columns, rows, depth, count])?;
    let stride = |matrix: &Matrix| i64::try_from(matrix.of_group).ok();
    Some(Batch {
        transposed: [b, a].map(|matrix| matrix.of_column != 1),
        m,
        n,
        k,
        leading: ints([leading(b), leading(a), leading(c)])?,
        strides: [stride(b)?, stride(a)?, stride(c)?],
        count,
        add: product.adds(member),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::program::AttentionShape;

    /// All batches of all products of a call whose operands are at 1000, 2000, ... and whose scratch is at 0, in floats.
    fn all(call: &Call) -> Vec<(Batch, [u64; 3])> {
        let attention = Attention::of(call, Float::F32, 4 << 20).expect("it is attention");
        let mut found = Vec::new();
        for step in &attention.steps {
            if let Step::Product(product) = step {
                let operands: Vec<u64> = (1..5).map(|n| 4000 * n).collect();
                batches(product, &operands, 0, |batch, addresses| {
                    found.push((*batch, addresses.map(|address| address / 4)));
                    Ok::<(), ()>(())
                })
                .expect("nothing is refused");
            }
        }
        found
    }

    #[test]
    fn a_batch_is_a_member_of_each_group_of_a_sample() {
        // A row of qkv: four heads of queries of two channels, two of keys, two of values.
        let shape = AttentionShape { batch: 2, length: 3, heads: 4, kv_heads: 2, width: 8, causal: true };
        let forward = all(&Call::AttentionForward { shape });
        let scores = Batch {
            transposed: [true, false],
            m: 3,
            n: 3,
            k: 2,
            leading: [16, 16, 3],
            strides: [2, 4, 18],
            count: 2,
            add: false,
        };
        let y =
            Batch { transposed: [false; 2], m: 2, k: 3, leading: [16, 3, 8], strides: [2, 18, 4], ..scores };
        let expected = [
            // Keys, queries, scores: member by member, sample by sample.
            (scores, [1008, 1000, 0]),
            (scores, [1008, 1002, 9]),
            (scores, [1056, 1048, 36]),
            (scores, [1056, 1050, 45]),
            // Values, scores, y.
            (y, [1012, 0, 2000]),
            (y, [1012, 9, 2002]),
            (y, [1060, 36, 2024]),
            (y, [1060, 45, 2026]),
        ];
        assert_eq!(forward, expected);
        // If members of a group share a result, the second adds to that of the first.
        let backward = all(&Call::AttentionBackward { shape, accumulate: false });
        let adds: Vec<bool> = backward.iter().map(|(batch, _)| batch.add).collect();
        let (alone, shared) = ([false; 4], [false, true, false, true]);
        assert_eq!(adds, [alone, alone, shared, alone, shared].concat());
        assert!(
            all(&Call::AttentionBackward { shape, accumulate: true })[8..].iter().all(|(batch, _)| batch.add)
        );
    }

    #[test]
    fn scores_are_cut_where_they_are_more_than_their_scratch() {
        // 2^20 scores a head: eight heads at a time, of twelve, so that a block has heads of two samples.
        let shape =
            AttentionShape { batch: 2, length: 1024, heads: 12, kv_heads: 12, width: 24, causal: true };
        let forward = all(&Call::AttentionForward { shape });
        let counts: Vec<i32> = forward.iter().map(|(batch, _)| batch.count).collect();
        assert_eq!(counts, [8, 8, 4, 4, 4, 4, 8, 8]);
        // 2^24 scores a head: 2048 rows of 4096 at a time.
        let shape = AttentionShape { batch: 1, length: 4096, heads: 1, kv_heads: 1, width: 2, causal: true };
        let backward = all(&Call::AttentionBackward { shape, accumulate: false });
        let of_keys: Vec<(i32, bool)> = backward.iter().map(|(batch, _)| (batch.k, batch.add)).collect();
        let (pairs, rows) = ((2, false), (4096, false));
        let part = |add| [pairs, pairs, (2048, add), rows, (2048, add)];
        assert_eq!(of_keys, [part(false), part(true)].concat());
        let queries: Vec<u64> = backward.iter().map(|(_, [_, a, _])| *a).collect();
        assert_eq!((queries[0], queries[5]), (1000, 1000 + 2048 * 6));
        // The scratch does not grow with the square of the length.
        let scratch = |length| {
            let shape = AttentionShape { length, ..shape };
            Attention::of(&Call::AttentionBackward { shape, accumulate: false }, Float::F32, 4 << 20)
                .expect("it is attention")
                .workspace()
        };
        assert!(scratch(4096) < Bytes(80 << 20) && scratch(65536) < Bytes(80 << 20), "{}", scratch(65536));
    }
}
