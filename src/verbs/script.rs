//! `auto SCRIPT`: plans the training step of a Python script. This file reads the request; the program of the Python
//! package, which has an interpreter, runs the script.

use crate::args::AutoArgs;
use crate::output::Format;
use plimsoll_ir::BytesPerSecond;
use plimsoll_ir::units::Size;
use plimsoll_study::{Error, Study};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Default folder of reports.
const STUDIES: &str = "studies";

/// A script to run, with replacements for the arguments of its calls of `plimsoll.tune`.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
    /// Budget; a fraction refers to the memory of eager execution.
    pub budget: Option<Size>,
    /// Rate of the link, each way.
    pub link: Option<BytesPerSecond>,
    /// Folder for the reports, which may not exist yet.
    pub folder: PathBuf,
    /// `true` if only results and errors are shown.
    pub quiet: bool,
}

impl Script {
    /// Script that the options of `auto` name; `None` if they name a network.
    pub fn asked(args: &AutoArgs, format: Format, quiet: bool) -> Result<Option<Script>, Error> {
        let Some(path) = &args.script else { return Ok(None) };
        let name = path.display();
        if path.extension().is_none_or(|extension| extension != "py") {
            let message = format!("{name} is no Python script: its name does not end in .py");
            return Err(Error::usage(message).help("a network is named with --network"));
        }
        std::fs::File::open(path).map_err(|error| Error::io(path, "read", &error))?;
        if format != Format::Table {
            let message = format!("{name} prints what it prints: --format is for the other commands");
            return Err(Error::usage(message).help("leave it out"));
        }
        let stem = path.file_stem().unwrap_or_default();
        let folder = args.study.study.clone().unwrap_or_else(|| Path::new(STUDIES).join(stem));
        let study = Study::at(&folder);
        if let Some(there) = [study.profile(), study.config()].into_iter().find(|file| file.exists()) {
            let message =
                format!("{} is the study of a network: it holds {}", folder.display(), there.display());
            return Err(Error::usage(message).help("name another folder with --study"));
        }
        Ok(Some(Script {
            path: path.clone(),
            arguments: args.script_arguments.clone(),
            budget: args.tune.search.budget,
            link: args.tune.task.device.link,
            folder,
            quiet,
        }))
    }

    /// Error of a program that cannot run Python.
    pub fn needs_python(&self) -> Error {
        let message = format!("{} is a Python script, which this program does not run", self.path.display());
        Error::usage(message).help(
            "install the Python package beside your PyTorch (`pip install ./python` in Plimsoll's repository): its program \
             `plimsoll` does",
        )
    }
}
