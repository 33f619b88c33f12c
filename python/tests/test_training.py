"""Common code in and around a training step: each works with the bits of eager, or is refused with helpful words."""

import copy
import logging
import threading

import pytest
import torch
import torch.nn.functional as F
from models import GPT
from networks import SMALL_GPT, Task, budget_at, build, eager
from torch import nn
from torch.utils.checkpoint import checkpoint

import plimsoll

FAST = "20GB/s"


def blocks(width=32, count=4):
    layers = []
    for _ in range(count):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, 8))


def vectors(width=32, steps=4):
    g = torch.Generator().manual_seed(2)
    return [
        (torch.randn(8, width, generator=g), torch.randint(0, 8, (8,), generator=g)) for _ in range(steps)
    ]


def make(build_model, build_loss, data):
    torch.manual_seed(0)
    model = build_model()
    return Task(model, build_loss(model), data)


def classify(model):
    return lambda x, y: F.cross_entropy(model(x), y)


def run_both(build_model, build_loss=classify, data=None, loop=None, share=0.3):
    """Trains by a plan and in eager, and compares every bit. Returns the step."""
    data = data or vectors()
    losses = []
    for planned in (False, True):
        task = make(build_model, build_loss, data)
        optimizer = torch.optim.SGD(
            [p for p in task.model.parameters() if p.requires_grad], 0.1, momentum=0.9
        )
        step = eager(task)
        if planned:
            budget = budget_at(share, task, optimizer)
            step = plimsoll.tune(
                task.loss, task.model, optimizer, data[0], budget, FAST, verify=1, seconds=0.5
            )
        torch.manual_seed(5)
        losses.append((loop or plain)(task, optimizer, step))
        losses[-1] += [v.clone() for v in task.model.state_dict().values()]
        losses[-1] += [torch.get_rng_state()]
    for one, other in zip(*losses, strict=True):
        assert torch.equal(one, other)
    assert step.fallback is None
    return step


def plain(task, optimizer, step):
    losses = []
    for batch in task.batches:
        optimizer.zero_grad()
        losses.append(step(*batch).detach().clone())
        optimizer.step()
    return losses


def test_clipped_gradients():
    def loop(task, optimizer, step):
        losses = []
        for batch in task.batches:
            optimizer.zero_grad()
            losses.append(step(*batch).detach().clone())
            losses.append(nn.utils.clip_grad_norm_(task.model.parameters(), 0.1))
            optimizer.step()
        return losses

    run_both(blocks, loop=loop)


def test_a_scaler_of_gradients_scales_the_loss_inside_the_step():
    scalers = []

    def loss(model):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        scalers.append(scaler)
        return lambda x, y: scaler.scale(F.cross_entropy(model(x), y))

    def loop(task, optimizer, step):
        losses = []
        for number, batch in enumerate(task.batches):
            optimizer.zero_grad()
            losses.append(step(*batch).detach().clone())
            if number == 1:  # a step that overflows is skipped
                next(task.model.parameters()).grad.view(-1)[0] = float("inf")
            scalers[-1].step(optimizer)
            scalers[-1].update()
            losses.append(torch.tensor(scalers[-1].get_scale()))
        return losses

    run_both(blocks, loss, loop=loop)


def test_the_loss_of_a_step_has_no_graph():
    task = make(blocks, classify, vectors())
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], "100%", FAST, verify=0)
    assert not step(*task.batches[0]).requires_grad


def test_a_scheduler_and_another_rate_in_every_step():
    def loop(task, optimizer, step):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        losses = []
        for batch in task.batches:
            optimizer.zero_grad()
            losses.append(step(*batch).detach().clone())
            optimizer.step()
            scheduler.step()
        return losses

    run_both(blocks, loop=loop)


def test_parts_that_freeze_and_thaw_between_steps():
    def loop(task, optimizer, step):
        losses = []
        for number, batch in enumerate(task.batches):
            task.model[0].requires_grad_(number % 2 == 0)
            optimizer.zero_grad()
            losses.append(step(*batch).detach().clone())
            assert (task.model[0].weight.grad is None) == (number % 2 == 1)
            optimizer.step()
        return losses

    run_both(blocks, loop=loop, share=1.0)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_the_user_s_own_checkpoint(use_reentrant):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body, self.head = nn.Linear(32, 32), blocks()[:-1], nn.Linear(32, 8)

        def forward(self, x):
            return self.head(checkpoint(self.body, self.stem(x), use_reentrant=use_reentrant))

    run_both(Model)


def test_tied_weights_have_one_gradient():
    def loss(model):
        return lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    g = torch.Generator().manual_seed(3)
    data = [tuple(torch.randint(0, 96, (4, 24), generator=g) for _ in range(2)) for _ in range(3)]
    step = run_both(lambda: GPT(**SMALL_GPT), loss, data)
    assert len(step.program.tape.gradients) == len(
        set(map(id, dict(step._model.named_parameters()).values()))
    )


