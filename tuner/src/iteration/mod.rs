//! The iteration as the planner sees it: tensors cut into the values that they hold, the ops that use them ([`uses`]), and the
//! gaps between these uses ([`values`]).

pub mod earlier;
pub mod uses;
pub mod values;
