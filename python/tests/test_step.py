"""A step over its life: budgets, verification, batches of other kinds, fallbacks, exceptions, transfers."""

import gc
import logging
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from networks import budget_at, build, eager, optimizer_of, train
from steps import highest_byte
from torch import nn

import plimsoll
from plimsoll import allocator, errors, native


def tuned(name, share=0.4, link="20GB/s", **more):
    task = build(name)
    optimizer = optimizer_of("sgd", task.model)
    budget = budget_at(share, task, optimizer)
    return task, plimsoll.tune(
        task.loss, task.model, optimizer, task.batches[0], budget, link, seconds=0.5, **more
    )


def gradients(task):
    return [None if p.grad is None else p.grad.clone() for p in task.model.parameters()]


def assert_as_eager(task, step, *batch):
    """Checks that one step gives eager's loss, gradients and buffers."""
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    task.model.zero_grad()
    loss = eager(task)(*batch)
    wanted = gradients(task)
    buffers = [b.clone() for b in task.model.buffers()]
    task.model.load_state_dict(state)
    torch.set_rng_state(generator)
    task.model.zero_grad()
    planned = step(*batch)
    assert torch.equal(loss, planned)
    for one, other in zip(wanted, gradients(task), strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    for one, other in zip(buffers, task.model.buffers(), strict=True):
        assert torch.equal(one, other)


def test_the_first_steps_are_verified_and_the_plan_runs():
    task, step = tuned("gpt", verify=3)
    train(task, optimizer_of("sgd", task.model), step)
    assert step.fallback is None


def test_a_wrong_bit_is_a_verification_error_and_leaves_nothing():
    task, step = tuned("convolutions")
    program = step.program
    run = program.run

    def wrong(inputs):
        loss = run(inputs)
        next(p.grad for p in task.model.parameters() if p.grad is not None).view(-1)[0].add_(1)
        return loss

    program.run = wrong
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    with pytest.raises(plimsoll.VerificationError, match=r"the gradient of 0\.weight"):
        step(*task.batches[0])
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_verify_counts_steps():
    task, step = tuned("mlp", verify=0)
    calls = []
    loss = step._fn
    step._fn = lambda *batch: (calls.append(1), loss(*batch))[1]
    step(*task.batches[0])
    assert not calls
    step.verify(2)
    for _ in range(3):
        task.model.zero_grad()
        step(*task.batches[0])
    assert len(calls) == 2


def test_a_batch_of_another_shape_has_a_plan_of_its_own():
    task, step = tuned("convolutions", verify=0)
    for size in (4, 3, 4, 2, 3):
        x, y = task.batches[0]
        assert_as_eager(task, step, x[:size], y[:size])
        assert step.fallback is None
        assert f"batch {size}," in step.why


def test_another_mode_of_the_model_has_a_plan_of_its_own():
    task, step = tuned("convolutions", verify=0)
    assert_as_eager(task, step, *task.batches[0])
    task.model.eval()
    assert_as_eager(task, step, *task.batches[0])
    task.model.train()
    assert_as_eager(task, step, *task.batches[1])
    assert step.fallback is None


def test_parameters_that_move_are_planned_anew():
    task, step = tuned("mlp", verify=0)
    assert_as_eager(task, step, *task.batches[0])
    for parameter in task.model.parameters():
        parameter.data = parameter.data.clone()
    assert_as_eager(task, step, *task.batches[1])
    assert step.fallback is None


def test_a_model_that_changes_between_steps_is_planned_anew():
    task, step = tuned("convolutions", verify=0)
    model = task.model
    dropout = next(number for number, module in enumerate(model) if isinstance(module, nn.Dropout))
    assert_as_eager(task, step, *task.batches[0])
    step._planner.budget = 1 << 30  # the replacement may take more
    for change in (
        lambda: model.__setitem__(2, nn.Sigmoid()),
        lambda: setattr(model[dropout], "p", 0.6),
        lambda: model.__setitem__(dropout, nn.Dropout(0.1)),
        lambda: model.__delitem__(dropout),
        lambda: model.__setitem__(len(model) - 1, nn.Linear(16 * 64, 8)),
    ):
        change()
        assert_as_eager(task, step, *task.batches[1])
        assert step.fallback is None


def test_a_value_that_the_host_reads_sends_the_step_to_eager_where_it_is_another(caplog):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))

    def loss(x):
        y = model(x)
        return (y if (x.sum() > 0).item() else -2 * y).square().mean()

    x = torch.rand(4, 8)
    step = plimsoll.tune(loss, model, None, x, "100%", "1GB/s", verify=0)

    class Both:
        pass

    task = Both()
    task.model, task.loss = model, loss
    assert_as_eager(task, step, x)
    assert step.fallback is None
    with caplog.at_level(logging.WARNING, "plimsoll"):
        assert_as_eager(task, step, -x)
    assert "gave False, and True when the step was recorded" in step.fallback
    assert "test_step.py:" in step.fallback
    assert "runs in eager" in caplog.text
    assert_as_eager(task, step, x)
    assert step.fallback is None


