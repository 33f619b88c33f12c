//! The exchange between workers next to a schedule: refusals, times worked out by hand, and properties of any exchange.

use plimsoll_ir::check::check;
use plimsoll_ir::exchange::update::{Update, bound, busy, simulate_update};
use plimsoll_ir::exchange::{Exchange, ExchangeKind, Form, Interconnect, Piece, Unfit};
use plimsoll_ir::ids::OpId;
use plimsoll_ir::schedule::{Command, Duplex, Schedule, Stream};
use plimsoll_ir::simulate::{Span, simulate};
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, BytesPerSecond, Document, Seconds};
use plimsoll_testing::{Random, random_schedule, random_trace};
use serde_json::{Value, json};

/// Returns a forward op, two backward ops and an update, of a second each; gradients of 200 bytes.
fn trace() -> Trace {
    let op = |name: &str, phase: &str| {
        json!({"name": name, "layer": name, "kind": "x", "phase": phase, "seconds": 1.0, "reads": [], "writes": [],
               "workspace_bytes": 0, "flops": 0, "recomputable": false})
    };
    let ops = [op("f", "forward"), op("b", "backward"), op("a", "backward"), op("u", "update")];
    let document = json!({"plimsoll": "trace/1", "name": "four", "batch": 1, "resident_bytes": 400, "tensors": [], "ops": ops});
    Trace::from_json(&document.to_string()).expect("valid")
}

fn schedule(duplex: &str) -> Schedule {
    let commands: Vec<Value> = (0..4).map(|op| json!({"do": "compute", "op": op, "waits": []})).collect();
    let link =
        json!({"offload_bytes_per_second": 100.0, "prefetch_bytes_per_second": 50.0, "duplex": duplex});
    let document = json!({"plimsoll": "schedule/1", "trace": "four", "batch": 1, "budget_bytes": 400, "pool_bytes": 0,
                          "link": link, "commands": commands, "buffers": []});
    Schedule::from_json(&document.to_string()).expect("valid")
}

/// Returns two pieces of 100 bytes, ready after the first and the second backward op.
fn exchange(needed: [u32; 2]) -> Exchange {
    let piece = |first: u64, ready: u32, needed: u32| Piece {
        first_byte: Bytes(first),
        bytes: Bytes(100),
        ready: OpId(ready),
        needed: OpId(needed),
        kept: Bytes::ZERO,
    };
    Exchange {
        kind: ExchangeKind,
        trace: "four".into(),
        batch: 1,
        workers: 2,
        form: Form::Sharded,
        interconnect: Interconnect { bytes_per_second: BytesPerSecond(25.0), latency_seconds: Seconds::ZERO },
        staged: true,
        passes: 1,
        nodes: 1,
        bytes: Bytes(200),
        pieces: vec![piece(0, 1, needed[0]), piece(100, 2, needed[1])],
    }
}

/// Returns the spans of a piece of which nothing is kept: pushed, reduced, gathered, pulled.
fn spans([push, reduce, gather, pull]: [(f64, f64); 4]) -> [Span; 5] {
    let keep = (gather.1, gather.1);
    [push, reduce, gather, keep, pull].map(|(start, end)| Span { start: Seconds(start), end: Seconds(end) })
}

#[test]
fn sums_that_an_update_waits_for() {
    let (trace, schedule, exchange) = (trace(), schedule("full"), exchange([3, 3]));
    assert_eq!(exchange.check(&trace, &schedule), Ok(()));
    let update = simulate_update(&trace, &schedule, &exchange);
    // 100 bytes: 1 s out, 2 s and 2 s over the interconnect (half of them each way), 2 s back. Of equally urgent pieces the
    // started one continues: the second piece is reduced after the first is gathered.
    assert_eq!(update.pieces[0], spans([(2.0, 3.0), (3.0, 5.0), (5.0, 7.0), (7.0, 9.0)]));
    assert_eq!(update.pieces[1], spans([(3.0, 4.0), (7.0, 9.0), (9.0, 11.0), (11.0, 13.0)]));
    assert_eq!((update.seconds, update.exposed), (Seconds(14.0), Seconds(10.0)));
    assert_eq!(bound(&trace, &schedule, &exchange), Seconds(14.0));
}

