//! Agent: it chooses by the network's values, stores the effects, and learns from samples of them (DQN §4.10, Algorithm 1).
//!
//! Choices that the paper leaves open:
//! - *The reward.* It is minus the time that an action costs, as in the paper, plus a price for the bytes over the pool that it
//!   frees. All of these are freed in every episode, so the price adds the same to the sum of all rewards of every episode;
//!   without it, only the end of an episode would show that doing nothing only defers the cost. The price is twice the cost of a
//!   byte in the best episode so far: the last bytes are more expensive than the mean.
//! - *The unit of rewards* is the mean cost of an action of the first episode, so that one rate serves all networks.
//! - *Gamma* is 0.5: with the price, an action's own reward makes up most of its value. With 0.95 the best plans were worse:
//!   there are too few samples to learn a value through a hundred actions.
//! - *Epsilon* falls with the evaluations done, which bound the search, while the paper counts episodes; and with the square of
//!   the remaining ones, as an episode of some hundred actions does not follow the policy if every fifth is random.
//! - *A sample* of two transitions follows every second action, once there is an episode to learn from.
//!
//! This file deliberately does not compute the cost of an action (`game.rs`).

use super::game::{ACTIONS, Effect, Offers};
use super::graph::{Graph, NOTHING, Nodes};
use super::network::{Network, States, WEIGHTS};
use crate::iteration::values::Choice;
use crate::random::Random;

/// Discount of later actions.
const GAMMA: f32 = 0.5;

/// Transitions in a sample, and actions between two samples.
const SAMPLE: usize = 2;
const EVERY: u64 = 2;

/// Rate of gradient descent.
const RATE: f32 = 0.02;

/// Value of a byte over the pool, as a multiple of its mean cost in the best episode.
const DEARER: f64 = 2.0;

/// Action that was done.
#[derive(Clone, Copy)]
struct Step {
    /// Gap, by position.
    gap: usize,
    offers: Offers,
    action: usize,
    effect: Effect,
}

/// The steps of an episode.
#[derive(Default)]
struct Episode {
    steps: Vec<Step>,
    /// `true` if it came to its end; else its last step has no next state yet.
    over: bool,
}

pub(super) struct Learner {
    graph: Graph,
    network: Network,
    random: Random,
    replay: Vec<Episode>,
    /// States computed last.
    states: States,
    valid: Vec<bool>,
    gradient: Vec<f32>,
    /// Value of a byte over the pool, and the unit of rewards, both in seconds; none before the first episode is over.
    price: f64,
    unit: Option<f64>,
    steps: u64,
}

impl Learner {
    /// Returns a learner that has seen nothing.
    pub fn new(graph: Graph, seed: u64) -> Learner {
        let mut random = Random::new(seed);
        Learner {
            network: Network::new(&mut random),
            valid: vec![true; graph.len()],
            graph,
            random,
            replay: Vec::new(),
            states: States::default(),
            gradient: vec![0.0; WEIGHTS],
            price: 0.0,
            unit: None,
            steps: 0,
        }
    }

    /// Begins an episode.
    pub fn begin(&mut self) {
        self.replay.push(Episode::default());
    }

    /// Returns one of the actions that are offered for a gap: random with probability `epsilon`, else the most valuable.
    pub fn choose(&mut self, gap: usize, offers: Offers, epsilon: f64) -> Choice {
        let possible = |action: &usize| offers[*action] && node(self.graph.gaps[gap], *action).is_some();
        let actions: Vec<usize> = (0..ACTIONS.len()).filter(possible).collect();
        if actions.len() == 1 {
            return ACTIONS[actions[0]];
        }
        if self.random.unit() < epsilon {
            return ACTIONS[actions[self.random.below(actions.len())]];
        }
        let episode = self.replay.len() - 1;
        let before = self.replay[episode].steps.len();
        self.embed(episode, before);
        let values = actions.iter().map(|action| (*action, self.value(gap, *action)));
        let best = values.max_by(|a, b| a.1.total_cmp(&b.1)).expect("something is always offered");
        ACTIONS[best.0]
    }

