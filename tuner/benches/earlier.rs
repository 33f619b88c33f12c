//! Plans adapted from earlier ones: their quality, and their share of the time of a new plan.
//!
//! `cargo bench -p plimsoll-tuner --bench earlier -- [draws [quick]] [NETWORK...]`
//!
//! *Draws*: the plan of a network with stochastic depth, made for the trace that serves every draw, is cut to 16 draws, without
//! time for a search; next to it are that one plan and, unless `quick` is given, the same with a search, and a new plan of each
//! draw.
//! *Neighbours*: a plan for a different batch size, budget or link.
//! Times are of a modelled V100. A budget is floor + f x (peak - floor) of the trace of the earlier plan. A plan is timed
//! together with its check; the earlier schedule is read once, which is timed separately.
//!
//! This bench deliberately asserts nothing; tests do.

use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::program::Call;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond};
use plimsoll_networks::{Draw, LowerOptions, build, lower, usual};
use plimsoll_tuner::model::devices::{Modelled, sheet};
use plimsoll_tuner::{Earlier, Limits, Outcome, Plan, PlanRequest, Policy, plan};
use std::time::Instant;

/// Networks whose plans are adapted to neighbours: name, batch.
const NETWORKS: [(&str, u64); 5] =
    [("resnet152", 32), ("resnet50", 64), ("densenet121", 64), ("vgg16", 64), ("gpt2", 8)];

fn traced(name: &str, side: Option<u32>, batch: u64, draw: Option<Draw>) -> Trace {
    let spec = usual(name).expect("a network of the zoo");
    let image = side.map_or(spec.image, |side| [side; 2]);
    let network = build(&NetworkSpec { image, ..spec }).expect("it can be built");
    let device = device();
    let alternatives = |call: &Call| device.alternatives(call);
    let options = LowerOptions { draw, alternatives: &alternatives, ..LowerOptions::default() };
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

fn median(mut numbers: Vec<f64>) -> String {
    numbers.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (numbers.first(), numbers.last()) else { return "-".to_owned() };
    format!("{:.4} ({least:.4} to {most:.4})", numbers[numbers.len() / 2])
}

fn read(trace: &Trace, schedule: &Schedule) -> (Earlier, f64) {
    let began = Instant::now();
    let earlier = Earlier::new(trace, schedule).expect("a plan is valid");
    (earlier, began.elapsed().as_secs_f64())
}

fn draws(quick: bool) {
    let full = traced("resnet-sd110", Some(32), 128, None);
    let (budget, link) = (budget(&full, 0.4), device().link());
    let (plan, took) = made(&full, &request(budget, link));
    let plan = plan.expect("there is a plan");
    let one = plan.makespan;
    println!(
        "one plan for all draws: {} ops, {:.4} of its compute in {took:.3} s",
        full.ops.len(),
        one / full.fastest_seconds()
    );
    let (earlier, took) = read(&full, &plan.schedule);
    println!("read in {:.1} ms", took * 1e3);
    println!("| draw | ops | one plan | cut | ms | improved | ms | new | ms |");
    let mut columns = vec![Vec::new(); 7];
    for step in 0..16 {
        let trace = traced("resnet-sd110", Some(32), 128, Some(Draw { seed: 1, step }));
        let compute = trace.fastest_seconds();
        let expired = || true;
        let at_once = Limits { evaluations: None, expired: Some(&expired) };
        let from = Some(&earlier);
        let improved = PlanRequest { from, ..request(budget, link) };
        let cut = PlanRequest { limits: at_once, ..improved };
        let mut row = vec![one / compute];
        let all = [cut, improved, request(budget, link)];
        for request in all.iter().take(if quick { 1 } else { 3 }) {
            let (plan, took) = made(&trace, request);
            row.extend([plan.map_or(f64::NAN, |plan| plan.makespan / compute), took * 1e3]);
        }
        print!("| {step} | {} ", trace.ops.len());
        for (number, column) in row.iter().zip(&mut columns) {
            print!("| {number:.4} ");
            column.push(*number);
        }
        println!("|");
    }
    print!("| median | ");
    columns.into_iter().for_each(|column| print!("| {} ", median(column)));
    println!("|");
}

fn neighbours(names: &[String]) {
    println!("| network (batch), f | other | new / compute | ms | mended / new | ms | improved / new | ms |");
    for (name, batch) in NETWORKS {
        if !names.is_empty() && !names.iter().any(|n| n == name) {
            continue;
        }
        for share in [0.2, 0.4, 0.7] {
            let trace = traced(name, None, batch, None);
            let (room, link) = (budget(&trace, share), device().link());
            let (plan, _) = made(&trace, &request(room, link));
            let Some(plan) = plan else { continue };
            let (earlier, _) = read(&trace, &plan.schedule);
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
                let trace = traced(name, None, batch, None);
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
    if names.is_empty() || names.iter().any(|name| name == "draws") {
        draws(names.iter().any(|name| name == "quick"));
    }
    if !names.iter().any(|name| name == "draws") {
        neighbours(&names);
    }
}
