"""Steps as CUDA graphs on a GPU that computes nothing (`runtime.c`): their capture, their order, and obstacles.

python graphs.py NAME runs one of the functions below, in a separate process.
"""

import logging
from types import SimpleNamespace

import standin
import torch
import torch.nn.functional as F
from standin import (
    DroppingAttention,
    StandIn,
    Warnings,
    language,
    register,
    rows,
    run_register,
    state,
    tuned,
)
from torch import nn

from plimsoll import capturing, devices, recording, timing


def launched():
    """The second run is captured, later ones are launched: with the right bytes in any order of the streams, also for runs that
    are timed call by call in between, and after the pool was freed."""
    driver = StandIn()
    for share in (2.0, 0.3, 0.0):
        model, step = register(share)
        assert step.program.runs_as == "one CUDA graph, from the second run on"
        assert "one CUDA graph" in step.why
        assert (step.program.schedule.offloaded_bytes > 0) == (share < 1), step.why
        before = driver.counts().get("cuGraphLaunch", 0)
        for seed in range(40):
            driver.order(seed if seed < 30 else 0)
            driver.delays(seed if seed >= 30 else 0)
            assert run_register(model, step, seed) == [], (share, seed)
            assert step.fallback is None and step.program.counts.unplanned == 0
            assert (step.program._graph is not None) == (seed > 0)
        driver.order(0)
        driver.delays(0)
        # A capture allocated nothing outside the plan.
        pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
        assert pools == {(0, 0)}, pools
        # 1, 4, 8, 16 and 32 are timed.
        assert driver.counts()["cuGraphLaunch"] - before == 35
        assert step.program.runs_as == "one CUDA graph"
        assert "runs          one CUDA graph" in step.explain()
        step._memory.give_back()
        assert step.program._graph is None
        assert run_register(model, step, 50) == [] and step.program._graph is not None
        assert step.program.no_graph == ""


def waits():
    """Without the waits of its compute commands a captured step has wrong bytes in some order, and
    with each of them right ones in all."""
    driver = StandIn()
    model, step = register(0.0)
    assert run_register(model, step, 0) == []
    steps = step.program._steps
    waits = [number for number, one in enumerate(steps) if one.wait is not None]
    assert waits

    def goes_wrong(without):
        kept = [steps[number].wait for number in without]
        for number in without:
            steps[number].wait = None
        step.program._graph = None
        step.program._launches = 100
        seen = False
        for seed in range(1, 40):
            driver.order(seed)
            if run_register(model, step, seed):
                seen = True
                break
        driver.order(0)
        for number, wait in zip(without, kept, strict=True):
            steps[number].wait = wait
        return seen

    assert not goes_wrong([])
    needed = [number for number in waits if goes_wrong([number])]
    print(f"{len(needed)} of {len(waits)} waits show alone")
    assert needed and goes_wrong(waits)
    step.program._graph = None
    assert run_register(model, step, 0) == []


