"""A step that does not fit memory is recorded within the budget: calls tried one by one, a smaller batch verified."""

import logging
import sys

import limited
import pytest
import torch
import torch.nn.functional as F
from networks import ALL, budget_at, build, eager, of_torchvision, optimizer_of, train
from torch import nn

import plimsoll
from plimsoll import batches, devices, pieces, recording, torch_private

SLOW, FAST = "200KB/s", "20GB/s"


def in_pieces(task, sample, adds=False):
    known, is_compared = pieces.known_of_few(task.loss, task.model, sample, None, adds)
    assert is_compared
    tape = recording.record_structure(task.loss, task.model, sample, known, adds)
    pieces.measure(tape, sample, devices.of(task.model))
    return tape


@pytest.mark.parametrize("adds", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ALL)
def test_a_recording_in_pieces_is_the_recording_of_a_whole_step(name, adds):
    task = build(name)
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    whole = recording.record(task.loss, task.model, task.batches[0], adds)
    made = in_pieces(task, task.batches[0], adds)
    assert [call.signature() for call in made.calls] == [call.signature() for call in whole.calls]
    assert [call.workspace_bytes for call in made.calls] == [call.workspace_bytes for call in whole.calls]
    assert [(s.size, s.role) for s in made.storages] == [(s.size, s.role) for s in whole.storages]
    kept = [(one.tensor, other.tensor) for one, other in zip(made.storages, whole.storages, strict=True)]
    assert all(a is b is None or a.data_ptr() == b.data_ptr() for a, b in kept)
    assert [t.data_ptr() for t in made.updated] == [t.data_ptr() for t in whole.updated]
    assert [w for _, w in made.gradients] == [w for _, w in whole.gradients]
    assert all(call.seconds > 0 for call in made.calls)
    assert made.arrivals == whole.arrivals
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert all(p.grad is None for p in task.model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


MATRIX = [
    pytest.param(name, share, link, marks=[] if (share, link) == (0.1, FAST) else pytest.mark.slow)
    for name in ALL
    for share, link in ((0.1, FAST), (0.1, SLOW), (0.4, FAST), (0.4, SLOW))
]


@pytest.mark.parametrize(("name", "share", "link"), MATRIX)
def test_a_step_that_was_recorded_in_pieces_leaves_the_bits_of_eager(name, share, link, caplog):
    reference, task = build(name), build(name)
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    generator = torch.get_rng_state()
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(share, task, optimizer)
    with caplog.at_level(logging.INFO, "plimsoll"):
        step = plimsoll.tune(
            task.loss, task.model, optimizer, task.batches[0], budget, link, seconds=0.5, in_pieces=True
        )
    assert "was recorded in pieces" in caplog.text

    def checked(*batch):
        loss = step(*batch)
        assert step.fallback is None
        assert step.program.counts.as_planned
        return loss

    planned = train(task, optimizer, checked)
    assert [loss.item() for loss in planned] == [loss.item() for loss in losses]
    assert all(map(torch.equal, task.model.state_dict().values(), reference.model.state_dict().values()))
    assert torch.equal(torch.get_rng_state(), generator)
    recorded = step._current().recorded
    weights = sum(t.untyped_storage().nbytes() for t in task.model.state_dict().values())
    assert 0 < recorded.measured.peak_bytes + weights <= budget
    assert recorded.measured.tried <= len(recorded.trace)


def larger(name, size):
    task = build(name)
    return task, batches.taken(task.batches[0], 0, size)


@pytest.mark.parametrize(
    "name", ["convolutions", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt", "checkpointed"))]
)
def test_the_largest_batch_that_fits_eager_is_compared_and_said(name, caplog):
    task, sample = larger(name, 48)
    whole = plimsoll.trace(task.loss, task.model, *sample)
    budget = int(whole.floor_bytes + 0.4 * (whole.peak_bytes - whole.floor_bytes))
    ran = []

    def loss(x, y):
        if not isinstance(x, torch._subclasses.FakeTensor):
            ran.append(len(x))
        return task.loss(x, y)

    step = plimsoll.tune(loss, task.model, None, sample, budget, FAST, seconds=0.5, in_pieces=True)
    assert set(ran) == {batches.SMALL[0]}
    with caplog.at_level(logging.INFO, "plimsoll"):
        step(*sample)
    assert step.fallback is None
    task.model.zero_grad()
    smaller = step._current().smaller.batch
    assert max(ran) == smaller
    assert f"its first {smaller} samples, which do, are compared with eager" in caplog.text
    assert f"compared with eager at batch {smaller}" in step.explain()
    fits, too_large = (
        plimsoll.trace(task.loss, task.model, *batches.taken(sample, 0, size)).peak_bytes
        for size in (smaller - 1, smaller + 2)
    )
    assert fits <= budget < too_large
    assert step._current().smaller.program.schedule.budget_bytes <= budget
    step.verify(1)
    step(*sample)
    assert step._current().verify == 0


def test_a_batch_that_fits_eager_is_compared_as_a_whole(caplog):
    task, sample = larger("mlp", 16)
    with caplog.at_level(logging.INFO, "plimsoll"):
        step = plimsoll.tune(task.loss, task.model, None, sample, "100%", FAST, in_pieces=True)
        step(*sample)
    assert step._current().smaller.batch == 16
    assert "does not fit in eager" not in caplog.text


def test_a_fault_shows_at_the_smaller_batch():
    task, sample = larger("gpt", 32)
    budget = budget_at_batch(task, sample, 0.3)
    step = plimsoll.tune(task.loss, task.model, None, sample, budget, SLOW, seconds=0.5, in_pieces=True)
    step(*sample)
    program = step._current().smaller.program
    again = next(n for n, compute in enumerate(program.schedule.computes()) if compute.again)
    program.bind()
    func = program._steps[again].func

    def wrong(*arguments, **keywords):
        made = func(*arguments, **keywords)
        program._plan.pause()
        for tensor in plimsoll.ops.tensors_in(made):
            if tensor.is_floating_point():
                tensor.add_(1)
        return made

    def bind_and_plant(bind=program._bind_all):
        bind()
        program._steps[again].func = wrong

    program._bind_all = bind_and_plant
    before = [p.clone() for p in task.model.parameters()]
    task.model.zero_grad()
    state = torch.get_rng_state()
    with pytest.raises(plimsoll.VerificationError, match="differs from eager"):
        step.verify(1)
        step(*sample)
    assert all(map(torch.equal, before, task.model.parameters()))
    assert all(p.grad is None for p in task.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def budget_at_batch(task, sample, share):
    trace = plimsoll.trace(task.loss, task.model, *sample)
    return int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))


def test_an_allocation_that_was_not_measured_stops_the_step_and_changes_nothing():
    task, sample = larger("convolutions", 16)
    budget = budget_at_batch(task, sample, 0.3)
    measure = pieces.measure

    def measure_wrong(tape, *others):
        found = measure(tape, *others)
        call = next(call for call in tape.calls if call.name == "convolution_backward")
        call.allocations = call.allocations[:-1]
        return found

    pieces.measure = measure_wrong
    try:
        step = plimsoll.tune(
            task.loss, task.model, None, sample, budget, FAST, verify=0, seconds=0.5, in_pieces=True
        )
    finally:
        pieces.measure = measure
    before = {k: v.clone() for k, v in task.model.state_dict().items()}
    with pytest.raises(plimsoll.Refused, match=r"not in eager.*convolution_backward.*allocated otherwise"):
        step(*sample)
    assert all(torch.equal(v, before[k]) for k, v in task.model.state_dict().items())
    assert all(p.grad is None for p in task.model.parameters())


def test_a_value_that_the_host_reads_is_taken_from_few_samples_and_guarded():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def loss(x):
        y = model(x)
        return (y if (x[0, 0] > 0).item() else -y).square().mean()

    x = torch.randn(64, 16)
    x[0, 0] = 1
    sample = (x,)
    trace = plimsoll.trace(loss, model, *sample)
    step = plimsoll.tune(loss, model, None, sample, trace.peak_bytes - 4096, FAST, in_pieces=True)
    step(*sample)
    assert step.fallback is None
    model.zero_grad()
    other = x.clone()
    other[0, 0] = -1
    with pytest.raises(plimsoll.Refused, match=r"takes another way.*gave False"):
        step(other)


def test_a_step_that_reads_the_whole_batch_on_the_host_is_planned_for_what_it_reads_there():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def loss(x):
        return model(x).square().sum() / (x > 0).sum().item()

    x = torch.randn(64, 16)
    trace = plimsoll.trace(loss, model, x)
    step = plimsoll.tune(loss, model, None, (x,), trace.peak_bytes - 4096, FAST, in_pieces=True)
    planned = step(x)
    gradients = [p.grad.clone() for p in model.parameters()]
    assert step.fallback is None
    model.zero_grad()
    expected = loss(x)
    expected.backward()
    assert torch.equal(planned, expected)
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))