#[test]
fn sums_that_only_the_next_forward_pass_waits_for() {
    let (trace, schedule, exchange) = (trace(), schedule("full"), exchange([1, 0]));
    assert_eq!(exchange.check(&trace, &schedule), Ok(()));
    let update = simulate_update(&trace, &schedule, &exchange);
    // The interconnect has 8 s of work in an iteration, and is never idle between iterations.
    assert!(update.seconds >= Seconds(8.0) && update.seconds < Seconds(14.0), "{update:?}");
    let least = bound(&trace, &schedule, &exchange);
    assert!(least >= Seconds(8.0) && least <= update.seconds, "{least}");
}

#[test]
fn what_an_update_overwrites_is_kept_before_its_sum_is_pulled() {
    let (trace, schedule, mut exchange) = (trace(), schedule("full"), exchange([1, 0]));
    let without = simulate_update(&trace, &schedule, &exchange);
    exchange.pieces.iter_mut().for_each(|piece| piece.kept = Bytes(300));
    assert_eq!(exchange.check(&trace, &schedule), Ok(()));
    let update = simulate_update(&trace, &schedule, &exchange);
    for [_, _, gather, keep, pull] in &update.pieces {
        assert_eq!(keep.end - keep.start, Seconds(3.0));
        assert!(keep.start >= gather.end && pull.start >= keep.end, "{update:?}");
    }
    assert!(update.seconds > without.seconds);
    // Two pieces, each pushed in a second.
    assert_eq!(busy(&trace, &schedule, &exchange).out, Seconds(8.0));
    assert!(bound(&trace, &schedule, &exchange) <= update.seconds);
    // Without staging nothing is copied over the link.
    let unstaged = Exchange { staged: false, ..exchange.clone() };
    let [_, _, gather, keep, _] = simulate_update(&trace, &schedule, &unstaged).pieces[0];
    assert_eq!((keep.start, keep.end), (gather.end, gather.end));
}

#[test]
fn a_way_into_the_memory_needs_no_link() {
    let (trace, schedule) = (trace(), schedule("half"));
    let exchange = Exchange { staged: false, ..exchange([3, 3]) };
    let update = simulate_update(&trace, &schedule, &exchange);
    assert_eq!(update.pieces[1], spans([(3.0, 3.0), (6.0, 8.0), (8.0, 10.0), (10.0, 10.0)]));
    assert_eq!(update.seconds, Seconds(11.0));
}

#[test]
fn passes_before_the_last_exchange_nothing() {
    let (trace, schedule) = (trace(), schedule("full"));
    let one = simulate_update(&trace, &schedule, &exchange([3, 3]));
    let three = Exchange { passes: 3, ..exchange([3, 3]) };
    let update = simulate_update(&trace, &schedule, &three);
    // A pass is three ops of a second; only the last one is followed by the update.
    assert_eq!(update.seconds, one.seconds + Seconds(6.0));
    assert_eq!(bound(&trace, &schedule, &three), Seconds(20.0));
}

#[test]
fn the_first_of_several_passes_waits_for_what_the_last_completes() {
    let (trace, schedule) = (trace(), schedule("full"));
    let passes = |passes| Exchange { passes, ..exchange([1, 0]) };
    let of = |exchange: &Exchange| simulate_update(&trace, &schedule, exchange);
    let [two, three] = [2, 3].map(|count| of(&passes(count)));
    // The first piece is in transit until 13 s after the last pass has begun, the second until 11 s. Op 0 waits for the
    // second, takes a second, and op 1 waits for the first.
    assert_eq!(two.seconds, Seconds(13.0 + 2.0), "{two:?}");
    assert_eq!(three.seconds, two.seconds + Seconds(3.0));
    let waits = Exchange { passes: 3, ..exchange([3, 3]) };
    assert!(three.seconds < of(&waits).seconds, "the update waits for nothing");
    assert!(bound(&trace, &schedule, &passes(3)) <= three.seconds);
}

#[test]
fn a_worker_sends_each_of_its_nodes_and_hears_one_sum() {
    let (trace, schedule) = (trace(), schedule("full"));
    let two = Exchange { nodes: 2, ..exchange([3, 3]) };
    let update = simulate_update(&trace, &schedule, &two);
    // One node takes 2 s, two take 4.
    assert_eq!(update.pieces[0], spans([(2.0, 3.0), (3.0, 7.0), (7.0, 9.0), (9.0, 11.0)]));
    assert_eq!(busy(&trace, &schedule, &two).wire, Seconds(12.0));
    assert!(bound(&trace, &schedule, &two) <= update.seconds);
}

