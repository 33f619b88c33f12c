"""The table of `benches/README.md`, made of rows."""

from __future__ import annotations

from typing import Any

from . import verdict
from .processes import Row
from .sections import SECTIONS

ABOUT = ("network", "device", "torch", "small")
"""Keys that must agree in rows that are compared."""


def about(row: Row) -> tuple[Any, ...]:
    """The subject of a row."""
    return tuple(row.get(key) for key in ABOUT)


def judged(rows: list[Row]) -> list[Row]:
    """The rows, with each verdict computed again from the rivals of all sections about its network."""
    found = []
    for row in rows:
        if not row.get("arm", "").startswith("verdict at ") or "share" not in row:
            found.append(row)
            continue
        same = [one for one in rows if about(one) == about(row)]
        here = [one for one in same if one["section"] == row["section"]]
        own = [one for one in here if one.get("share") == row["share"] and "budget_bytes" in one]
        others = verdict.others_of(here, [one for one in same if one["section"] != row["section"]])
        base = {key: row[key] for key in ("section", *ABOUT) if key in row}
        found.append({**base, **verdict.verdict(row["share"], own, others)} if own else row)
    return found


def table(rows: list[Row]) -> str:
    """The table for `benches/README.md`; sections without rows read `not measured`."""
    lines = ["| section | network | measured |", "| --- | --- | --- |"]
    rows = judged(rows)
    for name, section in SECTIONS.items():
        for network in section.networks:
            own = [row for row in rows if (row["section"], row["network"]) == (name, network)]
            told = "; ".join(map(said, own)) or "not measured"
            lines.append(f"| {name} | {network} | {told} |")
    return "\n".join(lines)


def said(row: Row) -> str:
    """A row in words."""
    return _said(row).replace("|", "\\|").replace("\n", " ")


def _said(row: Row) -> str:
    arm = str(row.get("arm", ""))
    for key in ("error", "no_plan", "failed", "not_measured", "none"):
        if key in row:
            return f"{arm}: {row[key]}"
    if "differ" in row:
        return f"{arm}: {_differences(row)}"
    if "hull_seconds" in row:
        return verdict.said(row)
    return ", ".join([arm, *_counts(row), *_measures(row)])


def _differences(row: Row) -> str:
    counts = ", ".join(f"{count} of {kind}" for kind, count in row["differ"].items())
    return "as eager" if row["equal"] else f"**other** {counts}"


def _counts(row: Row) -> list[str]:
    words = []
    if "words" in row and "batch" not in row:
        words.append(row["words"])
    if "bits_equal" in row:
        words.append(f"bits {'equal' if row['bits_equal'] else '**differ**'}")
    if row.get("unplanned") is not None:
        words.append(f"{row['unplanned']} unplanned")
    if "batch" in row:
        words.append(f"batch {row['batch']}, {row['samples_per_second']:.1f} samples/s")
        words.append(f"found in {row['find_seconds']:.0f} s")
    if "steps" in row:
        words.append(f"{row['steps']} steps in {row['train_seconds']:.0f} s")
        words.append(f"batch {row['last_batch']} of {row['wanted_batch']}")
    if row.get("ooms") is not None:
        words.append(f"{row['ooms']} times out of memory")
    if row.get("lost_steps"):
        words.append(f"{row['lost_steps']} steps lost")
    return words


def _measures(row: Row) -> list[str]:
    words = []
    if "seconds" in row:
        words.append(f"{1e3 * row['seconds']:.1f} ms")
    if "tokens_per_second" in row:
        words.append(f"{row['tokens_per_second']:.0f} tokens/s")
    if row.get("predicted_seconds"):
        words.append(f"measured/predicted {row['seconds'] / row['predicted_seconds']:.2f}")
    if "peak_bytes" in row:
        words.append(f"{row['peak_bytes'] / 2**30:.2f} GiB")
    if "peak_over_budget" in row:
        words.append(f"|peak - budget| {abs(row['peak_over_budget']):.1%} by the allocator")
    if "driver_over_budget" in row:
        words.append(f"{abs(row['driver_over_budget']):.1%} by the driver without CUDA's context")
    if "limit_holds" in row:
        words.append(f"runs where the allocator may hold no more: {row['limit_holds']}")
    if "driver" in row:
        count = f"{row['driver_bytes'] / 2**30:.2f} GiB of the " if "driver_bytes" in row else ""
        words.append(f"driver: {count}{row['driver']}")
    if "sweep_seconds" in row:
        words.append(f"sweep {row['sweep_seconds']:.0f} s")
    if "ours_over_rival" in row:
        words.append(
            f"ours takes {row['ours_over_rival']:.2f} of its time, and {row['our_tune_seconds']:.0f} s to tune"
        )
    if row.get("fallback"):
        words.append(f"in eager: {row['fallback']}")
    return words
