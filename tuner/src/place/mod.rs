//! From a placement to a schedule: addresses, commands with only the waits that validity needs, and the attempts until it fits.

pub mod address;
pub mod lower;
pub(crate) mod realise;
