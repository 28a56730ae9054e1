"""Configuration of upstream servers: how each is reached or started, and the objects made from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import field
from msgspec.structs import replace

from taskgate.assembly.places import Places
from taskgate.assembly.server_accounts import ServerAccounts
from taskgate.config.load import LoadedConfig
from taskgate.core.errors import TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.generations.generation import generation_of
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.core.redaction.sent_secrets import configured_secrets
from taskgate.core.settings.limits import Limits
from taskgate.core.settings.servers import Server as ServerConfig
from taskgate.core.wire import MessageReader, Raw
from taskgate.gateway.dynamic_servers import NewServer
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.link import Link, LinkKey, Listener
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.server import Server
from taskgate.upstreams.spec import Instances, ServerSpec, Transport


class NullListener:
    """A listener that ignores notifications and refuses requests, for servers that are only listed."""

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        return None

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        return not_supported(question.method)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None:
        return None

    def on_session_ended(self, server: str, version: str, seconds: float, error_type: str) -> None:
        return None

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        return None


class ServerFactory(msgspec.Struct, frozen=True):
    """Creates upstreams for configured servers and for those that callers add, with shared clients and settings."""

    specs: Mapping[str, ServerSpec]
    http: HttpClient
    reaper: Reaper
    intake: Intake
    places: Places
    servers: dict[str, Server] = field(default_factory=dict)
    """The configured servers that have been created."""

    def configured(self, listener: Listener) -> dict[str, Server]:
        self.servers.update({name: self.make(spec, listener) for name, spec in self.specs.items()})
        return self.servers

    def added(self, new: NewServer, listener: Listener) -> Server:
        return self.make(added_server_spec(new), listener)

    def make(self, spec: ServerSpec, listener: Listener) -> Server:
        return Server(spec, listener, self.http, self.reaper, self.intake, spec_at=self.places.spec)


def intake_within(limits: Limits) -> Intake:
    return Intake(limits.result_bytes, MessageReader(limits.json_depth, limits.json_nodes))


def server_specs(loaded: LoadedConfig, accounts: ServerAccounts, owner: str = ANONYMOUS) -> Mapping[str, ServerSpec]:
    """Return how each server is reached or started; `owner` names the conversation whose processes list its tools."""
    return {
        name: replace(_spec(name, server, loaded), owner=owner, credentials=accounts.of(name, server))
        for name, server in loaded.root.servers.items()
        if server.enabled
    }


def added_server_spec(new: NewServer) -> ServerSpec:
    """Return the settings of a server that a caller added."""
    transport = Transport.STDIO if new.command is not None else Transport.HTTP
    return ServerSpec(
        id=new.name,
        transport=transport,
        url=new.url or "",
        headers=dict(new.headers),
        command=new.command or "",
        args=new.args,
        env=dict(new.env),
        public_only=True,
        hide=str,
        sent_secrets=configured_secrets(
            url=new.url or "", headers=new.headers, env=new.env, args=new.args, referenced=()
        ),
    )


def _spec(name: str, server: ServerConfig, loaded: LoadedConfig) -> ServerSpec:
    if server.command is not None:
        transport = Transport.STDIO
    else:
        transport = Transport.OLD_SSE if server.transport == "sse" else Transport.HTTP
    return ServerSpec(
        id=name,
        transport=transport,
        url=server.url or "",
        headers=dict(server.headers),
        command=server.command or "",
        args=tuple(server.args),
        env=dict(server.env),
        cwd=server.cwd,
        instances=Instances(server.instances),
        generation=None if server.generation == "auto" else generation_of(server.generation),
        keeps_questions=server.questions == "inbox",
        uses_models=server.sampling == "provider" and bool(loaded.root.providers),
        restart_limit=server.restart.limit,
        restart_within_s=server.restart.within,
        own_links=loaded.root.limits.instances_per_server,
        hide=loaded.secret_values.text,
        sent_secrets=configured_secrets(
            url=server.url or "",
            headers=server.headers,
            env=server.env,
            args=server.args,
            referenced=loaded.secret_values.values,
        ),
    )
