"""Batches that no plan runs: they run in eager, and one warning says why and what eager takes."""

import logging

import pytest
import torch
from torch import nn

import plimsoll
from plimsoll import planned
from plimsoll._core import show_bytes
from plimsoll.in_eager import InEager, peak_of


def deep(depth=10, width=64):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(depth)]
    return nn.Sequential(*layers)


def tuned(model, loss, x, share, **options):
    trace = plimsoll.trace(loss, model, x)
    budget = int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
    options = {"verify": 1, "seconds": 0.5, **options}
    return plimsoll.tune(loss, model, None, x, budget, "20GB/s", **options), budget, trace


def beside_eager(model, loss, step, x):
    """Runs a step in eager and by `step`, from the same state, and compares every bit."""

    def left(run):
        model.zero_grad()
        torch.manual_seed(3)
        given = run(x)
        return [given.detach().clone(), torch.get_rng_state(), *(p.grad.clone() for p in model.parameters())]

    def eager(x):
        made = loss(x)
        made.backward()
        return made

    wanted = left(eager)
    model.zero_grad()
    assert all(map(torch.equal, wanted, left(step)))


def signed(model):
    """A loss for which the host reads a value: with a different sign the step differs."""

    def loss(x):
        y = model(x)
        return (y if (x.sum() > 0).item() else -2 * y).square().mean()

    return loss


@pytest.mark.parametrize(("share", "than"), [(0.5, ", more than the budget of"), (1.0, " of the budget of")])
def test_a_batch_that_takes_another_way_runs_in_eager_with_one_warning(share, than, caplog):
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, budget, trace = tuned(model, loss, x, share)
    assert step(x) is not None
    assert step.fallback is None
    with caplog.at_level(logging.WARNING, "plimsoll"):
        for _ in range(2):
            beside_eager(model, loss, step, -x)
    assert "this batch takes another way" in step.fallback
    (said,) = caplog.messages
    assert said.startswith(f"this batch runs in eager: {step.fallback}; ")
    assert said.endswith(f"eager takes {show_bytes(trace.peak_bytes)}{than} {show_bytes(budget)}")
    # The next batch that keeps to the plan runs by it.
    beside_eager(model, loss, step, x)
    assert step.fallback is None


def test_a_strict_step_raises_instead_and_trains_on():
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, _, _ = tuned(model, loss, x, 0.5, strict=True)
    step(x)
    model.zero_grad()
    state = torch.get_rng_state()
    with pytest.raises(plimsoll.Refused, match="which `strict` forbids: this batch takes another way"):
        step(-x)
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    beside_eager(model, loss, step, x)


def test_eager_that_fits_the_budget_has_the_memory_of_the_plan_and_gives_it_back_once(monkeypatch):
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, budget, trace = tuned(model, loss, x, 1.0)
    assert trace.peak_bytes <= budget
    step(x)
    assert step._memory.pool.size > 0
    step._current().broken = "the plan does not pay"
    trimmed = []
    monkeypatch.setattr(type(step.device), "trim", lambda _: trimmed.append(1))
    for _ in range(3):
        beside_eager(model, loss, step, x)
        assert step._memory.pool.size == step._memory.arena_bytes == 0
    assert step.fallback == "the plan does not pay"
    assert trimmed == [1]


@pytest.mark.parametrize(("share", "stays"), [(3.0, True), (1.5, False), (1.0, False)])
def test_a_plan_that_takes_turns_with_eager_keeps_its_place_where_both_fit(share, stays):
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, budget, trace = tuned(model, loss, x, share)
    pool = step._memory.pool
    for number in range(4):
        step(x)
        assert step.fallback is None
        bound = step.program._bound_to
        beside_eager(model, loss, step, -x)
        assert "another way" in step.fallback
        assert trace.peak_bytes + step._memory.arena_bytes <= budget, "all that is there"
        assert (pool.held_bytes > 0) == stays
        assert (step.program._bound_to == bound) == (share > 1), number
        model.zero_grad()


def test_a_value_that_is_another_in_every_batch_is_tried_now_and_then(caplog):
    model, x = deep(4), torch.rand(16, 64)
    loss = signed(model)
    step, _, _ = tuned(model, loss, x, 1.0, verify=0)
    with caplog.at_level(logging.WARNING, "plimsoll"):
        for _ in range(planned.ANOTHER_WAY + 2 * (planned.PUT_OFF + 1)):
            beside_eager(model, loss, step, -x)
            assert "another way" in step.fallback
            assert "`_local_scalar_dense` at " in step.fallback
    assert step.program.runs == planned.ANOTHER_WAY + 2
    assert ["this batch takes" in said for said in caplog.messages] == [True, False], "each is said once"
    assert "one in 33 is tried" in caplog.text
    for number in range(planned.PUT_OFF + 1):
        assert step.program.runs == planned.ANOTHER_WAY + 2, number
        beside_eager(model, loss, step, x)
    for _ in range(3):
        assert step.fallback is None
        step(x)


def test_an_lstm_has_the_numbers_of_eager():
    torch.manual_seed(0)
    model = nn.LSTM(32, 64, 4, batch_first=True)

    def loss(x):
        return model(x)[0].square().mean()

    x = torch.randn(32, 32, 32)
    try:
        step, _, _ = tuned(model, loss, x, 0.75)
    except (plimsoll.Refused, plimsoll.NoPlan) as no_step:
        pytest.skip(f"this torch's LSTM is refused: {no_step}")
    beside_eager(model, loss, step, x)


def test_what_eager_takes_is_measured_for_a_batch_that_cannot_be_recorded(caplog):
    model = deep()

    def loss(x):
        y = model(x)
        if len(x) != 256:
            y = y[(x[:, 0] > 0.5).nonzero().flatten()]
        return y.square().mean()

    step, _, trace = tuned(model, loss, torch.rand(256, 64), 0.5)
    with caplog.at_level(logging.WARNING, "plimsoll"):
        for size in (255, 255, 16):
            beside_eager(model, loss, step, torch.rand(size, 64))
            assert "it cannot be recorded" in step.fallback
    large, small = caplog.messages
    assert ", more than the budget of" in large
    assert " of the budget of" in small
    measured = [how.peak_bytes for how in step._kinds.values() if isinstance(how, InEager)]
    assert 0.8 < measured[0] / trace.peak_bytes < 1.1, "a part of the samples is left out"
    assert measured[1] < measured[0]


def test_the_reason_is_said_if_eager_fails(caplog):
    model, x = deep(), torch.rand(256, 64)
    step, _, _ = tuned(model, signed(model), x, 0.5)
    step(x)
    model.zero_grad()

    def short(batch, arrived):
        raise MemoryError

    step._eager = short
    with caplog.at_level(logging.WARNING, "plimsoll"), pytest.raises(MemoryError):
        step(-x)
    assert "this batch runs in eager: this batch takes another way" in caplog.text


def test_the_peak_of_a_context_is_that_of_its_allocations():
    model, x = deep(), torch.rand(256, 64)
    step, _, _ = tuned(model, signed(model), x, 1.0)
    with peak_of(step.device, 1000) as peak:
        held = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(3)]
        del held
        torch.empty(1 << 20, dtype=torch.uint8)
    assert 1000 + (3 << 20) <= peak[0] < 1000 + (4 << 20)
