"""A step adds to existing gradients, with the bits of eager."""

import itertools

import pytest
import torch
from networks import budget_at, build, eager, optimizer_of

import plimsoll


def tuned(name, share=0.1, link="20GB/s", verify=0):
    task = build(name)
    optimizer = optimizer_of("adamw", task.model)
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    budget = budget_at(share, task, optimizer, adds=True)
    task.model.load_state_dict(state)
    step = plimsoll.tune(
        task.loss, task.model, optimizer, task.batches[0], budget, link, verify=verify, seconds=0.5
    )
    return task, optimizer, step


def train(task, optimizer, step, accumulated, set_to_none):
    """Steps of several batches each; the last gradients stay."""
    torch.manual_seed(7)
    losses = []
    for _ in range(2):
        optimizer.zero_grad(set_to_none=set_to_none)
        for batch in task.batches[:accumulated]:
            losses.append(step(*batch).detach().clone())
        optimizer.step()
    return losses


def assert_same_training(task, reference, losses, wanted):
    assert all(map(torch.equal, losses, wanted))
    for one, other in zip(task.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.equal(one.grad, other.grad)
    for one, other in zip(task.model.buffers(), reference.model.buffers(), strict=True):
        assert torch.equal(one, other)


FEW = {("gpt", "20GB/s", 3, True), ("convolutions", "200KB/s", 1, False), ("convolutions", "20GB/s", 3, True)}

MATRIX = [
    pytest.param(*all_of, marks=[] if all_of in FEW else pytest.mark.slow)
    for all_of in itertools.product(
        ("convolutions", "gpt", "frozen", "checkpointed"), ("200KB/s", "20GB/s"), (1, 3), (True, False)
    )
]


@pytest.mark.parametrize(("name", "link", "accumulated", "set_to_none"), MATRIX)
def test_batches_are_accumulated_with_the_bits_of_eager(name, link, accumulated, set_to_none):
    reference = build(name)
    wanted = train(
        reference, optimizer_of("adamw", reference.model), eager(reference), accumulated, set_to_none
    )
    task, optimizer, step = tuned(name, link=link)

    def checked(*batch):
        loss = step(*batch)
        assert step.fallback is None
        assert step.program.counts.as_planned
        return loss

    losses = train(task, optimizer, checked, accumulated, set_to_none)
    assert_same_training(task, reference, losses, wanted)


def test_accumulated_steps_are_verified():
    task, optimizer, step = tuned("gpt", verify=5)
    train(task, optimizer, step, 3, True)
    assert step.fallback is None
    assert step.program.tape.adds_to_gradients()


def test_a_second_tape_that_adds_keeps_to_the_budget():
    task, _, step = tuned("resnet18")
    step(*task.batches[0])
    step(*task.batches[1])
    program = step.program
    assert program.tape.adds_to_gradients()
    assert program.tape.resident_bytes() + program.schedule.pool_bytes <= program.schedule.budget_bytes


def test_batches_of_other_shapes_add_to_the_same_gradients():
    reference, (task, _, step) = build("convolutions"), tuned("convolutions", share=0.9)
    backward = eager(reference)
    for trained, run in ((reference, backward), (task, step)):
        torch.manual_seed(7)
        for (x, y), size in zip(trained.batches, (4, 2, 4), strict=True):
            run(x[:size], y[:size])
    assert step.fallback is None
    assert_same_training(task, reference, [], [])


def test_gradients_of_eager_and_of_the_plan_add_up():
    reference, (task, _, step) = build("gpt"), tuned("gpt")
    backward = eager(reference)
    torch.manual_seed(7)
    for batch in reference.batches:
        backward(*batch)
    torch.manual_seed(7)
    eager(task)(*task.batches[0])
    there = [p.grad for p in task.model.parameters()]
    step(*task.batches[1])
    assert step.fallback is None
    assert all(p.grad is g for p, g in zip(task.model.parameters(), there, strict=True))
    eager(task)(*task.batches[2])
    assert_same_training(task, reference, [], [])


def test_some_gradients_are_there_and_others_not():
    reference, (task, _, step) = build("mlp"), tuned("mlp")
    backward = eager(reference)
    for trained, run in ((reference, backward), (task, step)):
        run(*trained.batches[0])
        for parameter in list(trained.model.parameters())[::2]:
            parameter.grad = None
        run(*trained.batches[1])
    assert step.fallback is None
    assert_same_training(task, reference, [], [])


def test_an_exception_leaves_the_gradients_that_were_there():
    task, _, step = tuned("convolutions")
    step(*task.batches[0])
    step(*task.batches[1])
    bound = step.program._steps[-1]
    func = bound.func

    def interrupted(*arguments, **keywords):
        func(*arguments, **keywords)
        raise KeyboardInterrupt

    bound.func = interrupted
    before = [p.grad.clone() for p in task.model.parameters()]
    with pytest.raises(KeyboardInterrupt):
        step(*task.batches[2])
    assert all(torch.equal(p.grad, g) for p, g in zip(task.model.parameters(), before, strict=True))


def test_adding_takes_more_than_setting_and_no_plan_says_so():
    task = build("resnet18")
    budget = budget_at(0.0, task, None)
    step = plimsoll.tune(
        task.loss, task.model, None, task.batches[0], budget, "20GB/s", verify=0, seconds=0.5
    )
    step(*task.batches[0])
    with pytest.raises(plimsoll.NoPlan, match=r"adds to gradients that were there .* `optimizer\.zero_grad"):
        step(*task.batches[1])
    task.model.zero_grad()
    step(*task.batches[1])
    assert step.fallback is None


def test_recording_leaves_the_gradients_that_are_there():
    task = build("convolutions")
    eager(task)(*task.batches[0])
    there = [(p.grad, p.grad.clone()) for p in task.model.parameters()]
    plimsoll.trace(task.loss, task.model, *task.batches[0])
    for parameter, (gradient, copy) in zip(task.model.parameters(), there, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, copy)
