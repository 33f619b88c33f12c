"""Sequences of varying length: buckets with a plan each, within one budget."""

import pytest
import torch
import torch.nn.functional as F
from models import GPT
from networks import SMALL_GPT, Task, eager, optimizer_of, train

import plimsoll
from plimsoll import Buckets


def language(lengths):
    """A language model that ignores labels of -100, and batches of dictionaries of these lengths."""
    torch.manual_seed(0)
    model = GPT(**{**SMALL_GPT, "length": 64})

    def loss(batch):
        return F.cross_entropy(
            model(batch["words"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=-100
        )

    g = torch.Generator().manual_seed(1)
    words = [torch.randint(0, 96, (4, length), generator=g) for length in lengths]
    return Task(model, loss, [({"words": w, "labels": w.clone(), "rows": torch.arange(4)},) for w in words])


def by_hand(task, lengths):
    """The same task with batches padded by hand."""
    for (batch,), length in zip(task.batches, lengths, strict=True):
        more = length - batch["words"].shape[1]
        batch["words"], batch["labels"] = (
            F.pad(batch["words"], (0, more), value=3),
            F.pad(batch["labels"], (0, more), value=-100),
        )
    return task


def tuned(task, buckets, budget="60%", **more):
    optimizer = optimizer_of("adamw", task.model)
    options = {"link": "20GB/s", "seconds": 0.5, "verify": 1, "buckets": buckets, **more}
    return optimizer, plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], budget, **options)


LENGTHS = [20, 7, 33, 16, 64, 31, 40]
PADDED = [32, 16, 64, 16, 64, 32, 64]
PAD = {"words": 3, "labels": -100}


def test_batches_are_padded_to_buckets_with_the_bits_of_eager_on_padded_batches():
    reference = by_hand(language(LENGTHS), PADDED)
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    task = language(LENGTHS)
    optimizer, step = tuned(task, Buckets([64, 16, 32], PAD))
    pools = {step._memory.pool.size}

    def checked(*batch):
        loss = step(*batch)
        assert step.fallback is None
        pools.add(step._memory.pool.size)
        return loss

    planned = train(task, optimizer, checked)
    assert [loss.item() for loss in planned] == [loss.item() for loss in losses]
    for one, other in zip(task.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(step._kinds) == 3
    # The longest was planned first: no other needs more memory.
    assert len(pools) == 1
    longest = next(iter(step._kinds.values()))
    assert max(p.program.schedule.pool_bytes for p in step._kinds.values()) == pools.pop()
    assert longest.trace.resident_bytes + longest.program.schedule.pool_bytes <= step._planner.budget


def test_lengths_that_were_padded_where_they_are_collated():
    reference, task = (by_hand(language(LENGTHS), PADDED) for _ in range(2))
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    optimizer, step = tuned(task, [16, 32, 64])
    assert [loss.item() for loss in train(task, optimizer, step)] == [loss.item() for loss in losses]
    assert step.fallback is None


def test_a_length_without_a_bucket_is_refused_and_changes_nothing():
    task = language([32, 20, 65])
    _, step = tuned(task, [32])
    before = [p.clone() for p in task.model.parameters()]
    with pytest.raises(
        plimsoll.BadInput, match=r"length 20 has no bucket \(32\): pad it where batches are collated"
    ):
        step(*task.batches[1])
    with pytest.raises(
        plimsoll.BadInput, match=r"length 65 is longer than all buckets \(32\): truncate it, or add"
    ):
        step(*task.batches[2])
    assert all(map(torch.equal, before, task.model.parameters()))
    assert all(p.grad is None for p in task.model.parameters())
    step(*task.batches[0])
    assert step.fallback is None


def test_a_tensor_without_a_value_to_pad_with_is_named():
    task = language([32, 20])
    _, step = tuned(task, Buckets([32], {"words": 3}))
    with pytest.raises(
        plimsoll.BadInput, match=r"no value to pad `labels` with is known, a tensor of the shape \(4, 20\)"
    ):
        step(*task.batches[1])


def test_a_largest_bucket_that_does_not_fit_is_said_before_training():
    task = language([16])
    floor = plimsoll.trace(task.loss, task.model, *task.batches[0]).floor_bytes
    with pytest.raises(plimsoll.NoPlan):
        tuned(task, Buckets([16, 64], PAD), budget=floor + 1024)


def test_arguments_are_padded_by_their_position():
    x, y = torch.randn(2, 3, 5), torch.ones(2, 3, 5)
    a, b, c = Buckets([8], {0: 7, 1: -1}, dim=2).fitted((x, y, torch.arange(5)))
    assert torch.equal(a, F.pad(x, (0, 3), value=7))
    assert torch.equal(b, F.pad(y, (0, 3), value=-1))
    assert torch.equal(c, torch.arange(5))


def test_the_longest_is_made_of_what_there_is():
    x = torch.arange(6).view(2, 3)
    (stretched,) = Buckets([2, 7]).longest((x,))
    assert torch.equal(stretched, x[:, [0, 1, 2, 0, 1, 2, 0]])


@pytest.mark.parametrize("lengths", [[], [0], [16, "32"], [True]])
def test_buckets_that_mean_nothing_are_refused(lengths):
    with pytest.raises(plimsoll.BadInput, match="buckets are lengths such as"):
        Buckets(lengths)


def test_a_batch_without_the_dimension_is_refused():
    with pytest.raises(plimsoll.BadInput, match="no tensor of the batch has a dimension 3"):
        Buckets([8], dim=3).fitted((torch.randn(2, 8),))
    with pytest.raises(plimsoll.BadInput, match="counted from the front"):
        Buckets([8], dim=-1)
