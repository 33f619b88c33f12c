//! Tests of the network's gradients, the graph's nodes, the game's rules. Whole plans are tested in `tuner/tests/dqn.rs`.

use super::game::Game;
use super::graph::{Graph, NOTHING};
use super::network::{Network, States, WEIGHTS};
use crate::iteration::values::Values;
use crate::place::realise::Case;
use crate::random::Random;
use crate::request::{PlanRequest, Policy};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_testing::{between, chain_trace, random_trace_of};
use std::collections::BTreeSet;

/// Passes the game of a trace to a test, halfway between floor and peak.
fn with_game(trace: &Trace, test: impl FnOnce(&mut Game<'_>, &Graph)) {
    let budget = between(trace, 1, 2);
    let request = PlanRequest::new(budget, Link::symmetric(BytesPerSecond(1e3)), Policy::Dqn);
    let pool = budget.0 - trace.resident_bytes.0;
    let case = Case { trace, request: &request, pool, bound: Seconds(0.0), within: Seconds(f64::INFINITY) };
    let values = Values::new(trace, Bytes(pool), request.allow);
    let mut game = Game::new(&case, &values);
    let graph = game.graph();
    test(&mut game, &graph);
}

#[test]
fn no_node_stands_for_two_actions_and_edges_go_both_ways() {
    for seed in 0..20 {
        with_game(&random_trace_of(40, seed), |_, graph| {
            let mut taken = BTreeSet::from([NOTHING]);
            for of in &graph.gaps {
                assert!(taken.insert(of.offload), "seed {seed}: {of:?}");
                assert!(of.remove.is_none_or(|node| taken.insert(node)), "seed {seed}: {of:?}");
            }
            for node in 0..graph.len() {
                let back = |other: &u32| graph.neighbours(*other as usize).contains(&(node as u32));
                assert!(graph.neighbours(node).iter().all(back), "seed {seed}: {node}");
            }
        });
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    const STEP: f32 = 1e-3;
    let mut compared = 0;
    for seed in 0..6 {
        with_game(&random_trace_of(30, seed), |_, graph| {
            let Some(of) = graph.gaps.first() else { return };
            let mut random = Random::new(seed);
            let mut network = Network::new(&mut random);
            let valid: Vec<bool> = (0..graph.len()).map(|_| random.below(2) == 0).collect();
            let at = (of.offload, of.remove.unwrap_or(NOTHING));
            let mut states = States::default();
            network.embed(graph, &valid, &mut states);
            let mut gradient = vec![0.0; WEIGHTS];
            network.backward(graph, &valid, &states, at, 1.0, &mut gradient);
            let length = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
            for (weight, told) in gradient.iter().enumerate() {
                let old = network.set(weight, 0.0);
                let mut value = |moved: f32| {
                    network.set(weight, moved);
                    network.embed(graph, &valid, &mut states);
                    network.value(&states, at.0, at.1)
                };
                let (above, below, here) = (value(old + STEP), value(old - STEP), value(old));
                let (right, left) = ((above - here) / STEP, (here - below) / STEP);
                // At a kink of ReLU there is no gradient to compare with.
                if (right - left).abs() < 2e-2 * length {
                    let slope = (right + left) / 2.0;
                    let off = (slope - told).abs();
                    assert!(off < 2e-2 * length, "seed {seed}, weight {weight}: {slope} for {told}");
                    compared += 1;
                }
            }
        });
    }
    assert!(compared > 4 * WEIGHTS, "{compared} compared");
}

#[test]
fn states_are_the_same_whether_all_nodes_are_worked_out_or_the_changed_ones() {
    let mut followed = 0;
    for seed in 0..6 {
        with_game(&random_trace_of(120, seed), |_, graph| {
            let Some(of) = graph.gaps.first() else { return };
            let mut random = Random::new(seed);
            let network = Network::new(&mut random);
            let mut valid = vec![true; graph.len()];
            let mut states = States::default();
            network.embed(graph, &valid, &mut states);
            for _ in 0..20 {
                let node = random.below(graph.len());
                valid[node] = !valid[node];
                network.embed(graph, &valid, &mut states);
                let mut anew = States::default();
                network.embed(graph, &valid, &mut anew);
                for other in 0..graph.len() as u32 {
                    let [one, other] =
                        [&states, &anew].map(|states| network.value(states, of.offload, other));
                    assert_eq!(one.to_bits(), other.to_bits(), "seed {seed}");
                }
                followed += 1;
            }
        });
    }
    assert!(followed > 60, "{followed} changes");
}

#[test]
fn every_episode_ends_with_decisions_that_fit() {
    let traces = (0..20).map(|seed| random_trace_of(40, seed)).chain([chain_trace(30)]);
    let mut played = 0;
    for (seed, trace) in traces.enumerate() {
        with_game(&trace, |game, _| {
            let Some(start) = game.start() else { return };
            let mut random = Random::new(seed as u64);
            for _ in 0..10 {
                let mut at = start.clone();
                let (mut seconds, mut excess) = (at.seconds, at.excess);
                while !game.is_over(&at) {
                    let offers = game.offers(&mut at);
                    let offered: Vec<usize> = (0..3).filter(|action| offers[*action]).collect();
                    let choice = super::game::ACTIONS[offered[random.below(offered.len())]];
                    let effect = game.take(&mut at, choice);
                    (seconds, excess) = (seconds + effect.seconds, excess - effect.freed);
                }
                assert!(game.fits(&at.decisions), "seed {seed}");
                assert!(excess.abs() < 1e-6 && (seconds - at.seconds).abs() < 1e-9 * seconds, "seed {seed}");
                played += 1;
            }
        });
    }
    assert!(played > 100, "{played} episodes of 210");
}
