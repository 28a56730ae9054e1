"""A value that may be replaced while the gateway runs, such as the plan in force. Whoever needs it keeps the `Live` and reads it.

The one who made it replaces it; everybody else only reads `value`, each time anew.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Live(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def replace(self, value: T) -> None:
        self.value = value
