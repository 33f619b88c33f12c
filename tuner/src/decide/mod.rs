//! From decisions to a placement: the consequences of decisions, and the time of the iteration. Nothing here chooses, and nothing
//! has an address.
//!
//! [`gaps`] has the decisions of policies that only swap, [`walk`](mod@walk) derives the consequences of decisions of any kind;
//! [`windows`] times both, and [`placement`] states the result as data.

pub mod gaps;
pub mod placement;
pub mod walk;
pub mod windows;