#[test]
fn messages_of_a_sum() {
    let piece =
        Piece { first_byte: Bytes(0), bytes: Bytes(900), ready: OpId(0), needed: OpId(1), kept: Bytes::ZERO };
    for (workers, form, messages, bytes) in [
        (2, Form::Sharded, 1, 450),
        (8, Form::Sharded, 7, 788),
        (2, Form::Tree, 1, 900),
        (8, Form::Tree, 3, 2700),
        (9, Form::Tree, 4, 3600),
    ] {
        let exchange = Exchange { workers, form, ..exchange([3, 3]) };
        let round = exchange.round(&piece);
        assert_eq!((round.messages, round.bytes), (messages, Bytes(bytes)), "{workers} {form:?}");
    }
}

#[test]
fn what_is_no_exchange() {
    let good = exchange([3, 3]);
    assert_eq!(Exchange::from_json(&good.to_json()).as_ref(), Ok(&good));
    let change = |pointer: &str, value: Value| {
        let mut document = serde_json::to_value(&good).expect("plain data");
        *document.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        Exchange::from_json(&document.to_string()).expect_err(pointer).to_string()
    };
    for (pointer, value, says) in [
        ("/workers", json!(1), "from 2 to"),
        ("/workers", json!(1_u64 << 40), "from 2 to"),
        ("/batch", json!(0), "at least 1 sample"),
        ("/passes", json!(0), "at least 1 pass"),
        ("/nodes", json!(0), "1 to 64 nodes"),
        ("/interconnect/bytes_per_second", json!(0.0), "a rate is at least"),
        ("/interconnect/latency_seconds", json!(-1.0), "a latency is from 0 to"),
        ("/bytes", json!(1_u64 << 63), "2^62"),
        ("/bytes", json!(201), "they end at byte 200 of 201"),
        ("/bytes", json!(150), "from 1 byte to the 50 that are left"),
        ("/pieces/1/first_byte", json!(99), "the one before ends at 100"),
        ("/pieces/0/bytes", json!(0), "from 1 byte"),
        ("/pieces/1/kept", json!(1_u64 << 63), "2^62"),
        ("/form", json!("ring"), "unknown variant"),
    ] {
        let said = change(pointer, value);
        assert!(said.contains(says), "{pointer}: {said}");
    }
}

#[test]
fn what_does_not_fit_a_schedule() {
    let (trace, schedule) = (trace(), schedule("full"));
    let unfit = |change: &dyn Fn(&mut Exchange), says: &str| {
        let mut exchange = exchange([3, 3]);
        change(&mut exchange);
        let Unfit(said) = exchange.check(&trace, &schedule).expect_err("it does not fit");
        assert!(said.contains(says), "{said}");
    };
    unfit(&|e| e.batch = 2, "the exchange is for ");
    unfit(&|e| e.workers = 0, "the exchange: at ");
    unfit(&|e| e.pieces[1].ready = OpId(9), "piece 1 names op 9, and the trace has no such op");
    unfit(&|e| e.pieces[0].ready = OpId(3), "piece 0 is ready after op 3, an update");
    unfit(&|e| e.pieces[0].needed = OpId(2), "op 2 of the pass waits for piece 0");
    let more = |e: &mut Exchange| {
        e.bytes = Bytes(500);
        e.pieces[1].bytes = Bytes(400);
    };
    unfit(&more, "the 500 B that are summed do not lie within the 400 B that are resident");
    let mut twice = schedule.clone();
    twice
        .commands
        .insert(2, Command::Compute { op: OpId(1), again: true, alternative: None, waits: Vec::new() });
    // If the op cannot be recomputed, `check` refuses it first.
    let violation = check(&trace, &twice).expect_err("it is not valid").to_string();
    assert_eq!(exchange([3, 3]).check(&trace, &twice), Err(Unfit(violation)));
    let mut trace = trace.clone();
    trace.ops[1].recomputable = true;
    let Unfit(said) = exchange([3, 3]).check(&trace, &twice).expect_err("it does not fit");
    assert!(said.contains("computes op 1 again, which completes piece 0"), "{said}");
}

