//! Conversions between kinds of numbers that the standard library lacks, one for each kind. Between bytes and real numbers:
//! [`Bytes::to_f64`](plimsoll_ir::Bytes::to_f64) and [`Bytes::share`](plimsoll_ir::Bytes::share).

/// Returns a count of items in memory, as wide as counts of bytes and looks. No `usize` is wider than 64 bits.
pub(crate) const fn counted(count: usize) -> u64 {
    count as u64
}

/// Returns a count of items in memory as a real number. Exact: there are fewer than 2^53.
pub(crate) const fn real(count: usize) -> f64 {
    count as f64
}
