//! The iteration as the planner sees it: tensors cut into the values that they hold, and the gaps between their uses.

pub mod values;
