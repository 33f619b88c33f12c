"""A model or a function that changes between steps never runs by an old plan: the steps leave eager's results."""

import collections
import functools
import gc
import random
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from networks import Task
from test_step import assert_as_eager
from torch import nn

import plimsoll
from plimsoll.planned import COMPARED_AGAIN
from plimsoll.torch_private import modules_of
from plimsoll.watched import HASTY_AFTER, STAYS, Watched


class Net(nn.Module):
    """A network that reads its own attributes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.activation = nn.GELU()
        self.last = nn.Linear(8, 4)
        self.alpha = 1.0
        self.scales = [1.0, 2.0]
        self.config = Config()
        self.offset = torch.ones(8)

    def forward(self, x):
        x = self.activation(self.norm(self.first(x))) * self.alpha * self.scales[1] + self.offset
        return self.last(x) * self.config.scale


@dataclass
class Config:
    scale: float = 1.0
    depth: int = 3


class Losses:
    """A loss that is a method, and an object that can be called."""

    def __init__(self, model):
        self.model = model
        self.share = 0.5

    def loss(self, x, y):
        return F.cross_entropy(self.model(x), y) * self.share

    __call__ = loss


def batch():
    g = torch.Generator().manual_seed(3)
    return torch.randn(6, 8, generator=g), torch.randint(0, 4, (6,), generator=g)


def of_model(model):
    return lambda x, y: F.cross_entropy(model(x), y)


IN_MODEL = {
    "an attribute": lambda model: setattr(model, "alpha", 2),
    "a number of another type": lambda model: setattr(model, "alpha", -0.0),
    "a list": lambda model: model.scales.__setitem__(1, 3.0),
    "an object's attribute": lambda model: setattr(model.config, "scale", 3.0),
    "a tensor": lambda model: setattr(model, "offset", torch.zeros(8)),
    "momentum": lambda model: setattr(model.norm, "momentum", 0.5),
    "eps": lambda model: setattr(model.norm, "eps", 0.1),
    "approximate": lambda model: setattr(model.activation, "approximate", "tanh"),
    "forward": lambda model: setattr(model, "forward", lambda x: model.last(x)),
    "forward of a child": lambda model: setattr(model.activation, "forward", torch.tanh),
    "the class": lambda model: setattr(model.activation, "__class__", nn.Tanh),
    "a forward hook": lambda model: model.first.register_forward_hook(lambda m, i, out: out * 2),
    "a forward pre-hook": lambda model: model.first.register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
    "a backward hook": lambda model: model.last.register_full_backward_pre_hook(
        lambda m, gradients: tuple(gradient / 2 for gradient in gradients)
    ),
    "a hook of a parameter": lambda model: model.first.weight.register_hook(lambda gradient: gradient * 3),
    "the mode of a child": lambda model: model.norm.eval(),
}


@pytest.mark.parametrize("change", IN_MODEL)
def test_what_changes_in_the_model_is_planned_anew(change):
    torch.manual_seed(0)
    model = Net()
    x, y = batch()
    task = Task(model, of_model(model), [(x, y)])
    step = plimsoll.tune(task.loss, model, None, (x, y), 1 << 30, "1GB/s", verify=1, seconds=0.2)
    for _ in range(3):
        before = step(x, y)
        model.zero_grad()
    planned = step.program
    IN_MODEL[change](model)
    assert_as_eager(task, step, x, y)
    assert step.fallback is None
    assert step.program is not planned
    again = step.program
    model.zero_grad()
    assert_as_eager(task, step, x, y)
    assert step.program is again
    assert before.isfinite()


def test_a_hook_of_all_modules_is_planned_anew_and_its_going_finds_the_plan_of_before():
    torch.manual_seed(0)
    model = Net()
    x, y = batch()
    task = Task(model, of_model(model), [(x, y)])
    step = plimsoll.tune(task.loss, model, None, (x, y), 1 << 30, "1GB/s", verify=0, seconds=0.2)
    assert_as_eager(task, step, x, y)
    planned = step.program
    hook = nn.modules.module.register_module_forward_hook(lambda m, i, out: out * 2)
    try:
        assert_as_eager(task, step, x, y)
        assert step.program is not planned
    finally:
        hook.remove()
    assert_as_eager(task, step, x, y)
    assert step.program is planned


def test_hooks_of_parameters_that_are_there_at_first_are_part_of_the_plan():
    for in_pieces in (None, True):
        torch.manual_seed(0)
        model = Net()
        model.first.weight.register_hook(lambda gradient: gradient * 3)
        x, y = batch()
        task = Task(model, of_model(model), [(x, y)])
        step = plimsoll.tune(
            task.loss, model, None, (x, y), 1 << 30, "1GB/s", verify=0, seconds=0.2, in_pieces=in_pieces
        )
        assert_as_eager(task, step, x, y)
        assert step.fallback is None


SCALE = 1.0


def test_what_the_function_reads_is_planned_anew(monkeypatch):
    torch.manual_seed(0)
    model, criterion = Net(), nn.CrossEntropyLoss(weight=torch.ones(4), label_smoothing=0.1)
    share, mode, table, target = 1.0, "mean", {"scale": 1.0}, torch.zeros(4)
    config = Config()

    def inner(x):
        return model(x) * share

    def loss(x, y, *, keyword=1.0):
        logits = inner(x) * SCALE * keyword * table["scale"] + target
        return criterion(logits, y) * config.scale + F.cross_entropy(logits, y, reduction=mode)

    def change_share():
        nonlocal share
        share = 2.0

    def change_mode():
        nonlocal mode
        mode = "sum"

    def change_target():
        nonlocal target
        target = torch.ones(4)

    x, y = batch()
    task = Task(model, loss, [(x, y)])
    step = plimsoll.tune(loss, model, None, (x, y), 1 << 30, "1GB/s", verify=0, seconds=0.2)
    assert_as_eager(task, step, x, y)
    for change in (
        change_share,
        change_mode,
        change_target,
        lambda: setattr(criterion, "weight", torch.arange(1.0, 5)),
        lambda: setattr(criterion, "label_smoothing", 0.3),
        lambda: criterion.register_forward_hook(lambda m, i, out: out * 2),
        lambda: table.__setitem__("scale", 2.0),
        lambda: setattr(config, "scale", 2.0),
        lambda: loss.__kwdefaults__.__setitem__("keyword", 2.0),
        lambda: monkeypatch.setitem(globals(), "SCALE", 3.0),
    ):
        planned = step.program
        change()
        for _ in range(STAYS + 1):  # unchanged settings are planned
            model.zero_grad()
            step(x, y)
        assert_as_eager(task, step, x, y)
        assert step.fallback is None
        assert step.program is not planned


@pytest.mark.parametrize("how", ["method", "object", "partial"])
def test_what_the_function_is_made_of_is_planned_anew(how):
    torch.manual_seed(0)
    model = Net()
    losses = Losses(model)
    scaled = functools.partial(lambda scale, x, y: F.cross_entropy(model(x), y) * scale["by"], {"by": 1.0})
    fn = {"method": losses.loss, "object": losses, "partial": scaled}[how]
    x, y = batch()
    task = Task(model, fn, [(x, y)])
    step = plimsoll.tune(fn, model, None, (x, y), 1 << 30, "1GB/s", verify=0, seconds=0.2)
    assert_as_eager(task, step, x, y)
    planned = step.program
    losses.share = 2.0
    scaled.args[0]["by"] = 2.0
    assert_as_eager(task, step, x, y)
    assert step.fallback is None
    assert step.program is not planned


class Counting(nn.Module):
    """Counts its runs and remembers its result; makes a table in its first run."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.runs = 0
        self.last = None
        self.table = None
        self.history = []

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(8.0)
        self.runs += 1
        self.last = self.linear(x + self.table)
        self.history.append(self.runs)
        return self.last


