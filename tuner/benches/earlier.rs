//! Plans adapted from earlier ones: their quality, and their share of the time of a new plan.
//!
//! `cargo bench -p plimsoll-tuner --bench earlier -- [NETWORK...]`
//!
//! The new plan is for a different batch size, budget or link.
//! Times are of a modelled V100. A budget is floor + f x (peak - floor) of the trace of the earlier plan. A plan is timed
//! together with its check; the earlier schedule is read once, which is timed separately.
//!
//! This bench deliberately asserts nothing; tests do.

use plimsoll_ir::program::Call;
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond};
use plimsoll_networks::{LowerOptions, build, lower, usual};
use plimsoll_tuner::model::devices::{Modelled, sheet};
use plimsoll_tuner::{Earlier, Limits, Outcome, Plan, PlanRequest, Policy, plan};
use std::time::Instant;

/// Networks whose plans are adapted to neighbours: name, batch.
const NETWORKS: [(&str, u64); 5] =
    [("resnet152", 32), ("resnet50", 64), ("densenet121", 64), ("vgg16", 64), ("gpt2", 8)];

fn traced(name: &str, batch: u64) -> Trace {
    let network = build(&usual(name).expect("a network of the zoo")).expect("it can be built");
    let device = device();
    let alternatives = |call: &Call| device.alternatives(call);
    let options = LowerOptions { alternatives: &alternatives, ..LowerOptions::default() };
    let mut program = lower(&network, batch, &options).expect("a batch that can be counted with");
    device.fill(&mut program);
    program.trace
}

fn device() -> Modelled {
    Modelled::new(sheet("v100").expect("a device that is modelled"))
}

fn budget(trace: &Trace, share: f64) -> Bytes {
    let memory = trace.memory();
    let [floor, peak] = [memory.floor(), memory.peak()].map(|most| most.expect("there are ops").1);
    floor + Bytes(((peak - floor).0 as f64 * share) as u64)
}

/// Returns a plan, and the seconds that it took to make; `None` if there is none.
fn made(trace: &Trace, request: &PlanRequest<'_>) -> (Option<Plan>, f64) {
    let began = Instant::now();
    let outcome = plan(trace, request).expect("a sound request");
    let took = began.elapsed().as_secs_f64();
    let Outcome::Planned(plan) = outcome else { return (None, took) };
    (Some(plan), took)
}

fn request(budget: Bytes, link: Link) -> PlanRequest<'static> {
    PlanRequest::new(budget, link, Policy::Plimsoll)
}

fn neighbours(names: &[String]) {
    println!("| network (batch), f | other | new / compute | ms | mended / new | ms | improved / new | ms |");
    for (name, batch) in NETWORKS {
        if !names.is_empty() && !names.iter().any(|n| n == name) {
            continue;
        }
        for share in [0.2, 0.4, 0.7] {
            let trace = traced(name, batch);
            let (room, link) = (budget(&trace, share), device().link());
            let (plan, _) = made(&trace, &request(room, link));
            let Some(plan) = plan else { continue };
            let earlier = Earlier::new(&trace, &plan.schedule).expect("a plan is valid");
            let step = (batch / 16).max(1);
            let faster =
                |times: f64| Link::symmetric(BytesPerSecond(link.offload_bytes_per_second.0 * times));
            let others = [
                ("same", batch, room, link),
                ("batch + 1/16", batch + step, room, link),
                ("batch - 1/16", batch - step, room, link),
                ("budget + 5 %", batch, room.share(1.05), link),
                ("budget - 5 %", batch, room.share(0.95), link),
                ("link / 2", batch, room, faster(0.5)),
                ("link x 2", batch, room, faster(2.0)),
            ];
            for (what, batch, budget, link) in others {
                let trace = traced(name, batch);
                let (new, new_took) = made(&trace, &request(budget, link));
                let Some(new) = new else {
                    println!("| {name} {share} | {what} | none |");
                    continue;
                };
                print!(
                    "| {name} ({batch}), {share} | {what} | {:.4} | {:.0} ",
                    new.makespan / trace.fastest_seconds(),
                    new_took * 1e3
                );
                let expired = || true;
                let at_once = Limits { evaluations: None, expired: Some(&expired) };
                let improved = PlanRequest { from: Some(&earlier), ..request(budget, link) };
                for request in [PlanRequest { limits: at_once, ..improved }, improved] {
                    let (plan, took) = made(&trace, &request);
                    let ratio = plan.map_or(f64::NAN, |plan| plan.makespan / new.makespan);
                    print!("| {ratio:.4} | {:.0} ({:.2}) ", took * 1e3, took / new_took);
                }
                println!("|");
            }
        }
    }
}

fn main() {
    let names: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    neighbours(&names);
}
