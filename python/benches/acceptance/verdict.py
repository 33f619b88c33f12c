"""Verdict on the rows of `accept.py curve` and its like: whether ours is below the rivals' hull at the same memory.

The rivals' hull is the lower convex hull of seconds over peak: their best settings, and mixtures of two, such as a
checkpoint over some of the blocks. Ours is compared at its budget, not at its peak, which is lower. This file judges rows
and measures nothing. A missed target is a row, not an error.
"""

from __future__ import annotations

import itertools
from typing import Any

MIDDLE, ABOVE = 0.5, 0.05
"""At this share of eager's peak ours must be faster than the hull by this share; elsewhere not slower."""

GAP = 0.01
"""Largest distance of the driver's count of the peak from the budget, as a share of it."""

Point = tuple[int, float]
"""Bytes of the peak, and seconds."""


def hull(points: list[Point]) -> list[Point]:
    """The lower convex hull of seconds over peak, from the lowest peak to the shortest time."""
    front: list[Point] = []
    for peak, seconds in sorted(points):
        if front and seconds >= front[-1][1]:
            continue  # more memory, and no faster
        while len(front) > 1 and is_not_below(front[-1], front[-2], (peak, seconds)):
            front.pop()
        front.append((peak, seconds))
    return front


def is_not_below(point: Point, left: Point, right: Point) -> bool:
    """Returns `True` if a point lies on or above the line between two others."""
    (x, y), (x0, y0), (x1, y1) = point, left, right
    return (y - y0) * (x1 - x0) >= (y1 - y0) * (x - x0)


def seconds_at(front: list[Point], budget: int) -> float | None:
    """Seconds of a hull within a budget; `None` below its lowest peak."""
    if not front or budget < front[0][0]:
        return None
    for (x0, y0), (x1, y1) in itertools.pairwise(front):
        if budget < x1:
            return y0 + (y1 - y0) * (budget - x0) / (x1 - x0)
    return front[-1][1]


def over_budget(timed: dict[str, Any], context: dict[str, Any], budget: int) -> dict[str, Any]:
    """Distance of the peaks from the budget, as shares of it: the allocator's, and the driver's less its count before the first
    allocation (CUDA's context). Kernels that are loaded later stay in the driver's count."""
    row: dict[str, Any] = {}
    if "peak_bytes" in timed:
        row["peak_over_budget"] = timed["peak_bytes"] / budget - 1
    counted = "driver_bytes" in timed and "driver_bytes" in context
    if counted and timed["driver"] == context["driver"]:
        row["context_bytes"] = context["driver_bytes"]
        row["driver_over_budget"] = (timed["driver_bytes"] - context["driver_bytes"]) / budget - 1
    return row


def others_of(rows: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of eager and its rivals: of one section, and those that it lacks of other sections about the same network."""
    own = [row for row in rows if "rival" in row]
    arms = {row["arm"] for row in own if "not_measured" not in row}
    more = {row["arm"]: row for row in known if "rival" in row and row["arm"] not in arms}
    ran = {arm for arm, row in more.items() if "not_measured" not in row}
    return [row for row in own if row["arm"] not in ran] + list(more.values())


def verdict(share: float, own: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Verdict on our fastest row at one budget against the hull of eager and its rivals.

    If a rival has no row for want of time, `rivals_not_measured` counts it: the hull is then only a part.
    """
    row: dict[str, Any] = {
        "arm": f"verdict at {share}",
        "share": share,
        "aim": ABOVE if share == MIDDLE else 0.0,
    }
    ran = [one for one in own if "peak_bytes" in one and one["peak_bytes"] <= one["budget_bytes"]]
    points = [(one["peak_bytes"], one["seconds"]) for one in others if "peak_bytes" in one]
    if not points and not any("peak_bytes" in one for one in own):
        return {**row, "not_measured": "not measured: no peak is known without a GPU"}
    seconds = seconds_at(hull(points), own[0]["budget_bytes"])
    row |= {"hull_seconds": seconds, "rivals_not_measured": sum("not_measured" in one for one in others)}
    if not ran:
        # Neither side is slower if nothing fits.
        return {**row, "met": seconds is None, "ours": "has no step within the budget"}
    best = min(ran, key=lambda one: one["seconds"])
    row |= {"ours": best["arm"], "our_seconds": best["seconds"], "met": True}
    if seconds is not None:
        row |= {"over_hull": seconds / best["seconds"] - 1}
        row["met"] = row["over_hull"] >= row["aim"]
    if "driver_over_budget" in best:
        row |= {"driver_gap": abs(best["driver_over_budget"])}
        row["gap_met"] = row["driver_gap"] <= GAP
    return row


def said(row: dict[str, Any]) -> str:
    """A verdict in words."""
    so_far = (
        f" so far: {row['rivals_not_measured']} rivals were not measured"
        if row["rivals_not_measured"]
        else ""
    )

    def judged(is_met: bool) -> str:
        return "met" if is_met else "**missed**"

    if row["hull_seconds"] is None:
        words = f"{row['ours']}, and no rival is within the budget ({judged(row['met'])}{so_far})"
    elif "over_hull" not in row:
        words = f"ours {row['ours']}, a rival has ({judged(row['met'])}{so_far})"
    else:
        aim = f"aim {row['aim']:.0%} above" if row["aim"] else "aim not below"
        words = f"{row['ours']} is {row['over_hull']:+.1%} over the rivals' hull ({aim}: {judged(row['met'])}{so_far})"
    if "driver_gap" in row:
        words += f", |peak - budget| {row['driver_gap']:.1%} by the driver (aim {GAP:.0%}: {judged(row['gap_met'])})"
    return f"{row['arm']}: {words}"