def test_what_the_step_itself_changes_is_no_other_kind():
    torch.manual_seed(0)
    model = Counting()
    x, y = batch()
    task = Task(model, of_model(model), [(x, y)])
    step = plimsoll.tune(task.loss, model, None, (x, y), 1 << 30, "1GB/s", verify=2, seconds=0.2)
    planned = step.program
    for _ in range(4):
        step(x, y)
        model.zero_grad()
    assert step.program is planned
    assert len(step._kinds) == 1
    # It keeps what it made in its first run, and a different table is noticed.
    model.table = torch.ones(8)
    assert_as_eager(task, step, x, y)
    assert step.program is not planned


def test_what_the_step_does_not_read_is_no_other_kind():
    model = Net()
    x, y = batch()
    step = plimsoll.tune(of_model(model), model, None, (x, y), 1 << 30, "1GB/s", verify=0, seconds=0.2)
    model.losses = []
    for number in range(8):
        model.losses.append(step(x, y))
        model.epoch = number
        model.zero_grad()
        assert step.fallback is None
    assert len(step._kinds) == 1


def test_what_a_module_remembers_is_not_kept_alive():
    model = Counting()
    x, y = batch()
    step = plimsoll.tune(of_model(model), model, None, (x, y), 1 << 30, "1GB/s", verify=0, seconds=0.2)
    model(x)
    step(x, y)
    held = weakref.ref(model.last)
    model.last = None
    step(x, y)
    gc.collect()
    assert held() is None


