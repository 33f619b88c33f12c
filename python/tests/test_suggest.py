"""`plimsoll.suggest`: a batch, an accumulation and a rate that were run; nothing is changed."""

import contextlib
from dataclasses import replace

import pytest
import torch
from networks import budget_at, build, optimizer_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plimsoll
from plimsoll import batches, suggestion


def sample_of(task, size):
    return batches.taken(task.batches[0], 0, size)


def budget_of(task, optimizer, size):
    """Bytes that a batch needs to keep everything, with the gradients that it adds to."""
    trace = plimsoll.trace(task.loss, task.model, *sample_of(task, size), optimizer=optimizer)
    return trace.peak_bytes


def everything(model):
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [t.clone() for t in tensors] + [torch.get_rng_state()]


@pytest.mark.parametrize("name", ["convolutions", "gpt"])
def test_the_batch_is_kept_the_answer_was_run_and_nothing_changes(name):
    task = build(name)
    optimizer = optimizer_of("adamw", task.model)
    task.loss(*task.batches[0]).backward()
    before = everything(task.model)
    sample = sample_of(task, 12)
    found = plimsoll.suggest(
        task.loss, task.model, optimizer, sample, budget_of(task, optimizer, 4), "20GB/s"
    )
    assert found.batch * found.accumulation == 12
    assert found.learning_rate == optimizer.param_groups[0]["lr"]
    assert found.losses == "mean"
    chosen = found.tried[0]
    assert chosen.seconds is not None
    assert chosen.why_not == ""
    assert found.peak_bytes <= found.budget_bytes
    assert all(one.samples == 12 for one in found.tried)
    assert 1 <= sum(one.seconds is not None for one in found.tried) <= suggestion.MOST_RUN
    assert all(one.why_not for one in found.tried if one.seconds is None)
    after = everything(task.model)
    assert len(after) == len(before)
    assert all(map(torch.equal, after, before))
    words = str(found)
    assert words.startswith("batch 12")
    assert "samples/s" in words
    assert f"{suggestion.RUNS} runs" in found.certainty


def test_the_lines_to_paste_train_with_the_bits_of_the_whole_batch_in_parts():
    task = build("convolutions")
    optimizer = optimizer_of("sgd", task.model)
    sample = sample_of(task, 16)
    found = plimsoll.suggest(
        task.loss, task.model, optimizer, sample, budget_of(task, optimizer, 2), "20GB/s"
    )
    assert found.accumulation > 1
    start = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    dataset = TensorDataset(*sample)
    names = {
        "plimsoll": plimsoll,
        "DataLoader": lambda data, batch_size, shuffle, drop_last: DataLoader(data, batch_size),
        "dataset": dataset,
        "loss": task.loss,
        "model": task.model,
        "optimizer": optimizer,
        "sample": batches.taken(sample, 0, found.batch),
    }
    torch.manual_seed(3)
    exec(found.code, names)
    planned = [p.clone() for p in task.model.parameters()]
    task.model.load_state_dict(start)
    eager = optimizer_of("sgd", task.model)
    torch.manual_seed(3)
    for part in DataLoader(dataset, found.batch):
        (task.loss(*part) / found.accumulation).backward()
    eager.step()
    assert all(map(torch.equal, planned, task.model.parameters()))


def test_the_lines_to_paste_reduce_gradients_between_ranks_once_an_update(monkeypatch):
    """For a wrapper whose gradients are reduced in each call that is not within `no_sync`."""
    calls = []

    class Wrapper:
        held = False

        @contextlib.contextmanager
        def no_sync(self):
            self.held = True
            yield
            self.held = False

    class Optimizer:
        def step(self):
            calls.append("update")

        def zero_grad(self):
            pass

    model = Wrapper()

    def tune(loss, model, optimizer, sample, budget):
        assert loss(6) == 2
        return lambda *batch: calls.append("added" if model.held else "reduced")

    monkeypatch.setattr(plimsoll, "tune", tune)
    found = suggestion.Suggestion(2, 3, None, 1 << 20, "mean", [], reduces=True)
    names = {
        "plimsoll": plimsoll,
        "DataLoader": lambda *_, **__: [(k,) for k in range(6)],
        "dataset": None,
        "loss": lambda k: k,
        "model": model,
        "optimizer": Optimizer(),
        "sample": None,
    }
    exec(found.code, names)
    assert calls == ["added", "added", "reduced", "update"] * 2
    assert "no_sync" not in replace(found, reduces=False).code
    assert "no_sync" not in replace(found, accumulation=1).code


