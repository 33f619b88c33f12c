//! The folder of a study that nobody named: `studies/<network>-<data>-<device>[-<budget>]-<digits>`.
//!
//! The digits are a checksum of all that decides what is chosen and trained. So another budget, device, link or learning rate
//! has a study of its own, and the same command finds its own again, from whatever machine state: only what the line says
//! counts, and which device it is. Options at their defaults are left out of the checksum, so that an option which a later
//! version adds changes no name.
//!
//! What is deliberately left out: how long is trained (`--epochs`), since a study's training can go on, and how often it is
//! saved.

use crate::device::Setup;
use crate::error::Error;
use crate::measure::in_words;
use crate::network_workload::NetworkWorkload;
use crate::request::{ClusterRequest, GoodputRequest, Objective, RateRequest, Searcher, TrainRequest};
use plimsoll_ir::checksum::Checksum;
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, Precision};
use plimsoll_runtime::HostMemory;
use std::path::PathBuf;

/// Where studies that nobody named lie.
const STUDIES: &str = "studies";

/// Digits of the checksum in a name.
const DIGITS: usize = 6;

/// What a request says that decides what is chosen and trained, besides network, data and device.
#[derive(Clone, Debug)]
pub struct Decides {
    /// What the device may hold, where that is said.
    pub budget: Option<Size>,
    /// What swapped tensors may take of the host's memory, where that is said.
    pub host_memory: Option<Bytes>,
    /// Whose search chooses.
    pub search: Searcher,
    /// What the search is for.
    pub objective: Objective,
    /// No batch smaller than this.
    pub min_batch: u64,
    /// No batch larger than this.
    pub max_batch: Option<u64>,
    /// The workers that the batch is for; none for one alone.
    pub cluster: Option<ClusterRequest>,
    /// The noise scale by which samples of an update count.
    pub goodput: Option<GoodputRequest>,
    /// How the learning rate follows the batch.
    pub rate: RateRequest,
    /// How to train.
    pub train: TrainRequest,
}

/// The folder of a study that nobody named: of a task with this request, where `usual` is a request without options.
///
/// # Errors
///
/// The budget is above the device's memory, or the device cannot be asked for its name.
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

/// What a device is and how it is set up, its name first.
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

/// What decides, each with its value. A new field of a request has to be taken in or left out here.
fn options(request: &Decides) -> Vec<String> {
    let Decides {
        budget: _,
        host_memory,
        search,
        objective,
        min_batch,
        max_batch,
        cluster,
        goodput,
        rate,
        train,
    } = request;
    let RateRequest { base_batch, base_rate, rule } = rate;
    // The workers are no option of what is tuned and trained in one.
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
        format!("goodput {goodput:?}"),
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

/// A name that is fit for a folder.
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