def test_a_value_that_is_another_in_every_step_ends_in_eager_and_one_that_stays_is_planned(caplog):
    torch.manual_seed(0)
    model = Net()
    x, y = batch()
    task = Task(model, of_model(model), [(x, y)])
    step = plimsoll.tune(task.loss, model, None, (x, y), 1 << 30, "1GB/s", verify=0, seconds=0.2)
    made = []
    make = step._make
    step._make = lambda *arguments: (made.append(1), make(*arguments))[1]
    for number in range(30):
        model.alpha = 2.0 + number
        assert_as_eager(task, step, x, y)
    assert len(made) <= HASTY_AFTER
    assert "`alpha`" in step.fallback
    assert "pass it as a tensor" in step.fallback
    for _ in range(STAYS):
        assert_as_eager(task, step, x, y)
    assert step.fallback is None
    assert len(made) <= HASTY_AFTER + 1


def test_looking_costs_little():
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    import time

    model = models.resnet50()
    criterion = nn.CrossEntropyLoss()
    watched = Watched(lambda x, y: criterion(model(x), y))
    watched.begin(modules_of(model))
    first = watched.number()
    least = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        assert watched.number() == first
        least = min(least, time.perf_counter() - start)
    assert least < 1e-3, f"{least * 1e3:.3f} ms"


class Deep:
    """An object in an object, which is not examined."""

    def __init__(self):
        self.inner = Config()

    def scale(self):
        return self.inner.scale


def test_what_no_look_finds_is_a_difference_when_a_step_is_compared_again():
    torch.manual_seed(0)
    model, deep = Net(), Deep()
    x, y = batch()
    step = plimsoll.tune(
        lambda x, y: F.cross_entropy(model(x), y) * deep.scale(),
        model,
        None,
        (x, y),
        1 << 30,
        "1GB/s",
        verify=1,
        seconds=0.2,
    )
    compared = []
    verified = step._verified
    step._verified = lambda planned, *more: (compared.append(planned.program.runs), verified(planned, *more))[
        1
    ]
    step._decline = lambda planned: None  # eager is quicker for so small a step
    for _ in range(260):
        step(x, y)
        model.zero_grad()
    assert compared == [0, COMPARED_AGAIN, 2 * COMPARED_AGAIN]
    deep.inner.scale = 2.0
    with pytest.raises(plimsoll.VerificationError, match=r"changed since `tune`, pass them as tensors"):
        for _ in range(2 * COMPARED_AGAIN):
            step(x, y)
            model.zero_grad()


