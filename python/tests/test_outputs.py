"""A step returns other results of the same forward pass in addition to the loss."""

import pytest
import torch
import torch.nn.functional as F
from models import GPT
from networks import SMALL_GPT, Task, budget_at, build, optimizer_of, train

import plimsoll
from plimsoll import batches, outputs


def with_others(task):
    def fn(x, y):
        logits = task.model(x)
        loss = F.cross_entropy(logits, y)
        right = (logits.argmax(1) == y).float().mean()
        return plimsoll.Outputs(loss, {"logits": logits, "accuracy": right, "terms": (loss, x, "a name")})

    return Task(task.model, fn, task.batches)


def trained(link, planned):
    """Results of three steps."""
    task = with_others(build("convolutions"))
    optimizer = optimizer_of("sgd", task.model)
    step, kept = None, []
    if planned:
        budget = 2 * budget_at(0.1, build("convolutions"), optimizer)
        step = plimsoll.tune(
            task.loss, task.model, optimizer, task.batches[0], budget, link, verify=1, seconds=0.5
        )

    def run(*batch):
        given = step(*batch) if step else outputs.backward(task.loss(*batch))
        assert given.others["terms"][2] == "a name"
        assert not given.loss.requires_grad
        kept.extend([given.others["logits"], given.others["accuracy"], *given.others["terms"][:2]])
        return given.loss

    losses = train(task, optimizer, run)
    if step:
        assert step.fallback is None
        assert step.program.counts.as_planned
    return [*losses, *kept, *task.model.state_dict().values()]


@pytest.mark.parametrize("link", ["200KB/s", "20GB/s"])
def test_others_are_those_of_eager_in_every_step(link):
    for one, other in zip(trained(link, False), trained(link, True), strict=True):
        assert torch.equal(one, other)


def test_others_that_differ_from_eager_are_a_verification_error():
    task = with_others(build("convolutions"))
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], "100%", "20GB/s", verify=1)
    run = step.program.run

    def wrong(inputs):
        given = run(inputs)
        given.others["accuracy"].add_(1)
        return given

    step.program.run = wrong
    with pytest.raises(plimsoll.VerificationError, match=r"output 1 \(by up to 1\)"):
        step(*task.batches[0])


def test_several_losses_are_seen_one_by_one():
    torch.manual_seed(0)
    model = GPT(**SMALL_GPT)
    x = torch.randint(0, 96, (4, 24))

    def fn(x):
        logits = model(x)
        words, size = F.cross_entropy(logits.flatten(0, 1), x.flatten()), logits.square().mean()
        return plimsoll.Outputs(words + 0.1 * size, (words, size))

    step = plimsoll.tune(fn, model, None, x, "60%", "20GB/s", verify=1, seconds=0.5)
    for _ in range(2):
        given = step(x)
        words, size = given.others
        assert given.loss.item() == (words + 0.1 * size).item()


def test_a_batch_whose_step_gives_more_than_its_loss_is_refused_with_the_largest_that_fits():
    task = with_others(build("convolutions"))
    floor = plimsoll.trace(task.loss, task.model, *batches.taken(task.batches[0], 0, 2)).floor_bytes
    with pytest.raises(plimsoll.NoPlan, match="The largest batch that fits") as failed:
        plimsoll.tune(task.loss, task.model, None, task.batches[0], floor, "20GB/s", seconds=0.5)
    largest = failed.value.largest_batch
    assert 1 <= largest <= 2
    assert f"is {largest}: give batches of that" in str(failed.value)
    sample = batches.taken(task.batches[0], 0, largest)
    plimsoll.tune(task.loss, task.model, None, sample, floor, "20GB/s", seconds=0.5)
