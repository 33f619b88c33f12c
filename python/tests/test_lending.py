"""Between steps other code may have the pool's memory, and the next step takes it back."""

import sys
import threading
import weakref
from types import SimpleNamespace

import limited
import pytest
import torch
from networks import budget_at, build, eager, optimizer_of, train

import plimsoll
from plimsoll.pool import MOVED, Pool
from plimsoll.program import Program
from plimsoll.smaller import Smaller
from plimsoll.verification import State


def run_out():
    """Requests more memory from PyTorch than any machine has."""
    with pytest.raises(RuntimeError):
        torch.empty(1 << 50, dtype=torch.uint8)


def planned(name="gpt", optimizer="adamw"):
    task = build(name)
    trainer = optimizer_of(optimizer, task.model)
    budget = budget_at(0.3, task, trainer)
    step = plimsoll.tune(
        task.loss, task.model, trainer, task.batches[0], budget, "20GB/s", verify=0, seconds=0.5
    )
    return task, trainer, step


@pytest.mark.parametrize("moves", [False, True])
def test_a_pool_that_was_lent_between_steps_gives_the_bits_of_eager(moves):
    reference = build("gpt")
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    task, optimizer, step = planned()
    pool = step._memory.pool
    held, lent, moved = [], 0, 0

    def between(*batch):
        nonlocal lent, moved
        loss = step(*batch)
        before = pool.address
        assert not pool.is_lent
        run_out()
        assert pool.is_lent
        assert pool.held_bytes == 0
        lent += 1
        if moves:  # the other code writes the memory, and keeps it
            held.append(torch.full((pool.storage.nbytes(),), 255, dtype=torch.uint8))
        step.program.bind()
        assert not pool.is_lent
        moved += pool.address != before
        return loss

    assert [loss.item() for loss in train(task, optimizer, between)] == [loss.item() for loss in losses]
    assert lent >= 3
    assert moved > 0 or not moves
    assert step.fallback is None
    assert step.program.counts.unplanned == 0
    assert all(map(torch.equal, task.model.parameters(), reference.model.parameters()))
    assert all((tensor == 255).all() for tensor in held), "no step wrote what is somebody else's"


def test_while_a_step_runs_nobody_gets_its_pool():
    reference = build("gpt")
    losses = train(reference, optimizer_of("sgd", reference.model), eager(reference))
    task, optimizer, step = planned(optimizer="sgd")
    ended = threading.Event()
    tried = 0

    def ask():
        nonlocal tried
        while not ended.is_set():
            try:
                torch.empty(1 << 50, dtype=torch.uint8)
            except RuntimeError:
                tried += 1
            torch.full((step._memory.pool.size,), 255, dtype=torch.uint8)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert [loss.item() for loss in train(task, optimizer, step)] == [loss.item() for loss in losses]
    finally:
        ended.set()
        thread.join()
    assert tried > 0
    assert step.fallback is None


def test_two_steps_have_each_others_pool():
    (one, _, first), (_, _, second) = planned(), planned("mlp", "sgd")
    run_out()
    assert first._memory.pool.is_lent
    assert second._memory.pool.is_lent
    first(*one.batches[0])
    assert not first._memory.pool.is_lent
    assert second._memory.pool.is_lent
    del first
    run_out()


def test_a_step_that_ends_early_lends_its_pool_too():
    task, _, step = planned()
    step(*task.batches[0])
    task.model.zero_grad()
    kept = step.program._steps[3].func

    def fails(*_arguments, **_keywords):
        raise KeyboardInterrupt

    step.program._steps[3].func = fails
    with pytest.raises(KeyboardInterrupt):
        step(*task.batches[0])
    run_out()
    assert step._memory.pool.is_lent
    step.program._steps[3].func = kept
    step(*task.batches[0])
    assert step.fallback is None


def test_a_comparison_whose_copies_lie_in_the_pool_is_made_another_way(caplog, monkeypatch):
    caplog.set_level("INFO", "plimsoll")
    task, _, step = planned()
    torch.manual_seed(3)
    step(*task.batches[0])
    wanted = [p.grad.clone() for p in task.model.parameters()]
    run, kept = Program.run, []

    def in_use(program, tensors, is_timed=False, taker=None):
        if any(state() is not None for state in kept):
            raise plimsoll.PoolInUse("a tensor still lies in it")
        return run(program, tensors, is_timed, taker)

    class Copies(State):
        def __init__(self, tape):
            super().__init__(tape)
            kept.append(weakref.ref(self))

    monkeypatch.setattr(Program, "run", in_use)
    monkeypatch.setattr("plimsoll.step.State", Copies)
    step.verify(2)
    task.model.zero_grad()
    torch.manual_seed(3)
    step(*task.batches[0])
    assert kept
    assert step.fallback is None
    assert "too short for this batch in eager beside its plan" in caplog.text
    assert isinstance(step._current().smaller, Smaller)
    assert all(map(torch.equal, wanted, (p.grad for p in task.model.parameters())))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_an_evaluation_that_finds_no_memory_has_the_pool():
    said = limited.run(
        """
long = torch.randn(16384, 128)
loss(long).backward()  # what libraries keep is there before any limit
model.zero_grad()
step = plimsoll.tune(loss, model, None, long, "1GiB", "20GB/s", verify=0, seconds=1, host_budget=0)
step(long)
first = [p.grad.clone() for p in model.parameters()]
pool = step._memory.pool
assert pool.size > 100 * MIB
limit(20 * MIB)
with torch.no_grad():
    sampled = torch.zeros(int(0.9 * pool.size), dtype=torch.uint8)
assert pool.is_lent
del sampled
model.zero_grad()
step(long)
assert step.fallback is None and not pool.is_lent
assert all(map(torch.equal, first, (p.grad for p in model.parameters())))
"""
    )
    assert "out of memory" not in said


@pytest.mark.parametrize("others", [[], [(1 << 30, 4096)]])
def test_a_pool_that_moves_a_little_does_not_count_itself(others, caplog):
    own = 1 << 20
    library = SimpleNamespace(
        plimsoll_pool=lambda size, index: 1,
        plimsoll_pool_address=lambda handle: own,
        plimsoll_pool_take=lambda handle: MOVED,
        plimsoll_pool_free=lambda handle: None,
        plimsoll_window=lambda address: None,
    )
    device = SimpleNamespace(
        where=torch.device("cpu"),
        allocator=SimpleNamespace(pools=lambda: library),
        stream=lambda: 0,
        living_in=lambda address, size: [(own, 65536), *others],
    )
    pool = Pool(device)
    pool.reserve(4096)
    pool.take()
    assert len(caplog.records) == len(others)
    assert all("4 KiB of between steps in 1 tensors" in record.getMessage() for record in caplog.records)
