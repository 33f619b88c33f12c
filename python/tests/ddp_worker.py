"""One process of a training with DDP: in eager and by a plan, which must leave the same bits. Run by torchrun."""

import contextlib
import gc
import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import GPT
from networks import build
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import plimsoll
from plimsoll.program import Program, Unplanned


class Unused(nn.Module):
    """A module with a part that no step uses."""

    def __init__(self, model):
        super().__init__()
        self.model, self.unused = model, nn.Linear(4, 4)

    def forward(self, *arguments):
        return self.model(*arguments)


def halved(_state, bucket):
    """A communication hook that sends bf16."""
    sent = bucket.buffer().bfloat16()
    return (
        dist.all_reduce(sent, async_op=True)
        .get_future()
        .then(lambda done: done.value()[0].to(torch.float32) / dist.get_world_size())
    )


def updating(state, bucket):
    """A communication hook that updates parameters as soon as their gradients are reduced."""

    def update(done):
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            with torch.no_grad():
                parameter.sub_(gradient, alpha=0.1 / dist.get_world_size())
        return done.value()[0]

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(update)


def waiting(group, bucket):
    """A communication hook that waits for the other ranks."""
    dist.all_reduce(bucket.buffer(), group=group)
    done = torch.futures.Future()
    done.set_result(bucket.buffer() / dist.get_world_size())
    return done


class Watched:
    """Counts the gradients that are handed over, and those of them in the middle of a step."""

    running = False

    def __init__(self, step):
        self.early = self.all = 0
        reducing = step._reducing
        hand_over = reducing._hand_over

        def watched(*arguments):
            self.early += Watched.running
            self.all += 1
            hand_over(*arguments)

        reducing._hand_over = watched

    def take(self):
        """Counts since the last call."""
        counts = self.early, self.all
        self.early = self.all = 0
        return counts


def noted(run):
    """A run of a program, during which `Watched.running` is true."""

    def running(*arguments):
        Watched.running = True
        try:
            run(*arguments)
        finally:
            Watched.running = False

    return running


Program._call_by_call = noted(Program._call_by_call)


def train(name, planned, accumulated=1, hook=None, unused=False, early=True, doubled=False, **ddp):
    """Results of a few steps on this rank. By a plan, gradients are handed over early from the third step on."""
    torch.manual_seed(0)
    task = build(name)
    inner = Unused(task.model) if unused else task.model
    model = DistributedDataParallel(inner, bucket_cap_mb=0.01, **ddp)
    if hook:
        model.register_comm_hook(None, hook)
    if doubled:
        for parameter in inner.parameters():
            parameter.register_hook(lambda gradient: 2 * gradient)
    optimizer = torch.optim.AdamW(inner.parameters(), 1e-2)
    g = torch.Generator().manual_seed(10 + dist.get_rank())
    batches = [
        tuple(
            torch.randn(t.shape, generator=g)
            if t.is_floating_point()
            else torch.randint(0, 8, t.shape, generator=g)
            for t in task.batches[0]
        )
        for _ in range(6)
    ]

    def loss(x, y):
        out = model(x)
        return (
            F.cross_entropy(out.flatten(0, 1), y.flatten())
            if isinstance(task.model, GPT)
            else F.cross_entropy(out, y)
        )

    def step(x, y):
        made = loss(x, y)
        made.backward()
        return made.detach()

    if planned:
        trace = plimsoll.trace(lambda x, y: task.loss(x, y), task.model, *batches[0], optimizer=optimizer)
        trained = sum(p.numel() * p.element_size() for p in inner.parameters())
        budget = trace.floor_bytes + (trace.peak_bytes - trace.floor_bytes) // 3 + 3 * trained
        step = plimsoll.tune(loss, model, optimizer, batches[0], budget, "20GB/s", seconds=0.5, verify=1)
        schedule = step.program.schedule
        assert schedule.recomputed_ops + schedule.offloaded_bytes > 0, schedule
        assert step._current().trace.resident_bytes >= trace.resident_bytes + trained
        watched = Watched(step)
    torch.manual_seed(20 + dist.get_rank())
    left = []
    for number, batch in enumerate(batches):
        last = (number + 1) % accumulated == 0
        with contextlib.nullcontext() if last else model.no_sync():
            left.append(step(*batch).clone())
        if last:
            left.append(nn.utils.clip_grad_norm_(inner.parameters(), 0.5).clone())
            optimizer.step()
            optimizer.zero_grad()
        if planned:
            assert step.fallback is None, step.fallback
            handed, given = watched.take()
            assert (given > 1) == last, given
            # The first step shows that reducing leaves the parameters as they are.
            assert handed == (given - 1 if early and accumulated == 1 and number > 0 else 0), (handed, given)
    return [*left, *(v.clone() for v in inner.state_dict().values())]


