"""The `store`, `secrets` and `audit` sections: where state is kept, how secrets are resolved, and the audit log."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from taskgate.core.settings.section import SECRET, Section, read_by
from taskgate.core.settings.values import Duration, Strings

SHORTEST_KEY: Final = 32


def _store_url(text: str) -> str:
    if text.startswith("sqlite:///") and len(text) > len("sqlite:///"):
        return text
    if text.startswith(("postgresql://", "postgres://")):
        return text
    raise ValueError("is not a store URL; write sqlite:///./taskgate.db or postgresql://user@host/database")


def _store_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise ValueError(f"a key needs at least {SHORTEST_KEY} characters; `openssl rand -base64 32` prints one")
    return keys


class Store(Section):
    """Where tasks, approvals and the audit log are stored."""

    url: Annotated[
        str,
        read_by(_store_url),
        Meta(
            extra=SECRET,
            description="`sqlite:///PATH` (relative to this file) or `postgresql://USER@HOST/DATABASE`.",
        ),
    ]
    key: Annotated[
        Strings,
        read_by(_store_keys),
        Meta(
            extra=SECRET,
            description="Encrypts arguments, results, questions and answers. At least 32 characters, by reference, for "
            "example `${env:TASKGATE_STORE_KEY}`. In a list, the first key encrypts and all decrypt.",
        ),
    ] = ()
    unsafe_degraded_passthrough: Annotated[
        bool,
        Meta(
            description="PostgreSQL only: while the database is unavailable, forward plain calls with the grants, pins and "
            "scopes that were read last. `/ready` then returns 200 and lists what is refused."
        ),
    ] = False


def keys_of(store: Store | None) -> tuple[str, ...]:
    """Return the encryption keys of the store; empty by default."""
    return store.key if store is not None else ()


class Secrets(Section):
    """How references to secrets are resolved: `${file:PATH}`, `${keyring:SERVICE/USER}` and `${command:ARGV}`."""

    allow_command: Annotated[
        bool,
        Meta(
            description="Allow `${command:ARGV}` to run programs as the gateway's user, without a shell, for at most 10 s "
            "each."
        ),
    ] = False


class Audit(Section):
    """The audit log."""

    keep: Annotated[
        Duration | None,
        Meta(
            description="How long rows are kept, for example `90d`. Unset: forever. Removed rows are replaced by a signed "
            "mark."
        ),
    ] = None
    export: Annotated[str | None, Meta(description="File to which every new row is appended as a JSON line.")] = None
    calls: Annotated[
        Literal["summed", "every"],
        Meta(
            description="Rows for plain calls. `summed`: one row each for the first 200 calls of a second, then counts by "
            "caller, tool and outcome. `every`: one row per call. Denied calls of authenticated callers, "
            "approvals, tasks and administrative actions always have a row each."
        ),
    ] = "summed"
