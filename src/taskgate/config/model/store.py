"""The `store`, `secrets` and `audit` sections: where state is kept, how secrets are resolved, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from taskgate.config.model.values import Duration, Section

SHORTEST_KEY: Final = 32


def _store_url(text: str) -> str:
    if text.startswith("sqlite:///") and len(text) > len("sqlite:///"):
        return text
    if text.startswith(("postgresql://", "postgres://")):
        return text
    raise ValueError("is not a store; write sqlite:///./taskgate.db or postgresql://user@host/database")


def _one_or_more(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _store_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise ValueError(
            f"a key must have {SHORTEST_KEY} characters or more, such as what `openssl rand -base64 32` prints"
        )
    return keys


class Store(Section):
    """Where tasks, approvals and the audit log are kept."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        description="sqlite:///PATH (relative to this file) or postgresql://...", repr=False
    )
    key: Annotated[tuple[SecretStr, ...], BeforeValidator(_one_or_more), AfterValidator(_store_keys)] = Field(
        default=(),
        repr=False,
        description="Encrypts arguments, results, questions and answers: 32 characters or more, by reference; of a list the first "
        "encrypts and all decrypt.",
    )
    unsafe_degraded_passthrough: bool = Field(
        default=False,
        description="PostgreSQL: let plain calls go on while the database is away, by the grants, pins and scopes that were last "
        "read; /ready stays 200 then and lists what is refused.",
    )


def keys_of(store: Store | None) -> tuple[str, ...]:
    """What encrypts the rows of the configured store; nothing by default."""
    return tuple(key.get_secret_value() for key in store.key) if store is not None else ()


class Secrets(Section):
    """References to secrets: `${file:PATH}`, `${keyring:SERVICE/USER}` and `${command:ARGV}`."""

    allow_command: bool = Field(
        default=False,
        description="Let ${command:ARGV} run programs as the gateway's user, without a shell and for at most 10 s each.",
    )


class Audit(Section):
    """The audit log."""

    keep: Duration | None = Field(
        default=None, description="How long rows are kept; without it for ever. The chain is cut at a signed mark."
    )
    export: str | None = Field(
        default=None, description="File that every new row is appended to as it happens, as JSON lines."
    )
    calls: Literal["summed", "every"] = Field(
        default="summed",
        description="Rows of plain calls: `summed` writes a row for each of the first 200 calls of a second and counts the "
        "others by caller, tool and outcome; `every` writes a row for every call. Refusals of authenticated callers, "
        "approvals, tasks and administrative acts always have a row each.",
    )
