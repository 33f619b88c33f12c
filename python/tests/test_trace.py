"""Contents of a trace, recording without side effects, and refusals."""

import ctypes
import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from networks import build, eager, optimizer_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import plimsoll
from plimsoll import planning


def trace_of(loss, model, *sample, **more):
    return plimsoll.trace(loss, model, *sample, **more)


def of(network, **more):
    task = build(network)
    return trace_of(task.loss, task.model, *task.batches[0], **more)


def test_a_trace_has_layers_phases_and_measured_seconds():
    document = json.loads(of("convolutions", name="net").to_json())
    assert (document["plimsoll"], document["name"], document["batch"]) == ("trace/1", "net", 4)
    ops = document["ops"]
    assert all(op["seconds"] > 0 for op in ops)
    assert [op["layer"] for op in ops if op["kind"] == "convolution"] == ["0", "3", "6"]
    # The backward pass knows the layers of the forward pass.
    backward = [op for op in ops if op["kind"] == "convolution_backward"]
    assert [op["layer"] for op in backward] == ["6", "3", "0"]
    assert {op["phase"] for op in backward} == {"backward"}
    kinds = {tensor["kind"] for tensor in document["tensors"]}
    assert {"input", "activation", "gradient"} <= kinds
    assert all(tensor["bytes"] % 256 == 0 for tensor in document["tensors"])


@pytest.mark.parametrize("network", ["convolutions", "gpt", "vit"])
def test_floating_point_operations_are_those_that_pytorch_counts(network):
    ops = json.loads(of(network).to_json())["ops"]
    task = build(network)
    with FlopCounterMode(display=False) as counter:
        task.loss(*task.batches[0]).backward()
    assert sum(op["flops"] for op in ops) == counter.get_total_flops() > 0


def test_what_updates_running_statistics_may_run_again_and_a_counter_may_not():
    ops = json.loads(of("convolutions").to_json())["ops"]
    assert all(op["recomputable"] for op in ops if op["kind"] == "native_batch_norm")
    assert not any(op["recomputable"] for op in ops if op["kind"] == "add_" and not op["reads"])


def test_a_trace_is_read_again_as_it_was_written(tmp_path):
    trace = of("mlp")
    trace.save(tmp_path / "step.trace.json")
    text = (tmp_path / "step.trace.json").read_text()
    assert plimsoll.Trace(text).to_json() == text


def test_the_peak_is_what_eager_takes():
    """Activations of 8 layers of 4 x 32 floats dominate neither side: the bytes are counted by hand."""
    model = nn.Linear(64, 64, bias=False)
    trace = trace_of(lambda x: model(x).sum(), model, torch.randn(256, 64))
    weight, batch = 64 * 64 * 4, 256 * 64 * 4
    assert trace.resident_bytes == 2 * weight + 256  # the weight, its gradient, the loss
    # The input, the output or its gradient, and the temporary of the transposed product at most.
    assert 2 * batch <= trace.peak_bytes - trace.resident_bytes <= 2 * batch + weight + 2 * 256


def test_the_state_of_an_optimizer_is_resident():
    task = build("mlp")
    plain, adam = (
        of("mlp"),
        trace_of(task.loss, task.model, *task.batches[0], optimizer=optimizer_of("adamw", task.model)),
    )
    parameters = sum(-(-p.numel() * 4 // 256) * 256 for p in task.model.parameters())
    counters = 256 * len(list(task.model.parameters()))
    assert adam.resident_bytes - plain.resident_bytes == 2 * parameters + counters


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Adamax, {}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.ASGD, {}),
    ],
)
def test_the_state_is_counted_before_the_first_step_as_after_it(optimizer, more):
    task = build("mlp")
    of_task = optimizer(task.model.parameters(), 1e-3, **more)
    before = planning.optimizer_bytes(of_task)
    eager(task)(*task.batches[0])
    of_task.step()
    assert planning.optimizer_bytes(of_task) == before


