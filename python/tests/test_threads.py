"""Steps of several threads. A free-threaded interpreter runs all of this without its lock."""

import json
import subprocess
import sys
import sysconfig
import threading

import pytest
import torch
from torch import nn

import plimsoll

SEEDS = (1, 2)


def at_once(work):
    """Runs the work with each seed, in separate threads that begin together."""
    start, failed, made = threading.Barrier(len(SEEDS)), [], {}

    def run(seed):
        try:
            start.wait(timeout=60)
            made[seed] = work(seed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in SEEDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if failed:
        raise failed[0]
    return made


def network(seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    x = torch.randn(128, 64, generator=generator)
    return model, lambda x: model(x).square().mean(), x


def tuned(seed):
    model, loss, x = network(seed)
    trace = plimsoll.trace(loss, model, x)
    budget = (trace.floor_bytes + trace.peak_bytes) // 2
    return model, plimsoll.tune(loss, model, None, x, budget, "20GB/s", seconds=0.5), x


def trained(model, step, x, steps=20):
    """Results of some steps of gradient descent."""
    for _ in range(steps):
        model.zero_grad()
        step(x)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return [parameter.detach().clone() for parameter in model.parameters()]


def eager(seed):
    model, loss, x = network(seed)
    return trained(model, lambda x: loss(x).backward(), x)


def check(steps, left):
    for seed in SEEDS:
        _, step, _ = steps[seed]
        assert step.fallback is None
        assert step.program.counts.unplanned == 0 and step.program.runs >= 20
        assert all(map(torch.equal, left[seed], eager(seed)))


def test_two_threads_step_two_models_at_once():
    steps = {seed: tuned(seed) for seed in SEEDS}
    check(steps, at_once(lambda seed: trained(*steps[seed])))


def test_two_threads_tune_and_step_two_models_at_once():
    own = vars(nn.Module).get("__getattribute__")
    steps = at_once(tuned)
    assert vars(nn.Module).get("__getattribute__") is own
    check(steps, at_once(lambda seed: trained(*steps[seed])))


def test_a_step_is_not_planned_anew_while_another_thread_records():
    _, step, own = tuned(SEEDS[0])
    other, loss, data = network(SEEDS[1])
    looks, thread, program = threading.Event(), None, step.program
    next_batch = step._watched.next_batch

    def looked():
        number = next_batch()
        looks.set()
        return number

    def recorded(x):
        nonlocal thread
        if thread is None:
            step._watched.next_batch = looked
            thread = threading.Thread(target=step, args=(own,))
            thread.start()
            assert looks.wait(timeout=60)
        return loss(x)

    plimsoll.trace(recorded, other, data)
    thread.join(timeout=60)
    assert step.fallback is None and step.program is program


def test_a_module_that_another_thread_is_in_is_left_while_a_step_is_recorded():
    entered, leaves, names = threading.Event(), threading.Event(), []

    class Slow(nn.Module):
        def forward(self, x):
            entered.set()
            assert leaves.wait(timeout=60)
            return x

    slow = Slow()
    # With a hook, the module looks for the hooks of all modules when it ends.
    slow.register_forward_hook(lambda *_: None)

    def enter():
        names.append(type(slow(torch.zeros(1))).__name__)

    thread = threading.Thread(target=enter)
    thread.start()
    assert entered.wait(timeout=60)
    model, _, x = network(SEEDS[0])

    def recorded(x):
        made = model[0](x)
        leaves.set()
        thread.join(timeout=60)
        return model[1:](made).square().mean()

    trace = plimsoll.trace(recorded, model, x)
    assert names == ["Tensor"]
    layers = {op["layer"] for op in json.loads(trace.to_json())["ops"]}
    assert {f"{number}.{part}" for number in range(4) for part in range(2)} <= layers


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter has its lock")
def test_a_free_threaded_interpreter_stays_so():
    code = "import sys, plimsoll; assert not sys._is_gil_enabled()"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
