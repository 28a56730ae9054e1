"""What a session requests within its scope: fewer servers, fewer tools. The innermost of the three layers.

A request is text in a query string, in headers or in `_meta`; all three are parsed here, within limits, because they
come from the caller. A list of tools has patterns, and denials written as `-pattern`. Several sources restrict
together. What a request may not do is decided in `subset.compose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.globs import Glob
from taskgate.core.patterns import NO_PATTERNS, PatternSet

MAX_ENTRIES = 200
MAX_TEXT = 8192

SERVERS_HEADER, TOOLS_HEADER = "x-taskgate-servers", "x-taskgate-tools"
SERVERS_META, TOOLS_META = "taskgate/servers", "taskgate/tools"


class RequestError(CallerError):
    """A session request that cannot be parsed."""

    def __init__(self, message: str) -> None:
        super().__init__("bad_scope_request", message)


class SessionRequest(msgspec.Struct, frozen=True):
    """The request of one session. Each list restricts; without `server_lists` all servers of the scope are requested."""

    server_lists: tuple[tuple[str, ...], ...] = ()
    tool_allowlists: tuple[PatternSet, ...] = ()
    tool_denylist: PatternSet = NO_PATTERNS

    @classmethod
    def parse(
        cls, servers: str | Sequence[Any] | None = None, tools: str | Sequence[Any] | None = None
    ) -> SessionRequest:
        """Parse both lists, each comma-separated or a list of strings. Raises RequestError or PatternError."""
        requested = () if servers is None else (_entries(servers, "servers"),)
        for server in chain(*requested):
            Glob.compile(server)
        if tools is None:
            return cls(requested)
        entries = _entries(tools, "tools")
        allowed = tuple(entry for entry in entries if not entry.startswith("-"))
        denied = PatternSet.of(entry[1:] for entry in entries if entry.startswith("-"))
        # A list of denials alone restricts everything; an empty list requests nothing.
        constrains = bool(allowed) or not entries
        return cls(requested, (PatternSet.of(allowed),) if constrains else (), denied)

    @classmethod
    def from_query(cls, query: str) -> SessionRequest:
        """Parse `servers=a,b&tools=glob,-glob`; other parameters are ignored."""
        if len(query) > MAX_TEXT:
            raise RequestError(f"The query string is longer than {MAX_TEXT} characters.")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=False, max_num_fields=64, errors="strict")
        except ValueError as error:
            raise RequestError("The query string cannot be read.") from error
        return cls.from_pairs(pairs, "servers", "tools")

    @classmethod
    def from_pairs(
        cls, pairs: Sequence[tuple[str, str]], servers: str = SERVERS_HEADER, tools: str = TOOLS_HEADER
    ) -> SessionRequest:
        """Parse headers (names in lower case) or parameters; a name that occurs several times restricts several times."""
        found = [cls.parse(servers=value) for name, value in pairs if name == servers]
        found += [cls.parse(tools=value) for name, value in pairs if name == tools]
        return reduce(cls.narrowed, found, cls())

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> SessionRequest:
        """Parse the two `taskgate/` keys of a request's `_meta`: comma-separated lists or arrays of strings."""
        return cls.parse(_listable(meta, SERVERS_META), _listable(meta, TOOLS_META))

    def named_servers(self) -> tuple[str, ...]:
        """The servers that are requested by name and not by a glob."""
        return tuple(dict.fromkeys(text for text in chain(*self.server_lists) if Glob.compile(text).literal))

    def asks_for(self, server: str) -> bool:
        """Whether every list of servers includes this one."""
        return all(any(Glob.compile(text).matches(server) for text in names) for names in self.server_lists)

    def narrowed(self, other: SessionRequest) -> SessionRequest:
        """Combine both requests: only servers that both request, only tools that pass both."""
        both = SessionRequest(
            tuple(dict.fromkeys(self.server_lists + other.server_lists)),
            tuple(dict.fromkeys(self.tool_allowlists + other.tool_allowlists)),
            self.tool_denylist | other.tool_denylist,
        )
        return NO_REQUEST if both == NO_REQUEST else both


NO_REQUEST: Final = SessionRequest()
"""No restriction. A singleton, so that the common case is recognized by identity."""


def _listable(meta: Mapping[str, Any], key: str) -> str | Sequence[Any] | None:
    value = meta.get(key)
    if value is None or isinstance(value, str | list | tuple):
        return value
    raise RequestError(f"_meta[{key!r}] must be a comma list or an array of strings.")


def _entries(value: str | Sequence[Any], what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise RequestError(f"The list of {what} is longer than {MAX_TEXT} characters.")
        value = [part for part in (piece.strip() for piece in value.split(",")) if part]
    if len(value) > MAX_ENTRIES:
        raise RequestError(f"The list of {what} has more than {MAX_ENTRIES} entries.")
    if not all(isinstance(entry, str) for entry in value):
        raise RequestError(f"The list of {what} may only hold strings.")
    return tuple(dict.fromkeys(value))