def everything(task, optimizer):
    values = {name: value.clone() for name, value in task.model.state_dict().items()}
    for name, parameter in task.model.named_parameters():
        values["grad " + name] = parameter.grad
    values["rng"] = torch.get_rng_state()
    values["optimizer"] = json.dumps(str(optimizer.state_dict()))
    return values


def assert_untouched(before, after):
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]
        assert same, name


@pytest.mark.parametrize("fails", [False, True])
def test_recording_changes_nothing_also_where_it_fails(fails):
    task = build("convolutions")
    optimizer = optimizer_of("adamw", task.model)
    eager(task)(*task.batches[0])
    optimizer.step()
    before = everything(task, optimizer)

    def loss(x, y):
        result = task.loss(x, y)
        if fails:
            raise RuntimeError("the user's own")
        return result

    if fails:
        with pytest.raises(RuntimeError, match="the user's own"):
            trace_of(loss, task.model, *task.batches[0], optimizer=optimizer)
    else:
        trace_of(loss, task.model, *task.batches[0], optimizer=optimizer)
    assert_untouched(before, everything(task, optimizer))


class Net(nn.Module):
    """A module whose forward pass is given."""

    def __init__(self, forward):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.rule = forward

    def forward(self, x):
        return self.rule(self, self.inner(x))


def seeds(net, y):
    torch.manual_seed(3)
    return F.dropout(y, 0.5)


def replaces(net, y):
    net.count = net.count + 1
    return y * net.count


def numpy(net, y):
    return y * torch.from_numpy(y.detach().numpy() * 2)


def counts(net, y, calls=[0.0]):  # noqa: B006
    calls[0] += 1
    return y * torch.tensor(calls[0])


def branches(net, y, calls=[0]):  # noqa: B006
    calls[0] += 1
    return y.relu() if calls[0] % 2 else y.sigmoid()


class Bypass(torch.autograd.Function):
    """A kernel that PyTorch's dispatcher does not see, as those of Triton."""

    @staticmethod
    def forward(ctx, x):
        return bypass(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def bypass(x):
    out = torch.empty_like(x)
    ctypes.memmove(out.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return out


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda net, y: Bypass.apply(y).relu(), "it reads memory that no recorded op wrote"),
        (lambda net, y: Bypass.apply(y).double().relu(), "bypasses PyTorch's dispatcher"),
        (lambda net, y: y[y > 0], "shape of its result depends on values"),
        (lambda net, y: y * y.nonzero().shape[0], "shape of its result depends on values"),
        (seeds, "seeds the generator itself"),
        (replaces, "replaces a parameter or a buffer"),
        (numpy, "`Tensor.numpy` takes values out of PyTorch"),
        (lambda net, y: y * y.tolist()[0][0], "`Tensor.tolist` takes values out of PyTorch"),
        (counts, "with another value, in every step"),
        (branches, "does something else in a second run"),
    ],
)
def test_what_cannot_be_recorded_is_refused(rule, words):
    model = Net(rule)
    with pytest.raises(plimsoll.Refused, match=re.escape(words)) as refused:
        trace_of(lambda x: model(x).square().mean(), model, torch.randn(4, 8))
    if refused.value.op and "again" not in words and "every step" not in words:
        assert "test_trace.py:" in refused.value.line
    assert isinstance(model.count, torch.Tensor)
    assert model.count.item() == 0


