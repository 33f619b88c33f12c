//! Product of two matrices on one thread, and scratch memory of lanes.

use super::vector::Ptr;

/// A matrix in memory: its address, and the distance in elements to the next row and column.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub at: Ptr<f32>,
    pub row: usize,
    pub column: usize,
}

impl Matrix {
    /// Consecutive rows, `width` apart.
    pub fn rows(at: Ptr<f32>, width: usize) -> Matrix {
        Matrix { at, row: width, column: 1 }
    }

    /// Swaps rows and columns.
    pub fn transposed(self) -> Matrix {
        Matrix { row: self.column, column: self.row, ..self }
    }
}

/// c = a * b, or c += a * b; c is m x n, a is m x k.
///
/// # Safety
/// Live matrices of these sizes; nothing else touches c, which overlaps neither a nor b.
pub(super) unsafe fn product(add: bool, [m, n, k]: [usize; 3], c: Matrix, a: Matrix, b: Matrix) {
    let [c_row, c_column, a_row, a_column, b_row, b_column] =
        [c.row, c.column, a.row, a.column, b.row, b.column].map(|n| n as isize);
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.at.0,
            c_column,
            c_row,
            add,
            a.at.0,
            a_column,
            a_row,
            b.at.0,
            b_column,
            b_row,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Floats of one lane's block, rounded up so that the next lane's is aligned.
pub(super) fn lane_floats(floats: usize) -> usize {
    floats.next_multiple_of(super::ALIGNMENT / 4)
}
