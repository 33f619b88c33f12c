//! The examples run successfully, so that they stay correct.

#[path = "../examples/01_networks_and_traces.rs"]
mod networks_and_traces;
#[path = "../examples/02_plan_check_simulate.rs"]
mod plan_check_simulate;
#[path = "../examples/03_train_within_a_budget.rs"]
mod train_within_a_budget;
#[path = "../examples/04_tune_and_report.rs"]
mod tune_and_report;

#[test]
fn networks_become_traces() {
    networks_and_traces::main().expect("the example ends well");
}

#[test]
fn a_trace_is_planned_checked_and_simulated() {
    plan_check_simulate::main().expect("the example ends well");
}

#[test]
fn a_network_trains_within_a_budget_to_the_same_bits() {
    train_within_a_budget::main().expect("the example ends well");
}

#[test]
fn a_study_is_tuned_and_reported_by_library_calls() {
    tune_and_report::main().expect("the example ends well");
}
