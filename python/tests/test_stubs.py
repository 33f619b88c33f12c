"""The stubs of the extension have the same names as the extension."""

import ast
from pathlib import Path

import plimsoll
from plimsoll import _core


def names(owner):
    return {name for name in vars(owner) if not name.startswith("_")}


def test_stubs_and_extension_have_the_same_names():
    package = Path(plimsoll.__file__).parent
    assert (package / "py.typed").exists()
    stubs = ast.parse((package / "_core.pyi").read_text())
    top = {}
    for node in stubs.body:
        if isinstance(node, ast.ClassDef):
            top[node.name] = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            top[node.name] = None
        elif isinstance(node, ast.AnnAssign):
            top[node.target.id] = None
    assert set(top) == names(_core)
    for name, members in top.items():
        if members is not None:
            assert {m for m in members if not m.startswith("_")} == names(getattr(_core, name)), name


def test_all_that_is_public_has_a_docstring():
    for name in plimsoll.__all__:
        assert getattr(plimsoll, name).__doc__, name
