//! From 8 workers to 4,096, by simulation: the time of an update with and without overlap, by shards and by trees, compared
//! with its lower bound; and the resource that limits it from some number of workers on. Not from a paper: AccUDNN's cluster
//! has eight.

use crate::subjects::{Scale, TWELVE_GB, device};
use crate::table::{Table, cells, note, percent};
use plimsoll::ir::exchange::update::{Busy, bound, busy, simulate_update};
use plimsoll::ir::exchange::{Exchange, Form, Interconnect, Overlap};
use plimsoll::ir::program::Program;
use plimsoll::ir::schedule::Schedule;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::tuner::Policy;
use plimsoll::tuner::exchange::{Workers, exchange};

/// Candidate piece sizes in bytes, of which the best is used: small ones can begin early, large ones need fewer messages.
const PIECES: [u64; 4] = [4 << 20, 16 << 20, 64 << 20, 256 << 20];

/// AccUDNN's networks of Table 2, with its batches.
const NETWORKS: [(&str, u64); 2] = [("resnet101", 74), ("resnet152", 54)];

const INTERCONNECTS: [&str; 2] = ["10Gbit/s,30us", "100Gbit/s,10us"];

/// Numbers of workers; AccUDNN's cluster has the first.
const WORKERS: [u64; 6] = [8, 16, 64, 256, 1024, 4096];

pub fn scaling(scale: &Scale) -> Table {
    let plot = crate::plot::Plot::new("Share of as many workers apart, M40", "workers", "share");
    let mut table = Table::new(
        "Networks of AccUDNN's Table 2 at its batches, plans by plimsoll within 12 GB of an M40, gradients over the link and \
         the network. Each message takes the network's latency besides its bytes. Shares are of as many workers that exchange \
         nothing: without overlap; with the backward pass; with the next forward pass, too. Pieces of 4 to 256 MiB, the best \
         of four sizes. The bound, of pieces of that size, knows when each gradient is ready and when its parameter is next \
         used. What limits is the resource that is busiest, or the waits between them.",
        "network | interconnect | workers | sum | no overlap | backward | backward and forward | update | bound | limit",
        plot,
    );
    for (name, batch) in scale.pick(&NETWORKS, 1) {
        let subject = scale.subject(name, None, device("m40", true));
        let program = subject.program(*batch);
        let request = subject.request(Policy::Plimsoll, TWELVE_GB);
        let (made, schedule) = subject.scheduled(&program.trace, &request).expect("it fits 12 GB");
        for interconnect in scale.pick(&INTERCONNECTS, 1) {
            for count in scale.pick(&WORKERS, 2).iter().copied() {
                for form in [Form::Sharded, Form::Tree] {
                    let interconnect: Interconnect = interconnect.parse().expect("a rate and a latency");
                    let of = |overlap| {
                        let (update, exchange) = exchanged(
                            &program,
                            &schedule,
                            Workers { form, overlap, ..workers(count, interconnect) },
                        );
                        let least = bound(&program.trace, &schedule, &exchange);
                        assert!(least.0 <= update.0 * (1.0 + 1e-9), "{least} bounds {update}");
                        (update, least, busy(&program.trace, &schedule, &exchange))
                    };
                    let best = |overlap: fn(Bytes) -> Overlap| {
                        let all = PIECES.map(|bytes| of(overlap(Bytes(bytes))));
                        all.into_iter().min_by(|a, b| a.0.0.total_cmp(&b.0.0)).expect("there are some")
                    };
                    let (nothing, ..) = of(Overlap::Nothing);
                    let (backward, ..) = best(Overlap::Backward);
                    let (forward, least, busy) = best(Overlap::Forward);
                    let share = |update: Seconds| percent(made.makespan / update);
                    let form = if form == Form::Tree { "tree" } else { "shards" };
                    let series = format!("{name}, {interconnect}, {form}");
                    table.plot.over(&count.to_string(), [(&*series, Some(made.makespan / forward))]);
                    table.alone(cells![name, interconnect, count, form, share(nothing), share(backward);
                        share(forward), forward, least, limit(busy, forward)]);
                }
            }
        }
    }
    note!(table;
        "A ring sends as many messages of the same bytes as shards do, and takes as long by this clock.");
    note!(table;
        "A tree sends the whole of a piece in each of its messages; trees that cut pieces into packets would be faster.");
    note!(table; "The runtime does as the last of these.");
    table
}

/// Returns workers of one pass, whose gradients go by way of the hosts.
pub fn workers(count: u64, interconnect: Interconnect) -> Workers {
    Workers { count, interconnect, form: Form::Sharded, staged: true, passes: 1, overlap: Overlap::Nothing }
}

/// Returns the time of an update by a plan, and its exchange.
pub fn exchanged(program: &Program, schedule: &Schedule, workers: Workers) -> (Seconds, Exchange) {
    let exchange = exchange(program, &workers).expect("it trains");
    exchange.check(&program.trace, schedule).expect("the plan can run with it");
    (simulate_update(&program.trace, schedule, &exchange).seconds, exchange)
}

/// Returns the resource that takes nearly all of an update; if there is none, its parts wait for one another.
fn limit(busy: Busy, update: Seconds) -> &'static str {
    let Busy { compute, out, back, wire } = busy;
    let of = [(compute, "compute"), (out, "link, out"), (back, "link, back"), (wire, "interconnect")];
    let (most, name) = of.into_iter().max_by(|a, b| a.0.0.total_cmp(&b.0.0)).expect("there are four");
    if most.0 >= 0.98 * update.0 { name } else { "waits" }
}