def test_an_allocation_that_no_plan_has_sends_the_step_to_eager():
    task, step = tuned("convolutions", verify=0)
    plan = step.program._plan
    last = len(plan._first) - 1
    plan._slots[1] += 64  # the first allocation now has a different size
    assert_as_eager(task, step, *task.batches[0])
    assert "allocated otherwise than when it was recorded" in step.fallback
    assert last > 0
    assert_as_eager(task, step, *task.batches[1])


@pytest.mark.parametrize("at", [0, 5, 20])
def test_an_exception_inside_a_step_leaves_everything_as_it_was(at):
    task, step = tuned("convolutions", verify=0)
    bound = step.program._steps[at]
    func = bound.func

    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    bound.func = interrupted
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        step(*task.batches[0])
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    eager(task)(*task.batches[0])
    task.model.load_state_dict(state)
    bound.func = func
    assert_as_eager(task, step, *task.batches[0])
    assert step.fallback is None


def test_swapping_runs_beside_computing():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)))
    x = torch.randn(512, 512)
    trace = plimsoll.trace(lambda x: model(x).sum(), model, x)
    budget = int(trace.floor_bytes + 0.4 * (trace.peak_bytes - trace.floor_bytes))
    step = plimsoll.tune(lambda x: model(x).sum(), model, None, x, budget, "20GB/s", verify=0, seconds=0.5)
    assert step.program.schedule.offloaded_bytes > 0
    step(x)
    program = step.program
    assert program.copying_seconds > 0
    # Copies that the compute stream did not wait for overlapped, on any machine with spare capacity.
    shares = []
    for _ in range(20):
        model.zero_grad()  # a step that adds to gradients runs by a different plan
        step(x)
        assert step.program is program
        shares.append(program.stalled_seconds / program.copying_seconds)
    assert min(shares) < 1


def test_the_pool_is_all_that_a_step_takes():
    task, step = tuned("resnet18", share=0.1, verify=0)
    step(*task.batches[0])
    program = step.program
    pool = program._memory.pool
    assert pool.size == program.schedule.pool_bytes
    begin, end = pool.address, pool.address + pool.size
    memory = program._memory
    slabs = [(slab.address, slab.address + slab.size) for slab in (memory.gradients, memory.results)]
    for number in range(len(program._plan._first) - 1):
        for slot in range(program._plan._first[number], program._plan._first[number + 1]):
            address, size = program._plan._slots[2 * slot], program._plan._slots[2 * slot + 1]
            if begin <= address < end:
                assert address + size <= end
            else:
                assert any(first <= address and address + size <= last for first, last in slabs)
    counts = program.counts
    assert counts.served == len(program._plan._slots) // 2
    assert (counts.unplanned, counts.unused) == (0, 0)
    # The highest byte that the allocator gave out, or that a copy wrote, is the pool's last, up to the rounding of one
    # tensor.
    assert 0 <= pool.size - highest_byte(program) < 256


def test_no_step_leaves_memory_behind():
    """Scratch that libraries free by its address is freed, even if an older pool once lay there."""
    for _ in range(3):
        task, step = tuned("convolutions", verify=0)
        step(*task.batches[0])
        del step
        gc.collect()
    task = build("convolutions")
    eager(task)(*task.batches[0])
    with allocator.CPU.recording() as log:
        eager(task)(*task.batches[0])
        task.model.zero_grad()
        alive = set()
        for kind, address, _ in log.take():
            alive.add(address) if kind == allocator.ALLOCATED else alive.discard(address)
    assert len(alive) <= 1  # the loss, at most


def test_threads_that_allocate_meanwhile_get_memory_of_their_own():
    task, step = tuned("convolutions", verify=0)
    stop = threading.Event()
    wrong = []

    def work():
        while not stop.is_set():
            tensors = [torch.full((size,), float(size)) for size in (16, 256, 8192)]
            wrong.extend(t for t in tensors if not torch.equal(t, torch.full_like(t, t[0].item())))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            assert_as_eager(task, step, *task.batches[0])
            assert step.fallback is None
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_lstm_is_refused_or_equal():
    model = nn.LSTM(16, 32, 2, batch_first=True)
    x = torch.randn(4, 8, 16)
    try:
        step = plimsoll.tune(lambda x: model(x)[0].square().mean(), model, None, x, "100%", "1GB/s")
    except plimsoll.Refused as refused:
        assert refused.op
        return

    class Task:
        pass

    task = Task()
    task.model, task.loss = model, lambda x: model(x)[0].square().mean()
    assert_as_eager(task, step, x)


def test_a_parameter_without_gradient_has_none():
    model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    step = plimsoll.tune(lambda x: model[0](x).sum(), model, None, torch.randn(2, 8), "100%", "1GB/s")
    step(torch.randn(2, 8))
    assert model[0].weight.grad is not None
    assert model[1].weight.grad is None


