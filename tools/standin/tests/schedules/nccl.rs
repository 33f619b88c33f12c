//! Workers whose GPUs sum by NCCL, on the stand-in of both.

use super::Place;
use super::bodies::{Case, apart, bits, shared, sharing};
use super::support::{keep, side_by_side};
use plimsoll_ir::program::Role;
use plimsoll_runtime::group::{alone, threads};
use plimsoll_runtime::{Checkpoint, CudaDevice, Error, Observation, Trainer};
use std::time::{Duration, Instant};

const ITERATIONS: u64 = 5;

fn device(place: &Place) -> CudaDevice {
    let device = place.device(true).without_graphs().expect("there is memory");
    device.with_nccl(&place.options().libraries).expect("the stand-in has it")
}

/// Two workers, the first with the smaller half of the passes of an update.
fn two(case: &Case, virtual_workers: u64) -> Vec<Trainer> {
    let (schedule, plan) = (keep(&case.program.trace), case.plan(virtual_workers));
    let worker = |group| sharing(&case.program, &schedule, &plan, group, device(&case.place));
    threads(2).into_iter().map(worker).collect()
}

/// Results of a worker.
struct Ended {
    outcome: Result<(), Error>,
    seen: Vec<Observation>,
    step: u64,
    state: Checkpoint,
}

fn train(trainers: Vec<Trainer>) -> Vec<Ended> {
    let digits = plimsoll_runtime::data::digits();
    side_by_side(trainers, |mut trainer| {
        let mut seen = Vec::new();
        let outcome =
            trainer.train(&*digits.train, ITERATIONS, &mut |one| seen.push(*one), &|| false).map(|_| ());
        let state = trainer.checkpoint().expect("the device works");
        Ended { outcome, seen, step: trainer.step(), state }
    })
}

/// With one pass each, and with two for the second worker; the host then has the first of these two.
#[test]
fn workers_whose_gpus_sum_have_one_state_and_it_is_near_that_of_sums_by_the_hosts() {
    let Some(case) = Case::open() else { return };
    let Case { place, program, .. } = &case;
    let schedule = keep(&program.trace);
    for virtual_workers in [2, 3] {
        let plan = case.plan(virtual_workers);
        let hosts = shared(program, &schedule, &plan, vec![alone()], || place.device(false));
        for pace in place.paces(virtual_workers) {
            place.set(&pace);
            let mut ended = Vec::new();
            let calls = place.counted(|| ended = train(two(&case, virtual_workers)));
            for Ended { outcome, seen, .. } in &ended {
                assert!(outcome.is_ok(), "{virtual_workers}, {pace:?}: {outcome:?}");
                assert_eq!(seen.len() as u64, ITERATIONS);
            }
            assert!(bits(&ended[0].state) == bits(&ended[1].state), "{virtual_workers}, {pace:?}");
            let far = apart(&ended[0].state, &hosts);
            assert!(far < 1e-4, "{virtual_workers}, {pace:?}: {far}");
            let calls = calls.expect("the stand-in counts");
            assert!(calls["ncclAllReduce"] > 2 * ITERATIONS, "{calls:?}");
            assert_eq!((calls["ncclCommInitRankConfig"], calls.get("cuGraphLaunch")), (2, None));
        }
    }
}

/// An update copies metrics and running statistics to the host, and no gradient.
#[test]
fn gradients_stay_on_the_gpus() {
    let Some(case) = Case::open() else { return };
    let Case { place, program, .. } = &case;
    let (schedule, plan) = (keep(&program.trace), case.plan(2));
    let copies =
        |work: &mut dyn FnMut()| place.counted(work).expect("the stand-in counts")["cuMemcpyDtoHAsync_v2"];
    let by_gpus = copies(&mut || drop(train(two(&case, 2))));
    let by_hosts = copies(&mut || {
        let device = || place.device(true).without_graphs().expect("there is memory");
        drop(shared(program, &schedule, &plan, threads(2), device));
    });
    let gradients = program.resident.iter().filter(|region| region.role == Role::Gradient);
    let of_gradients = 2 * ITERATIONS * gradients.count() as u64;
    assert!(by_gpus + of_gradients <= by_hosts, "{by_gpus} of {by_hosts}, {of_gradients} of gradients");
}

/// If any call of NCCL fails at one worker, none waits for ever, all have the state after the last whole update, and one
/// reports NCCL's message.
#[test]
fn a_call_that_nccl_refuses_ends_all_workers_with_the_state_before() {
    let Some(case) = Case::open() else { return };
    let Case { place, program, .. } = &case;
    let faults = [
        (c"ncclGetUniqueId", 0, 2, "NCCL_SOCKET_IFNAME"),
        (c"ncclCommInitRankConfig", 1, 5, "a GPU of its own"),
        (c"ncclCommGetAsyncError", 1, 6, "another worker has failed"),
        (c"ncclRedOpCreatePreMulSum", 1, 3, "NCCL_DEBUG=INFO"),
        (c"ncclAllReduce", 40, 4, "NCCL_DEBUG=INFO"),
        (c"ncclGroupEnd", 9, 1, "NCCL_DEBUG=INFO"),
        (c"ncclCommGetAsyncError", 90, 6, "another worker has failed"),
    ];
    for (call, after, code, says) in faults {
        place.answer(call, after, code);
        let begun = Instant::now();
        let ended = train(two(&case, 2));
        assert!(begun.elapsed() < Duration::from_secs(20), "{call:?} after {after}");
        let error = |ended: &Ended| match &ended.outcome {
            Ok(()) => panic!("{call:?} after {after} was not refused"),
            Err(error) => error.to_string(),
        };
        let errors: Vec<String> = ended.iter().map(error).collect();
        assert!(errors.iter().any(|words| words.contains(says)), "{call:?} after {after}: {errors:?}");
        let lost = |words: &String| words.contains("has ended") || words.contains(says);
        assert!(errors.iter().all(lost), "{call:?} after {after}: {errors:?}");
        for Ended { seen, step, state, .. } in &ended {
            assert_eq!(*step, seen.len() as u64, "{call:?} after {after}");
            let (schedule, plan) = (keep(&program.trace), case.plan(2));
            let mut again = sharing(program, &schedule, &plan, alone(), place.device(false));
            let digits = plimsoll_runtime::data::digits();
            again.train(&*digits.train, *step, &mut |_| {}, &|| false).expect("it trains");
            let far = apart(state, &again.checkpoint().expect("it works"));
            assert!(far < 1e-4, "{call:?} after {after}, {step} updates: {far}");
        }
    }
}

#[test]
fn workers_that_sum_in_different_ways_do_not_begin() {
    let Some(case) = Case::open() else { return };
    let Case { place, program, .. } = &case;
    let (schedule, plan) = (keep(&program.trace), case.plan(2));
    let devices = [device(place), place.device(true).without_graphs().expect("there is memory")];
    let groups = threads(2).into_iter().zip(devices);
    let trainers = groups.map(|(group, device)| sharing(program, &schedule, &plan, group, device));
    for ended in train(trainers.collect()) {
        let words = ended.outcome.expect_err("they differ").to_string();
        let expected = "worker 1 has another way of summing than worker 0: on the hosts, not on the devices";
        assert_eq!(words, expected);
    }
}
