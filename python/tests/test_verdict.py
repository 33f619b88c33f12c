"""Verdicts of the acceptance on a GPU: the rivals' hull, ours compared with it, and peaks compared with the budget."""

import pytest
from acceptance import verdict


def rival(peak, seconds):
    return {"arm": f"rival {peak}", "rival": "r", "peak_bytes": peak, "seconds": seconds}


def own(seconds, peak=50, budget=50, **more):
    return {"arm": "plimsoll", "budget_bytes": budget, "peak_bytes": peak, "seconds": seconds, **more}


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(5, 2.0), (3, 4.0)], [(3, 4.0), (5, 2.0)]),
        # A point that is slower with more memory, and one above the line between its neighbours, are left out.
        ([(3, 4.0), (4, 5.0), (5, 2.0)], [(3, 4.0), (5, 2.0)]),
        ([(0, 10.0), (1, 9.0), (2, 0.0)], [(0, 10.0), (2, 0.0)]),
        ([(0, 10.0), (1, 2.0), (2, 0.0)], [(0, 10.0), (1, 2.0), (2, 0.0)]),
        ([(3, 4.0), (3, 2.0)], [(3, 2.0)]),
    ],
)
def test_the_hull_is_convex_and_falls(points, front):
    assert verdict.hull(points) == front


def test_a_budget_between_two_rivals_has_a_mixture_of_them():
    front = [(10, 4.0), (20, 2.0)]
    found = [verdict.seconds_at(front, budget) for budget in (9, 10, 15, 20, 99)]
    assert found == [None, 4.0, 3.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("share", "seconds", "met"),
    [(0.3, 3.0, True), (0.3, 3.1, False), (0.5, 2.8, True), (0.5, 2.9, False), (0.7, 3.0, True)],
)
def test_ours_must_be_on_the_hull_and_above_it_in_the_middle(share, seconds, met):
    row = verdict.verdict(share, [own(seconds), own(9.0)], [rival(40, 4.0), rival(60, 2.0)])
    assert (row["hull_seconds"], row["met"]) == (3.0, met)
    assert row["over_hull"] == pytest.approx(3.0 / seconds - 1)
    assert ("**missed**" in verdict.said(row)) is not met


def test_ours_above_its_budget_counts_as_none():
    row = verdict.verdict(0.3, [own(1.0, peak=51)], [rival(40, 4.0)])
    assert row["met"] is False and "a rival has" in verdict.said(row)
    nothing = verdict.verdict(0.3, [{"arm": "ours", "budget_bytes": 50, "no_plan": "none"}], [rival(60, 2.0)])
    assert nothing["met"] is True and nothing["hull_seconds"] is None


def test_rivals_that_had_no_time_are_told():
    late = {"arm": "late", "rival": "late", "not_measured": "not measured: the time for rivals is over"}
    row = verdict.verdict(0.7, [own(2.0)], [rival(40, 4.0), late])
    assert "so far: 1 rivals were not measured" in verdict.said(row)


def test_without_peaks_nothing_is_judged():
    row = verdict.verdict(0.7, [{"arm": "ours", "budget_bytes": 50, "seconds": 1.0}], [])
    assert "met" not in row and row["not_measured"].startswith("not measured: ")


def test_the_drivers_peak_is_judged_without_the_context():
    timed = {"peak_bytes": 99, "driver_bytes": 604, "driver": "this process"}
    found = verdict.over_budget(timed, {"driver_bytes": 500, "driver": "this process"}, 100)
    assert found["peak_over_budget"] == pytest.approx(-0.01)
    assert found["driver_over_budget"] == pytest.approx(0.04)
    row = verdict.verdict(0.7, [own(2.0, **found)], [rival(40, 4.0)])
    assert row["gap_met"] is False and "4.0% by the driver" in verdict.said(row)
    # Counts of the whole device and of a process cannot be subtracted.
    other = verdict.over_budget(timed, {"driver_bytes": 500, "driver": "whole device"}, 100)
    assert "driver_over_budget" not in other


def test_rivals_of_other_sections_are_in_the_hull():
    late = {"arm": "rival 60", "rival": "r", "not_measured": "not measured: the time for rivals is over"}
    here, there = [rival(40, 4.0), late], [rival(60, 2.0), rival(40, 1.0), {"arm": "plimsoll 0.5"}]
    some = verdict.others_of(here, there)
    # Measurements from here count; those missing here count as measured there.
    assert [(row["arm"], row["seconds"]) for row in some] == [("rival 40", 4.0), ("rival 60", 2.0)]
    row = verdict.verdict(0.7, [own(3.1)], some)
    assert (row["hull_seconds"], row["met"], row["rivals_not_measured"]) == (3.0, False, 0)
    assert verdict.others_of(here, []) == here
