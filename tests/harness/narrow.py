"""Narrows values whose type is unknown to the type checker."""

from __future__ import annotations

import asyncio
from typing import TypeVar, cast

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def transport_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    """The transport of a connection, which can be read too."""
    return cast("asyncio.Transport", writer.transport)
