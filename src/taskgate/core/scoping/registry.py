"""The outermost and the innermost of the three layers: the platform's word on servers, and what one session asks for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl

from taskgate.core.errors import CallerError
from taskgate.core.patterns import ALL_TOOLS, NO_PATTERNS, Glob, PatternSet

MAX_SERVER_ID = 64

_SERVER_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9-])?")
# Words that already mean something before the colon of a pattern, or in an audit line.
_RESERVED_IDS = frozenset({"tool", "resource", "prompt", "taskgate", "gateway", "mcp"})


class TransportKind(StrEnum):
    """How a server is reached."""

    STDIO = "stdio"
    HTTP = "http"


class LeftOut(StrEnum):
    """Why a record that is in the registry cannot be used at all."""

    ENV_MISSING = "env_missing"
    SECRET_MISSING = "secret_missing"
    BAD_RECORD = "bad_record"


class ApprovalWish(StrEnum):
    """What a record asks for on top of the rules. The strictest of rule and record wins, so a record only tightens."""

    FORWARD = "forward"
    APPROVE = "approve"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class ServerBudgets:
    """How much one server may take. None (written as 0 or left out) means the gateway's own default."""

    tool_timeout_ms: int | None = None
    max_concurrency: int | None = None
    max_tool_output_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """A record's own approval wishes: the first matching entry of `per_tool`, else the default."""

    default: ApprovalWish = ApprovalWish.FORWARD
    per_tool: tuple[tuple[PatternSet, ApprovalWish], ...] = ()
    workflow: str | None = None

    def for_tool(self, server: str, tool: str) -> ApprovalWish:
        """What this record asks for when that tool is called."""
        return next((ask for patterns, ask in self.per_tool if patterns.matches(server, tool)), self.default)

    def for_lookalike(self, server: str, tool: str) -> ApprovalWish:
        """What this record asks for when a tool is called that looks like this one."""
        return next((ask for patterns, ask in self.per_tool if patterns.resembled_by(server, tool)), self.default)


@dataclass(frozen=True, slots=True)
class RegistryRecord:
    """One server as the platform sees it. An empty `allowed_tools` denies every tool."""

    id: str
    transport: TransportKind = TransportKind.HTTP
    display_name: str = ""
    allowed_tools: PatternSet = ALL_TOOLS
    denied_tools: PatternSet = NO_PATTERNS
    budgets: ServerBudgets = ServerBudgets()
    approval_policy: ApprovalPolicy = ApprovalPolicy()
    tags: frozenset[str] = frozenset()
    namespace: str = ""
    enabled: bool = True
    left_out: LeftOut | None = None
    left_out_detail: str = ""


@dataclass(frozen=True, slots=True)
class RegistryProblem:
    """A record that could not be taken up. The others are not affected."""

    server: str
    message: str


@dataclass(frozen=True, slots=True)
class Registry:
    """All usable records, in the order they were given."""

    records: Mapping[str, RegistryRecord]
    revision: int = 1
    problems: tuple[RegistryProblem, ...] = field(default=())

    @classmethod
    def build(cls, records: Iterable[RegistryRecord], revision: int = 1) -> Registry:
        """Take up every good record; report ill-named ones and the later of two that are called alike."""
        kept: dict[str, RegistryRecord] = {}
        folded: dict[str, str] = {}
        problems: list[RegistryProblem] = []
        for record in records:
            looks_like = unicodedata.normalize("NFKC", record.id).casefold()
            problem = _problem_of(record.id, folded.get(looks_like))
            if problem is not None:
                problems.append(RegistryProblem(record.id, problem))
                continue
            folded[looks_like] = record.id
            kept[record.id] = record
        return cls(kept, revision, tuple(problems))

    def replaced_by(self, records: Iterable[RegistryRecord]) -> Registry:
        """The next snapshot, or this one if nothing changed, so that reloads of the same file are quiet."""
        fresh = Registry.build(records, self.revision + 1)
        same = list(fresh.records.items()) == list(self.records.items()) and fresh.problems == self.problems
        return self if same else fresh

    @property
    def tags(self) -> frozenset[str]:
        """Every tag that some server bears."""
        return frozenset().union(*(record.tags for record in self.records.values()))