def compare(name, **how):
    wanted, left = train(name, False, **how), train(name, True, **how)
    assert len(wanted) == len(left)
    same = sum(map(torch.equal, wanted, left))
    assert same == len(wanted), f"{name} {how}: {len(wanted) - same} of {len(wanted)} differ"
    of_rank_0 = left[-1].clone()
    dist.broadcast(of_rank_0, 0)
    assert torch.equal(of_rank_0, left[-1])


def refused():
    """Models that are distributed in other ways."""
    sample = torch.randn(2, 8)
    part = nn.Sequential(DistributedDataParallel(nn.Linear(8, 8)))
    static = DistributedDataParallel(nn.Linear(8, 8), static_graph=True)
    for other, words in ((part, "a part of the model"), (static, "`static_graph`")):
        try:
            plimsoll.tune(lambda x, other=other: other(x).sum(), other, None, sample, "100%", "20GB/s")
        except plimsoll.Refused as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


def trainer():
    """Hugging Face's `Trainer`, which wraps the model itself."""
    import tempfile
    from pathlib import Path

    import test_adapter_transformers as of_transformers

    with tempfile.TemporaryDirectory() as folder:
        how = {"gradient_accumulation_steps": 2, "ddp_backend": "gloo", "dataloader_drop_last": True}
        done = of_transformers.both(Path(folder), data=of_transformers.texts(32), **how)
        assert isinstance(done.model_wrapped, DistributedDataParallel)
        dist.barrier()


