//! The conversions between kinds of numbers that no standard conversion makes, one for each kind. Between bytes and real
//! numbers: [`Bytes::to_f64`](plimsoll_ir::Bytes::to_f64) and [`Bytes::share`](plimsoll_ir::Bytes::share).

/// A count of things in memory as wide as counts of bytes and looks. No `usize` is wider than 64 bits.
pub(crate) const fn counted(count: usize) -> u64 {
    count as u64
}

/// A count of things in memory as a real number. Exact: there are fewer than 2^53.
pub(crate) const fn real(count: usize) -> f64 {
    count as f64
}
