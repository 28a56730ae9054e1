"""Names of tools and prompts as callers see them, and the resolution of a called name.

A prefixed name is `server__tool` in characters that every client accepts, at most 48 of them. A name that had to be
changed or cut ends in `_xxxx`, four characters of a digest of the original pair, so it is stable. If two names would be
equal, or names of different servers look alike to a reader or a model, *both* are refused: serving one of them would let
its server receive the calls of the other. Names of one server that look alike (`alike_names`) are served: each gets the
strictest decision of all of them. The merged catalog builds the table; listing and dispatch both read it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import assert_never

import msgspec

from taskgate.core.catalog.own_tool_names import RESERVED_NAMES
from taskgate.core.text.confusables import limit_combining_marks

Pair = tuple[str, str]

MAX_WIRE_NAME = 48
SEPARATOR = "__"

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_SUFFIX_LENGTH = 5
_SERVER_CHARACTERS = 16
_ALIAS_MAX = 1024
_ENCODED_ALIAS = "mcp__"
_DOTTED_ALIAS = "mcp."
_ALIAS_STARTS = (_ENCODED_ALIAS, _DOTTED_ALIAS)
# Longer names are compared by their beginning.
_FOLDED_MAX = 4096


class NameStyle(StrEnum):
    """How a scope names tools: with the server as a prefix, or exactly as the server does."""

    PREFIXED = "prefixed"
    PLAIN = "plain"


class CollisionReason(StrEnum):
    """Why a group of pairs was refused."""

    SAME_NAME = "same_name"
    CONFUSABLE = "confusable"
    RESERVED = "reserved"
    ALIAS = "alias"


class Collision(msgspec.Struct, frozen=True):
    """Pairs that are not served because their names cannot be distinguished, or are reserved."""

    wire: str
    pairs: tuple[Pair, ...]
    reason: CollisionReason

    def __str__(self) -> str:
        owners = ", ".join(f"{name!r} of server {server!r}" for server, name in self.pairs)
        return f"{owners}: {_explained(self.reason, self.wire)}"


def _explained(reason: CollisionReason, wire: str) -> str:
    match reason:
        case CollisionReason.SAME_NAME:
            return f"all would be called {wire!r}, so none is served. Rename one, or use prefixed names."
        case CollisionReason.CONFUSABLE:
            return f"the names look alike ({wire!r}), so none is served. Rename one of them."
        case CollisionReason.RESERVED:
            return f"{wire!r} is the name of a tool of the gateway, so it is not served. Use prefixed names."
        case CollisionReason.ALIAS:
            return f"{wire!r} reads as the alias of another tool, so none is served. Rename one of them."
        case _:
            assert_never(reason)


def wire_name(server: str, name: str) -> str:
    """Return the prefixed name of a pair: `server__tool`, or a shortened form that ends in a digest of the pair."""
    clean_server, is_faithful = _prefix(server)
    clean_name = _FOREIGN.sub("_", name) or "_"
    full = f"{clean_server}{SEPARATOR}{clean_name}"
    if is_faithful and clean_name == name and len(full) <= MAX_WIRE_NAME:
        return full
    room = MAX_WIRE_NAME - _SUFFIX_LENGTH - len(SEPARATOR)
    head = clean_server[: max(_SERVER_CHARACTERS, room - len(clean_name))]
    return f"{head}{SEPARATOR}{clean_name[: room - len(head)]}_{_digest4(server, name)}"


@lru_cache(maxsize=1024)
def _prefix(server: str) -> tuple[str, bool]:
    """Return a server's part of a name, and whether it identifies the server."""
    clean = _FOREIGN.sub("_", server) or "_"
    return clean, clean == server and _splits_one_way(server)


class NameTable(msgspec.Struct, frozen=True):
    """Both directions of naming for a set of tools or prompts. Build a new one when the set changes."""

    style: NameStyle
    to_wire: Mapping[Pair, str]
    from_wire: Mapping[str, Pair]
    refused: tuple[Collision, ...] = ()

    @classmethod
    def build(
        cls,
        entries: Iterable[Pair],
        style: NameStyle = NameStyle.PREFIXED,
        reserved: Iterable[str] = RESERVED_NAMES,
        prefixes: Mapping[str, str] = MappingProxyType({}),
    ) -> NameTable:
        """Name every pair, or refuse it together with the pairs it would be confused with.

        `prefixes` has the prefixes of servers that do not use their id.
        """
        candidate = {pair: _styled(pair, style, prefixes) for pair in dict.fromkeys(entries)}
        refused = tuple(_collisions(candidate, style, frozenset(map(_fold, reserved))))
        out = {pair for collision in refused for pair in collision.pairs}
        to_wire = {pair: wire for pair, wire in candidate.items() if pair not in out}
        return cls(style, to_wire, {wire: pair for pair, wire in to_wire.items()}, refused)

    def resolve(self, wire: str) -> Pair | None:
        """Return the pair of a called name: the name in the table, or one of its two aliases. A refused pair has none."""
        found = self.from_wire.get(wire)
        if found is not None:
            return found
        known = {pair for pair in _alias_readings(wire) if pair in self.to_wire}
        return known.pop() if len(known) == 1 else None


