//! A device with one fault gives different bits or an error, with graphs and without.
//!
//! A missing wait shows only if the stream to be waited for is late, so each fault runs under orders in which streams take
//! turns, as many as needed of [`ORDERS`]. The data of every tensor is distinct, and new in every iteration. A fault may be
//! harmless (a tensor is prefetched to where it still lies, or takes a place whose contents nobody reads), so a share of
//! each kind must show, and is printed.

use super::bodies::{Case, bits, planned};
use super::faulty::{Fault, Faulty};
use crate::support::{advance, keep, loaded, naive, spoilt};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Schedule, Stream};
use plimsoll_ir::{Bytes, CommandId};
use plimsoll_runtime::MemoryLayout;
use plimsoll_tuner::Policy;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The six fixed orders, and random ones.
const ORDERS: u64 = 30;

/// Plants a fault with each of these numbers; at least `share` of those that could be planted must show.
fn check(of: impl Fn(usize) -> Fault, numbers: Range<usize>, policy: Option<Policy>, share: f64) {
    let Some(case) = Case::open() else { return };
    let Case { place: library, program, .. } = &case;
    let kept = case.train(&keep(&program.trace), Box::new(library.device(false)));
    let kept = bits(&kept.expect("it trains"));
    let schedule = match policy {
        Some(policy) => planned(program, policy).expect("it has a plan for it"),
        None => naive(&program.trace),
    };
    for graphs in [false, true] {
        let (mut there, mut shown, mut hidden) = (0, 0, Vec::new());
        for fault in numbers.clone().map(&of) {
            let mut is_there = false;
            let shows = (1..=ORDERS).any(|order| {
                library.order(order);
                let (device, planted) = Faulty::new(library.device(graphs), fault, library.busy());
                let found = case.train(&schedule, Box::new(device));
                is_there |= planted.load(Ordering::Relaxed);
                found.map_or(true, |found| bits(&found) != kept)
            });
            if is_there {
                there += 1;
                shown += u32::from(shows);
                hidden.extend((!shows).then_some(fault));
            } else {
                assert!(!shows, "{fault:?} was not planted and something went wrong");
            }
        }
        println!("{:?}, {policy:?}, graphs {graphs}: {shown} of {there} show, not {hidden:?}", of(0));
        assert!(there > 0, "none of them could be planted");
        assert!(f64::from(shown) >= share * f64::from(there), "only {shown} of {there} show: {hidden:?}");
    }
}

#[test]
fn a_dropped_wait_shows() {
    check(Fault::DroppedWait, 0..12, None, 1.0);
    check(Fault::DroppedWait, 0..12, Some(Policy::Plimsoll), 0.8);
    check(Fault::DroppedWait, 0..12, Some(Policy::Accudnn { as_printed: false }), 0.8);
}

#[test]
fn an_early_free_shows() {
    check(Fault::EarlyFree, 0..1, None, 1.0);
    check(Fault::EarlyFree, 0..12, Some(Policy::Plimsoll), 0.8);
    check(Fault::EarlyFree, 0..12, Some(Policy::Accudnn { as_printed: false }), 0.8);
}

#[test]
fn a_wrong_offset_shows() {
    check(Fault::WrongOffset, 0..12, None, 1.0);
    check(Fault::WrongOffset, 0..12, Some(Policy::Accudnn { as_printed: false }), 0.8);
}

#[test]
fn a_copy_in_the_wrong_direction_shows() {
    check(Fault::WrongDirection, 0..8, None, 0.8);
    check(Fault::WrongDirection, 0..8, Some(Policy::Accudnn { as_printed: false }), 0.8);
}

/// Keeps everything, and offloads one tensor at the end: only the join waits for it.
fn with_a_last_offload(schedule: &mut Schedule) {
    let last = CommandId::new(schedule.commands.len() - 1);
    let own = CommandId::new(schedule.commands.len());
    let is_over = |b: &&mut Buffer| b.opens.is_some() && b.closes.iter().all(|c| *c <= last);
    let tensor_in = |b: &Buffer| match b.holds {
        Holds::Tensor { tensor, .. } => Some(tensor),
        Holds::Workspace { .. } => None,
    };
    let mut holders = schedule.buffers.iter_mut().filter(is_over);
    let (tensor, buffer) = holders.find_map(|b| Some((tensor_in(b)?, b))).expect("some tensor is computed");
    buffer.closes.push(own);
    schedule.commands.push(Command::Offload { tensor, first_byte: None, bytes: None, waits: vec![last] });
}