#[test]
fn an_interconnect_is_read_as_it_is_shown() {
    for (text, rate, latency, shown) in [
        ("10Gbit/s", 1.25e9, 0.0, "10Gbit/s"),
        ("10Gbit/s,30us", 1.25e9, 30e-6, "10Gbit/s,30us"),
        ("12.5GB/s", 12.5e9, 0.0, "100Gbit/s"),
        ("200Mbit/s, 1ms", 25e6, 1e-3, "200Mbit/s,1000us"),
    ] {
        let read: Interconnect = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(read.bytes_per_second.0, rate, "{text}");
        assert!((read.latency_seconds.0 - latency).abs() < 1e-12, "{text}");
        assert_eq!(read.to_string(), shown);
    }
    for bad in [
        "",
        "10",
        "10Gbit/s,",
        "10Gbit/s,30",
        "10Gbit/s,30us,1",
        "0Gbit/s",
        "fast",
        "1Gbit/s,1e308h",
        "1Gbit/s,1e9h",
    ] {
        // A bare number of seconds is a time, as everywhere on the command line.
        let is_time = bad == "10Gbit/s,30";
        assert_eq!(bad.parse::<Interconnect>().is_ok(), is_time, "{bad}");
    }
}

/// Returns an exchange for a random schedule: as many pieces as there are ops that can complete one, at most 8.
fn random_exchange(trace: &Trace, schedule: &Schedule, random: &mut Random) -> Exchange {
    let again: Vec<OpId> = schedule
        .commands
        .iter()
        .filter_map(|command| match command {
            Command::Compute { op, again: true, .. } => Some(*op),
            _ => None,
        })
        .collect();
    let ops = || (0..trace.ops.len()).map(OpId::new);
    let completing: Vec<OpId> =
        ops().filter(|op| trace.ops[op.index()].phase != Phase::Update && !again.contains(op)).collect();
    let updates: Vec<OpId> = ops().filter(|op| trace.ops[op.index()].phase == Phase::Update).collect();
    let mut pieces = Vec::new();
    let mut first = 0;
    for _ in 0..random.below(9) {
        let Some(ready) = random.pick(&completing) else { break };
        let before: Vec<OpId> = ops().filter(|op| *op <= ready).collect();
        let after: Vec<OpId> = updates.iter().copied().filter(|op| *op > ready).collect();
        let needed = if random.percent(50) { random.pick(&after) } else { None };
        let needed = needed.or_else(|| random.pick(&before)).expect("the op itself is there");
        let bytes = 1 + random.below(1 << 20);
        let kept = Bytes(if needed <= ready { random.below(1 << 20) } else { 0 });
        pieces.push(Piece { first_byte: Bytes(first), bytes: Bytes(bytes), ready, needed, kept });
        first += bytes;
    }
    Exchange {
        kind: ExchangeKind,
        trace: trace.name.clone(),
        batch: trace.batch,
        workers: 2 + random.below(31),
        form: if random.percent(50) { Form::Sharded } else { Form::Tree },
        interconnect: Interconnect {
            bytes_per_second: BytesPerSecond(1e4 * 10f64.powi(random.below(6) as i32)),
            latency_seconds: Seconds(random.below(3) as f64 * 1e-3),
        },
        staged: random.percent(70),
        passes: 1 + random.below(3),
        nodes: 1 + random.below(3),
        bytes: Bytes(first),
        pieces,
    }
}

