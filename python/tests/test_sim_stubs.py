# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The stub of the compiled module names all of its members, and no others."""

import ast
import inspect
from pathlib import Path

import pytest
import thalweg
from thalweg import _native

PACKAGE = Path(thalweg.__file__).parent
STUB = ast.parse((PACKAGE / "_native.pyi").read_text())


def definitions(body):
    return {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_the_same_names():
    assert set(definitions(STUB.body)) == public(vars(_native))
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize(
    "name", [n for n, d in definitions(STUB.body).items() if isinstance(d, ast.ClassDef)]
)
def test_the_same_members(name):
    members = definitions(definitions(STUB.body)[name].body)
    compiled = vars(getattr(_native, name))
    assert public(members) == public(compiled)
    for member, node in members.items():
        kinds = {ast.unparse(decorator) for decorator in node.decorator_list}
        value = compiled[member]
        assert ("property" in kinds) == inspect.isdatadescriptor(value), member
        assert ("staticmethod" in kinds) == isinstance(value, staticmethod), member


def functions():
    for name, node in definitions(STUB.body).items():
        if isinstance(node, ast.FunctionDef):
            yield name, node, getattr(_native, name)
            continue
        for member, inner in definitions(node.body).items():
            if inner.decorator_list and ast.unparse(inner.decorator_list[0]) == "property":
                continue
            compiled = getattr(_native, name)
            yield (
                f"{name}.{member}",
                inner,
                compiled if member == "__new__" else getattr(compiled, member),
            )


@pytest.mark.parametrize(
    "name, node, compiled",
    list(functions()),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_same_parameters(name, node, compiled):
    arguments = node.args
    stub = [argument.arg for argument in arguments.args + arguments.kwonlyargs]
    optional = len(arguments.defaults) + len(arguments.kw_defaults)
    if stub and stub[0] in ("self", "cls"):
        del stub[0]
    parameters = [p for p in inspect.signature(compiled).parameters.values() if p.name != "self"]
    assert [p.name for p in parameters] == stub
    assert sum(p.default is not p.empty for p in parameters) == optional
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == [
        argument.arg for argument in arguments.kwonlyargs
    ]


def test_everything_is_documented():
    for name, node in definitions(STUB.body).items():
        assert ast.get_docstring(node), name