@pytest.mark.parametrize("in_pieces", [False, True])
def test_python_s_and_numpy_s_generators_are_left_as_they_were(in_pieces, caplog):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    torch.manual_seed(0)
    model = Net()
    x, y = batch()

    def loss(x, y):
        random.random()
        numpy.random.rand()
        return F.cross_entropy(model(x), y)

    random.seed(1)
    numpy.random.seed(1)
    before = random.getstate(), numpy.random.get_state()[1].tolist(), numpy.random.get_state()[2]
    plimsoll.trace(loss, model, x, y)
    plimsoll.fits(loss, model, x, y, budget=1 << 30)
    plimsoll.tune(loss, model, None, (x, y), 1 << 30, "1GB/s", seconds=0.2, in_pieces=in_pieces)
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist(), numpy.random.get_state()[2])
    assert "draws from Python's `random`" in caplog.text


def test_a_number_of_python_s_random_is_refused_with_what_to_do():
    model = Net()
    x, y = batch()
    with pytest.raises(
        plimsoll.Refused, match=r"`aten\.mul\.Tensor` had other arguments .* pass it as a tensor"
    ):
        plimsoll.trace(lambda x, y: F.cross_entropy(model(x), y) * random.random(), model, x, y)


def test_what_hides_tensors_is_no_sample():
    model = Net()
    x, y = batch()

    class Hidden:
        pass

    hidden = Hidden()
    hidden.x = x
    for sample, message in [
        (
            (collections.UserDict(x=x), y),
            r"the sample has a UserDict, .* finds no tensors: pass `dict\(batch\)`",
        ),
        (collections.UserDict(x=x), r"the sample is a UserDict, .* finds no tensors: pass `dict\(batch\)`"),
        ((hidden, y), "has a Hidden, .* in a tuple or a dictionary"),
        ((x.numpy(), y), r"has a ndarray, .* pass `torch\.as_tensor"),
    ]:
        with pytest.raises(plimsoll.BadInput, match=message):
            plimsoll.tune(of_model(model), model, None, sample, 1 << 30, "1GB/s", verify=0)
    step = plimsoll.tune(
        lambda x, *_: model(x).sum(),
        model,
        None,
        (x, None, "a", 3, torch.float32),
        1 << 30,
        "1GB/s",
        verify=0,
    )
    with pytest.raises(plimsoll.BadInput, match="has a Hidden"):
        step(x, hidden)


def test_a_batch_encoding_is_named():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = Net()
    x, _ = batch()
    with pytest.raises(plimsoll.BadInput, match=r"the sample is a BatchEncoding, .*: pass `dict\(batch\)`"):
        plimsoll.trace(lambda data: model(data["x"]).sum(), model, transformers.BatchEncoding({"x": x}))


@pytest.mark.parametrize("fault", [False, True])
def test_a_whole_recording_that_is_too_large_for_eager_is_compared_at_a_smaller_batch(fault, caplog):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))
    x = torch.randn(64, 64)
    trace = plimsoll.trace(lambda x: model(x).square().sum(), model, x)
    budget = int(trace.floor_bytes + 0.5 * (trace.peak_bytes - trace.floor_bytes))
    caplog.set_level("INFO", "plimsoll")
    step = plimsoll.tune(
        lambda x: model(x).square().sum(),
        model,
        None,
        x,
        budget,
        "1GB/s",
        verify=2,
        seconds=0.5,
    )
    eager = step._eager

    def short(batch, *more):
        if len(batch[0]) == 64:
            raise MemoryError("not enough for eager")
        given = eager(batch, *more)
        if fault:
            next(model.parameters()).grad.view(-1)[0].add_(1)
        return given

    step._eager = short
    if fault:
        with pytest.raises(plimsoll.VerificationError):
            step(x)
        return
    for _ in range(3):
        step(x)
        model.zero_grad()
    planned = step._current()
    assert 1 < planned.smaller.batch < 64
    assert planned.verify == 0
    assert step.fallback is None
    assert f"its first {planned.smaller.batch} samples" in caplog.text
