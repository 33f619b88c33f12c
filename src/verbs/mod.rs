//! The verbs of the command line, one file each: options in, tables out.

pub mod auto;
pub mod check;
pub mod compare;
pub mod doctor;
pub mod networks;
pub mod plan;
pub mod profile;
pub mod run;
pub mod simulate;
pub mod trace;
pub mod tune;
pub mod verify;
