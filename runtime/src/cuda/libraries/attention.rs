//! Attention whose products cuBLAS computes: batches of heads of one sample, between our own kernels for what becomes of the
//! scores.
//!
//! The scratch is that of our own kernels, with cuBLAS's behind it. Where a mask leaves out scores, they are computed too, and
//! our kernels put zeros in their place.
//!
//! What it deliberately does not do: batches over samples, whose heads are not one distance apart, but for a sample's last
//! head and the next one's first.

use super::super::kernels::Argument;
use super::super::kernels::attention::{Matrix, Product, Step, steps};
use super::cublas::{Batch, scratch};
use super::ints;
use plimsoll_ir::program::Call;
use plimsoll_ir::{Bytes, Float};

/// A call, ready to be enqueued.
pub(super) struct Attention {
    pub(super) steps: Vec<Step>,
    /// Where cuBLAS's scratch starts, and its bytes.
    pub(super) of_cublas: (u64, Bytes),
}

impl Attention {
    /// None for other calls, on feature maps that are not f32, and where cuBLAS does not count as far.
    pub(super) fn of(call: &Call, float: Float, most: u64) -> Option<Attention> {
        let (steps, own) = steps(call).filter(|_| float == Float::F32)?;
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

    /// All the scratch that it needs.
    pub(super) fn workspace(&self) -> Bytes {
        self.of_cublas.1 + Bytes(self.of_cublas.0)
    }
}

/// Calls `go` with each batch of a product, and the addresses of its first matrices: a member of each of those groups that one
/// sample has.
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
            // `Attention::of` has seen that there is one.
            let Some(batch) = batch(product, member, count) else { continue };
            // By columns a product of ours is that of the other sides, transposed.
            go(&batch, [at(&product.b), at(&product.a), at(&product.c)])?;
        }
        first += count;
    }
    Ok(())
}

/// So many products of one member each; none where a length is more than cuBLAS counts.
///
/// By rows c = a b; by columns, where a matrix of ours is its own transpose, c = b a.
fn batch(product: &Product, member: u64, count: u64) -> Option<Batch> {
    let [rows, columns, depth] = product.sides;
    let Product { a, b, c, .. } = product;
    // From row to row where columns are side by side; where rows are, the matrix is given as transposed.
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

    /// The batches of all products of a call whose operands lie at 1000, 2000, ... and whose scratch at 0, in floats.
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
            // Keys, queries, scores: a member after the other, a sample after the other.
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
        // What the members of a group share, the second adds to what the first gave.
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