def test_a_gradient_that_a_kernel_out_of_sight_wrote_is_refused():
    class Written(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight * 2

        @staticmethod
        def backward(ctx, gradient):
            return bypass(gradient)

    weight = nn.Parameter(torch.ones(8))
    model = nn.ParameterList([weight])
    with pytest.raises(plimsoll.Refused, match=r"a gradient is memory that no recorded op wrote.*custom_op"):
        trace_of(lambda x: (Written.apply(weight) * x).sum(), model, torch.randn(8))


def test_a_refusal_in_the_backward_pass_names_the_line_of_the_forward_pass():
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2  # this line

        @staticmethod
        def backward(ctx, gradient):
            return gradient * gradient.nonzero().shape[0]

    first = nn.Linear(8, 8)

    with pytest.raises(plimsoll.Refused, match="depends on values") as refused:
        trace_of(lambda x: Odd.apply(first(x)).square().mean(), first, torch.randn(4, 8))
    file, line = refused.value.line.rsplit(":", 1)
    assert "# this line" in Path(file).read_text().splitlines()[int(line) - 1]


def test_memory_that_is_not_read_need_not_be_written():
    model = nn.Linear(8, 8)

    def loss(x):
        y = model(x)
        scaled = torch.baddbmm(torch.empty(1, 4, 4), y[None], y[None].mT, beta=0, alpha=0.5)
        noise = torch.empty(4, 8, dtype=torch.float64).float().uniform_()
        return scaled.sum() + (torch.zeros_like(torch.empty(4, 8)) + y * noise).sum()

    assert len(trace_of(loss, model, torch.randn(4, 8))) > 0


def test_a_step_that_writes_into_its_sample_is_refused():
    model, sample = nn.Linear(8, 8), torch.ones(4, 8)
    with pytest.raises(plimsoll.Refused, match="writes into its sample"):
        trace_of(lambda x: model(x.mul_(2)).sum(), model, sample)
    assert torch.equal(sample, torch.ones(4, 8))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, x: model(x), "the loss is one number"),
        (lambda model, x: model(x).sum().item(), "must give the loss, one tensor"),
        (lambda model, x: x.sum(), "does not depend on a parameter"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss, words):
    model = nn.Linear(8, 8)
    with pytest.raises(plimsoll.BadInput, match=words):
        trace_of(lambda x: loss(model, x), model, torch.randn(4, 8))


def test_a_sample_that_is_a_slice_counts_only_its_elements():
    model = nn.Linear(8, 8)
    data = torch.randn(1000, 8)
    document = json.loads(trace_of(lambda x: model(x).sum(), model, data[:4]).to_json())
    assert [t["bytes"] for t in document["tensors"] if t["kind"] == "input"] == [256]


def test_a_document_that_is_no_trace_says_where():
    with pytest.raises(plimsoll.BadInput, match="cannot be used"):
        plimsoll.Trace("{}")


def test_a_budget_under_the_floor_names_layer_and_bytes():
    trace = of("convolutions")
    with pytest.raises(plimsoll.NoPlan) as failed:
        plimsoll.plan(trace, trace.floor_bytes - 1, "1GB/s")
    error = failed.value
    assert error.is_proved
    assert error.short_by_bytes == 1
    assert error.needs_bytes == error.floor_bytes == trace.floor_bytes
    assert error.layer == trace.floor_layer
    assert f"layer `{error.layer}`" in str(error)
    assert "raise the budget" in str(error)


def test_a_plan_is_a_schedule_that_is_proved():
    trace = of("gpt")
    schedule = plimsoll.plan(trace, trace.floor_bytes, "1GB/s", seconds=0.5)
    again = plimsoll.Schedule.from_json(schedule.to_json(), trace)
    assert again.pool_bytes == schedule.pool_bytes <= trace.floor_bytes - trace.resident_bytes
    document = json.loads(schedule.to_json())
    document["pool_bytes"] -= 1
    with pytest.raises(plimsoll.BadInput, match="not valid for its trace"):
        plimsoll.Schedule.from_json(json.dumps(document), trace)


@pytest.mark.parametrize("budget", ["", "12XB", "0%", "-3", True, 0, -1, 1.5, None])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(plimsoll.BadInput):
        plimsoll.plan(of("mlp"), budget, "1GB/s")


@pytest.mark.parametrize("link", ["12", "fast", 3, "0GB/s"])
def test_a_link_that_is_none_is_refused(link):
    with pytest.raises(plimsoll.BadInput):
        plimsoll.plan(of("mlp"), "100%", link)
