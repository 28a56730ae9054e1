"""Names of tools in scripts: `files.read_file` for the tool `read_file` of the server `files`.

Every tool gets a unique, stable name that is valid in Python. Names of servers and tools come from servers and may contain
anything.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

FUNCTIONS: Final = ("call_tool", "map_tool", "ask", "sleep", "progress", "now", "random", "tool_error")
"""What every script can call besides its tools."""
MODULES: Final = frozenset(
    {
        *(
            "asyncio",
            "base64",
            "binascii",
            "bisect",
            "collections",
            "copy",
            "csv",
            "dataclasses",
            "datetime",
            "decimal",
        ),
        *(
            "functools",
            "hashlib",
            "itertools",
            "json",
            "math",
            "os",
            "pathlib",
            "posixpath",
            "random",
            "re",
            "sys",
            "time",
        ),
        *("tomllib", "typing", "unicodedata"),
    }
)
"""What a script can import."""
_RESERVED: Final = frozenset(
    {*FUNCTIONS, *MODULES, *dir(builtins), *keyword.kwlist, *keyword.softkwlist, "inputs", "self", "Server"}
)
_LONGEST: Final = 80


class PythonName(msgspec.Struct, frozen=True):
    """How a script calls a tool: `await NAMESPACE.FUNCTION(...)`."""

    namespace: str
    function: str
    tool: str
    """The name in `tools/list`, for `call_tool`."""


def python_names(tools: Iterable[tuple[str, str, str]]) -> tuple[PythonName, ...]:
    """Name tools that are given as server, own name and listed name. The order of the tools does not matter."""
    ordered = sorted(set(tools))
    namespaces = _distinct({server for server, _, _ in ordered}, "server", _RESERVED)
    of_servers: dict[str, dict[str, str]] = {}
    for server, name, listed in ordered:
        of_servers.setdefault(server, {})[listed] = name
    found: list[PythonName] = []
    for server, namespace in namespaces.items():
        own = of_servers[server]
        functions = _distinct(own.values(), "tool", frozenset(keyword.kwlist))
        found += [PythonName(namespace, functions[own[listed]], listed) for listed in sorted(own)]
    return tuple(found)


def _distinct(names: Iterable[str], fallback: str, reserved: frozenset[str]) -> Mapping[str, str]:
    """Return the identifier of each name. A valid identifier is kept; names that would get the same identifier get a number."""
    made: dict[str, str] = {}
    taken: set[str] = set()
    numbers: dict[str, int] = {}
    for name in sorted(set(names), key=lambda name: (identifier(name) != name, name)):
        plain = identifier(name) or fallback
        plain = f"{plain}_" if plain in reserved else plain
        unique, number = plain, numbers.get(plain, 2)
        while unique in taken:
            unique, number = f"{plain}_{number}", number + 1
        numbers[plain] = number
        taken.add(unique)
        made[name] = unique
    return made


def identifier(name: str) -> str:
    """Return the name with everything replaced that an identifier in ASCII cannot contain; may be empty or a keyword."""
    plain = re.sub(r"[^A-Za-z0-9]+|_+", "_", name[:_LONGEST]).strip("_")
    return f"n{plain}" if plain[:1].isdigit() else plain
