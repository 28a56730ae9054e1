"""The registry of servers: the outermost of the three layers (platform, scope, session)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from taskgate.core.patterns import ALL_TOOLS, NO_PATTERNS, PatternSet
from taskgate.core.settings.servers import Budgets

MAX_SERVER_ID = 64

_SERVER_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9-])?")
# Words with a meaning before the colon of a pattern, or in an audit line.
_RESERVED_IDS = frozenset({"tool", "resource", "prompt", "taskgate", "gateway", "mcp"})


class TransportKind(StrEnum):
    """How a server is reached."""

    STDIO = "stdio"
    HTTP = "http"


class SkipReason(StrEnum):
    """Why a record of the registry cannot be used."""

    ENV_MISSING = "env_missing"
    SECRET_MISSING = "secret_missing"
    BAD_RECORD = "bad_record"


class ApprovalDemand(StrEnum):
    """What a record requires in addition to the rules. The stricter of rule and record applies, so a record only
    restricts.
    """

    FORWARD = "forward"
    APPROVE = "approve"
    DENY = "deny"


class ApprovalPolicy(msgspec.Struct, frozen=True):
    """The approval requirements of a record: the first matching entry of `per_tool`, else the default."""

    default: ApprovalDemand = ApprovalDemand.FORWARD
    per_tool: tuple[tuple[PatternSet, ApprovalDemand], ...] = ()
    workflow: str | None = None

    def for_tool(self, server: str, tool: str) -> ApprovalDemand:
        """Return what this record requires for calls of that tool."""
        return next((ask for patterns, ask in self.per_tool if patterns.matches(server, tool)), self.default)

    def for_lookalike(self, server: str, tool: str) -> ApprovalDemand:
        """Return what this record requires for calls of a tool that looks like this one."""
        return next((ask for patterns, ask in self.per_tool if patterns.matches_lookalike(server, tool)), self.default)


class RegistryRecord(msgspec.Struct, frozen=True):
    """One server as the platform defines it. An empty `allowed_tools` denies every tool."""

    id: str
    transport: TransportKind = TransportKind.HTTP
    display_name: str = ""
    allowed_tools: PatternSet = ALL_TOOLS
    denied_tools: PatternSet = NO_PATTERNS
    budgets: Budgets = Budgets()
    approval_policy: ApprovalPolicy = ApprovalPolicy()
    tags: frozenset[str] = frozenset()
    namespace: str = ""
    enabled: bool = True
    skipped: SkipReason | None = None
    skip_detail: str = ""


class RegistryProblem(msgspec.Struct, frozen=True):
    """A record that could not be registered. Others are not affected."""

    server: str
    message: str


class Registry(msgspec.Struct, frozen=True):
    """All valid records, in their order."""

    records: Mapping[str, RegistryRecord]
    revision: int = 1
    problems: tuple[RegistryProblem, ...] = ()

    @classmethod
    def build(cls, records: Iterable[RegistryRecord], revision: int = 1) -> Registry:
        """Register every valid record; report invalid ids and the later of two records with equal or similar ids."""
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
        """Return the next snapshot, or this one if nothing changed, so that a reload of the same file has no effect."""
        fresh = Registry.build(records, self.revision + 1)
        same = list(fresh.records.items()) == list(self.records.items()) and fresh.problems == self.problems
        return self if same else fresh

    @property
    def tags(self) -> frozenset[str]:
        """The tags of all servers."""
        return frozenset().union(*(record.tags for record in self.records.values()))


def problem_of_server_id(server: str) -> str | None:
    """Return what is wrong with a server id, as a sentence, or None. Ids are parts of tool names, patterns and URLs."""
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