def _styled(pair: Pair, style: NameStyle, prefixes: Mapping[str, str]) -> str:
    match style:
        case NameStyle.PREFIXED:
            return wire_name(prefixes.get(pair[0], pair[0]), pair[1])
        case NameStyle.PLAIN:
            return pair[1]
        case _:
            assert_never(style)


def _collisions(candidate: Mapping[Pair, str], style: NameStyle, reserved: frozenset[str]) -> Iterator[Collision]:
    changed = style is NameStyle.PREFIXED and any(wire != f"{s}{SEPARATOR}{n}" for (s, n), wire in candidate.items())
    folded = [_fold(wire) for wire in candidate.values()]
    if changed or len(set(folded)) < len(folded):
        yield from _equal_and_alike(candidate, changed)
    for (pair, wire), looks in zip(candidate.items(), folded, strict=True):
        if looks in reserved:
            yield Collision(wire, (pair,), CollisionReason.RESERVED)
        if wire.startswith(_ALIAS_STARTS):
            hijacked = [other for other in _alias_readings(wire) if other != pair and other in candidate]
            if hijacked:
                yield Collision(wire, (pair, *dict.fromkeys(hijacked)), CollisionReason.ALIAS)


def _equal_and_alike(candidate: Mapping[Pair, str], changed: bool) -> Iterator[Collision]:
    same: dict[str, list[Pair]] = {}
    alike: dict[str, list[Pair]] = {}
    for pair, wire in candidate.items():
        same.setdefault(wire, []).append(pair)
        alike.setdefault(_fold(wire), []).append(pair)
        # Replaced characters and different digests could hide that names look alike, so the original names are compared
        # as well. A folded name cannot contain the separator: folding removes control characters.
        if changed:
            alike.setdefault(f"{_fold(pair[0])}\0{_fold(pair[1])}", []).append(pair)
    for wire, pairs in same.items():
        if len(pairs) > 1:
            yield Collision(wire, tuple(pairs), CollisionReason.SAME_NAME)
    for pairs in alike.values():
        # One server may have several names that look alike: it gets the calls of all of them anyway.
        if len({candidate[pair] for pair in pairs}) > 1 and len({(server, _fold(name)) for server, name in pairs}) > 1:
            yield Collision(candidate[pairs[0]], tuple(pairs), CollisionReason.CONFUSABLE)


def alike_names(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return those of a server's names that look like others of them, each with these others."""
    distinct = list(dict.fromkeys(names))
    folded = list(map(_fold, distinct))
    if len(set(folded)) == len(folded):
        return {}
    groups: dict[str, list[str]] = {}
    for name, looks in zip(distinct, folded, strict=True):
        groups.setdefault(looks, []).append(name)
    return {
        name: tuple(other for other in group if other != name)
        for group in groups.values()
        if len(group) > 1
        for name in group
    }


def _splits_one_way(server: str) -> bool:
    # `acme_` + `status` and `acme` + `_status` must not be equal: a server part may neither contain the separator nor
    # be adjacent to an underscore.
    return SEPARATOR not in server and not server.startswith("_") and not server.endswith("_")


def _digest4(server: str, name: str) -> str:
    digest = hashlib.sha256(f"{len(server)}:{server}:{name}".encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest[:5]).decode("ascii")[:4].lower()


def _fold(text: str) -> str:
    """Letter case, compatibility forms and invisible characters make no difference."""
    if text.isascii() and text.isprintable():
        return text.lower()
    text = limit_combining_marks(text[:_FOLDED_MAX])
    # Twice, because normalizing can produce letters that fold again.
    seen = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text.casefold()).casefold())
    return "".join(c for c in seen if unicodedata.category(c) not in ("Cf", "Cc", "Mn"))


def _alias_readings(wire: str) -> Iterator[Pair]:
    # Both halves of an alias may contain the separator, so every split is tried against the table.
    if len(wire) > _ALIAS_MAX:
        return
    if wire.startswith(_ENCODED_ALIAS):
        for left, right in _cuts(wire[len(_ENCODED_ALIAS) :], "__"):
            server, name = _unb64(left), _unb64(right)
            if server is not None and name is not None:
                yield server, name
    elif wire.startswith(_DOTTED_ALIAS):
        yield from _cuts(wire[len(_DOTTED_ALIAS) :], ".")


def _cuts(text: str, separator: str) -> Iterator[tuple[str, str]]:
    at = text.find(separator)
    while at != -1:
        left, right = text[:at], text[at + len(separator) :]
        if left and right:
            yield left, right
        at = text.find(separator, at + 1)


def _b64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("=")


def _unb64(text: str) -> str | None:
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    # Only the canonical spelling counts, so that a pair has exactly one alias.
    return decoded if _b64(decoded) == text else None