def test_hooks_of_modules_are_part_of_the_plan_and_a_warning_says_what_is_not(caplog):
    seen = []

    def model():
        made = blocks()
        made[0].register_forward_hook(lambda module, given, out: (seen.append(1), out * 2)[1])
        made[4].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        made[8].register_full_backward_hook(lambda module, given, out: tuple(g * 3 for g in given))
        made[0].weight.register_hook(lambda gradient: gradient * 0.5)
        return made

    with caplog.at_level(logging.WARNING, "plimsoll"):
        run_both(model)
    assert "hooks of modules (0, 4, 8)" in caplog.text
    assert "is not repeated" in caplog.text


def test_old_parametrisations_that_are_hooks():
    def model():
        made = blocks()
        made[0] = nn.utils.parametrizations.weight_norm(made[0])
        return made

    run_both(model)


@pytest.mark.parametrize("frees", [False, True])
def test_hooks_on_gradients_run_once_a_step_in_the_order_of_eager(frees):
    """For example an optimizer that steps as soon as a gradient exists, and frees it."""

    def trained(is_planned):
        task, seen = make(blocks, classify, vectors()), []
        names = {id(p): name for name, p in task.model.named_parameters()}

        def hook(parameter):
            seen.append(names[id(parameter)])
            parameter.add_(parameter.grad, alpha=-0.01)
            if frees:
                parameter.grad = None

        for parameter in task.model.parameters():
            parameter.register_post_accumulate_grad_hook(hook)
        step = eager(task)
        if is_planned:
            before = [p.clone() for p in task.model.parameters()]
            budget = budget_at(0.3, task, None)
            step = plimsoll.tune(task.loss, task.model, None, task.batches[0], budget, FAST, seconds=0.5)
            assert step.batch > 0  # it runs steps
            assert all(map(torch.equal, before, task.model.parameters()))
            assert not seen
        torch.manual_seed(7)
        left = [
            step(*batch).detach().clone() for batch in task.batches if frees or task.model.zero_grad() is None
        ]
        assert not is_planned or step.fallback is None
        gradients = [p.grad for p in task.model.parameters() if p.grad is not None]
        return [*left, *task.model.parameters(), *gradients], seen

    (wanted, order), (left, seen) = trained(False), trained(True)
    assert len(wanted) == len(left) and all(map(torch.equal, wanted, left))
    assert order == seen