def test_the_loss_is_not_the_next_step_s():
    task, step = tuned("mlp", verify=0)
    first = step(*task.batches[0])
    value = first.item()
    task.model.zero_grad()
    step(*task.batches[1])
    assert first.item() == value


def test_bad_arguments_are_refused():
    task = build("mlp")
    sample = task.batches[0]
    for model, optimizer, of, budget, verify in [
        (task.loss, None, sample, "100%", 0),
        (task.model, "sgd", sample, "100%", 0),
        (task.model, None, (), "100%", 0),
        (task.model, None, sample, "much", 0),
        (task.model, None, sample, "100%", -1),
        (task.model, None, tuple(t.float().requires_grad_() for t in sample), "100%", 0),
    ]:
        with pytest.raises(plimsoll.BadInput):
            plimsoll.tune(task.loss, model, optimizer, of, budget, "1GB/s", verify=verify)


def test_a_step_is_not_pickled():
    _, step = tuned("mlp")
    with pytest.raises(plimsoll.BadInput, match="cannot be pickled"):
        pickle.dumps(step)


def test_explain_names_the_floor():
    _, step = tuned("convolutions")
    text = step.explain()
    assert "floor" in text
    # The layer depends on the scratch of the processor's kernels.
    assert step.trace.floor_layer in ("6", "7")
    assert f"(layer `{step.trace.floor_layer}`)" in text
    assert step.why.startswith("batch 4, lr unchanged, peak ")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_what_is_compiled_runs_as_it_was_written(backend):
    task = build("mlp")
    compiled = torch.compile(task.model, backend=backend)
    expected = eager(task)(*task.batches[0])
    gradients = [p.grad.clone() for p in task.model.parameters()]
    task.model.zero_grad()
    step = plimsoll.tune(
        lambda x, y: F.cross_entropy(compiled(x), y), task.model, None, task.batches[0], "100%", "20GB/s"
    )
    assert torch.equal(step(*task.batches[0]), expected)
    assert step.fallback is None
    assert all(torch.equal(p.grad, g) for p, g in zip(task.model.parameters(), gradients, strict=True))


def test_without_a_compiler_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(errors.NoCompiler, match="install g\\+\\+ or clang\\+\\+"):
        native.build("cpu", tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(errors.NoCompiler, match="cannot be built for torch"):
        native.build("cpu", tmp_path)
    assert not list(tmp_path.glob("*.so"))


def test_a_fork_trains_on():
    code = """
import os, sys
import torch
from torch import nn
import plimsoll
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
x = torch.randn(64, 64)
trace = plimsoll.trace(lambda x: model(x).sum(), model, x)
step = plimsoll.tune(lambda x: model(x).sum(), model, None, x, trace.floor_bytes, "20GB/s", verify=0, seconds=0.5)
want = step(x).item()
model.zero_grad()
child = os.fork()
if child == 0:
    os._exit(0 if step(x).item() == want else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    path = os.pathsep.join(sys.path)
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, timeout=600)
    assert ended.returncode == 0


def test_clipping_scaling_and_schedulers_are_the_user_s():
    """Gradients are plain tensors: eager code may change them."""
    task, step = tuned("mlp", verify=0)
    step(*task.batches[0])
    norm = nn.utils.clip_grad_norm_(task.model.parameters(), 1e-3)
    assert norm > 1e-3
    total = torch.stack([p.grad.norm() for p in task.model.parameters()]).norm()
    assert total.item() == pytest.approx(1e-3, rel=1e-2)


def test_autocast_remembers_no_weight_of_an_earlier_step():
    def trained(tune):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        x = torch.randn(4, 16)
        step = None
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                if tune:
                    model(x)  # its cast of the weights is cached to the end of this block
                    step = step or plimsoll.tune(
                        lambda x: F.mse_loss(model(x).float(), x),
                        model,
                        optimizer,
                        x,
                        "100%",
                        "1GB/s",
                        verify=0,
                    )
                    step(x)
                    assert step.fallback is None
                else:
                    F.mse_loss(model(x).float(), x).backward()
            optimizer.step()
        return list(model.parameters())

    assert all(map(torch.equal, trained(True), trained(False)))


def test_autocast_of_the_caller_decides_the_kind_of_the_step():
    model = nn.Linear(16, 16)

    class Task:
        pass

    task = Task()
    task.model, task.loss = model, lambda x: F.mse_loss(model(x).float(), x)
    x = torch.randn(4, 16)
    step = plimsoll.tune(task.loss, model, None, x, "100%", "1GB/s", verify=0)
    plain = step(x).item()
    step._planner.budget = 1 << 20
    with torch.autocast("cpu", torch.bfloat16):
        assert_as_eager(task, step, x)
        assert step.fallback is None
        assert step(x).item() != plain
    assert step(x).item() == plain
