"""A dataclass of settings as command line flags, and as JSON beside what was trained with it."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def flag(default: Any, text: str) -> Any:
    """A field of a settings dataclass: its default and what it does, with its unit."""
    if isinstance(default, list):
        raise TypeError("a default must not be mutable; use a tuple")
    return dataclasses.field(default=default, metadata={"help": text})


def parse(settings: type[T], arguments: Sequence[str] | None, description: str) -> T:
    """The settings as the command line gives them; ``--help`` lists them all.

    Fields are int, float, str, bool (``--x`` or ``--no-x``), a tuple of one of these (comma
    separated), or such with None.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    kinds = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        name = "--" + field.name.replace("_", "-")
        text = field.metadata["help"]
        kind = _without_none(kinds[field.name])
        if kind is bool:
            parser.add_argument(
                name, default=field.default, help=text, action=argparse.BooleanOptionalAction
            )
        else:
            parser.add_argument(name, default=field.default, help=text, type=_reader(kind))
    try:
        return settings(**vars(parser.parse_args(arguments)))
    except ValueError as error:  # a dataclass that checks itself
        parser.error(str(error))


def as_json(settings: Any) -> dict[str, Any]:
    """The settings as JSON can hold them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(settings).items()
    }


def _without_none(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        rest = [one for one in typing.get_args(kind) if one is not types.NoneType]
        return rest[0]
    return kind


def _reader(kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]

        def read(text: str) -> tuple[Any, ...]:
            return tuple(element(part.strip()) for part in text.split(",") if part.strip())

        read.__name__ = f"list of {element.__name__}"
        return read
    return kind
