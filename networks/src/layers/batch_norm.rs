//! Batch normalisation over batch, rows and columns. A separate op updates its running statistics, so that the normalisation
//! can be recomputed. Its ops may also compute the sum and the ReLU that follow it (`../lower/analysis.rs`).

use super::{Purpose, Resident, Rules, norm, product};
use crate::error::NetworkError;
use crate::walk::{Mode, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{After, Call, FusedRelu, Init, Operand};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, LayerId, TensorId};

pub(super) struct BatchNorm {
    pub epsilon: f32,
    pub momentum: f32,
}

impl Rules for BatchNorm {
    fn shape(&self, _name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        Ok(inputs[0])
    }

    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let channels = vec![u64::from(input.channels)];
        let state = |name, start| Resident { name, shape: channels.clone(), purpose: Purpose::State(start) };
        vec![
            Resident::parameter("weight", channels.clone(), Init::Constant(1.0)),
            Resident::parameter("bias", channels.clone(), Init::Constant(0.0)),
            state("running_mean", 0.0),
            state("running_var", 1.0),
        ]
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
        let BatchNorm { epsilon, momentum } = *self;
        let (shape, x) = (walk.rows(id), walk.value(inputs[0]));
        let (mut parameters, states) = (walk.parameters(id), walk.states(id));
        if walk.options.mode == Mode::Evaluate {
            parameters.extend(states);
            let over = walk.overwritten(id, inputs);
            return walk.forward_op(
                id,
                Call::BatchNormInference { shape, epsilon },
                x,
                &parameters,
                over,
                &[],
            );
        }
        let stats = walk.save(id, "stats", Bytes(8 * shape.channels));
        let then = then(walk, id);
        let mask = then.masks().then(|| walk.save(id, "mask", Bytes(walk.elements(id).div_ceil(8))));
        let other = walk.facts.fused(id).sum.map(|(_, other)| walk.facts.source(other));
        parameters.extend(other.map(|other| Operand::Tensor(walk.value(other))));
        let over = other.filter(|other| walk.facts.may_overwrite(*other, id)).map(|other| walk.value(other));
        let call = Call::BatchNormForward { shape, epsilon, then };
        let saved: Vec<Operand> = [stats].into_iter().chain(mask).collect();
        let y = walk.forward_op(id, call, x, &parameters, over, &saved);
        let branch = walk.facts.branch[id.index()];
        let hyper = branch.map(|_| walk.hyper());
        let operands = hyper.into_iter().chain([stats]).chain(states).collect();
        let call = Call::BatchNormRunning { shape, epsilon, momentum, branch };
        walk.push(id, "running", Phase::Forward, call, operands);
        y
    }

    /// A sum without a ReLU passes its own gradient on as usual; with a ReLU, this op gives both terms the part that the ReLU
    /// lets pass.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, then) = (walk.rows(id), then(walk, id));
        if then.relu.is_none() {
            let then = After::default();
            let call = |accumulate| Call::BatchNormBackward { shape, then, accumulate };
            return norm::backward(walk, id, dy, None, None, call);
        }
        let kept = if then.masks() { walk.saved(id)[1] } else { walk.value(id) };
        let other = walk.facts.fused(id).sum.filter(|(_, other)| walk.trained(*other));
        // The sum's gradient. It becomes the other term's, or the other term's earlier gradient is added to it.
        let dr = other.map(|(sum, _)| walk.gradient_tensor(sum, dy, true));
        let then = After { add: dr.is_some(), ..then };
        let call = |accumulate| Call::BatchNormBackward { shape, then, accumulate };
        norm::backward(walk, id, dy, Some(kept), dr, call);
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