class Mixed(nn.Module):
    """Saves tensors that change in place, that several ops share, and that are dropped at random."""

    def __init__(self, width):
        super().__init__()
        self.up, self.norm, self.down = (
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        y = F.relu(self.norm(self.up(x)), inplace=True)
        y = F.dropout(y, 0.2)
        return x + self.down(y * y.sigmoid())


def sharded():
    """FSDP2 is refused on all ranks, before anything runs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(Mixed(64), nn.Linear(64, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    batch = torch.randn(8, 64), torch.randint(0, 8, (8,))
    before = [p.to_local().clone() for p in model.parameters()]
    for ask in (plimsoll.tune, plimsoll.suggest):
        try:
            ask(lambda x, y: F.cross_entropy(model(x), y), model, None, batch, "100%")
        except plimsoll.Refused as error:
            assert "sharded parameters (FSDP, DTensor) cannot be planned" in str(error), error
        else:
            raise AssertionError("it ran")
    assert all(map(torch.equal, before, (p.to_local() for p in model.parameters())))


class Failing:
    """A planned replica on every rank, and batches of it."""

    def __init__(self, budget="100%", bucket_cap_mb=25, group=None, **how):
        torch.manual_seed(0)
        task = build("convolutions")  # with buffers, which are broadcast before each step
        self.inner = task.model
        self.model = DistributedDataParallel(task.model, process_group=group, bucket_cap_mb=bucket_cap_mb)
        self.batch = task.batches[0]
        self.step = plimsoll.tune(self.loss, self.model, None, self.batch, budget, "20GB/s", verify=0, **how)

    def loss(self, x, y):
        return F.cross_entropy(self.model(x), y)

    def run(self):
        self.inner.zero_grad()
        torch.manual_seed(5)  # for dropout
        self.step(*self.batch)
        return [p.grad.clone() for p in self.inner.parameters()]

    def gets_its_memory_back(self):
        """Restores the budget: every failure reduces the plan by a tenth, and after a few the
        smallest feasible one is reached."""
        planner = self.step._planner
        planner.budget = self.step._last.trace.peak_bytes
        planner.replan(self.step._last)

    def fails(self, kind, *words, call=None):
        """The error that this rank raises, with the same message on all ranks."""
        try:
            (call or self.run)()
        except kind as error:
            said = [None] * dist.get_world_size()
            dist.all_gather_object(said, str(error))
            assert len(set(said)) == 1, said
            assert all(word in said[0] for word in words), said[0]
            return error
        raise AssertionError(f"rank {dist.get_rank()} went on")


def last():
    """The rank that fails in the tests below."""
    return dist.get_world_size() - 1


def stands_in_for_run(step, error, times=1):
    """Makes the next runs of the step's program raise an error, on the last rank only."""
    program, left = step.program, [times]
    run = type(program).run

    def fails(inputs, taker=None):
        if left[0]:
            left[0] -= 1
            raise error
        return run(program, inputs, taker=taker)

    if dist.get_rank() == last():
        program.run = fails


def agreed():
    """A failure on one rank ends the step on all, with one message; nothing hangs, and the next step runs."""
    name = f"rank {last()} of {dist.get_world_size()} ended the step for all: "
    here = dist.get_rank() == last()
    # One rank finds no plan.
    failing = Failing.__new__(Failing)
    budget = "20KiB" if here else "100%"
    error = failing.fails(plimsoll.NoPlan, name, "20 KiB", call=lambda: failing.__init__(budget))
    assert error.short_by_bytes > 0 and error.layer
    # One rank has a meaningless argument, which is found before a plan is searched.
    budget = "seven" if here else "100%"
    failing.fails(plimsoll.BadInput, name, "seven", call=lambda: failing.__init__(budget))
    host = {"host_budget": "50%" if here else None}
    failing.fails(plimsoll.BadInput, name, "50%", call=lambda: failing.__init__(**host))

    failing = Failing()
    wanted = failing.run()
    for error, kind, words in (
        (plimsoll.DeviceError("the GPU fell off"), plimsoll.DeviceError, "the GPU fell off"),
        (ValueError("of the user's"), plimsoll.OtherRank, "ValueError: of the user's"),
        (plimsoll.VerificationError("other bits"), plimsoll.VerificationError, "other bits"),
    ):
        stands_in_for_run(failing.step, error)
        failing.fails(kind, name + words)
        assert all(p.grad is None for p in failing.inner.parameters())
        assert all(map(torch.equal, failing.run(), wanted))

    # One rank has a batch of a length that has no plan.
    failing.step._buckets = plimsoll.Buckets([failing.batch[0].shape[1] + here])
    failing.fails(plimsoll.BadInput, name)
    failing.step._buckets = None
    assert all(map(torch.equal, failing.run(), wanted))

    # Without reducing, the others learn of it in the next step that reduces.
    stands_in_for_run(failing.step, plimsoll.DeviceError("within no_sync"))
    if here:
        with failing.model.no_sync():
            failing.fails(plimsoll.DeviceError, name + "within no_sync")
    else:
        for _ in range(2):
            with failing.model.no_sync():
                failing.step(*failing.batch)
        failing.fails(plimsoll.DeviceError, name + "within no_sync")
    assert all(map(torch.equal, failing.run(), wanted))


def middle(hook=None):
    """An error on one rank after gradients were handed over ends the step on all; an error that can be repaired there
    leaves the bits of an undisturbed step."""
    name = f"rank {last()} of {dist.get_world_size()} ended the step for all: "
    failing = Failing(bucket_cap_mb=0.001)
    if hook:
        failing.model.register_comm_hook(None, hook)
    wanted = failing.run()
    watched = Watched(failing.step)
    assert all(map(torch.equal, failing.run(), wanted))
    handed, given = watched.take()
    assert handed == given - 1 > 4, (handed, given)
    take = failing.step._reducing.take

    def stands_in(error, number):
        """Makes handing over one gradient of the next step fail, on the last rank only."""
        left = [number]

        def fails(*arguments):
            left[0] -= 1
            if left[0] == -1:
                raise error
            take(*arguments)

        if dist.get_rank() == last():
            failing.step._reducing.take = fails

    for number in (0, 1, handed // 2, handed):
        for error, kind, words in (
            (plimsoll.DeviceError("the GPU fell off"), plimsoll.DeviceError, "the GPU fell off"),
            (ValueError("of the user's"), plimsoll.OtherRank, "ValueError: of the user's"),
        ):
            stands_in(error, number)
            failing.fails(kind, name + words)
            assert all(p.grad is None for p in failing.inner.parameters())
            assert all(map(torch.equal, failing.run(), wanted))
        stands_in(torch.OutOfMemoryError("out of memory"), number)
        assert all(map(torch.equal, failing.run(), wanted))
        assert failing.step.fallback is None
        assert all(map(torch.equal, failing.run(), wanted))
        failing.gets_its_memory_back()
    # Within `no_sync` as well, while the others are in a step that reduces.
    stands_in_for_run(failing.step, plimsoll.DeviceError("within no_sync"))
    if dist.get_rank() == last():
        with failing.model.no_sync():
            failing.fails(plimsoll.DeviceError, name + "within no_sync")
    else:
        failing.fails(plimsoll.DeviceError, name + "within no_sync")
    assert all(map(torch.equal, failing.run(), wanted))
    # A plan that is not kept to: the batch continues in eager.
    stands_in(Unplanned("of the test"), handed // 2)
    assert all(map(torch.equal, failing.run(), wanted))
    if dist.get_rank() == last():
        assert "of the test" in failing.step.fallback
    assert all(map(torch.equal, failing.run(), wanted))


def unlike(hook=waiting):
    """If not all ranks can hand over gradients in the middle of a step, none does, as a
    communication hook may wait for the other ranks."""
    name = f"rank {last()} of {dist.get_world_size()} ended the step for all: "
    here = dist.get_rank() == last()
    failing = Failing(bucket_cap_mb=0.001)
    failing.model.register_comm_hook(None, hook)
    wanted = failing.run()
    watched = Watched(failing.step)

    def runs(early):
        assert all(map(torch.equal, failing.run(), wanted))
        handed, given = watched.take()
        assert handed == (given - 1 if early else 0) and given > 4, (handed, given)

    def fails():
        stands_in_for_run(failing.step, ValueError("of the user's"))
        failing.fails(plimsoll.OtherRank, name + "ValueError: of the user's")
        watched.take()

    runs(early=True)
    # One rank has a hook that runs as soon as a gradient exists.
    seen = []
    noting = (
        next(failing.inner.parameters()).register_post_accumulate_grad_hook(seen.append) if here else None
    )
    runs(early=False)
    assert len(seen) == here
    fails()
    if noting is not None:
        noting.remove()
    runs(early=True)
    # One rank has gradients that the step adds to.
    forget = failing.inner.zero_grad
    failing.inner.zero_grad = lambda: forget(set_to_none=not here)
    runs(early=False)
    fails()
    failing.inner.zero_grad = forget
    runs(early=True)
    fails()
    runs(early=True)
    # Within `no_sync` a hook on a gradient may wait for a rank that fails. That rank continues, as in eager.
    parameter = next(failing.inner.parameters())
    summing = parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    stands_in_for_run(failing.step, ValueError("of the user's"))
    with failing.model.no_sync():
        try:
            failing.run()
        except ValueError:
            assert here
            dist.all_reduce(torch.zeros_like(parameter))
        else:
            assert not here
    summing.remove()
    runs(early=True)


class Either(nn.Module):
    """Takes one of two branches, depending on its first number."""

    def __init__(self):
        super().__init__()
        self.one, self.both, self.other = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        return self.both(self.one(x)) if x[0, 0] > 0 else self.other(self.both(x))


def either():
    """Each rank takes a different branch, and a communication hook waits for the others: with the bits of eager."""
    left = []
    for planned in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(Either(), bucket_cap_mb=0.0001, find_unused_parameters=True)
        model.register_comm_hook(None, waiting)

        def loss(x, model=model):
            return model(x).square().mean()

        batches = [torch.full((4, 16), sign) for sign in (1.0, 1.0, 1.0, -1.0, 1.0, -1.0)]
        if dist.get_rank() == last():
            batches = [batches[0], *(-batch for batch in batches[1:])]

        def step(x, loss=loss):
            loss(x).backward()

        if planned:
            step = plimsoll.tune(loss, model, None, batches[0], "100%", "20GB/s", verify=0)
        left.append([])
        for batch in batches:
            model.zero_grad()
            step(batch)
            left[-1] += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    eager, by_plan = left
    assert all((a is None) == (b is None) for a, b in zip(eager, by_plan, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(eager, by_plan, strict=True) if a is not None)


def gone(hook=None):
    """The others do not wait for a rank that can no longer take part in reducing, and it waits for
    none that waits in a hook."""
    # In a separate group, which is unusable afterwards.
    failing = Failing(bucket_cap_mb=0.001, group=dist.new_group())
    if hook:
        failing.model.register_comm_hook(failing.model.process_group, hook)
    failing.run()

    def fails(*_):
        raise plimsoll.DeviceError("the GPU fell off")

    if dist.get_rank() == last():
        failing.step._reducing._hand_over = fails
    if hook is None:
        failing.fails(plimsoll.DeviceError, "the GPU fell off")
        return
    # As in eager, the others wait in the hook until the process has ended, and report it.
    words = "the GPU fell off" if dist.get_rank() == last() else "by peer"
    try:
        failing.run()
    except (plimsoll.DeviceError, RuntimeError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"rank {dist.get_rank()} went on")


def short():
    """One rank runs out of memory and plans with less: the others log it, and all continue with the same bits."""
    import logging

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("plimsoll").addHandler(handler)
    failing = Failing("100%")
    wanted = failing.run()
    stands_in_for_run(failing.step, torch.OutOfMemoryError("out of memory"))
    before = failing.step.program.schedule.pool_bytes
    assert all(map(torch.equal, failing.run(), wanted))
    assert all(map(torch.equal, failing.run(), wanted))
    if dist.get_rank() == last():
        assert failing.step.program.schedule.pool_bytes < before
        assert any("planning with" in one for one in said), said
    else:
        told = [
            one for one in said if one.startswith(f"rank {last()}: out of memory in a step: planning with")
        ]
        assert len(told) == 1, said
    # If no plan takes less, the step ends on all ranks.
    stands_in_for_run(failing.step, torch.OutOfMemoryError("out of memory"), times=100)
    failing.step._planner.with_less = lambda planned, error: None
    failing.fails(plimsoll.OtherRank, "OutOfMemoryError: out of memory")
    logging.getLogger("plimsoll").removeHandler(handler)


def batch():
    """Each rank has a different budget, and all recommend the batch of the rank that fits least."""
    torch.manual_seed(0)
    task = build("mlp")
    model = DistributedDataParallel(task.model)
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-2)
    g = torch.Generator().manual_seed(dist.get_rank())
    sample = (torch.randn(256, 32, generator=g), torch.randint(0, 8, (256,), generator=g))

    def loss(x, y):
        return F.cross_entropy(model(x), y)

    def inner(x, y):
        return F.cross_entropy(task.model(x), y)

    trace = plimsoll.trace(inner, task.model, *sample, optimizer=optimizer)
    reducing = 2 * sum((p.numel() * 4 + 255) // 256 * 256 for p in task.model.parameters())
    resident = trace.resident_bytes + reducing
    # The last rank has room for a quarter of the sample's needs, the others for all.
    room = trace.peak_bytes - trace.resident_bytes
    budget = resident + (room // 4 if dist.get_rank() == last() else room)
    before = [p.detach().clone() for p in task.model.parameters()]
    alone = plimsoll.suggest(inner, task.model, optimizer, sample, budget, "20GB/s", keep_batch=True)
    found = plimsoll.suggest(loss, model, optimizer, sample, budget, "20GB/s", keep_batch=True)
    part = tuple(t[: found.batch] for t in sample)
    step = plimsoll.tune(loss, model, optimizer, part, budget, "20GB/s", seconds=0.5)
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, (found.batch, found.accumulation, step.batch, step.learning_rate))
    assert len(set(said)) == 1, said
    assert found.batch * found.accumulation == 256
    assert found.batch < 256
    assert found.peak_bytes <= budget and found.samples_per_second > 0
    # Memory for reducing counts; a process that trains alone has it for the step. Runs decide which batch is fastest.
    assert max(one.batch for one in found.tried) <= max(one.batch for one in alone.tried)
    assert all(map(torch.equal, before, task.model.parameters()))
    # If one rank has no plan, all raise it.
    failing = Failing.__new__(Failing)
    failing.fails(
        plimsoll.NoPlan,
        f"rank {last()} of {dist.get_world_size()} ended the step for all",
        call=lambda: plimsoll.suggest(
            loss, model, optimizer, sample, 2048 if dist.get_rank() == last() else budget, "20GB/s"
        ),
    )


def exchanged():
    """The predicted exchange of a step is in DDP's own buckets, and is part of the prediction and the choice."""
    torch.manual_seed(0)
    task = build("convolutions")
    model = DistributedDataParallel(task.model, bucket_cap_mb=0.002)
    trained = list(task.model.parameters())

    def loss(x, y):
        return F.cross_entropy(model(x), y)

    def tuned(interconnect=None):
        return plimsoll.tune(
            loss, model, None, task.batches[0], "100%", "20GB/s", verify=0, interconnect=interconnect
        )

    steps = {rate: tuned(rate) for rate in ("1Mbit/s,1us", "100Gbit/s", None)}
    for rate, step in steps.items():
        exchange = step.exchange
        said = json.loads(exchange.to_json())
        assert said["workers"] == dist.get_world_size()
        assert exchange.bytes == sum(p.numel() * p.element_size() for p in trained)
        ready = [piece["ready"] for piece in said["pieces"]]
        assert ready == sorted(ready) and ready[-1] == len(step.trace) - 1 and ready[0] < ready[-1], ready
        alone = step.program.schedule.makespan_seconds
        assert step.predicted_seconds == alone + exchange.exposed_seconds
        assert ("(measured)" in step.explain()) == (rate is None), step.explain()
        assert " add " in step.explain() and "exchanging" in step.why
        same = [None] * dist.get_world_size()
        dist.all_gather_object(same, said["interconnect"])
        assert all(one == same[0] for one in same), same
    slow, fast = (steps[rate].exchange.exposed_seconds for rate in ("1Mbit/s,1us", "100Gbit/s"))
    assert fast < slow and slow > exchange.bytes * 8 / 1e6 / 2, (fast, slow)
    for _ in range(3):  # it makes its buckets anew in the second, and reports them in the third
        task.model.zero_grad()
        step(*task.batches[0])
    sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert [piece["bytes"] for piece in said["pieces"]] == [int(size) for size in sizes.split(", ")], sizes
    # A network that takes seconds for each batch makes the largest batch the best.
    sample = tuple(torch.cat([t] * 8) for t in task.batches[0])
    budget = (
        2 * plimsoll.trace(lambda x, y: F.cross_entropy(task.model(x), y), task.model, *sample).peak_bytes
    )
    task.model.zero_grad()
    found = plimsoll.suggest(
        loss, model, None, sample, budget, "20GB/s", keep_batch=False, interconnect="0.1Mbit/s"
    )
    ran = [one for one in found.tried if one.seconds is not None]
    assert found.batch == max(one.batch for one in ran)
    assert "between ranks" in str(found)
    # The same holds for batches that were not run, for which the whole exchange counts except for the part that the step
    # covers, which is less than a step. A rank that runs the batch of another rank tries no other.
    tried = gathered(found.tried)
    whole = exchange.bytes * 8 / 1e5
    least = [whole - one.predicted_seconds if one.seconds is None else 0 for one in tried]
    assert 0 in least and max(least) > 0
    assert all(one.exchange_seconds >= low for one, low in zip(tried, least, strict=True)), tried
    assert all(one.exchange_seconds <= whole + 1e-3 for one in tried), tried
    # Parts of a batch exchange once for an update, at its end.
    task.model.zero_grad()
    found = plimsoll.suggest(loss, model, None, sample, budget, "20GB/s", interconnect="1Mbit/s,1ms")
    parts = [one for one in gathered(found.tried) if one.accumulation > 1]
    assert {one.seconds is None for one in parts} == {True, False}, parts
    at_the_end = whole / 10 + 2e-3 * len(exchange)
    assert all(abs(one.exchange_seconds - at_the_end) < 1e-9 * at_the_end for one in parts), parts


def gathered(mine):
    """Values of all ranks."""
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, mine)
    return [one for of_rank in of_all for one in of_rank]


CASES = {
    "exchanged": exchanged,
    "batch": batch,
    "agreed": agreed,
    "short": short,
    "middle": middle,
    "gone": gone,
    "gone, waiting": lambda: gone(waiting),
    "unlike": unlike,
    "either": either,
    "middle, waiting": lambda: middle(waiting),
    "sharded": sharded,
    "buffers": lambda: compare("convolutions"),
    "accumulated": lambda: compare("gpt", accumulated=2),
    "views": lambda: compare("gpt", accumulated=2, gradient_as_bucket_view=True),
    "unused": lambda: compare("gpt", unused=True, find_unused_parameters=True),
    "hook": lambda: compare("convolutions", hook=halved),
    "doubled": lambda: compare("gpt", doubled=True),
    "waiting": lambda: compare("gpt", hook=waiting),
    "updating": lambda: compare("gpt", hook=updating, early=False),
    "refused": refused,
    "trainer": trainer,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        CASES[case]()
    gc.collect()  # hooks are Python's: gloo's threads must not find any to free when the interpreter has ended
    dist.destroy_process_group()
