"""Generates the forwarding part of `cuda.cpp`: one member function for each virtual one of PyTorch's CUDA allocator.

The interface changes in almost every version of torch. Without a forward, a function would run its default, which mostly
fails, and no compiler would report it. So names and numbers of arguments are read from the installed header, and the
compiler takes the types from there. A header that cannot be read to its end is an error.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import NoCompiler

BY_HAND = {"raw_alloc", "raw_alloc_with_stream", "raw_delete", "recordStream"}
"""Functions that `cuda.cpp` implements itself, in addition to those of `c10::Allocator`."""

INTERFACES = (
    ("c10/cuda/CUDACachingAllocator.h", "class CUDAAllocator"),
    ("c10/core/CachingDeviceAllocator.h", "struct C10_API DeviceAllocator"),
)
"""Header and class; from torch 2.7 on, the first inherits the functions of the second."""

_FUNCTION = re.compile(r"\bvirtual\b[^;{}()]*?\b(~?\w+)\s*\(")


def member_functions(include: Path) -> str:
    """Returns the member functions, as C++, for the headers in this folder."""
    found: dict[str, tuple[int, bool]] = {}
    for header, opening in INTERFACES:
        try:
            text = _without_comments((include / header).read_text())
        except OSError as error:
            raise NoCompiler(
                f"torch's header {header} cannot be read ({error}): is this torch built with CUDA?"
            ) from error
        if opening in text:
            found |= _functions(_block(text, text.index("{", text.index(opening))), header)
        elif not found:
            raise NoCompiler(
                f"torch's header {header} has no `{opening}`: this torch is newer than Plimsoll knows"
            )
    return "\n".join(
        _forward(name, arguments, is_const)
        for name, (arguments, is_const) in found.items()
        if name not in BY_HAND and not name.startswith("~")
    )


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _block(text: str, opening: int) -> str:
    """Text between a bracket and the one that closes it."""
    pairs = {"{": "}", "(": ")"}
    opens, closes = text[opening], pairs[text[opening]]
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] == opens) - (text[position] == closes)
        if depth == 0:
            return text[opening + 1 : position]
    raise NoCompiler(f"torch's headers end within `{text[opening : opening + 40]}`")


def _functions(body: str, header: str) -> dict[str, tuple[int, bool]]:
    """By name: number of arguments of a virtual function, and `True` if it is const."""
    found = {}
    for match in _FUNCTION.finditer(body):
        arguments = _block(body, match.end() - 1)
        rest = body[match.end() + len(arguments) + 1 :]
        if match[1] in found and match[1] not in BY_HAND:
            raise NoCompiler(
                f"torch's header {header} has two functions `{match[1]}`, of which one would not be forwarded"
            )
        found[match[1]] = (_count(arguments), rest.lstrip().startswith("const"))
    read, there = len(_FUNCTION.findall(body)), len(re.findall(r"\bvirtual\b", body))
    if read != there:
        raise NoCompiler(f"of {there} virtual functions in torch's header {header} {read} can be read")
    return found


def _count(arguments: str) -> int:
    """Number of arguments; their types and defaults may have commas in brackets."""
    depth, count = 0, 1
    for character in arguments:
        depth += (character in "<({[") - (character in ">)}]")
        count += character == "," and depth == 0
    return count if arguments.strip() else 0


def _forward(name: str, arguments: int, is_const: bool) -> str:
    of = f"&Base::{name}"
    taken = ", ".join(f"Argument<{of}, {n}> a{n}" for n in range(arguments))
    given = ", ".join(f"static_cast<Argument<{of}, {n}>&&>(a{n})" for n in range(arguments))
    const = "const " if is_const else ""
    return f"  Result<{of}> {name}({taken}) {const}override {{ return caching->{name}({given}); }}"
