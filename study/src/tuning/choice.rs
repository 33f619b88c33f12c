//! The choice that a study holds: its files are written together, and reused if they were made for the same workload.

use super::Tuned;
use crate::error::Error;
use crate::folder::{Held, Study};
use crate::measure::{exact, in_words};
use crate::request::{ClusterRequest, RateRequest, TuneRequest};
use crate::workload::Workload;
use plimsoll_ir::Document;
use plimsoll_ir::config::{Config, LearningRate, LearningRateRule};
use plimsoll_ir::exchange::Interconnect;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_tuner::model::Model;

/// Writes profile (including samples from refits), fitted model, record of the tuning, schedule and config to the
/// study, together.
pub fn keep(study: &Study, held: &Held, tuned: &Tuned, profile: &Profile) -> Result<(), Error> {
    let model = Model::fit(profile)?;
    let model = serde_json::to_string_pretty(&model).expect("numbers and names can be written");
    let texts = [
        (study.profile(), profile.to_json()),
        (study.model(), model + "\n"),
        (study.trace(), tuned.trace.to_json()),
        (study.schedule(), tuned.schedule.to_json()),
        (study.tuning(), tuned.tuning.to_json()),
        (study.config(), tuned.config.to_json()),
    ];
    study.put_together(held, &texts.map(|(path, text)| (path, text.into_bytes())))
}

/// Returns the study's choice, if it was made for this workload.
pub fn earlier(
    study: &Study,
    workload: &dyn Workload,
    request: &TuneRequest,
) -> Result<Option<(Config, Schedule)>, Error> {
    if !study.config().exists() {
        return Ok(None);
    }
    let (config, schedule) = study.chosen()?;
    let LearningRate { rule, base_batch, base_rate, rate: _, warmup_iterations: _ } = config.learning_rate;
    let chosen_by = RateRequest { base_batch, base_rate, rule };
    let rate_of = |RateRequest { base_batch, base_rate, rule }| {
        let rule = match rule {
            LearningRateRule::Linear => "linear".to_owned(),
            LearningRateRule::SquareRoot => "square root".to_owned(),
            LearningRateRule::Accudnn { convexity } => format!("AccUDNN eq. (9), c = {convexity}"),
        };
        format!("{rule}, from {base_rate} at batch {base_batch}")
    };
    let device = |name: &str, threads: u32| format!("{name} with {threads} threads");
    let pace = |link: Option<Link>| {
        link.map_or("as fast as it goes".to_owned(), |l| {
            let (out, back) = (l.offload_bytes_per_second.0, l.prefetch_bytes_per_second.0);
            format!("{out} B/s out, {back} B/s back, {:?} duplex, {} each", l.duplex, l.latency_seconds)
        })
    };
    let kernels = |deterministic| if deterministic { "one for each op" } else { "any" }.to_owned();
    // A choice is valid for any host with enough memory for it.
    let swapped = schedule.host_bytes(&workload.trace(config.batch)?);
    let fits = workload.host_limit().is_none_or(|limit| swapped <= limit);
    let host = workload.host_limit().filter(|_| !fits).unwrap_or(swapped);
    let limit = request.limit(workload)?;
    let about = workload.about()?;
    let data = about.data.unwrap_or_default();
    let (least, batch) = (request.min_batch, config.batch);
    let batches =
        if (least..=limit).contains(&batch) { batch.to_string() } else { format!("{least} to {limit}") };
    let workers = |shared: Option<(u64, Interconnect, u64)>| {
        shared.map_or("one".to_owned(), |(workers, interconnect, global)| {
            format!("{workers} over {interconnect}, {global} samples in an update")
        })
    };
    let chosen_for = config.cluster.map(|c| (c.workers, c.interconnect, c.global_batch));
    // By goodput, the size of an update is part of the choice.
    let chosen_update = config.cluster.filter(|_| request.goodput.is_some()).map(|c| c.global_batch);
    let update_of = |cluster: ClusterRequest| chosen_update.unwrap_or(cluster.update_of(batch));
    let asked_for = request.cluster.map(|c| (c.workers, c.interconnect, update_of(c)));
    let goodput = |noise: Option<f64>| {
        noise
            .map_or("the time of an epoch".to_owned(), |noise| format!("goodput at a noise scale of {noise}"))
    };
    let compared = [
        ("network", in_words(&config.network), in_words(&about.network)),
        // A config of an older version does not name its data.
        ("data", config.data.clone().unwrap_or_else(|| data.clone()), data),
        ("device", device(&config.device, config.threads), device(&about.device, about.threads)),
        // An unspecified budget follows from the network and the device.
        ("budget", exact(config.budget_bytes), exact(request.budget)),
        ("host memory", exact(swapped), exact(host)),
        ("pace of the link", pace(config.paced), pace(about.paced)),
        ("choice of kernels", kernels(config.deterministic), kernels(about.deterministic)),
        // In older versions, the name of a modelled device states its precision.
        (
            "precision",
            config.arithmetic().unwrap_or(about.precision).to_string(),
            about.precision.to_string(),
        ),
        ("optimizer", config.optimizer.to_string(), about.optimizer.to_string()),
        ("search", config.policy.clone(), request.policy().to_string()),
        ("workers", workers(chosen_for), workers(asked_for)),
        (
            "goal",
            goodput(config.goodput.map(|goodput| goodput.noise_scale)),
            goodput(request.goodput.map(|goodput| goodput.noise_scale)),
        ),
        ("batch", batch.to_string(), batches),
        ("learning rate", rate_of(chosen_by), rate_of(request.rate)),
    ];
    study.is_of("the choice for", &compared)?;
    Ok(Some((config, schedule)))
}