def problem_of_server_id(server: str) -> str | None:
    """What is wrong with a server's id, in a sentence, or None. Ids are parts of tool names, patterns and addresses."""
    if not _SERVER_ID.fullmatch(server) or "__" in server:
        return (
            f"The server id {server[:80]!r} cannot be used: take letters, digits, '-', '.' and single '_', "
            "beginning and ending with a letter or digit."
        )
    if len(server) > MAX_SERVER_ID:
        return f"The server id {server[:80]!r} is longer than {MAX_SERVER_ID} characters."
    if server.casefold() in _RESERVED_IDS:
        return f"The server id {server!r} is reserved: choose another name."
    return None


def _problem_of(server: str, earlier: str | None) -> str | None:
    problem = problem_of_server_id(server)
    if problem is not None:
        return problem
    if earlier == server:
        return f"There are two servers with the id {server!r}; the first one is used."
    if earlier is not None:
        return f"The server ids {earlier!r} and {server!r} look alike; only the first one is used."
    return None


# What one session asks for within its scope: fewer servers, fewer tools. The innermost of the three layers.
#
# A request comes as text in a query string, in headers or in `_meta`; all three are read here, within limits, because
# they come from the caller. A tool list holds patterns, and denials written `-pattern`. Several sources narrow
# together. What a request may not do is decided in `subset.compose`.

MAX_ENTRIES = 200
MAX_TEXT = 8192

SERVERS_HEADER, TOOLS_HEADER = "x-taskgate-servers", "x-taskgate-tools"
SERVERS_META, TOOLS_META = "taskgate/servers", "taskgate/tools"


class RequestError(CallerError):
    """A session's request that cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__("bad_scope_request", message)


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """One session's wishes. Each list narrows; no `server_lists` means that it asks for none in particular."""

    server_lists: tuple[tuple[str, ...], ...] = ()
    tool_allowlists: tuple[PatternSet, ...] = ()
    tool_denylist: PatternSet = NO_PATTERNS

    @classmethod
    def parse(
        cls, servers: str | Sequence[Any] | None = None, tools: str | Sequence[Any] | None = None
    ) -> SessionRequest:
        """Read both lists, each a comma list or a list of strings. Raises RequestError or PatternError."""
        wanted = () if servers is None else (_entries(servers, "servers"),)
        for server in chain(*wanted):
            Glob.compile(server)
        if tools is None:
            return cls(wanted)
        entries = _entries(tools, "tools")
        allowed = tuple(entry for entry in entries if not entry.startswith("-"))
        denied = PatternSet.of(entry[1:] for entry in entries if entry.startswith("-"))
        # A list of denials alone takes away from everything; an empty list asks for nothing.
        constrains = bool(allowed) or not entries
        return cls(wanted, (PatternSet.of(allowed),) if constrains else (), denied)

    @classmethod
    def from_query(cls, query: str) -> SessionRequest:
        """Read `servers=a,b&tools=glob,-glob`; other parameters are not ours."""
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
        """Read headers (names in lower case) or parameters; a name given several times narrows several times."""
        found = [cls.parse(servers=value) for name, value in pairs if name == servers]
        found += [cls.parse(tools=value) for name, value in pairs if name == tools]
        return reduce(cls.narrowed, found, cls())

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> SessionRequest:
        """Read the two `taskgate/` keys of a request's `_meta`: comma lists or arrays of strings."""
        return cls.parse(_listable(meta, SERVERS_META), _listable(meta, TOOLS_META))

    def named_servers(self) -> tuple[str, ...]:
        """The servers asked for one by one, not by a glob."""
        return tuple(dict.fromkeys(text for text in chain(*self.server_lists) if Glob.compile(text).literal))

    def asks_for(self, server: str) -> bool:
        """Whether every list of servers has this one."""
        return all(any(Glob.compile(text).matches(server) for text in names) for names in self.server_lists)

    def narrowed(self, other: SessionRequest) -> SessionRequest:
        """Both requests at once: only servers that both ask for, only tools that pass both."""
        both = SessionRequest(
            tuple(dict.fromkeys(self.server_lists + other.server_lists)),
            tuple(dict.fromkeys(self.tool_allowlists + other.tool_allowlists)),
            self.tool_denylist | other.tool_denylist,
        )
        return NO_WISH if both == NO_WISH else both


NO_WISH: Final = SessionRequest()
"""Who wishes for nothing in particular. There is only one of it, so that the many who do are recognized at a glance."""


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
