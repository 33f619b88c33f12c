//! Verbs of the command line, one file each: options in, tables out. `plan` and `compare` share `planning`.

pub mod auto;
pub mod check;
pub mod compare;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod export;
pub mod networks;
pub mod plan;
pub mod planning;
pub mod profile;
pub mod report;
pub mod run;
pub mod script;
pub mod shell;
pub mod simulate;
pub mod trace;
pub mod tune;
pub mod verify;
