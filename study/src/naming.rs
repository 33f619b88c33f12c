//! Default name of a study's folder: `studies/<network>-<data>-<device>[-<budget>]-<digits>`.
//!
//! The digits are a checksum of everything that affects the choice and the training. So a different budget, device, link or
//! learning rate gets a different study, and the same command finds its study again, whatever the machine's state: only the
//! command line and the device count. Options at their defaults are left out of the checksum, so that an option added by a
//! later version changes no name.
//!
//! The name deliberately leaves out the length of training (`--epochs`), since a study's training can continue, and how often
//! it is saved.

use crate::device::Setup;
use crate::error::Error;
use crate::measure::in_words;
use crate::network_workload::NetworkWorkload;
use crate::request::{ClusterRequest, Objective, RateRequest, Searcher, TrainRequest};
use plimsoll_ir::checksum::Checksum;
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, Precision};
use plimsoll_runtime::HostMemory;
use std::path::PathBuf;

/// Directory of studies with default names.
const STUDIES: &str = "studies";

/// Digits of the checksum in a name.
const DIGITS: usize = 6;

/// The parts of a request that affect the choice and the training, besides network, data and device.
#[derive(Clone, Debug)]
pub struct Decides {
    /// Memory budget of the device, if given.
    pub budget: Option<Size>,
    /// Host memory limit for swapped tensors, if given.
    pub host_memory: Option<Bytes>,
    /// Search that chooses the batch.
    pub search: Searcher,
    /// Goal of the search.
    pub objective: Objective,
    /// Smallest batch to consider.
    pub min_batch: u64,
    /// Largest batch to consider.
    pub max_batch: Option<u64>,
    /// Workers that the batch is for; `None` for a single worker.
    pub cluster: Option<ClusterRequest>,
    /// Relation of the learning rate to the batch.
    pub rate: RateRequest,
    /// Settings of the training.
    pub train: TrainRequest,
}

/// Returns the default folder for a task with this request; `usual` is a request without options.
///
/// # Errors
///
/// The budget exceeds the device's memory, or the device's name cannot be read.
pub fn folder(task: &NetworkWorkload, request: &Decides, usual: &Decides) -> Result<PathBuf, Error> {
    let budget = request.budget.map(|given| task.budget(Some(given))).transpose()?;
    let source = task.source.as_ref();
    let device = device(&task.setup)?;
    let mut words = vec![task.network.spec.name.clone()];
    words.extend(source.map(|source| source.kind().to_owned()));
    words.push(plain(&device[0]));
    words.extend(budget.map(|budget| budget.to_string().replace(' ', "")));
    let mut decides = vec![in_words(&task.network.spec)];
    decides.extend(source.map(|source| format!("data {source}")));
    decides.extend(device);
    decides.extend(budget.map(|budget| format!("budget {}", budget.0)));
    let usual = options(usual);
    decides.extend(options(request).into_iter().filter(|option| !usual.contains(option)));
    let digits = Checksum::of(decides.join("\n").as_bytes()).to_string();
    words.push(digits[..DIGITS].to_owned());
    Ok(PathBuf::from(STUDIES).join(words.join("-")))
}

/// Returns the device's name, followed by its settings.
fn device(setup: &Setup) -> Result<Vec<String>, Error> {
    let said = |what: &str, is: bool| is.then(|| what.to_owned());
    Ok(match setup {
        Setup::Cpu(options) => {
            let threads = format!("{} threads", options.threads);
            let link = options.link.map(|link| format!("{link:?}"));
            let host = match &options.host {
                HostMemory::Anonymous => None,
                HostMemory::File(path) => Some(format!("host {}", path.display())),
            };
            let precision = setup.precision();
            let other = said(&precision.to_string(), precision != Precision::F32);
            ["cpu".to_owned(), threads].into_iter().chain(link).chain(host).chain(other).collect()
        }
        Setup::Cuda(gpu) => {
            let deterministic = said("deterministic", gpu.is_deterministic());
            let graphs = said("no graph", !gpu.graphs());
            let words = [setup.facts()?.name, setup.precision().to_string()];
            words.into_iter().chain(deterministic).chain(graphs).collect()
        }
        Setup::Modelled(device) => {
            let precision = device.precision;
            let other = said(&precision.to_string(), precision != Precision::F32);
            [device.sheet.name.to_owned()].into_iter().chain(other).collect()
        }
    })
}

/// Returns the options that affect the result, with their values. Each new field of a request must be taken in or left out
/// here.
fn options(request: &Decides) -> Vec<String> {
    let Decides { budget: _, host_memory, search, objective, min_batch, max_batch, cluster, rate, train } =
        request;
    let RateRequest { base_batch, base_rate, rule } = rate;
    // `workers` is left out: any number of workers uses the same study.
    let TrainRequest {
        epochs: _,
        save_every: _,
        fresh: _,
        timed: _,
        workers: _,
        per_draw: _,
        decay,
        update,
        weights,
        seed,
    } = train;
    let settings = update.in_words().into_iter().map(|(what, value)| format!("{what} {value}"));
    let of_choice = [
        format!("host memory {host_memory:?}"),
        format!("search {search:?}"),
        format!("objective {objective:?}"),
        format!("least batch {min_batch}"),
        format!("largest batch {max_batch:?}"),
        format!("cluster {cluster:?}"),
        format!("base batch {base_batch}"),
        format!("base rate {base_rate}"),
        format!("rate rule {rule:?}"),
        format!("decay {decay:?}"),
    ];
    of_choice
        .into_iter()
        .chain(settings)
        .chain([format!("seed {seed}"), format!("weights {weights:?}")])
        .collect()
}

/// Returns a name that is fit for a folder.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_a_name_that_is_fit_for_a_folder() {
        assert_eq!(plain("NVIDIA H200 (MIG 1g.18gb)"), "nvidia-h200-mig-1g-18gb");
        assert_eq!(plain("../cpu"), "cpu");
    }
}
