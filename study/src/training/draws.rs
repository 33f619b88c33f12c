//! Iterations of single draws of stochastic depth: the part of the network that a draw keeps, under the study's plan cut to it.
//!
//! A draw's plan uses the study's pool, and at most as much host memory. If a draw cannot be lowered separately, or has no plan
//! within that memory, its iteration runs by the study's plan, which serves every draw.
//!
//! This file deliberately does not search. A cut takes milliseconds, and it has to be made during the previous iteration.

use crate::documents;
use crate::error::{Error, Kind};
use crate::folder::Study;
use crate::network_workload::NetworkWorkload;
use crate::training::of_iteration;
use plimsoll_ir::Seconds;
use plimsoll_ir::config::Config;
use plimsoll_ir::network::{DropUnit, LayerKind};
use plimsoll_ir::program::{Call, Program};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::{Op, Tensor, Trace};
use plimsoll_networks::{Draw, LowerOptions, Mode, ReluStorage, lower};
use plimsoll_runtime::{Device, Drawn, Draws};
use plimsoll_tuner::{Allow, Earlier, Limits, Outcome, PlanRequest, Policy, plan};
use std::collections::HashMap;

/// Returns a maker of the iterations of a training with this seed.
pub(super) fn draws(
    task: &NetworkWorkload,
    (config, schedule): (&Config, &Schedule),
    seed: u64,
    study: &Study,
) -> Result<Draws, Error> {
    let is_drawn = |kind: &LayerKind| matches!(kind, LayerKind::Dropout { unit: DropUnit::Batch, .. });
    if !task.network.layers.iter().any(|layer| is_drawn(&layer.kind)) {
        let network = &task.network.spec.name;
        let message = format!("`{network}` drops no branches, so it has no draws of stochastic depth");
        return Err(Error::usage(message)
            .help("leave --per-draw out, or tune a network with stochastic depth such as resnet-sd110"));
    }
    let known: Trace = documents::read(&study.trace())?;
    let for_all = task.program(config.batch, Mode::Train)?;
    // The times of a different iteration are no guide.
    of_iteration(&Program { trace: known.clone(), ..for_all }, config, schedule, study)?;
    let earlier = Earlier::new(&known, schedule).map_err(|error| Error::new(Kind::Internal, error))?;
    let times = Times::of(&known);
    let budget = known.resident_bytes + schedule.pool_bytes;
    let allow = Allow { host: Some(schedule.host_bytes(&known)), ..Allow::ALL };
    let (network, batch, link) = (task.network.clone(), config.batch, schedule.link);
    let (feature_maps, fuse) = (task.setup.precision().feature_maps(), task.setup.fuses());
    let optimizer = task.optimizer;
    let make = move |step: u64, device: &dyn Device| -> Result<Drawn, String> {
        let draw = Some(Draw { seed, step: step as u32 });
        let alternatives = |call: &Call| device.alternatives(call);
        let (mode, relu, alternatives) = (Mode::Train, ReluStorage::Auto, &alternatives);
        let options = LowerOptions {
            mode,
            relu,
            draw,
            optimizer,
            feature_maps,
            fuse,
            alternatives,
            ..LowerOptions::default()
        };
        let mut program = match lower(&network, batch, &options) {
            Ok(program) => program,
            Err(error) => {
                tracing::debug!("iteration {step} runs by the plan for all draws: {error}");
                return Ok(None);
            }
        };
        let Trace { ops, tensors, .. } = &mut program.trace;
        ops.iter_mut().for_each(|op| times.fill(op, tensors));
        let limits = Limits { evaluations: None, expired: Some(&|| true) };
        let from = Some(&earlier);
        let request = PlanRequest { allow, limits, from, ..PlanRequest::new(budget, link, Policy::Plimsoll) };
        match plan(&program.trace, &request).map_err(|error| error.to_string())? {
            Outcome::Planned(plan) => Ok(Some((program, plan.schedule))),
            Outcome::Infeasible(_) => {
                tracing::debug!(
                    "iteration {step} runs by the plan for all draws: it has none within its memory"
                );
                Ok(None)
            }
        }
    };
    Ok(Box::new(make))
}

/// Seconds of ops, by the study's trace. An op that exists only in a draw, such as a ReLU that a normalisation otherwise
/// absorbs, takes as many seconds per byte as the ops of its kind, or as all ops if there are none.
struct Times {
    /// By name: seconds of the op, and of its alternatives.
    of_op: HashMap<String, (Seconds, Vec<Seconds>)>,
    of_kind: HashMap<String, Rate>,
    of_all: Rate,
}

/// Total seconds and bytes of some ops.
#[derive(Clone, Copy, Default)]
struct Rate {
    seconds: f64,
    bytes: f64,
}

impl Rate {
    fn add(&mut self, seconds: Seconds, bytes: f64) {
        self.seconds += seconds.0;
        self.bytes += bytes;
    }

    fn of(self, bytes: f64) -> Seconds {
        Seconds(if self.bytes > 0.0 { self.seconds / self.bytes * bytes } else { 0.0 })
    }
}

impl Times {
    fn of(trace: &Trace) -> Times {
        let mut times = Times { of_op: HashMap::new(), of_kind: HashMap::new(), of_all: Rate::default() };
        for op in &trace.ops {
            let alternatives = op.alternatives.iter().map(|alternative| alternative.seconds).collect();
            times.of_op.insert(op.name.clone(), (op.seconds, alternatives));
            let bytes = touched(op, &trace.tensors);
            times.of_kind.entry(op.kind.clone()).or_default().add(op.seconds, bytes);
            times.of_all.add(op.seconds, bytes);
        }
        times
    }

    fn fill(&self, op: &mut Op, tensors: &[Tensor]) {
        let known = self.of_op.get(&op.name).filter(|(_, of)| of.len() == op.alternatives.len());
        if let Some((seconds, alternatives)) = known {
            op.seconds = *seconds;
            op.alternatives.iter_mut().zip(alternatives).for_each(|(op, seconds)| op.seconds = *seconds);
            return;
        }
        let rate = self.of_kind.get(&op.kind).filter(|rate| rate.bytes > 0.0).unwrap_or(&self.of_all);
        op.seconds = rate.of(touched(op, tensors));
        op.alternatives.iter_mut().for_each(|alternative| alternative.seconds = op.seconds);
    }
}

/// Returns the bytes that an op reads or writes.
fn touched(op: &Op, tensors: &[Tensor]) -> f64 {
    op.touches().map(|tensor| tensors[tensor.index()].bytes.0 as f64).sum()
}
