//! The zoo of networks, and the lowering of a network to one training iteration.
//!
//! [`build`] makes a [`Network`](plimsoll_ir::network::Network) from its name, [`Builder`] from its layers; [`lower()`] makes
//! from it, at a batch size, the program that the runtime runs and the trace that the tuner plans. Everything here is plain
//! computation on shapes: the same input gives the same output, on any machine.
//!
//! ```
//! use plimsoll_networks::{LowerOptions, build, lower, usual};
//!
//! let network = build(&usual("resnet50").unwrap()).unwrap();
//! assert_eq!(network.all_parameters(), 25_557_032);
//! let program = lower(&network, 32, &LowerOptions::default()).unwrap();
//! let (op, peak) = program.trace.memory().peak().unwrap();
//! let op = &program.trace.ops[op.index()].name;
//! assert_eq!(format!("{peak} during {op}"), "2.723 GiB during layer4.2.bn3.backward");
//! ```
//!
//! The crate deliberately does not know a device, a duration or an address of the pool.
#![forbid(unsafe_code)]

mod builder;
mod error;
mod layers;
mod lower;
mod walk;
mod weights;
mod zoo;

pub use builder::Builder;
pub use error::NetworkError;
pub use lower::lower;
pub use walk::{LowerOptions, Mode, ReluStorage};
pub use weights::{FileTensor, file_tensors};
pub use zoo::{Entry, build, entries, nearest, usual};