    /// Stores the effect of an action, and learns from time to time.
    pub fn keep(&mut self, gap: usize, offers: Offers, choice: Choice, effect: Effect) {
        let action = ACTIONS.iter().position(|action| *action == choice).expect("it is an action");
        let episode = self.replay.last_mut().expect("an episode has begun");
        episode.steps.push(Step { gap, offers, action, effect });
        self.steps += 1;
        if self.unit.is_some() && self.steps.is_multiple_of(EVERY) {
            self.learn();
        }
    }

    /// Ends an episode. `best` is the time lost by the best episode so far, and `all_freed` the bytes that every episode frees.
    pub fn end(&mut self, best: f64, all_freed: f64) {
        let episode = self.replay.last_mut().expect("an episode has begun");
        episode.over = true;
        self.price = DEARER * best / all_freed;
        let acted = episode.steps.iter().filter(|step| ACTIONS[step.action] != Choice::Keep).count();
        let unit = best / acted.max(1) as f64;
        self.unit = self.unit.or(Some(unit).filter(|unit| *unit > 0.0));
    }

    /// Computes the states of all nodes after this many steps of an episode: values that left the device cannot leave again.
    fn embed(&mut self, episode: usize, steps: usize) {
        self.valid.fill(true);
        for step in &self.replay[episode].steps[..steps] {
            if ACTIONS[step.action] != Choice::Keep {
                let nodes = self.graph.gaps[step.gap];
                self.valid[nodes.offload as usize] = false;
                nodes.remove.into_iter().for_each(|node| self.valid[node as usize] = false);
            }
        }
        self.network.embed(&self.graph, &self.valid, &mut self.states);
    }

    /// Returns the value of an action on a gap in the states computed last.
    fn value(&self, gap: usize, action: usize) -> f32 {
        let nodes = self.graph.gaps[gap];
        let node = node(nodes, action).expect("a gap that has the action");
        self.network.value(&self.states, nodes.offload, node)
    }

    /// One step by a sample of transitions: equations (4) and (5).
    fn learn(&mut self) {
        let Some(unit) = self.unit else { return };
        for _ in 0..SAMPLE {
            let Some((episode, at)) = self.draw() else { return };
            let steps = &self.replay[episode].steps;
            let Step { gap, action, effect, .. } = steps[at];
            let next = steps.get(at + 1).copied();
            let mut target = ((self.price * effect.freed - effect.seconds) / unit) as f32;
            if let Some(next) = next {
                self.embed(episode, at + 1);
                let offered = |action: &usize| {
                    next.offers[*action] && node(self.graph.gaps[next.gap], *action).is_some()
                };
                let values = (0..ACTIONS.len()).filter(offered).map(|action| self.value(next.gap, action));
                target += GAMMA * values.fold(f32::NEG_INFINITY, f32::max);
            }
            self.embed(episode, at);
            let nodes = self.graph.gaps[gap];
            let node = node(nodes, action).expect("it was done");
            let slope = 2.0 * (self.value(gap, action) - target) / SAMPLE as f32;
            let (states, gradient) = (&self.states, &mut self.gradient);
            self.network.backward(&self.graph, &self.valid, states, (nodes.offload, node), slope, gradient);
        }
        self.network.descend(&mut self.gradient, RATE);
    }

    /// Returns a transition: its episode, and its step there. All completed ones are equally likely.
    fn draw(&mut self) -> Option<(usize, usize)> {
        let done =
            |episode: &Episode| episode.steps.len() - usize::from(!episode.over && !episode.steps.is_empty());
        let count: usize = self.replay.iter().map(done).sum();
        if count == 0 {
            return None;
        }
        let mut at = self.random.below(count);
        let episode = self.replay.iter().position(|episode| {
            let here = at < done(episode);
            at -= if here { 0 } else { done(episode) };
            here
        });
        episode.map(|episode| (episode, at))
    }
}

/// Returns the node of an action on a gap.
fn node(nodes: Nodes, action: usize) -> Option<u32> {
    match ACTIONS[action] {
        Choice::Swap => Some(nodes.offload),
        Choice::Recompute => nodes.remove,
        _ => Some(NOTHING),
    }
}
