"""Batches that no plan runs and eager does not fit the budget with: hooks swap saved tensors, with eager's bits."""

import itertools
import logging

import pytest
import torch
from torch import nn

import plimsoll
from plimsoll import planned
from plimsoll.hooked import peak_of
from plimsoll.in_eager import InEager
from plimsoll.saved import SavedSwaps


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
    """Runs a step in eager and by `step`, from the same state; returns the peak bytes of `step` if no plan ran."""

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
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    peak = [0]

    def measured(how, run, of=InEager.run):
        with peak_of(step.device, parameters) as most:
            given = of(how, run)
        peak[0] = most[0]
        return given

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InEager, "run", measured)
        assert all(map(torch.equal, wanted, left(step)))
    return peak[0]


def signed(model):
    """A loss for which the host reads a value: with a different sign the step differs."""

    def loss(x):
        y = model(x)
        return (y if (x.sum() > 0).item() else -2 * y).square().mean()

    return loss


def test_a_batch_that_takes_another_way_is_swapped_by_hooks_within_the_budget(caplog):
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, budget, trace = tuned(model, loss, x, 0.5)
    assert trace.peak_bytes > budget
    assert step(x) is not None
    assert step.fallback is None
    with caplog.at_level(logging.WARNING, "plimsoll"):
        peak = beside_eager(model, loss, step, -x)
    assert "this batch takes another way" in step.fallback
    assert "hooks swap saved tensors: " in step.fallback
    assert step.fallback.endswith("measured")
    assert 0 < peak <= budget < trace.peak_bytes
    assert "more than the budget" not in caplog.text
    # The next batch that keeps to the plan runs by it.
    beside_eager(model, loss, step, x)
    assert step.fallback is None


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


def test_an_lstm_whose_eager_step_does_not_fit_is_swapped_by_hooks():
    torch.manual_seed(0)
    model = nn.LSTM(32, 64, 4, batch_first=True)

    def loss(x):
        return model(x)[0].square().mean()

    x = torch.randn(32, 32, 32)
    try:
        step, budget, trace = tuned(model, loss, x, 0.75)
    except (plimsoll.Refused, plimsoll.NoPlan) as no_step:
        pytest.skip(f"this torch's LSTM is refused: {no_step}")
    peak = beside_eager(model, loss, step, x)
    if step.fallback is not None:
        assert "hooks swap saved tensors" in step.fallback
        assert peak <= budget < trace.peak_bytes


def test_what_cannot_be_recorded_is_swapped_by_hooks_and_what_fits_is_left_alone():
    model = deep()

    def loss(x):
        y = model(x)
        if len(x) != 256:
            y = y[(x[:, 0] > 0.5).nonzero().flatten()]
        return y.square().mean()

    step, budget, _ = tuned(model, loss, torch.rand(256, 64), 0.5)
    peak = beside_eager(model, loss, step, torch.rand(255, 64))
    assert "it cannot be recorded" in step.fallback
    assert "hooks swap saved tensors" in step.fallback
    assert peak <= budget
    beside_eager(model, loss, step, torch.rand(16, 64))
    assert "it cannot be recorded" in step.fallback
    assert "hooks" not in step.fallback


def test_where_hooks_are_not_enough_it_is_said(caplog):
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, budget, _ = tuned(model, loss, x, 0.5)
    how = InEager(step.device, model, None)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())

    def run():
        made = loss(-x)
        made.backward()
        return made

    with caplog.at_level(logging.WARNING, "plimsoll"):
        how.fit(run, step._memory, parameters + 1000, None, None, verify=True)
        how.warn(budget)
    assert "more than the budget is taken still" in how.short
    assert f"more than the budget of {plimsoll._core.show_bytes(budget)}" in caplog.text
    assert all(p.grad is None for p in model.parameters())


def test_the_host_budget_bounds_what_hooks_swap():
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, _, _ = tuned(model, loss, x, 0.5, host_budget=0)
    beside_eager(model, loss, step, -x)
    how = step._current().in_eager
    assert "more than the host budget" in how.short
    assert how._hooked.swaps.swapped_bytes == 0
    assert "hooks" not in step.fallback


def test_hooks_that_leave_other_bits_are_found(monkeypatch):
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, _, _ = tuned(model, loss, x, 0.5)
    ready = SavedSwaps._ready

    def wrong(swaps, stored):
        back = ready(swaps, stored)
        back[:64] += 1
        return back

    monkeypatch.setattr(SavedSwaps, "_ready", wrong)
    for _ in range(2):
        with pytest.raises(plimsoll.VerificationError, match="differs from eager"):
            step(-x)
    assert all(p.grad is None for p in model.parameters())
    monkeypatch.setattr(SavedSwaps, "_ready", ready)
    beside_eager(model, loss, step, -x)


def test_what_was_chosen_stays_where_eager_differs_from_itself():
    model, x = deep(), torch.rand(256, 64)
    noise = itertools.chain([1e-3], itertools.repeat(0.0))  # the first run differs

    def loss(x):
        y = model(x)
        if (x.sum() > 0).item():
            return y.square().mean()
        return y.square().mean() * (1 + next(noise))

    step, budget, _ = tuned(model, loss, x, 0.5)
    how = InEager(step.device, model, None)

    def run():
        made = loss(-x)
        made.backward()
        return made

    how.fit(run, step._memory, budget, None, None, verify=True)
    assert how._hooked.swaps.chosen
    assert how._hooked.peak_bytes <= budget


def test_trials_put_back_what_a_step_draws_from_and_updates():
    model, x = deep(), torch.rand(256, 64)
    own, mean = torch.Generator().manual_seed(1), torch.zeros(64)

    def loss(x):
        noise = torch.rand(64, generator=own)
        y = model(x * noise)
        mean.mul_(0.9).add_(noise, alpha=0.1)
        return (y if (x.sum() > 0).item() else -2 * y).square().mean()

    step, _, _ = tuned(model, loss, x, 0.5)
    before = [mean.clone(), own.get_state()]
    torch.manual_seed(3)
    wanted = loss(-x)
    after = [mean.clone(), own.get_state()]
    mean.copy_(before[0])
    own.set_state(before[1])
    torch.manual_seed(3)
    assert torch.equal(step(-x), wanted)
    assert "hooks swap saved tensors" in step.fallback
    assert all(map(torch.equal, [mean, own.get_state()], after))


def test_where_eager_finds_no_memory_at_all_everything_is_swapped_from_the_start(monkeypatch):
    model, x = deep(), torch.rand(256, 64)
    loss = signed(model)
    step, budget, _ = tuned(model, loss, x, 0.5)
    learning = SavedSwaps.learning

    def short(swaps, model, swaps_all=False):
        if not swaps_all:
            raise MemoryError
        return learning(swaps, model, swaps_all)

    monkeypatch.setattr(SavedSwaps, "learning", short)
    peak = beside_eager(model, loss, step, -x)
    swaps = step._current().in_eager._hooked.swaps
    assert len(swaps.chosen) == sum(size > 0 for size in swaps.sizes)
    assert swaps.missed == 0
    assert peak <= budget


@pytest.mark.parametrize("verify", [0, 1])
def test_what_an_op_writes_after_it_was_saved_is_swapped_as_written(verify):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.RReLU()) for _ in range(10)))
    x = torch.rand(256, 64)
    loss = signed(model)
    step, _, _ = tuned(model, loss, x, 0.5, verify=verify)
    beside_eager(model, loss, step, x)
    for _ in range(2):
        beside_eager(model, loss, step, -x)
    assert "hooks swap" in step.fallback
