"""Read and edit `_meta` in raw params without changing any other byte.

Both generations put cross-cutting data there: progress tokens, related tasks, the stateless envelope. Editing is per
member, so vendor keys keep their exact bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from taskgate.core.wire import Members, Raw, join, members_of

META = "_meta"


def meta_of(params: Any) -> Mapping[str, Any]:
    """Return the decoded `_meta` of decoded params, or an empty mapping."""
    if type(params) is dict:
        meta = params.get(META)
        if type(meta) is dict:
            return meta
    return {}


def with_meta(members: Members, put: Mapping[str, Raw], drop: Iterable[str] = ()) -> Members:
    """Return a copy of the members with keys of `_meta` added and removed; an empty `_meta` is omitted."""
    present = members.get(META)
    meta: Members = members_of(present) if present is not None and bytes(present)[:1] == b"{" else {}
    for key in drop:
        meta.pop(key, None)
    meta.update(put)
    edited = dict(members)
    if meta:
        edited[META] = Raw(join(meta))
    else:
        edited.pop(META, None)
    return edited


def insert_first(obj: bytes | Raw, member: bytes) -> bytes:
    """Insert a rendered member (`"key":value`) at the front of a raw object without decoding the rest."""
    body = bytes(obj).lstrip()
    rest = body[1:].lstrip()
    return b"{" + member + (b"" if rest.startswith(b"}") else b",") + rest
