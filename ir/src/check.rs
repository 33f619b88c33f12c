//! Is a schedule valid for a trace and a budget?
