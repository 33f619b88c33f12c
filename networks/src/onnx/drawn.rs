//! Random numbers that exporters leave in a graph: stochastic depth, which keeps samples or drops them, is written as a product
//! with numbers that are drawn, compared with the probability to be kept, and divided by it.
//!
//! What this file does not do: draw, or read dropout, which is an operator of its own.

use super::constant::{Constant, Kind, kind_of};
use super::error::{OnnxError, broken};
use super::fold::scalar;
use super::graph::{attribute, float, int, label};
use super::import::{Import, unsupported};
use super::proto::NodeProto;
use super::tensor;
use super::value::{Drawn, Flow, Value};
use super::view::size;
use plimsoll_ir::network::{DropUnit, LayerKind};

/// The operators that draw numbers.
const SOURCES: [&str; 2] = ["RandomUniform", "RandomUniformLike"];

impl Import<'_> {
    /// What a node gives that draws numbers, or takes some that were drawn; none for other nodes.
    pub fn random(&mut self, node: &NodeProto, inputs: &[Option<Value>]) -> Result<Option<Value>, OnnxError> {
        let drawn =
            inputs.iter().flatten().find_map(|v| if let Value::Drawn(d) = v { Some(d) } else { None });
        let op = node.op_type.as_str();
        let Some(drawn) = drawn else {
            return if SOURCES.contains(&op) { self.source(node, inputs).map(Some) } else { Ok(None) };
        };
        let no = || unsupported(node, format!("{op} of random numbers, which is no stochastic depth"));
        let is_drawn = |at: usize| matches!(inputs.get(at), Some(Some(Value::Drawn(_))));
        let made = |drawn: Drawn| Ok(Some(Value::Drawn(drawn)));
        match (op, inputs) {
            ("Identity", _) => made(drawn.clone()),
            // As what is drawn the constant is a float.
            ("CastLike", [Some(Value::Constant(c)), _]) if c.kind == Kind::Float => {
                Ok(Some(Value::Constant(c.clone())))
            }
            ("Cast" | "CastLike", [Some(Value::Drawn(_)), ..]) => {
                let to = match inputs.get(1) {
                    Some(Some(Value::Constant(like))) => like.kind,
                    Some(Some(Value::Drawn(_) | Value::Flow(_))) => Kind::Float,
                    _ => kind_of(i32::try_from(int(node, "to", 0)?).unwrap_or(0)),
                };
                // Numbers from 0 to 1 are all 0 as integers.
                if to == Kind::Float || drawn.kept.is_some() && drawn.factor == 1.0 {
                    made(drawn.clone())
                } else {
                    Err(no())
                }
            }
            ("Less", [_, Some(Value::Constant(limit))]) if drawn.kept.is_none() && is_drawn(0) => {
                match scalar(&self.numbers, &label(node), limit)? {
                    Some(kept) if kept > 0.0 && kept <= 1.0 => {
                        made(Drawn { kept: Some(kept), ..drawn.clone() })
                    }
                    _ => Err(no()),
                }
            }
            ("Div" | "Mul", [_, Some(Value::Constant(by))]) if drawn.kept.is_some() && is_drawn(0) => {
                match scalar(&self.numbers, &label(node), by)? {
                    Some(by) if by > 0.0 && by.is_finite() => {
                        let factor = if op == "Div" { drawn.factor / by } else { drawn.factor * by };
                        made(Drawn { factor, ..drawn.clone() })
                    }
                    _ => Err(no()),
                }
            }
            ("Mul", [Some(Value::Flow(x)), Some(Value::Drawn(drawn))])
            | ("Mul", [Some(Value::Drawn(drawn)), Some(Value::Flow(x))]) => {
                self.dropped(node, x, drawn).map(|flow| Some(Value::Flow(flow)))
            }
            _ => Err(no()),
        }
    }

    /// Numbers from 0 to 1.
    fn source(&self, node: &NodeProto, inputs: &[Option<Value>]) -> Result<Value, OnnxError> {
        let (low, high) = (float(node, "low", 0.0)?, float(node, "high", 1.0)?);
        if low != 0.0 || high != 1.0 {
            return Err(unsupported(node, format!("random numbers from {low} to {high}, not from 0 to 1")));
        }
        let dims = match inputs.first() {
            Some(Some(Value::Constant(Constant { dims, .. }))) => dims.clone(),
            Some(Some(Value::Flow(flow))) => flow.view.sizes(),
            _ => match attribute(node, "shape") {
                Some(shape) => {
                    let dims: Result<Vec<u64>, _> = shape.ints.iter().map(|d| u64::try_from(*d)).collect();
                    dims.or_else(|_| broken(label(node), "a dimension is negative; export the file again"))?
                }
                None => return broken(label(node), "it has no shape; export the file again"),
            },
        };
        if tensor::elements(&dims).is_none() {
            let what = format!("{}: {}", label(node), tensor::too_many(&dims));
            return Err(OnnxError::TooLarge { what });
        }
        Ok(Value::Drawn(Drawn { dims, kept: None, factor: 1.0 }))
    }

    /// What is kept or dropped, and scaled up where it is kept: a layer.
    fn dropped(&mut self, node: &NodeProto, x: &Flow, drawn: &Drawn) -> Result<Flow, OnnxError> {
        let no = |why: &str| Err(unsupported(node, format!("Mul by random numbers {why}")));
        let Some(kept) = drawn.kept else { return no("that are not 0 or 1") };
        if (drawn.factor * kept - 1.0).abs() > 1e-4 {
            return no("that are not divided by the probability to be kept");
        }
        let lead = x.view.dims.len().checked_sub(drawn.dims.len());
        let Some(lead) = lead else { return no("with more dimensions") };
        let sizes = x.view.sizes();
        let samples = |d: usize| d == 0 && size(&x.view.dims[0]) == self.batch;
        let unit = if lead == 0 && drawn.dims == sizes {
            DropUnit::Element
        } else if drawn.dims.iter().all(|size| *size == 1) {
            DropUnit::Batch
        } else if lead == 0
            && (0..sizes.len()).all(|d| drawn.dims[d] == if samples(d) { sizes[d] } else { 1 })
        {
            DropUnit::Sample
        } else {
            return no(&format!("of {:?} for {sizes:?}, neither all, nor one a sample, nor one", drawn.dims));
        };
        // In decimal, as people write it.
        let probability = ((1.0 - kept) * 1e6).round() / 1e6;
        if probability == 0.0 {
            return Ok(x.clone());
        }
        self.each(node, x, LayerKind::Dropout { probability: probability as f32, unit })
    }
}
