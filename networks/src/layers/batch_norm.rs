//! Batch normalisation over batch, rows and columns. A separate op updates its running statistics, so that the normalisation
//! can be recomputed. Its ops may also compute the sum and the ReLU that follow it (`../lower/analysis.rs`).

use super::{Purpose, Resident, Rules, norm, product};
use crate::walk::{Mode, Named, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{After, Call, FusedRelu};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

#[derive(Clone, Copy)]
pub(super) struct BatchNorm {
    pub epsilon: f32,
    pub momentum: f32,
}

impl Rules for BatchNorm {
    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let shape = vec![u64::from(input.channels)];
        let states = [("running_mean", 0.0), ("running_var", 1.0)];
        let state = |(name, start)| Resident { name, shape: shape.clone(), purpose: Purpose::State(start) };
        norm::scale_and_shift(input).into_iter().chain(states.map(state)).collect()
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([8, output.elements()])
    }

    fn needs_variance(&self) -> bool {
        true
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    /// Normalises by the batch's statistics, which then move the running ones, or by the running ones.
    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (BatchNorm { epsilon, momentum }, shape) = (*self, walk.rows(id));
        if walk.options.mode == Mode::Evaluate {
            return walk.forward_in_place(id, inputs, Call::BatchNormInference { shape, epsilon });
        }
        let other = walk.facts.fused(id).sum.map(|(_, other)| walk.facts.source(other));
        let over = other.filter(|other| walk.facts.may_overwrite(*other, id)).map(|other| walk.value(other));
        let given: Vec<Named> = other.map(|other| ("r", walk.value(other))).into_iter().collect();
        let call = Call::BatchNormForward { shape, epsilon, then: then(walk, id) };
        let y = walk.forward_op(id, call, over, &given);
        let call = Call::BatchNormRunning { shape, epsilon, momentum };
        walk.push(id, "running", Phase::Forward, call, &[]);
        y
    }

    /// A sum without a ReLU passes its own gradient on as usual; with a ReLU, this op gives both terms the part that the ReLU
    /// lets pass.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, then) = (walk.rows(id), then(walk, id));
        if then.relu.is_none() {
            let then = After::default();
            let call = |accumulate| Call::BatchNormBackward { shape, then, accumulate };
            return norm::backward(walk, id, dy, &[], true, call);
        }
        let mut given = vec![("kept", walk.saved(id, "mask").unwrap_or_else(|| walk.value(id)))];
        let other = walk.facts.fused(id).sum.filter(|(_, other)| walk.trained(*other));
        // The sum's gradient. It becomes the other term's, or the other term's earlier gradient is added to it.
        let dr = other.map(|(sum, _)| walk.gradient_tensor(sum, dy, true));
        given.extend(dr.map(|dr| ("dr", dr)));
        let then = After { add: dr.is_some(), ..then };
        let call = |accumulate| Call::BatchNormBackward { shape, then, accumulate };
        // Only one of dx and dr may overwrite dy.
        norm::backward(walk, id, dy, &given, dr.is_none(), call);
        if let (Some((sum, other)), Some(dr)) = (other, dr) {
            walk.give(sum, other, dr);
        }
    }
}

/// Returns the ops fused after the normalisation.
fn then(walk: &Walk<'_>, id: LayerId) -> After {
    let fused = walk.facts.fused(id);
    let relu = fused.relu.map(|(_, ceiling)| FusedRelu { ceiling, mask: walk.masked(id) });
    After { add: fused.sum.is_some(), relu }
}