def test_layouts_that_fake_tensors_have_otherwise_are_refused():
    name = "plimsoll_test::transposed"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(
        name, "cpu", lambda x: x.t().contiguous().t().clone(memory_format=torch.preserve_format)
    )
    torch.library.register_fake(name, lambda x: torch.empty(x.shape))
    model = nn.Linear(8, 8)

    def loss(x):
        return model(x).sum() + torch.ops.plimsoll_test.transposed(x).sum()

    with pytest.raises(plimsoll.Refused, match=r"strides \(1, 2\) in memory|operands differ|in memory and"):
        plimsoll.tune(loss, model, None, (torch.randn(16, 8),), "60%", FAST, in_pieces=True)


def test_an_op_without_a_fake_implementation_is_refused_by_its_name():
    name = "plimsoll_test::only_in_memory"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "cpu", lambda x: x.clone())
    model = nn.Linear(8, 8)

    def loss(x):
        return model(x).sum() + torch.ops.plimsoll_test.only_in_memory(x).sum()

    before = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(
        plimsoll.Refused, match=r"only_in_memory.*register_fake|register_fake.*only_in_memory"
    ):
        plimsoll.tune(loss, model, None, (torch.randn(16, 8),), "60%", FAST, in_pieces=True)
    assert [p.data_ptr() for p in model.parameters()] == before
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_a_step_that_knows_one_batch_size_is_not_compared_and_that_is_said(caplog):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(8)))
    x = torch.randn(256, 16)
    step = plimsoll.tune(
        lambda x: model(x).view(256, 4, 4).sum(), model, None, (x,), "80%", FAST, in_pieces=True
    )
    step(x)
    assert step.fallback is None
    assert "not compared with eager: the step fails at a smaller batch" in caplog.text


