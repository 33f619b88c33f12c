//! Execution of schedules: the interface to a machine, the devices that implement it, the executor and the trainer.
//!
//! A [`plimsoll_ir::schedule::Schedule`] that was proved valid is turned once into the commands of three streams
//! ([`Executor`]), which every iteration enqueues on a [`Device`]. The [`Trainer`] feeds it batches, and saves and resumes
//! [`Checkpoint`]s; several trainers are the workers of one training behind a [`Group`]. This crate decides nothing, and
//! allocates no device memory once an iteration has started. It is the only crate of this repository with `unsafe` code, all
//! of it in `cpu/`, `cuda/`, `group/mpi/table.rs`, [`limits`] and one cast of [`data`].

pub mod checkpoint;
pub mod cpu;
pub mod cuda;
pub mod data;
mod device;
mod error;
mod executor;
pub mod group;
mod host;
pub mod limits;
mod null;
mod rate;
mod state;
mod trainer;
mod training_plan;
mod waits;

pub use checkpoint::Checkpoint;
pub use cpu::{Cpu, CpuOptions, HostMemory, Hurry};
pub use cuda::{CudaDevice, CudaOptions};
pub use device::{
    Begun, Collective, Device, DeviceFacts, EventId, IterationId, Launch, MemoryLayout, Room, Transfer,
};
pub use error::{Error, Instead, Kind, MemoryKind};
pub use executor::{Executor, Loaded, Whole};
pub use group::{Group, GroupError, GroupFacts};
pub use host::{HostSlab, host_slab};
pub use null::Null;
pub use rate::{Decay, LearningRateSchedule};
pub use state::state_bytes;
pub use trainer::{Evaluation, Observation, Outcome, Trainer, Weights};
pub use training_plan::TrainingPlan;
