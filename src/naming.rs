//! The folder of a study that nobody named: `studies/<network>-<data>-<device>[-<budget>]-<digits>`.
//!
//! The digits are a checksum of all that decides what is chosen and trained. So another budget, device, link or learning rate
//! has a study of its own, and the same command finds its own again, from whatever machine state: only what the line says counts, and
//! which device it is. Options at their defaults are left out of the checksum, so that an option which a later version adds
//! changes no name.
//!
//! What is deliberately left out: how long is trained (`--epochs`), since a study's training can go on, and how often it is saved.

use crate::args::{RateArgs, SearchArgs, StudyArgs, TrainArgs, defaults};
use crate::failure::Failure;
use crate::study::Study;
use crate::task::{Setup, Task};
use crate::tuning::{least, rule_of};
use crate::verbs::profile::in_words;
use plimsoll_ir::checksum::Checksum;
use plimsoll_runtime::HostMemory;
use std::path::PathBuf;

/// Where studies that nobody named lie.
const STUDIES: &str = "studies";

/// Digits of the checksum in a name.
const DIGITS: usize = 6;

/// The study of a task with these options, which need not be there: the one that is named, else the task's own.
pub fn study(
    task: &Task,
    args: &StudyArgs,
    search: &SearchArgs,
    rate: &RateArgs,
    train: &TrainArgs,
) -> Result<Study, Failure> {
    let named = args.study.as_ref().map(|folder| Ok(folder.clone()));
    Ok(Study::at(&named.unwrap_or_else(|| folder(task, search, rate, train))?))
}

/// The folder for a task that is tuned and trained with these options.
pub fn folder(
    task: &Task,
    search: &SearchArgs,
    rate: &RateArgs,
    train: &TrainArgs,
) -> Result<PathBuf, Failure> {
    let budget = search.budget.map(|given| task.budget(Some(given))).transpose()?;
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
    let usual = options(&defaults(), &defaults(), &defaults());
    decides.extend(options(search, rate, train).into_iter().filter(|option| !usual.contains(option)));
    let digits = Checksum::of(decides.join("\n").as_bytes()).to_string();
    words.push(digits[..DIGITS].to_owned());
    Ok(PathBuf::from(STUDIES).join(words.join("-")))
}

/// What a device is and how it is set up, its name first.
fn device(setup: &Setup) -> Result<Vec<String>, Failure> {
    let said = |what: &str, is: bool| is.then(|| what.to_owned());
    Ok(match setup {
        Setup::Cpu(options) => {
            let threads = format!("{} threads", options.threads);
            let link = options.link.map(|link| format!("{link:?}"));
            let host = match &options.host {
                HostMemory::Anonymous => None,
                HostMemory::File(path) => Some(format!("host {}", path.display())),
            };
            ["cpu".to_owned(), threads].into_iter().chain(link).chain(host).collect()
        }
        Setup::Cuda(gpu) => {
            let kernels = gpu.kernels();
            let graphs = said("no graph", !gpu.graphs());
            [setup.facts()?.name, format!("{kernels:?}")].into_iter().chain(graphs).collect()
        }
        Setup::Modelled(device) => {
            [device.sheet.name.to_owned()].into_iter().chain(said("TF32", device.tf32)).collect()
        }
    })
}

/// The options that decide, each with its value. A new option has to be taken in or left out here.
fn options(search: &SearchArgs, rate: &RateArgs, train: &TrainArgs) -> Vec<String> {
    let SearchArgs { budget: _, host_memory, search: whose, objective, min_batch: _, max_batch } = search;
    let RateArgs { base_batch, base_rate, rate_rule: _, convexity: _ } = rate;
    let TrainArgs { epochs: _, save_every: _, decay, momentum, weight_decay, seed } = train;
    vec![
        format!("host memory {host_memory:?}"),
        format!("search {whose:?}"),
        format!("objective {objective:?}"),
        format!("least batch {}", least(search, rate)),
        format!("largest batch {max_batch:?}"),
        format!("base batch {base_batch}"),
        format!("base rate {base_rate}"),
        format!("rate rule {:?}", rule_of(rate)),
        format!("decay {decay:?}"),
        format!("momentum {momentum}"),
        format!("weight decay {weight_decay}"),
        format!("seed {seed}"),
    ]
}

/// A name that is fit for a folder.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    /// The name that a line of `auto` or `tune` gives its study.
    fn named(line: &str) -> String {
        let words = ["plimsoll"].into_iter().chain(line.split_whitespace());
        let folder = match Cli::parse_from(words).verb {
            Verb::Auto(args) => {
                let setup = Setup::new(&args.device).expect("a device");
                let task = Task::new(&args.network, &args.data, setup).expect("a task");
                folder(&task, &args.search, &args.rate, &args.train)
            }
            Verb::Tune(args) => {
                let setup = Setup::new(&args.device).expect("a device");
                let task = Task::new(&args.network, &args.data, setup).expect("a task");
                folder(&task, &args.search, &args.rate, &defaults())
            }
            other => panic!("{other:?}"),
        };
        let folder = folder.expect("a name").display().to_string();
        folder.strip_prefix("studies/").unwrap_or_else(|| panic!("{folder}")).to_owned()
    }

    #[test]
    fn what_decides_has_a_name_of_its_own_and_what_does_not_has_not() {
        let usual = "auto --network mlp --threads 1";
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
            "--weight-decay 0",
            "--seed 2",
        ];
        let mut names: Vec<String> = all.iter().map(|more| named(&format!("{usual} {more}"))).collect();
        let modelled = ["h100", "k40", "h100 --tf32"];
        names.extend(modelled.iter().map(|device| named(&format!("auto --network mlp --device {device}"))));
        let readable = |at: usize, words: &str| {
            let (said, digits) = names[at].rsplit_once('-').expect("words and digits");
            assert_eq!((said, digits.len()), (words, DIGITS));
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
            ("--rate-rule accudnn", 0),
            ("--seed 1 --decay cosine --data digits", 0),
            ("--budget 41943040B", 1),
            ("--link 12000MB/s", 3),
        ] {
            assert_eq!(named(&format!("{usual} {line}")), names[same], "{line}");
        }
        assert_eq!(named(&usual.replace("auto", "tune")), names[0]);
    }

    #[test]
    fn a_device_has_a_name_that_is_fit_for_a_folder() {
        assert_eq!(plain("NVIDIA H200 (MIG 1g.18gb)"), "nvidia-h200-mig-1g-18gb");
        assert_eq!(plain("../cpu"), "cpu");
    }
}
