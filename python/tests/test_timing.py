"""A plan on the CPU is predicted from runs of it, which leave everything as it was."""

import pytest
import torch
from networks import budget_at, build, optimizer_of

import plimsoll


@pytest.mark.parametrize("link", ["200KB/s", "20GB/s"])
def test_a_step_is_predicted_from_runs_of_its_plan(link):
    task = build("convolutions")  # with dropout, and running statistics
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(0.2, task, optimizer)
    before = [value.clone() for value in task.model.state_dict().values()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    step = plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], budget, link, verify=0)
    assert all(map(torch.equal, before, task.model.state_dict().values()))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in task.model.parameters())
    program, schedule = step.program, step.program.schedule
    assert (program.runs, program.finished, program.spans) == (0, 0, None)
    planned = step._current()
    assert "from runs of the plan" in step.explain()
    assert planned.alone_seconds != schedule.makespan_seconds
    # The predicted time is the simulation of those times, and the ops are part of it.
    assert 0 < step.trace.compute_seconds == schedule.bound_seconds
    assert schedule.makespan_seconds >= step.trace.compute_seconds * (1 - 1e-9)
    assert plimsoll.Schedule.from_json(schedule.to_json(), step.trace).pool_bytes == schedule.pool_bytes
    step(*task.batches[0])
    assert step.fallback is None


def test_a_plan_with_less_is_not_said_to_have_run():
    task = build("mlp")
    step = plimsoll.tune(
        task.loss, task.model, None, task.batches[0], "1GiB", "20GB/s", verify=0, seconds=0.5
    )
    planned = step._current()
    planned.alone_seconds = 1.0
    assert "from runs of the plan" in step.explain()
    step._planner.with_less(planned, MemoryError())
    assert planned.alone_seconds is None
    assert "from runs of the plan" not in step.explain()


@pytest.mark.parametrize("error", [MemoryError, plimsoll.PoolInUse])
def test_where_there_is_no_memory_to_run_a_plan_its_prediction_is_of_ops_alone(error, monkeypatch):
    def short(_tape):
        raise error("no memory")

    monkeypatch.setattr("plimsoll.calibration.State", short)
    task = build("mlp")
    step = plimsoll.tune(
        task.loss, task.model, None, task.batches[0], "1GiB", "20GB/s", verify=0, seconds=0.5
    )
    assert step.device.calibrates
    assert "from runs of the plan" not in step.explain()
    step(*task.batches[0])
    assert step.fallback is None


def test_seconds_are_one_for_each_op():
    task = build("mlp")
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0])
    twice = trace.with_seconds([2.0] * len(trace))
    assert twice.compute_seconds == 2.0 * len(trace)
    assert twice.peak_bytes == trace.peak_bytes
    with pytest.raises(plimsoll.BadInput, match="cannot be those of"):
        trace.with_seconds([1.0])
