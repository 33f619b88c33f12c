"""Steps on a GPU that computes nothing (`runtime.c`): allocations, order, copies and frees are as on a real one.

python steps.py NAME runs one of the functions below, in a separate process.
"""

import gc
import json
import os
import weakref
from pathlib import Path

import standin
import torch
from standin import (
    LINK,
    NETWORKS,
    Register,
    StandIn,
    Warnings,
    held,
    images,
    language,
    rows,
    run_register,
    state,
    tuned,
    words,
)

import plimsoll
from plimsoll import devices, errors, recording


def planned(*names):
    """Allocations, copies, spans, memory and random numbers are as planned, at three budgets."""
    for name in names:
        planned_one(name)
        gc.collect()


def planned_one(name):
    model, loss, batch = NETWORKS[name]()
    before = state()
    loss(*batch).backward()
    drawn = state()
    trained = [p for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for share in (2.0, 0.4, 0.1):
        step = tuned((model, loss, batch), share)
        for number in range(3):
            model.zero_grad()
            torch.cuda.default_generators[0].set_state(before)
            torch.cuda.reset_peak_memory_stats()
            step(*batch)
            assert torch.equal(state(), drawn), "the generator is where eager leaves it"
            assert all(p.grad is not None and p.grad.is_cuda for p in trained), number
        program, schedule = step.program, step.program.schedule
        counts = program.counts
        assert step.fallback is None
        assert (counts.unplanned, counts.unused) == (0, 0) and counts.served > 100
        commands = json.loads(schedule.to_json())["commands"]
        streams = [[c for c in commands if c["do"] == do] for do in ("compute", "offload", "prefetch")]
        assert [len(spans) for spans in program.spans] == [len(of) for of in streams]
        assert all(start <= end for spans in program.spans for start, end in spans)
        assert (len(streams[1]) > 0) == (schedule.offloaded_bytes > 0)
        # Rounding of the allocator: at most 1 MiB for each of our three arenas.
        assert torch.cuda.max_memory_allocated() <= schedule.budget_bytes + (3 << 20)
        if share < 1:
            assert schedule.offloaded_bytes + schedule.recomputed_ops > 0
        if name == "attention_dropout":
            assert sum(len(call.on_host) for call in step.program.tape.calls) == 6
        del step, program
        model.zero_grad()


def in_pieces(name):
    """A recording in pieces equals that of the whole step, takes no more than the budget, and the step runs as planned."""
    model, loss, batch = NETWORKS[name]()
    whole = recording.record(loss, model, batch)
    step = tuned((model, loss, batch), 0.1, in_pieces=False)
    budget = step.program.schedule.budget_bytes
    del step
    generator = state()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    options = {"verify": 0, "seconds": 0.5, "host_budget": "1GiB", "in_pieces": True}
    step = plimsoll.tune(loss, model, None, batch, budget, LINK, **options)
    tape = step.program.tape
    assert [c.signature() for c in tape.calls] == [c.signature() for c in whole.calls]
    assert [c.workspace_bytes for c in tape.calls] == [c.workspace_bytes for c in whole.calls]
    assert [(s.size, s.role, s.is_on_host) for s in tape.storages] == [
        (s.size, s.role, s.is_on_host) for s in whole.storages
    ]
    assert torch.equal(state(), generator)
    for _ in range(2):
        model.zero_grad()
        step(*batch)
        assert step.fallback is None
        assert (step.program.counts.unplanned, step.program.counts.unused) == (0, 0)
    assert torch.cuda.max_memory_allocated() <= budget + (3 << 20)


def life():
    """Accumulation, another stream, a report, and nothing left behind."""
    model, loss, batch = language()
    loss(*batch).backward()
    model.zero_grad()
    before = held()
    # A stream takes up to 32 MiB more, for a workspace of cuBLAS.
    trace = plimsoll.trace(loss, model, *batch)
    step = plimsoll.tune(loss, model, None, batch, trace.peak_bytes + (40 << 20), LINK, verify=0)
    step(*batch)
    step(*batch)
    assert step.fallback is None and step.program.tape.adds_to_gradients()
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    assert step.program.tape.undo_bytes >= gradients
    with torch.cuda.stream(torch.cuda.Stream()):
        step(*batch)
        assert step.fallback is None and len(step._kinds) == 3
    step(*batch)
    assert len(step._kinds) == 3
    step.report("report.html", seconds=0.1)
    assert "Plimsoll stand-in, PyTorch" in Path("report.html").read_text()
    step.memory_viz("plan.pickle")
    assert "peak" in step.explain()
    model.zero_grad()
    del step
    assert held() - before <= 1 << 20


def ended_early():
    """A step that ends early restores gradients, buffers and generators, and the next one runs."""
    model, loss, batch = images()
    step = tuned((model, loss, batch), 0.1, graphs=False)
    step(*batch)
    model.zero_grad()
    before = state(), {name: b.cpu() for name, b in model.named_buffers()}
    program = step.program
    calls = len(program._steps)
    for at in (0, calls // 2, calls - 1):
        kept = program._steps[at].func

        def fails(*_arguments, **_keywords):
            raise KeyboardInterrupt

        program._steps[at].func = fails
        try:
            step(*batch)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the step ran")
        program._steps[at].func = kept
        assert torch.equal(state(), before[0])
        for name, buffer in model.named_buffers():
            after = buffer.cpu()
            assert after.flatten().view(torch.uint8).equal(before[1][name].flatten().view(torch.uint8)), name
        assert all(p.grad is None for p in model.parameters())
        step(*batch)
        assert step.fallback is None and program.counts.unplanned == 0
        model.zero_grad()


def host_is_short():
    """The driver page-locks 9 MiB: trying measures that to within a piece, and the plan recomputes the rest."""
    limit, count = int(os.environ["PLIMSOLL_STANDIN_PINNED"]), 256
    driver, warnings = StandIn(), Warnings()
    device = devices.on(torch.device("cuda:0"))
    free = device.swap_streams().pinned(0)
    assert device.pinnable(64 << 20) == limit and device.pinnable(3 << 20) == 3 << 20 and free.bytes == 0
    assert driver.counts()["cuMemHostRegister_v2"] - driver.counts()["cuMemHostUnregister"] <= 14, (
        "refused ones"
    )
    model = Register(rows=count)
    step = tuned((model, model, (rows(0, count),)), 0.4, link="200GB/s", seconds=2.0)
    said = [said for said in warnings.said if "of the host's memory, as measured, in place of" in said]
    assert len(said) == 1 and limit - (2 << 20) <= step._planner.host_budget <= limit, warnings.said
    schedule = step.program.schedule
    assert 0 < schedule.host_bytes <= limit and schedule.recomputed_ops > 0, step.why
    for seed in range(3):
        assert run_register(model, step, seed, count) == []
    assert step.fallback is None and step.program.counts.unplanned == 0


def host_refuses_once():
    """The driver refuses to page-lock once, and then does: the same plan runs."""
    warnings = Warnings()
    step = tuned(language(), 0.1)
    assert [said for said in warnings.said if "can be page-locked now" in said], warnings.said
    step(*words())
    assert step.fallback is None and step.program.counts.unplanned == 0


def refused():
    """Each refusal says what to do."""
    model, loss, batch = language()

    def check(kind, text, work):
        try:
            work()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{text}: it ran")

    host = tuple(t.cpu() for t in batch)
    check(errors.BadInput, "move the batch there before the step", lambda: plimsoll.trace(loss, model, *host))
    step = tuned((model, loss, batch), 2.0)
    check(errors.BadInput, "move the batch there before the step", lambda: step(*host))
    model.norm.cpu()
    check(errors.BadInput, "is on two devices", lambda: plimsoll.trace(loss, model, *batch))
    model.norm.cuda()

    def swaps(x, y):
        return loss(x, y) + torch.zeros(1 << 20, device="cuda").cpu().sum().cuda()

    check(
        errors.Refused,
        "on the host; what is swapped is the plan's",
        lambda: plimsoll.trace(swaps, model, *batch),
    )

    byte = torch.empty(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        byte.zero_()
        check(
            errors.Refused,
            "call the step outside of `torch.cuda.graph`",
            lambda: plimsoll.trace(loss, model, *batch),
        )
        captured = step.device.settings()
    assert captured != step.device.settings(), (
        "a step that is captured is a kind of its own, and runs in eager"
    )
    model.zero_grad()
    step(*batch)
    assert step.fallback is None


def lent():
    """An evaluation has the pool, within the budget and beyond PyTorch's limit; a step and its graph take it back, with the
    right bytes in any order of the streams."""
    driver, warnings = StandIn(), Warnings()
    count = 256  # so that the pool is a separate segment
    model = Register(rows=count)
    step = tuned((model, model, (rows(0, count),)), 0.3)
    for seed in range(3):
        assert run_register(model, step, seed, count) == []
    pool, program, budget = step._memory.pool, step.program, step.program.schedule.budget_bytes
    graph, address = program._graph, pool.address
    assert graph is not None and pool.size > 10 << 20

    def evaluation(bytes_, grad=False):
        with torch.set_grad_enabled(grad):
            made = [torch.full((1 << 20 | 512,), seed, dtype=torch.uint8, device="cuda") for seed in range(2)]
            made.append(torch.empty(bytes_, dtype=torch.uint8, device="cuda"))
            for _ in range(4):  # copies that a step would see if it did not wait for them
                made[-1][: made[0].numel()].copy_(made[0])
            return made

    # With gradients nothing is lent before memory runs out; without, above the budget.
    held = evaluation(pool.size // 2, grad=True)
    assert not pool.is_lent and torch.cuda.memory_allocated() > budget
    del held
    torch.cuda.empty_cache()
    for seed in range(3, 23):
        driver.order(seed if seed < 15 else 0)
        driver.delays(seed if seed >= 15 else 0)
        torch.cuda.reset_peak_memory_stats()
        held = evaluation(pool.size // 2)
        assert pool.is_lent
        assert torch.cuda.max_memory_allocated() <= budget + (3 << 20)
        del held
        assert run_register(model, step, seed, count) == [], seed
        assert not pool.is_lent and step.fallback is None and pool.address == address
    driver.order(0)
    driver.delays(0)
    assert program._graph is graph, "the graph stays where the address is the same"
    assert program.counts.unplanned == 0 and warnings.said == [], warnings.said

    # A tensor that stays there: the pool moves, and the step is captured again.
    before = weakref.ref(graph)
    del graph
    held = evaluation(pool.size // 2)
    assert run_register(model, step, 30, count) == [] and pool.address != address
    assert len(warnings.said) == 1 and "delete such tensors before the next step" in warnings.said[0], (
        warnings.said
    )
    assert run_register(model, step, 31, count) == [] and program._graph is not None and before() is None
    del held

    # PyTorch's own limit: code with gradients gets the pool, too. If there is no room for the pool any more, one error
    # gives the reason.
    torch.cuda.empty_cache()
    everything = torch.cuda.get_device_properties(0).total_memory
    room = torch.cuda.memory_reserved() + (2 << 20)
    torch.cuda.set_per_process_memory_fraction(room / everything)
    held = evaluation(pool.size * 3 // 4, grad=True)
    assert pool.is_lent
    for _ in range(2):
        try:
            run_register(model, step, 32, count)
        except errors.PoolInUse as error:
            assert "still lies in it" in str(error) and "Delete what was made between steps" in str(error), (
                error
            )
        else:
            raise AssertionError("the step ran")
    assert all(p.grad is None for p in model.parameters())
    del held
    assert run_register(model, step, 32, count) == [] and step.fallback is None
    assert program.schedule.budget_bytes == budget == step.program.schedule.budget_bytes
    assert len(warnings.said) == 1, warnings.said


def in_eager():
    """A batch for which the host reads a different value runs in eager, and the plan gives its memory back meanwhile."""
    model, loss = language()[:2]
    x, y = words(64)
    first, other = x.cpu(), x.cpu()
    first[0, 0], other[0, 0] = 1, 2  # on the host, which computes
    first, other = first.cuda(), other.cuda()
    del x

    def signed(x, y):
        return loss(x, y) * (x.flatten()[0].item() != 0)

    step = tuned((model, signed, (first, y)), 0.5)
    step(first, y)
    assert step.fallback is None
    for number in range(3):
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        step(other, y)
        # A step counts its own batch; the other one exists, too.
        assert torch.cuda.max_memory_allocated() <= 1.02 * step.trace.peak_bytes + first.nbytes, number
        assert "this batch takes another way" in step.fallback
        assert step._memory.pool.held_bytes == 0
    model.zero_grad()
    step(first, y)
    assert step.fallback is None and step.program.counts.unplanned == 0


def lent_after_the_optimizer():
    """Tensors that an optimizer makes in its first step do not lie in the pool's place, though it
    exceeds the budget meanwhile."""
    warnings, count = Warnings(), 256
    model = Register(rows=count)
    optimizer = torch.optim.AdamW(model.parameters())
    x = rows(0, count)
    trace = plimsoll.trace(model, model, x, optimizer=optimizer)
    budget = int(trace.floor_bytes + 0.3 * (trace.peak_bytes - trace.floor_bytes))
    step = plimsoll.tune(model, model, optimizer, x, budget, LINK, verify=0, seconds=0.5, host_budget="1GiB")
    pool, address = step._memory.pool, step._memory.pool.address
    for number in range(4):
        model.zero_grad()
        step(x)
        assert pool.address == address and step.fallback is None
        optimizer.step()
        assert pool.is_lent == (number > 0), "for what it takes meanwhile, once its state is there"
    assert warnings.said == [], warnings.said


def old_driver():
    """With a driver that lacks functions."""
    model, loss, batch = language()
    try:
        plimsoll.tune(loss, model, None, batch, "100%")
    except errors.DeviceError as error:
        assert "is too old: it has no `cuInit`" in str(error), error
    else:
        raise AssertionError("it ran")


def other_allocator():
    """With `PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync`."""
    device = devices.on(torch.device("cuda:0"))
    try:
        device.prepare()
    except errors.BadInput as error:
        assert "`cudaMallocAsync`" in str(error) and "PYTORCH_CUDA_ALLOC_CONF" in str(error)
    else:
        raise AssertionError("it was accepted")


def asked():
    """`fits`, `suggest` and the link, which is measured."""
    model, loss, batch = language()
    device = devices.on(torch.device("cuda:0"))
    link = device.measure_link()
    assert link.offload > 0 and link.prefetch > 0
    trace = plimsoll.trace(loss, model, *batch)
    fit = plimsoll.fits(loss, model, *batch, budget=trace.peak_bytes)
    assert fit and fit.is_measured and fit.largest_batch >= 8, fit
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    answer = plimsoll.suggest(loss, model, optimizer, batch, trace.peak_bytes, link=LINK)
    assert answer.batch * answer.accumulation == 8
    assert answer.peak_bytes <= trace.peak_bytes
    words = device.words()
    assert "Plimsoll stand-in" in words and torch.version.cuda in words


def named(total, name):
    """By a name in `CUDA_VISIBLE_DEVICES`, also of a slice: memory, budget and descriptions are the slice's."""
    device = devices.on(torch.device("cuda"))
    free, all_bytes = torch.cuda.mem_get_info()
    assert all_bytes == int(total) << 30 and free <= device.free_bytes() <= all_bytes
    assert torch.cuda.get_device_properties(0).total_memory == all_bytes
    assert name in device.words(), device.words()
    assert device.swap_streams().link(1 << 20)[0] > 0
    model, loss, batch = language()
    trace = plimsoll.trace(loss, model, *batch)
    step = plimsoll.tune(loss, model, None, batch, "100%", LINK, verify=0, seconds=1.0)
    assert step.program.schedule.budget_bytes == trace.peak_bytes
    for _ in range(3):
        step(*batch)
    assert step.fallback is None
    # A step that does not fit the slice runs out of memory there, though the whole GPU has it.
    if all_bytes < 2 << 30:
        try:
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("the slice has no such memory")


def compared():
    """A comparison runs; bits mean nothing here, so that either outcome is accepted."""
    model, loss, batch = language()
    step = tuned((model, loss, batch), 0.4, verify=1)
    try:
        step(*batch)
    except errors.VerificationError as error:
        assert "differs from eager" in str(error)
        assert all(p.grad is None for p in model.parameters())


if __name__ == "__main__":
    standin.main(globals())