def test_constants_closures_and_tied_memory_are_those_that_are_there():
    torch.manual_seed(0)
    flat = torch.randn(2 * 64)
    scale, shift = flat[:64], flat[64:]
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    counter = torch.zeros(())

    def loss(x):
        counter.add_(1)
        y = model(x) * scale + shift[None, :]
        return F.mse_loss(y * torch.tensor([2.0, 3.0]).repeat(32), x)

    x = torch.randn(64, 64)
    trace = plimsoll.trace(loss, model, x)
    step = plimsoll.tune(loss, model, None, (x,), int(0.9 * trace.peak_bytes), FAST, in_pieces=True)
    assert counter.item() == 0
    planned = step(x)
    assert counter.item() == 1
    assert step.fallback is None
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = loss(x)
    expected.backward()
    assert torch.equal(planned, expected)
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))


def test_a_parameter_of_no_module_is_refused_before_it_has_a_fake_gradient():
    model, own = nn.Linear(8, 8), nn.Parameter(torch.ones(8))
    with pytest.raises(plimsoll.Refused, match="no parameter of the model"):
        plimsoll.tune(
            lambda x: (model(x) * own).sum(), model, None, (torch.randn(2, 8),), "90%", FAST, in_pieces=True
        )
    assert own.grad is None


@pytest.mark.slow
def test_a_batch_that_no_plan_fits_is_refused_and_the_largest_is_recorded_in_pieces():
    task, sample = larger("convolutions", 32)
    floor = plimsoll.trace(task.loss, task.model, *sample).floor_bytes

    def tuned(sample):
        return plimsoll.tune(
            task.loss, task.model, None, sample, int(0.7 * floor), FAST, seconds=0.5, in_pieces=True
        )

    with pytest.raises(plimsoll.NoPlan) as failed:
        tuned(sample)
    sample = batches.taken(sample, 0, failed.value.largest_batch)
    step = tuned(sample)
    step(*sample)
    assert step.fallback is None
    assert step._current().recorded.measured is not None


