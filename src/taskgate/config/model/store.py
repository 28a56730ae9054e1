"""The `store`, `secrets` and `audit` sections: where state is kept, how secrets are resolved, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from taskgate.config.model.values import Duration
from taskgate.config.sections import AfterValidator, BeforeValidator, Field, SecretStr, Section

SHORTEST_KEY: Final = 32


def _store_url(text: str) -> str:
    if text.startswith("sqlite:///") and len(text) > len("sqlite:///"):
        return text
    if text.startswith(("postgresql://", "postgres://")):
        return text
    raise ValueError("is not a store URL; write sqlite:///./taskgate.db or postgresql://user@host/database")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _store_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise ValueError(f"a key needs at least {SHORTEST_KEY} characters; `openssl rand -base64 32` prints one")
    return keys


class Store(Section):
    """Where tasks, approvals and the audit log are stored."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        description="`sqlite:///PATH` (relative to this file) or `postgresql://USER@HOST/DATABASE`.", repr=False
    )
    key: Annotated[tuple[SecretStr, ...], BeforeValidator(_as_list), AfterValidator(_store_keys)] = Field(
        default=(),
        repr=False,
        description="Encrypts arguments, results, questions and answers. At least 32 characters, by reference, for example "
        "`${env:TASKGATE_STORE_KEY}`. In a list, the first key encrypts and all decrypt.",
    )
    unsafe_degraded_passthrough: bool = Field(
        default=False,
        description="PostgreSQL only: while the database is unavailable, forward plain calls with the grants, pins and scopes "
        "that were read last. `/ready` then returns 200 and lists what is refused.",
    )


def keys_of(store: Store | None) -> tuple[str, ...]:
    """Return the encryption keys of the store; empty by default."""
    return tuple(key.get_secret_value() for key in store.key) if store is not None else ()


class Secrets(Section):
    """How references to secrets are resolved: `${file:PATH}`, `${keyring:SERVICE/USER}` and `${command:ARGV}`."""

    allow_command: bool = Field(
        default=False,
        description="Allow `${command:ARGV}` to run programs as the gateway's user, without a shell, for at most 10 s each.",
    )


class Audit(Section):
    """The audit log."""

    keep: Duration | None = Field(
        default=None,
        description="How long rows are kept, for example `90d`. Unset: forever. Removed rows are replaced by a signed mark.",
    )
    export: str | None = Field(default=None, description="File to which every new row is appended as a JSON line.")
    calls: Literal["summed", "every"] = Field(
        default="summed",
        description="Rows for plain calls. `summed`: one row each for the first 200 calls of a second, then counts by caller, "
        "tool and outcome. `every`: one row per call. Denied calls of authenticated callers, approvals, tasks and "
        "administrative actions always have a row each.",
    )