#[test]
fn a_copy_of_the_state_that_the_iteration_beside_it_meets_shows() {
    let Some(case) = Case::open() else { return };
    let Case { place: library, program, .. } = &case;
    // Nothing is swapped, and the only waits are those for the copies of running statistics, and of the rest.
    let schedule = keep(&program.trace);
    for graphs in [false, true] {
        let kept = |fault, order, finished| {
            library.order(order);
            let (device, planted) = Faulty::new(library.device(graphs), fault, library.busy());
            let mut trainer = case.keeping(true, &schedule, None, Box::new(device));
            let kept = spoilt::last_finished(&mut trainer, finished);
            // Without its wait, an iteration may read the next one's input, and diverge early.
            (kept.map(|state| state.map(|state| bits(&state))).ok(), planted.load(Ordering::Relaxed))
        };
        // The iteration during the copy is enqueued, and replayed.
        for finished in [1, 5] {
            let (right, _) = kept(Fault::None, 0, finished);
            assert!(matches!(right, Some(Some(_))));
            for number in 0..2 {
                let shows = (1..=ORDERS).any(|order| {
                    let (found, planted) = kept(Fault::EarlyFree(number), order, finished);
                    assert!(planted);
                    found != right
                });
                assert!(shows, "wait {number}, graphs {graphs}, iteration {finished}");
            }
            // The third wait is for the next input, and there is no other.
            assert!(!kept(Fault::EarlyFree(3), 1, finished).1, "there is no other wait");
        }
    }
}

#[test]
fn an_input_that_comes_before_its_place_is_free_shows() {
    let Some(case) = Case::open() else { return };
    let Case { place: library, program, .. } = &case;
    for schedule in [keep(&program.trace), naive(&program.trace)] {
        let kept = case.train(&schedule, Box::new(library.device(false))).expect("it trains");
        for graphs in [false, true] {
            let trained = |fault, order| {
                library.order(order);
                let (device, _) = Faulty::new(library.device(graphs), fault, library.busy());
                let mut trainer = case.keeping(true, &schedule, None, Box::new(device));
                let state = advance(&mut trainer, 5).and_then(|()| trainer.checkpoint());
                library.order(0);
                state.ok().map(|state| bits(&state))
            };
            for order in 0..8 {
                assert!(trained(Fault::None, order).as_ref() == Some(&bits(&kept)), "{graphs}, {order}");
            }
            // When everything is kept, it is the only wait after the two for the copy of the state.
            if schedule == keep(&program.trace) {
                let shows = |order| trained(Fault::EarlyFree(2), order).as_ref() != Some(&bits(&kept));
                assert!((1..=ORDERS).any(shows), "graphs {graphs}");
            }
        }
    }
}

#[test]
fn a_failed_iteration_has_finished_the_one_before_where_its_copy_is_whole() {
    let Some(case) = Case::open() else { return };
    let Case { place: library, program, .. } = &case;
    for schedule in [keep(&program.trace), naive(&program.trace)] {
        let mut reference = case.keeping(false, &schedule, None, Box::new(library.device(false)));
        for failed in 1..5 {
            let states = [failed - 1, failed].map(|step| {
                advance(&mut reference, step as u64).expect("it trains");
                reference.checkpoint().expect("it works")
            });
            let kept = |fault| {
                let (device, _) = Faulty::new(library.device(false), fault, library.busy());
                let mut trainer = case.keeping(false, &schedule, None, Box::new(device));
                let (digits, mut told) = (plimsoll_runtime::data::digits(), 0);
                let observe = &mut |o: &plimsoll_runtime::Observation| told = o.step + 1;
                let error = trainer.train(&*digits.train, 10, observe, &|| false).expect_err("one fails");
                assert!(error.to_string().contains("as the test asked"), "{error}");
                assert_eq!(told, failed as u64 - 1, "what an iteration that did not fail has copied");
                trainer.last_finished(None).expect("it can be read")
            };
            let [before, after] = states;
            assert_eq!(kept(Fault::Fails(failed)), Some(after), "iteration {failed}");
            // When everything is kept the last transfer is the stamp; otherwise prefetches follow it.
            if schedule == keep(&program.trace) {
                let expected = (failed > 1).then_some(before);
                assert_eq!(kept(Fault::FailsShort(failed)), expected, "iteration {failed}");
            }
        }
    }
}

#[test]
fn a_stream_that_is_never_joined_shows() {
    let Some(Case { place: library, program, .. }) = Case::open() else { return };
    let mut schedule = keep(&program.trace);
    with_a_last_offload(&mut schedule);
    assert!(MemoryLayout::of(&program, &schedule).host > Bytes::ZERO);
    for graphs in [false, true] {
        let (device, _) = Faulty::new(library.device(graphs), Fault::None, library.busy());
        let (mut executor, loaded) = loaded(device, &program, &schedule);
        // The last two waits of an iteration join offload and prefetch.
        let calls = library.calls_of(|| executor.run(&loaded).expect("the first iteration"));
        let join = calls["cuStreamWaitEvent"] - 2;
        let shows = (1..=6).find_map(|order| {
            library.order(order);
            library.answer(c"cuStreamWaitEvent", join, 0);
            executor.run(&loaded).err()
        });
        library.order(0);
        let Some(error) = shows else { panic!("nothing shows, graphs {graphs}") };
        if graphs {
            assert!(error.to_string().contains("CUDA_ERROR_STREAM_CAPTURE_UNJOINED"), "{error}");
        } else {
            assert!(error.to_string().contains("still run"), "{error}");
        }
        // Only one iteration was wrong; the device continues.
        (0..3).for_each(|_| executor.run(&loaded).expect("a later iteration"));
    }
    assert_eq!(schedule.commands.last().map(Command::stream), Some(Stream::Offload));
}