def test_where_the_whole_batch_fits_best_it_is_not_split():
    task = build("mlp")
    optimizer = optimizer_of("sgd", task.model)
    found = plimsoll.suggest(task.loss, task.model, optimizer, sample_of(task, 16), "200%", "20GB/s")
    assert (found.batch, found.accumulation) == (16, 1)
    assert "everything stays" in str(found)
    assert "lambda" not in found.code


def test_a_batch_that_is_let_go_has_a_rate_that_follows():
    task = build("mlp")
    optimizer = optimizer_of("sgd", task.model)
    budget = budget_of(task, optimizer, 16)
    found = plimsoll.suggest(
        task.loss, task.model, optimizer, task.batches[0], budget, "20GB/s", keep_batch=False
    )
    assert found.accumulation == 1
    rate = optimizer.param_groups[0]["lr"]
    assert found.learning_rate == pytest.approx(rate * found.batch / 4)
    assert any(one.batch == 4 and one.seconds is not None for one in found.tried)
    assert found.tried[0].seconds is not None
    step = plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], budget, "20GB/s", 0)
    ran = {one.batch for one in found.tried if one.seconds is not None}
    assert step.batch in ran or abs(step.batch - found.batch) <= found.batch  # runs decide, and scatter
    assert step.learning_rate == pytest.approx(rate * step.batch / 4)


def test_a_loss_over_pairs_is_not_split():
    model = nn.Linear(64, 16)
    x = torch.randn(8, 64)

    def loss(x):
        rows = model(x)
        return torch.logsumexp(rows.sum(1), 0)

    found = plimsoll.suggest(loss, model, None, (x,), "200%", "20GB/s")
    assert (found.batch, found.accumulation, found.losses) == (8, 1, "neither")
    assert found.learning_rate is None
    assert "not split" in str(found)


def test_a_candidate_that_the_step_does_not_take_is_left_out_with_its_reason():
    task = build("mlp")

    def picky(x, y):
        if x.shape[0] == 4 and not task.model.training:
            return task.loss(x, y)
        if x.shape[0] == 1:
            raise ValueError("one sample is too few")
        return task.loss(x, y)

    found = plimsoll.suggest(picky, task.model, None, sample_of(task, 8), "200%", "20GB/s")
    assert found.batch > 1
    reasons = [one.why_not for one in found.tried if one.batch == 1]
    assert reasons in (
        [suggestion.LATER],
        ["the step fails at a batch of 1 (ValueError: one sample is too few)"],
    )


def test_where_nothing_fits_no_plan_says_so():
    task = build("convolutions")
    optimizer = optimizer_of("sgd", task.model)
    with pytest.raises(plimsoll.NoPlan, match="floor"):
        plimsoll.suggest(task.loss, task.model, optimizer, task.batches[0], "10KiB", "20GB/s")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": nn.functional.relu}, "not a `torch.nn.Module`"),
        ({"optimizer": 3}, "not a `torch.optim.Optimizer`"),
        ({"budget": "many"}, "size"),
        ({"budget": None}, "a budget is a size"),
        ({"sample": ()}, "no tensor"),
        ({"link": 3}, "a link is a rate"),
    ],
)
def test_bad_input_is_named(arguments, words):
    task = build("mlp")
    given = {"model": task.model, "optimizer": None, "sample": task.batches[0], "budget": "200%"} | arguments
    with pytest.raises(plimsoll.BadInput, match=words):
        plimsoll.suggest(task.loss, **given)


def test_a_budget_between_is_used():
    task = build("gpt")
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(0.3, task, optimizer)
    found = plimsoll.suggest(task.loss, task.model, optimizer, task.batches[0], budget, "20GB/s")
    assert found.peak_bytes <= budget