@pytest.mark.slow
def test_networks_of_torchvision_are_recorded_in_pieces_as_they_are_as_a_whole():
    for name in ("resnet50", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "densenet121"):
        task = of_torchvision(name)
        with torch_private.views_as_of_fakes():
            whole = recording.record(task.loss, task.model, task.batches[0])
        made = in_pieces(task, task.batches[0])
        assert [call.signature() for call in made.calls] == [call.signature() for call in whole.calls]


LIMITED = """
x = torch.randn(16384, 128)  # 8 MiB
few = x[:64].clone()
# What is imported and built at first use is there before any limit.
plimsoll.tune(loss, model, None, (few,), "70%", "20GB/s", seconds=1, in_pieces=True)(few)
model.zero_grad()
limit(150 * MIB)  # eager takes 200 MiB, recording as a whole 260
try:
    loss(x).backward()
except RuntimeError:
    model.zero_grad()
else:
    raise AssertionError("the limit is none")
step = plimsoll.tune(loss, model, None, (x,), "100MiB", "20GB/s", seconds=1, host_budget=0, IN_PIECES)
planned = step(x)
assert step.fallback is None
schedule = step.program.schedule
assert step.trace.peak_bytes > 150 * MIB
assert step.trace.resident_bytes + schedule.pool_bytes <= 100 * MIB
gradients = [p.grad.clone() for p in model.parameters()]
limit(None)
model.zero_grad()
eager = loss(x)
eager.backward()
assert torch.equal(planned, eager)
assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("words", [pytest.param("in_pieces=True", marks=pytest.mark.slow), "in_pieces=None"])
def test_a_step_that_does_not_fit_the_memory_of_the_process_is_tuned_and_runs(words):
    said = limited.run(LIMITED.replace("IN_PIECES", words))
    assert "was recorded in pieces" in said
    assert "are compared with eager" in said


@pytest.mark.slow
def test_batches_are_recommended_and_suggested_within_the_budget():
    task, sample = larger("convolutions", 32)
    budget = budget_at_batch(task, sample, 0.3)
    ran = []

    def loss(x, y):
        if not isinstance(x, torch._subclasses.FakeTensor):
            ran.append(len(x))
        return task.loss(x, y)

    optimizer = optimizer_of("sgd", task.model)
    step = plimsoll.tune(
        loss, task.model, optimizer, sample, budget, FAST, verify=0, seconds=0.5, in_pieces=True
    )
    assert step.batch >= 1
    found = plimsoll.suggest(loss, task.model, optimizer, sample, budget, FAST, in_pieces=True)
    assert found.tried[0].seconds > 0
    assert max(ran) <= batches.SMALL[1]


def test_an_op_that_fails_on_made_up_operands_is_refused_by_its_name():
    name = "plimsoll_test::of_several_values"
    torch.library.define(name, "(Tensor x) -> Tensor")

    def checked(x):
        if x.min() == x.max():
            raise ValueError("all values are equal")
        return x.clone()

    torch.library.impl(name, "cpu", checked)
    torch.library.register_fake(name, torch.empty_like)
    model = nn.Linear(8, 8)

    def loss(x):
        return model(torch.ops.plimsoll_test.of_several_values(x * 2)).sum()

    with pytest.raises(plimsoll.Refused, match=r"cannot be tried alone.*all values are equal.*of_several"):
        plimsoll.tune(loss, model, None, (torch.randn(64, 8),), "100%", FAST, in_pieces=True)
    assert all(p.grad is None for p in model.parameters())
