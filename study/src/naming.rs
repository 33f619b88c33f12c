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
use crate::request::{TrainRequest, TuneOptions, defaults};
use plimsoll_ir::checksum::Checksum;
use plimsoll_ir::{Bytes, Precision};
use plimsoll_runtime::HostMemory;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Directory of studies with default names.
const STUDIES: &str = "studies";

/// Digits of the checksum in a name.
const DIGITS: usize = 6;

/// Returns the default folder for a task with these options.
///
/// # Errors
///
/// Options contradict each other, the budget exceeds the device's memory, or the device's name cannot be read.
pub fn folder(task: &NetworkWorkload, tune: &TuneOptions, train: &TrainRequest) -> Result<PathBuf, Error> {
    let budget = tune.search.budget.map(|given| task.budget(Some(given))).transpose()?;
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
    let usual = options(&defaults(), &defaults())?;
    decides.extend(options(tune, train)?.into_iter().filter(|option| !usual.contains(option)));
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

/// Returns the options that affect the result, with their values: every field of the requests that is not skipped.
fn options(tune: &TuneOptions, train: &TrainRequest) -> Result<Vec<String>, Error> {
    let request = tune.request(Bytes::ZERO, String::new())?;
    let weights =
        train.weights.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    let settings = train.update(tune.task.optimizer)?.in_words();
    let others = json!({"host memory": tune.search.host_memory, "weights": format!("{weights:?}")});
    let of_fields = [json!(request), json!(train), others].into_iter().flat_map(|fields| match fields {
        Value::Object(fields) => fields,
        _ => unreachable!("they are structs"),
    });
    let of_fields = of_fields.map(|(name, value)| format!("{name} {value}"));
    Ok(of_fields.chain(settings.into_iter().map(|(what, value)| format!("{what} {value}"))).collect())
}

/// Returns a name that is fit for a folder.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::StudyOptions;
    use crate::watch::Watch;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tune: TuneOptions,
        #[command(flatten)]
        train: TrainRequest,
        #[command(flatten)]
        study: StudyOptions,
    }

    /// Returns the name that options give their study.
    fn named(options: &str) -> String {
        let Line { tune, train, study } =
            Line::parse_from(["plimsoll"].into_iter().chain(options.split_whitespace()));
        let task = tune.task.open(plimsoll_runtime::Hurry::default(), &Watch::silent()).expect("a task");
        let study = tune.study(&task, &study, &train).expect("a name");
        let folder = study.folder().display().to_string();
        folder.strip_prefix("studies/").unwrap_or_else(|| panic!("{folder}")).to_owned()
    }

    #[test]
    fn a_device_has_a_name_that_is_fit_for_a_folder() {
        assert_eq!(plain("NVIDIA H200 (MIG 1g.18gb)"), "nvidia-h200-mig-1g-18gb");
        assert_eq!(plain("../cpu"), "cpu");
    }

    #[test]
    fn what_decides_has_a_name_of_its_own_and_what_does_not_has_not() {
        let usual = "--network mlp --threads 1";
        let all = [
            "",
            "--budget 40MiB",
            "--budget 60MiB",
            "--link 12GB/s",
            "--link 13GB/s",
            "--link 12GB/s --duplex half",
            "--image 8 --channels 1 --classes 11",
            "--data synthetic --image 8 --channels 1",
            "--data synthetic:40 --image 8 --channels 1",
            "--host file:slab",
            "--precision bf16",
            "--host-memory 1GiB",
            "--search accudnn",
            "--objective fastest",
            "--min-batch 8",
            "--max-batch 64",
            "--base-batch 64",
            "--base-rate 0.1",
            "--rate-rule linear",
            "--convexity 0.5",
            "--decay constant",
            "--momentum 0.8",
            "--weights a.safetensors",
            "--weights b.safetensors",
            "--weight-decay 0",
            "--optimizer adamw",
            "--optimizer adamw --beta1 0.8",
            "--optimizer adamw --beta2 0.99",
            "--optimizer adamw --epsilon 1e-6",
            "--optimizer adamw --weight-decay 0.1",
            "--optimizer adamw --base-rate 0.05",
            "--optimizer adamw --rate-rule linear",
            "--seed 2",
            "--workers 2 --interconnect 1Gbit/s",
            "--workers 2 --interconnect 1Gbit/s --nccl",
        ];
        let mut names: Vec<String> = all.iter().map(|more| named(&format!("{usual} {more}"))).collect();
        let modelled =
            ["h100", "k40", "h100 --precision f32", "h100 --precision tf32", "h100 --precision bf16"];
        names.extend(modelled.iter().map(|device| named(&format!("--network mlp --device {device}"))));
        let readable = |at: usize, words: &str| {
            let (said, digits) = names[at].rsplit_once('-').expect("words and digits");
            assert_eq!((said, digits.len()), (words, 6));
        };
        readable(0, "mlp-digits-cpu");
        readable(1, "mlp-digits-cpu-40MiB");
        readable(7, "mlp-synthetic-cpu");
        readable(all.len(), "mlp-digits-h100");
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name} is of two lines, one of them {:?}", all.get(at));
        }
        for (line, same) in [
            ("--epochs 200", 0),
            ("--save-every 5min", 0),
            ("--fresh", 0),
            ("--min-batch 32", 0),
            ("--rate-rule accudnn --base-rate 0.05 --optimizer sgd --momentum 0.9", 0),
            ("--seed 1 --decay cosine --data digits", 0),
            ("--budget 41943040B", 1),
            ("--link 12000MB/s", 3),
        ] {
            assert_eq!(named(&format!("{usual} {line}")), names[same], "{line}");
        }
    }
}
