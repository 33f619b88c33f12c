"""The exchange of ranks in a step, and its part of the predicted time. Ranks themselves are in `ddp_worker.py`."""

import json

import pytest
from networks import build

import plimsoll
from plimsoll import _core, batches, recording
from plimsoll.interconnect import Interconnect
from plimsoll.tape import to_document


@pytest.fixture(scope="module")
def schedule():
    """A step whose ops take a second each."""
    task = build("mlp")
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0])
    return trace.with_seconds([1.0] * len(trace)).plan(1 << 30, 1e6, 1e6)


def ops_of(schedule):
    return max(compute.op for compute in schedule.computes()) + 1


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_what_is_complete_only_at_the_end_adds_all_of_its_time(schedule, ranks):
    rate, latency = 1e3, 0.5
    sizes = [6000, 2400]
    last = ops_of(schedule) - 1
    exchange = _core.Exchange(schedule, [(size, last) for size in sizes], ranks, rate, latency, False)
    one_round = sum(size * (ranks - 1) / ranks / rate + latency * (ranks - 1) for size in sizes)
    assert exchange.exposed_seconds == pytest.approx(2 * one_round)
    assert exchange.seconds == pytest.approx(schedule.makespan_seconds + 2 * one_round)
    assert (exchange.bytes, len(exchange)) == (sum(sizes), 2)
    said = json.loads(exchange.to_json())
    assert (said["plimsoll"], said["workers"], said["bytes"]) == ("exchange/1", ranks, sum(sizes))
    assert [piece["bytes"] for piece in said["pieces"]] == sizes


def test_what_is_complete_earlier_adds_what_the_rest_of_the_step_does_not_cover(schedule):
    ops = ops_of(schedule)
    exchange_seconds = ops // 2
    rate = 1000 / exchange_seconds
    added = [
        _core.Exchange(schedule, [(1000, op)], 2, rate, 0.0, False).exposed_seconds for op in range(1, ops)
    ]
    assert added == pytest.approx([max(0, op + 1 + exchange_seconds - ops) for op in range(1, ops)])


def test_a_staged_exchange_uses_the_device_s_link_as_well(schedule):
    last = ops_of(schedule) - 1
    plain, staged = (_core.Exchange(schedule, [(4096, last)], 2, 1e3, 0.0, s) for s in (False, True))
    assert staged.exposed_seconds == pytest.approx(plain.exposed_seconds + 2 * 4096 / 1e6)


@pytest.fixture(scope="module")
def proportional():
    """A step at any batch, whose ops take a millisecond for each sample: every batch trains at the same rate."""
    task = build("mlp")
    texts = []
    for size in (2, 4):
        tape = recording.record(task.loss, task.model, batches.taken(task.batches[0], 0, size))
        document = json.loads(to_document(tape, "mlp", size, 0, is_rounded=False).text)
        for op in document["ops"]:
            op["seconds"] = size / 1000
        texts.append(json.dumps(document))
    return _core.Batches(*texts)


def fastest(batches, exchange=None, among=()):
    return batches.fastest(1 << 30, 8, [*among], 1e9, 1e9, False, 2.0, 0.05, exchange=exchange)


def test_of_equally_fast_batches_a_slow_exchange_makes_the_largest_the_fastest(proportional):
    ranks, size, rate, latency = 2, 6000, 1e4, 1e-3

    def added(batch, schedule):
        last = ops_of(schedule) - 1
        return _core.Exchange(schedule, [(size, last)], ranks, rate, latency, False).exposed_seconds

    alone, between = fastest(proportional), fastest(proportional, added)
    assert (alone[0].batch, between[0].batch) == (1, 8)
    assert [one.batch for one in between] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert all(one.exchange_seconds == 0 for one in alone)
    assert [one.exchange_seconds for one in between] == pytest.approx([2 * (size / 2 / rate + latency)] * 8)
    seconds = {one.batch: one.seconds for one in alone}
    assert all(one.seconds == seconds[one.batch] for one in between)


def test_an_exchange_is_simulated_beside_the_schedule_of_each_batch(proportional):
    """The rest of a larger batch covers more of the exchange."""
    ops = len(proportional.at(1))
    hidden = 3  # milliseconds, of which the last op covers one for each sample

    def added(batch, schedule):
        assert ops_of(schedule) == ops
        assert schedule.makespan_seconds == pytest.approx(batch * ops / 1000)
        return _core.Exchange(schedule, [(1000, ops - 2)], 2, 1e6 / hidden, 0.0, False).exposed_seconds

    found = {one.batch: one.exchange_seconds for one in fastest(proportional, added, range(1, 9))}
    assert found == pytest.approx({batch: max(0, hidden - batch) / 1000 for batch in range(1, 9)})


def test_what_an_exchange_raises_is_raised(proportional):
    def added(batch, schedule):
        raise KeyError(batch)

    with pytest.raises(KeyError):
        fastest(proportional, added)


@pytest.mark.parametrize(
    ("buckets", "ranks", "rate", "words"),
    [
        ([(1000, 1)], 1, 1e6, "from 2 to"),
        ([(1000, 1)], 2, 0.0, "a rate is at least"),
        ([(1000, 1 << 20)], 2, 1e6, "no such op"),
        ([(0, 1)], 2, 1e6, "a piece has from 1 byte"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(schedule, buckets, ranks, rate, words):
    with pytest.raises(plimsoll.BadInput, match=words):
        _core.Exchange(schedule, buckets, ranks, rate, 0.0, False)


def test_an_interconnect_is_a_rate_and_a_latency():
    parsed = Interconnect.parse("10Gbit/s,30us")
    assert (parsed.bytes_per_second, parsed.latency_seconds) == pytest.approx((1.25e9, 30e-6))
    assert str(Interconnect.parse("10Gbit/s,30us")) == "10Gbit/s,30us"
    assert Interconnect.parse(None) is None
    for other, words in (("fast", "interconnect"), ("0Gbit/s", "interconnect"), (3, "a rate such as")):
        with pytest.raises(plimsoll.BadInput, match=words):
            Interconnect.parse(other)


def test_an_interconnect_that_means_nothing_is_refused_in_one_process_too():
    task = build("mlp")
    with pytest.raises(plimsoll.BadInput, match="interconnect"):
        plimsoll.tune(task.loss, task.model, None, task.batches[0], "100%", "20GB/s", interconnect="fast")
    step = plimsoll.tune(
        task.loss, task.model, None, task.batches[0], "100%", "20GB/s", interconnect="1Gbit/s"
    )
    assert step.exchange is None
    assert step.predicted_seconds == step.program.schedule.makespan_seconds


def test_gradients_are_complete_after_their_last_write_and_after_what_the_host_reads():
    task = build("gpt")  # whose embedding is added to once more at the end of the backward pass

    def loss(x, y):
        made = task.loss(x, y)
        return made if made.item() < 1e9 else 2 * made

    step = plimsoll.tune(loss, task.model, None, task.batches[0], "100%", "20GB/s", verify=0)
    tape = step.program.tape
    complete = tape.completions()
    read = next(number for number, call in enumerate(tape.calls) if call.reads_on_host)
    assert [number for number, _ in complete] == tape.arrivals
    assert len(complete) == len(list(task.model.parameters()))
    places = [place for _, place in complete]
    assert places == sorted(places)
    assert read <= places[0] < places[-1]
    for number, place in complete:
        storage = tape.gradients[number][1].storage
        written = [at for at, call in enumerate(tape.calls) if storage in call.writes]
        assert written[-1] <= place
    assert [id(p) for p in step.program.handed_over] == [id(tape.gradients[n][0]) for n, _ in complete]