/// Checks that no stage of an update starts before its waits have ended, and that no server does two things at once.
fn holds(trace: &Trace, schedule: &Schedule, exchange: &Exchange, update: &Update) -> Result<(), String> {
    let pace = update.timeline.makespan().0;
    let slack = 1e-9 * pace.max(1.0);
    let half = schedule.link.duplex == Duplex::Half;
    let span = |op: OpId| {
        let is_it =
            |c: &Command| matches!(*c, Command::Compute { op: found, again: false, .. } if found == op);
        update.timeline.spans[schedule.commands.iter().position(is_it).expect("every op is computed")]
    };
    let mut servers: [Vec<Span>; 3] = Default::default();
    for (id, command) in schedule.numbered_commands() {
        let mine = update.timeline.spans[id.index()];
        for wait in command.waits() {
            if mine.start < update.timeline.spans[wait.index()].end {
                return Err(format!("command {} begins before {} has ended", id.0, wait.0));
            }
        }
        match command.stream() {
            Stream::Compute => {}
            Stream::Prefetch if !half => servers[1].push(mine),
            Stream::Offload | Stream::Prefetch => servers[0].push(mine),
        }
    }
    for (piece, stages) in exchange.pieces.iter().zip(&update.pieces) {
        let mut before = span(piece.ready).end;
        for stage in stages {
            if stage.start.0 < before.0 - slack {
                return Err(format!("a stage of {piece:?} begins at {}, before {before}", stage.start));
            }
            before = stage.end;
        }
        let needed = span(piece.needed).start.0 + if piece.carried() { pace } else { 0.0 };
        if needed < before.0 - slack {
            return Err(format!("{piece:?} is there at {}, and used at {needed}; slack {slack}", before.0));
        }
        let back = if half { 0 } else { 1 };
        let [push, reduce, gather, keep, pull] = *stages;
        servers[0].extend([push, keep]);
        servers[2].extend([reduce, gather]);
        servers[back].push(pull);
    }
    // Iterations repeat: a stage that ends after its iteration takes the same time of the next one.
    for spans in &mut servers {
        let wrapped: Vec<Span> = spans
            .iter()
            .map(|span| Span { start: Seconds(span.start.0 - pace), end: Seconds(span.end.0 - pace) })
            .collect();
        spans.extend(wrapped);
        spans.retain(|span| span.end > span.start);
        spans.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
        if let Some(two) = spans.windows(2).find(|two| two[1].start.0 < two[0].end.0 - slack) {
            return Err(format!("two at once on one server: {two:?}"));
        }
    }
    let exposed = pace - simulate(trace, schedule).makespan().0;
    if (exposed - update.exposed.0).abs() > slack {
        return Err(format!("{exposed} is exposed"));
    }
    Ok(())
}

#[test]
fn any_schedule_with_any_exchange() {
    let (mut exchanged, mut carried, mut hidden, mut repeating) = (0, 0, 0, 0);
    let mut passing = 0;
    for seed in 0..600 {
        let mut trace = random_trace(seed);
        trace.resident_bytes = Bytes(trace.resident_bytes.0 + (16 << 20));
        let mut schedule = random_schedule(&trace, seed);
        schedule.budget_bytes = schedule.pool_bytes + trace.resident_bytes;
        let mut random = Random::new(seed);
        let exchange = random_exchange(&trace, &schedule, &mut random);
        exchange.check(&trace, &schedule).unwrap_or_else(|unfit| panic!("seed {seed}: {unfit}"));
        let update = simulate_update(&trace, &schedule, &exchange);
        assert!(update.repeats.is_some(), "seed {seed}");
        let has_first = exchange.passes > 1 && exchange.pieces.iter().any(Piece::carried);
        if update.repeats == Some(1) && !has_first {
            holds(&trace, &schedule, &exchange, &update).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        repeating += usize::from(update.repeats == Some(1));
        let least = bound(&trace, &schedule, &exchange);
        assert!(least.0 <= update.seconds.0 * (1.0 + 1e-9), "seed {seed}: {least} bounds {}", update.seconds);
        if has_first {
            // Hardly any update is much slower than one that waits for everything: kept bytes may precede a push.
            let mut waits = exchange.clone();
            let last = OpId::new(trace.ops.len() - 1);
            waits.pieces.iter_mut().filter(|piece| piece.carried()).for_each(|piece| piece.needed = last);
            if waits.check(&trace, &schedule).is_ok() {
                let (carried, waits) = (update.seconds, simulate_update(&trace, &schedule, &waits).seconds);
                assert!(carried.0 <= waits.0 * 1.2, "seed {seed}: {carried} carried, {waits} waited for");
                passing += 1;
            }
        }
        exchanged += exchange.pieces.len();
        carried += exchange.pieces.iter().filter(|piece| piece.carried()).count();
        hidden += usize::from(!exchange.pieces.is_empty() && update.exposed == Seconds::ZERO);
        let nothing = Exchange { pieces: Vec::new(), bytes: Bytes::ZERO, passes: 1, ..exchange };
        let alone = simulate_update(&trace, &schedule, &nothing);
        assert_eq!(alone.timeline, simulate(&trace, &schedule), "seed {seed}");
        assert_eq!((alone.seconds, alone.exposed), (alone.timeline.makespan(), Seconds::ZERO), "seed {seed}");
    }
    assert!(passing > 50, "{passing} of several passes");
    assert!(repeating > 500, "{repeating} of 600 repeat after one iteration");
    assert!(
        exchanged > 1000 && carried > 400 && hidden > 20,
        "{exchanged} pieces, {carried} carried, {hidden} hidden"
    );
}
