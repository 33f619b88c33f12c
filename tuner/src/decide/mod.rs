//! From decisions to a placement: what follows from them, and how long it takes. Nothing here chooses, and nothing has an
//! address.
//!
//! [`gaps`] are the decisions of policies that only swap, [`walk`](mod@walk) what follows from decisions of any kind;
//! [`windows`] times both, and [`placement`] states the result as data.

pub mod gaps;
pub mod placement;
pub mod walk;
pub mod windows;
