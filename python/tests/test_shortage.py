"""Out of memory within a step: a limit of the operating system, in a separate process."""

import sys

import limited
import pytest

from plimsoll import shortage

START = """
def check(step, x):
    model.zero_grad()
    planned = step(x)
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    eager = loss(x)
    eager.backward()
    assert torch.equal(planned, eager)
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))

short, long = torch.randn(2048, 128), torch.randn(16384, 128)
loss(long).backward()  # what libraries keep is there before any limit
model.zero_grad()
loss(long).backward()
model.zero_grad()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_longer_batch_that_finds_no_memory_is_planned_with_less():
    said = limited.run(
        START
        + """
step = plimsoll.tune(loss, model, None, short, "2GiB", "20GB/s", verify=0, seconds=1, host_budget=0)
step(short)
recorded = plimsoll.planning.record
class Limited:
    def __call__(self, *arguments, **keywords):
        made = recorded(*arguments, **keywords)
        limit(125 * MIB)  # the pool that keeps everything takes more
        return made
plimsoll.planning.record = Limited()
model.zero_grad()
step(long)
limit(None)
schedule = step.program.schedule
keeps = step._current().trace.peak_bytes - step._current().trace.resident_bytes
assert schedule.pool_bytes < 0.95 * keeps, (schedule.pool_bytes, keeps)
assert step.fallback is None
check(step, long)
check(step, short)
assert step.fallback is None
"""
    )
    assert "out of memory in a step" in said
    assert "(1 of 3)" in said
    assert "planning with" in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_where_memory_stays_short_the_error_is_raised_after_a_few_times_and_nothing_is_lost():
    said = limited.run(
        START
        + """
step = plimsoll.tune(loss, model, None, long, "1GiB", "20GB/s", verify=0, seconds=1, host_budget=0)
step(long)
before = [p.clone() for p in model.parameters()]
step._memory.give_back()
limit(20 * MIB)
model.zero_grad()
try:
    step(long)
except RuntimeError as error:
    limit(None)
    print(type(error).__name__, file=sys.stderr)
else:
    raise AssertionError
assert all(map(torch.equal, before, model.parameters()))
assert all(p.grad is None for p in model.parameters())
check(step, long)
assert step.fallback is None
"""
    )
    assert "(3 of 3)" in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_recording_and_comparing_have_the_memory_of_the_pool():
    said = limited.run(
        START
        + """
step = plimsoll.tune(loss, model, None, long, "1GiB", "20GB/s", verify=0, seconds=1, host_budget=0)
step(long)
limit(150 * MIB)  # recording takes 260 MiB, of which the pool has 150
step(long[:15000])
limit(None)
model.zero_grad()
step(long)
step.verify(1)
limit(20 * MIB)  # eager takes 150 MiB
model.zero_grad()
step(long)
assert step._kinds and step._current().verify == 0 and step._current().compared == 1
limit(None)
del step
model.zero_grad()
step = plimsoll.tune(loss, model, None, long, "100MiB", "20GB/s", verify=1, seconds=1, host_budget=0)
limit(20 * MIB)  # too little for eager, also with the pool of 100 MiB
model.zero_grad()
step(long)
limit(None)
assert step.fallback is None
check(step, long)
"""
    )
    before, _, after = said.partition("memory is too short for this batch in eager beside its plan")
    assert "giving the pool of" not in before
    assert "samples, which do, are compared with eager" in after


def test_errors_that_are_none_of_memory_are_not_tried_again():
    calls = []

    def work():
        calls.append(1)
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        shortage.retried(work, lambda _: "nothing")
    assert len(calls) == 1


def test_the_number_of_attempts_is_capped():
    calls, given = [], []

    def work():
        calls.append(1)
        raise MemoryError

    with pytest.raises(MemoryError):
        shortage.retried(work, lambda _: given.append(1) or "less")
    assert (len(calls), len(given)) == (shortage.ATTEMPTS + 1, shortage.ATTEMPTS)
    with pytest.raises(MemoryError):
        shortage.retried(work, lambda _: None)