def timed():
    """A step that becomes a graph has the times of its calls in one, by events that the graph
    records; others keep their times."""
    driver = StandIn()
    model, loss, batch = language()
    device = devices.on(torch.device("cuda:0"))

    def recorded(fn, **more):
        before = driver.counts().get("cuEventRecordWithFlags", 0)
        tape = recording.record(fn, model, batch, **more)
        return tape, driver.counts().get("cuEventRecordWithFlags", 0) - before

    recorded(loss)
    generator, taken, reserved = state(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    tape, events = recorded(loss)
    assert torch.equal(state(), generator) and torch.cuda.memory_allocated() == taken
    assert torch.cuda.memory_reserved() <= reserved
    assert 2 * 20 < events < 2 * len(tape.calls), (events, len(tape.calls))
    # Some microseconds of the stand-in, for which launching takes Python longer.
    assert all(0 <= call.seconds < 1 for call in tape.calls) and sum(call.seconds for call in tape.calls) > 0
    scale = torch.tensor(2.0)
    assert recorded(lambda x, y: loss(x, y) * scale)[1] == 0
    assert recorded(loss, graphs=False)[1] == 0

    # The events surround the work: eight fills take longer than one.
    x = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    one, eight = (
        device.seconds_in_graph(lambda count=count: [x.zero_() for _ in range(count)], []) for count in (1, 8)
    )
    assert one > 1e-4 and eight > 2 * one, (one, eight)

    # Memory of the captures is released meanwhile.
    for _ in range(8):
        device.seconds_in_graph(lambda: torch.empty(200 << 20, dtype=torch.uint8, device="cuda").zero_(), [])
        assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() <= 512 << 20

    # If a capture is refused, all calls keep their times, and PyTorch works as before.
    kept = [call.seconds for call in tape.calls]
    driver.answer("cuGraphInstantiateWithFlags", 5, 2)
    assert not timing.in_graphs(tape, batch, device) and [call.seconds for call in tape.calls] == kept
    assert timing.in_graphs(tape, batch, device)
    step = tuned((model, loss, batch), 0.4)
    step(*batch)
    assert step.fallback is None


def refused():
    """A step that cannot be captured runs call by call, logs that once, and leaves PyTorch able to
    allocate, to draw and to capture."""
    driver = StandIn()

    def check(text, spoil):
        warnings = Warnings()
        model, step = register(0.3)
        assert run_register(model, step, 0) == []
        spoil(step)
        for seed in range(1, 6):
            assert run_register(model, step, seed) == [], text
            assert step.fallback is None
        assert text in step.program.runs_as, step.program.runs_as
        assert len([said for said in warnings.said if "is no CUDA graph" in said]) == 1, warnings.said
        logging.getLogger("plimsoll").removeHandler(warnings)
        # Generators are not left as within a capture, and another step can be captured.
        nn.functional.dropout(rows(0), 0.5)
        assert not torch.cuda.is_current_stream_capturing()
        model, step = register(0.3)
        assert run_register(model, step, 0) == run_register(model, step, 1) == []
        assert step.program.runs_as == "one CUDA graph"

    def synchronises(step):
        call = step.program.tape.calls[3]
        func = call.func

        def run(*arguments, **keywords):
            if torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
            return func(*arguments, **keywords)

        call.func = run

    def allocates(step):
        call = step.program.tape.calls[3]
        func = call.func

        def run(*arguments, **keywords):
            torch.empty(4096, device="cuda")
            return func(*arguments, **keywords)

        call.func = run

    check("it cannot be captured", synchronises)
    check("allocated otherwise than when it was recorded", allocates)
    check("it cannot be captured", lambda step: driver.answer("cuGraphInstantiateWithFlags", 0, 2))
    check("it cannot be captured", lambda step: driver.answer("cuStreamBeginCapture_v2", 0, 999))
    check("it cannot be captured", lambda step: driver.answer("cuMemcpyDtoHAsync_v2", 0, 999))

    model, step = register(0.3, graphs=False)
    assert run_register(model, step, 0) == run_register(model, step, 1) == []
    assert step.program.runs_as == "call by call: `graphs=False`" and "call by call" in step.why

    # Ctrl-C during the capture: everything is restored, and the next step is captured.
    model, step = register(0.3)
    assert run_register(model, step, 0) == []
    call = step.program.tape.calls[3]
    func = call.func

    def stopped(*_arguments, **_keywords):
        raise KeyboardInterrupt

    call.func = stopped
    try:
        run_register(model, step, 1)
    except KeyboardInterrupt:
        assert all(p.grad is None for p in model.parameters())
    else:
        raise AssertionError("the step ran")
    call.func = func
    assert run_register(model, step, 1) == [] and step.program.runs_as == "one CUDA graph"


def moves():
    """Gradients at different addresses in every step: it is captured a few times, then no more."""
    model, step = register(2.0)
    for _ in range(12):
        for weight in model.weights:
            weight.grad = torch.zeros_like(weight)
        step(rows(1))
        held = [weight.grad for weight in model.weights]
        assert step.fallback is None
        del held
    assert step.program.runs_as in (
        "one CUDA graph",
        "call by call: the memory that it runs in moves too often",
    )


def forbidden():
    """Known obstacles to a graph are reported before anything is captured."""
    model, loss, batch = language()

    def why(fn, share=2.0, model=model):
        return tuned((model, fn, batch), share).program.runs_as

    assert why(loss) == "one CUDA graph, from the second run on"
    assert "the host reads a value (`_local_scalar_dense`" in why(
        lambda x, y: loss(x, y) * (x.sum().item() >= 0)
    )
    scale = torch.tensor(2.0)
    assert "takes or gives a tensor on the host" in why(lambda x, y: loss(x, y) * scale)
    dropping = language(attention=DroppingAttention)
    assert "takes or gives a tensor on the host" in why(dropping[1], model=dropping[0])

    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                x = F.dropout(layer(x), 0.1)
            return x.square().mean()

    dropping = Drops().cuda()
    x = (torch.randn(512, 256).cuda(),)
    free = tuned((dropping, dropping, x), 2.0)
    assert free.program.runs_as == "one CUDA graph, from the second run on"
    for _ in range(3):
        before = state()
        free(*x)
        drawn = state()
        torch.cuda.default_generators[0].set_state(before)
        dropping(*x)
        assert torch.equal(state(), drawn), "the generator is where eager leaves it"
    assert free.program.runs_as == "one CUDA graph"
    # Each op once more, as a plan might have it.
    tape, computes = free.program.tape, free.program.schedule.computes()
    again = [SimpleNamespace(op=compute.op, again=True) for compute in computes]
    recomputing = SimpleNamespace(computes=lambda: [*computes, *again])
    assert "draws the same random numbers again" in capturing.obstacle(tape, recomputing)


if __name__ == "__main__":
    standin.main(globals())