def test_hooks_run_for_what_got_a_gradient_in_this_step():
    """Two heads in turn: the gradient of the other one is from an earlier batch. The last kind of batch runs in eager."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(32, 8)

        def forward(self, x):
            y = self.body(x).relu()
            if len(x) == 7:
                y = y[(x[:, 0] > 0).nonzero().flatten()]
                return self.one(y) + self.two(y)
            return (self.one if len(x) == 8 else self.two)(y)

    g = torch.Generator().manual_seed(3)
    batches = [torch.randn(size, 32, generator=g) for size in (8, 6, 7, 8, 7, 6)]

    def trained(is_planned):
        torch.manual_seed(0)
        model, seen, fallbacks = Model(), [], []
        names = {id(p): name for name, p in model.named_parameters()}

        def hook(parameter):
            seen.append(names[id(parameter)])
            parameter.add_(parameter.grad, alpha=-0.01)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(hook)

        def loss(x):
            return model(x).square().mean()

        def step(x):
            made = loss(x)
            made.backward()
            return made

        if is_planned:
            step = plimsoll.tune(loss, model, None, batches[0], "1GiB", FAST, seconds=0.5)
        left = []
        for x in batches:
            left.append(step(x).detach().clone())
            fallbacks.append(is_planned and step.fallback is not None)
        return [*left, *model.parameters(), *(p.grad for p in model.parameters())], seen, fallbacks

    (wanted, order, _), (left, seen, fallbacks) = trained(False), trained(True)
    assert order == seen
    assert all(map(torch.equal, wanted, left))
    assert fallbacks == [False, False, True, False, True, False]


def test_several_losses_are_one_sum():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.one, self.two = blocks()[:-1], nn.Linear(32, 8), nn.Linear(32, 1)

        def forward(self, x):
            y = self.body(x)
            return self.one(y), self.two(y)

    def loss(model):
        def fn(x, y):
            one, two = model(x)
            return F.cross_entropy(one, y) + 0.3 * two.square().mean() + 0.01 * model.one.weight.norm()

        return fn

    run_both(Model, loss)


def test_several_losses_that_are_not_summed_are_refused():
    task = make(blocks, classify, vectors())
    with pytest.raises(plimsoll.BadInput, match="gives a tuple; it must give the loss"):
        plimsoll.tune(lambda x, y: (task.loss(x, y),) * 2, task.model, None, task.batches[0], "100%", FAST)


def test_a_penalty_on_gradients():
    def model():
        return nn.Sequential(nn.Linear(32, 64), nn.Softplus(), nn.Linear(64, 8))

    def loss(model):
        def fn(x, y):
            z = x * 1.0
            z.requires_grad_()
            out = F.cross_entropy(model(z), y)
            (slope,) = torch.autograd.grad(out, z, create_graph=True)
            return out + slope.square().sum()

        return fn

    run_both(model, loss)


def test_functions_of_the_user_s_own():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 3 * gradient * x**2

    def loss(model):
        return lambda x, y: F.cross_entropy(Cube.apply(model(x) * 0.1), y)

    run_both(blocks, loss)


def test_evaluation_between_steps():
    def loop(task, optimizer, step):
        losses = []
        for batch in task.batches:
            optimizer.zero_grad()
            losses.append(step(*batch).detach().clone())
            optimizer.step()
            task.model.eval()
            with torch.no_grad():
                losses.append(task.model(batch[0]))
            with torch.inference_mode():
                losses.append(task.model(batch[0]).clone())
            task.model.train()
        return [loss.clone() for loss in losses]

    run_both(blocks, loop=loop)


def test_autocast_to_bfloat16_with_dropout():
    def loss(model):
        def fn(x, y):
            with torch.autocast("cpu", torch.bfloat16):
                return F.cross_entropy(model(x), y)

        return fn

    run_both(blocks, loss)


def test_a_model_in_bfloat16():
    data = [(x.bfloat16(), y) for x, y in vectors()]
    run_both(lambda: blocks().bfloat16(), data=data)


def test_batches_of_dictionaries():
    data = [({"x": x, "labels": y},) for x, y in vectors()]
    run_both(blocks, lambda model: lambda batch: F.cross_entropy(model(batch["x"]), batch["labels"]), data)


def test_sparse_gradients_are_refused():
    model = nn.EmbeddingBag(100, 8, sparse=True)
    with pytest.raises(plimsoll.Refused, match="no plain strided memory"):
        plimsoll.tune(lambda x: model(x).sum(), model, None, torch.randint(0, 100, (4, 5)), "100%", FAST)


def test_an_exception_of_the_user_s_own_while_a_step_is_verified_leaves_everything_as_it_was():
    task = make(blocks, classify, vectors())
    fail = []

    def loss(x, y):
        result = task.loss(x, y)
        if fail:
            raise KeyboardInterrupt
        return result

    step = plimsoll.tune(loss, task.model, None, task.batches[0], "100%", FAST, verify=3)
    step(*task.batches[0])
    fail.append(1)
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    gradients = [p.grad.clone() for p in task.model.parameters()]
    generator = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        step(*task.batches[1])
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(task.model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), generator)
    fail.clear()
    step(*task.batches[1])


def test_a_step_inside_of_a_step_is_refused():
    task = make(blocks, classify, vectors())
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], "100%", FAST, verify=0)
    other = nn.Linear(32, 8)
    with pytest.raises(plimsoll.Refused, match="inside of another step"):
        plimsoll.trace(lambda x, y: step(x, y) + other(x).sum(), other, *task.batches[0])
    step(*task.batches[0])


def test_steps_of_two_threads_take_turns():
    tasks = [make(blocks, classify, vectors()) for _ in range(2)]
    wanted = []
    for task in tasks:
        torch.manual_seed(1)
        task.model.eval()  # without dropout, whose generator both would draw from
        eager(task)(*task.batches[0])
        wanted.append([p.grad.clone() for p in task.model.parameters()])
        task.model.zero_grad()
    steps = [
        plimsoll.tune(task.loss, task.model, None, task.batches[0], "100%", FAST, verify=0) for task in tasks
    ]
    wrong = []

    def work(task, step, want):
        torch.set_num_threads(1)
        for _ in range(20):
            task.model.zero_grad()
            step(*task.batches[0])
            same = all(torch.equal(p.grad, g) for p, g in zip(task.model.parameters(), want, strict=True))
            if step.fallback is not None or not same:
                wrong.append(step.fallback or "other bits")

    threads = [threading.Thread(target=work, args=both) for both in zip(tasks, steps, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_step_is_not_copied():
    task = build("mlp")
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], "100%", FAST, verify=0)
    with pytest.raises(plimsoll.BadInput, match="cannot be pickled"):
        copy.deepcopy(step)


def test_a_model_on_meta_is_refused_with_what_to_do():
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    with pytest.raises(plimsoll.BadInput, match=r"is on meta; .* `plimsoll\.fits`"):
        plimsoll.trace(lambda x: model(x).sum(), model, torch.randn(2, 8))
