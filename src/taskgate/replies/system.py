"""The state of the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from taskgate.replies.fields import about


class StoreStatus(Struct, frozen=True, kw_only=True):
    """The store of the gateway."""

    owner: Annotated[str, about("name of this gateway in the store")]
    problem: Annotated[str | None, about("why the store is unavailable")]
    trouble: Annotated[str | None, about("deprecated name of `problem`")]


class ReplicaRow(Struct, frozen=True, kw_only=True):
    """A gateway on the same store."""

    owner: Annotated[str, about("name of the gateway")]
    address: Annotated[str, about("its address")]
    version: Annotated[str, about("its version")]
    started_ms: Annotated[int, about("time of its start, in milliseconds since 1970")]
    seen_ms: Annotated[int, about("last renewal of its lease, in milliseconds since 1970")]


class LimitInUse(Struct, frozen=True, kw_only=True):
    """A limit, and how much of it is in use."""

    limit: Annotated[str, about("key in `limits`")]
    in_use: Annotated[int, about("current number")]
    of: Annotated[int, about("limit")]


class ConfigurationState(Struct, frozen=True, kw_only=True):
    """The configuration in force."""

    path: Annotated[str | None, about("configuration file")]
    problems: Annotated[Sequence[str], about("warnings")]


class SystemState(Struct, frozen=True, kw_only=True):
    """The state of the gateway."""

    version: Annotated[str, about("version of Taskgate")]
    python: Annotated[str, about("version of Python")]
    profile: Annotated[str, about("`development` or `production`")]
    plan_revision: Annotated[int, about("number of the configuration in force; each reload increases it")]
    policy_revision: Annotated[str, about("digest of the rules in force")]
    store: StoreStatus
    replicas: Annotated[Sequence[ReplicaRow], about("gateways on the same store")]
    limits: Sequence[LimitInUse]
    configuration: ConfigurationState


class Reloaded(Struct, frozen=True, kw_only=True):
    """The reply to a reload."""

    reloaded: Annotated[bool, about("always true; a configuration with errors is status 409")]
