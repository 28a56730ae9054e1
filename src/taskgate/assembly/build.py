"""Put the parts together: a configuration in, a gateway with its servers and endpoints out. Nothing is started here."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from taskgate import clock
from taskgate.access.authorize import Authorizer
from taskgate.access.open_responses import OpenResponses
from taskgate.assembly import shared_store
from taskgate.assembly.audit_keeper import AuditKeeper, audit_keeper
from taskgate.assembly.governing import Outbound, build_channels
from taskgate.assembly.identity import (
    ServerAccounts,
    arrivals_by,
    build_credentials,
    build_verifier,
    check_exposure,
    close_verifiers,
    guard,
)
from taskgate.assembly.places import Places
from taskgate.assembly.plan import build_plan, build_tracing
from taskgate.assembly.shared_store import AS_CONFIGURED, Replicas, Start
from taskgate.assembly.stores import claimed_store_path, store_path
from taskgate.atomic_files import remove_abandoned
from taskgate.config.load import LoadedConfig
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.servers import Server as ServerConfig
from taskgate.config.model.store import keys_of
from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.generations.generation import generation_of
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.core.redaction.sent_secrets import configured_secrets
from taskgate.core.wire import MessageReader, Raw
from taskgate.gateway.dynamic_servers import NewServer
from taskgate.gateway.events import CredentialsChanged, EventHub, TemporaryScopesChanged
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.plan import Limits, Live, Plan, PublicAddress
from taskgate.gateway.wiring import wire_gateway
from taskgate.gateway.wiring_parts import foundation
from taskgate.held_folder import HeldFolder
from taskgate.identity.verifier import Verifier
from taskgate.inbound.gateway_secrets import gateway_secret, operator_token, stored_passphrase
from taskgate.inbound.http.hop import hop_key
from taskgate.inbound.http.internal_listener import InternalSocket
from taskgate.inbound.peer_user import local_principal
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.approval_channel import ApprovalChannel
from taskgate.ports.store import Store
from taskgate.ports.upstream import Link, LinkKey, Listener, UpstreamCall
from taskgate.store.sqlite.file_lock import StoreInUse
from taskgate.store.sqlite.store import open_store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.server import Server
from taskgate.upstreams.spec import Instances, ServerSpec, Transport

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

MOST_STDIO_STORES = 64


class Unheard:
    """A listener for servers that are only looked at: nobody is there to be told or asked."""

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        return None

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        return not_supported(question.method)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None:
        return None

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ServerFactory:
    """Makes upstreams of configured servers and of those that callers bring along, all over the same means."""

    specs: Mapping[str, ServerSpec]
    http: HttpClient
    reaper: Reaper
    intake: Intake
    places: Places
    servers: dict[str, Server] = field(default_factory=dict)
    """Those of the configuration that have been made."""

    def configured(self, listener: Listener) -> dict[str, Server]:
        self.servers.update({name: self.make(spec, listener) for name, spec in self.specs.items()})
        return self.servers

    def added(self, new: NewServer, listener: Listener) -> Server:
        return self.make(guest_spec(new), listener)

    def make(self, spec: ServerSpec, listener: Listener) -> Server:
        return Server(spec, listener, self.http, self.reaper, self.intake, spec_at=self.places.spec)


@dataclass(frozen=True, slots=True)
class Keys:
    """What proves that somebody is the operator, and what signs what we hand out."""

    operator_token: str = field(repr=False)
    secret: bytes = field(repr=False)
    passphrase: str | None = field(default=None, repr=False)
    """The hash of the passphrase that approvals by the operator need, if one was set."""


def fresh_keys() -> Keys:
    """Keys for a app that is never opened, or that lives only as long as its process."""
    return Keys(secrets.token_urlsafe(32), secrets.token_bytes(32))


@dataclass(slots=True)
class App:
    """A whole gateway, ready to be opened."""

    loaded: LoadedConfig
    plan: Plan
    gateway: Gateway
    servers: dict[str, Server]
    http: HttpClient
    reaper: Reaper
    authorizer: Authorizer
    responses: OpenResponses
    store: Store
    metrics: Metrics
    keys: Keys
    intake: Intake
    local: bool
    owner: str
    places: Places
    audit: AuditKeeper
    outbound: Outbound
    verifier: Verifier | None
    accounts: ServerAccounts
    replicas: Replicas
    internal: InternalSocket | None
    """Where other gateways on the same store reach this one."""
    state: HeldFolder | None
    """The state folder, where this gateway has one."""
    retired: list[Server] = field(default_factory=list)
    retired_verifiers: list[Verifier | None] = field(default_factory=list)

    @property
    def hop_key(self) -> bytes | None:
        return hop_key(self.keys.secret) if self.internal is not None else None

    def reload(self, loaded: LoadedConfig) -> None:
        """Put a new configuration in force. Servers that did not change keep their conversations."""
        plan = build_plan(loaded, self.plan)
        channels = None
        if loaded.root.approval != self.loaded.root.approval:
            channels = self._channels(loaded.root, self.gateway.configuration.address.base(plan))
        specs = server_specs(loaded, self.accounts, self.owner)
        fresh: dict[str, Server] = {}
        changed: set[str] = set()
        for name, spec in specs.items():
            known = self.servers.get(name)
            if known is not None and known.spec.is_same_server(spec):
                fresh[name] = known
                known.adopt(spec)
            else:
                fresh[name] = Server(
                    spec,
                    self.gateway.configuration.listener,
                    self.http,
                    self.reaper,
                    self.intake,
                    spec_at=self.places.spec,
                )
                changed.add(name)
        self.retired.extend(server for name, server in self.servers.items() if fresh.get(name) is not server)
        verifier = self.verifier
        if loaded.root.auth != self.loaded.root.auth:
            # Verified anew: what was remembered may have been verified by rules that are gone.
            self.retired_verifiers.append(verifier)
            verifier = self.verifier = build_verifier(loaded.root, self.outbound)
        self.loaded, self.plan, self.servers = loaded, plan, fresh
        log.hide_also(loaded.secret_values.text)
        self.places.adopt(loaded)
        self.accounts.adopt(loaded.root)
        scope_of_token = self.gateway.configuration.temporary_scopes.scope_of_token
        credentials = build_credentials(
            loaded.root,
            self.keys.operator_token,
            verifier,
            scope_of_token,
            self.gateway.configuration.people,
            local=self.local,
        )
        self.intake.adopt(plan.limits.result_bytes, plan.limits.json_depth, plan.limits.json_nodes)
        self.http.set_max_reply_bytes(plan.limits.result_bytes)
        self.gateway.configuration.adopt(plan, fresh, frozenset(changed))
        self.authorizer.adopt(credentials, arrivals_by(loaded.root), guard(loaded.root))
        self.responses.recheck()
        self.store.reconfigured(shared_store.configuration_digest(loaded))
        if channels is not None:
            self.gateway.configuration.announcer.adopt(channels)

    def _channels(self, root: GatewayFile, base: str) -> dict[str, tuple[ApprovalChannel, ...]]:
        return build_channels(
            root,
            base,
            self.outbound,
            passphrase_set=self.keys.passphrase is not None,
            now_s=lambda: self.store.now_ms() / 1000,
        )

    def open_channels(self) -> None:
        """Once the address is known under which answers may come back."""
        base = self.gateway.configuration.address.base()
        self.gateway.configuration.announcer.adopt(self._channels(self.loaded.root, base))

    async def forget_audit(self, portions: int) -> bool:
        """Forget so many portions of the audit rows past `audit.keep`; whether there may be more."""
        keep = self.loaded.root.audit.keep
        return keep is not None and await self.audit.forget(int(keep.total_seconds() * 1000), portions)

    async def close_store(self) -> None:
        """The last thing: what was written until now is anchored, then nothing is written any more."""
        try:
            await self.audit.close()
        except (OSError, TaskgateError) as problem:
            log.error("the end of the audit log could not be anchored", why=str(problem))
        await self.store.close()
        if self.state is not None:
            self.state.close()

    async def close_retired(self) -> None:
        retired, self.retired = self.retired, []
        for server in retired:
            await server.close()
        verifiers, self.retired_verifiers = self.retired_verifiers, []
        await close_verifiers(verifiers)

    async def close_identity(self) -> None:
        await close_verifiers([self.verifier])


def build(
    loaded: LoadedConfig,
    store: Store,
    keys: Keys | None = None,
    *,
    tracing: Tracing | None = None,
    local: bool = False,
    store_file: Path | None = None,
    internal: InternalSocket | None = None,
    state: HeldFolder | None = None,
) -> App:
    """`local`: the only caller is whoever started this gateway. `store_file`: where the store is, if not where it is configured."""
    log.hide(loaded.secret_values.text)
    keys, outbound = keys or fresh_keys(), Outbound()
    verifier = build_verifier(loaded.root, outbound)
    plan = build_plan(loaded)
    http = HttpClient(max_response_bytes=plan.limits.result_bytes, max_event_bytes=plan.limits.result_bytes)
    reaper, metrics, intake = Reaper(), Metrics(), intake_within(plan.limits)
    owner = local_principal(os.geteuid()) if local else ANONYMOUS
    address = PublicAddress(Live(plan))
    accounts = ServerAccounts(outbound, loaded, keys.secret, address.base)
    places = Places(loaded, lambda known: server_specs(known, accounts, owner), keys.secret)
    factory = ServerFactory(server_specs(loaded, accounts, owner), http, reaper, intake, places)
    rows = store.sessions if internal is not None else None
    base = foundation(address, store, metrics, seal_key=keys.secret, tracing=tracing, session_rows=rows)
    gateway = wire_gateway(base, factory, accounts.connector, local=local)
    credentials = build_credentials(
        loaded.root,
        keys.operator_token,
        verifier,
        gateway.configuration.temporary_scopes.scope_of_token,
        gateway.configuration.people,
        local=local,
    )
    authorizer = Authorizer(gateway.access, credentials, arrivals_by(loaded.root), guard(loaded.root))
    return App(
        loaded,
        plan,
        gateway,
        factory.servers,
        http,
        reaper,
        authorizer,
        open_responses(authorizer, store, base.events),
        store,
        metrics,
        keys,
        intake,
        local,
        owner,
        places,
        audit_keeper(loaded, store, keys.secret, store_file or store_path(loaded)),
        outbound,
        verifier,
        accounts,
        Replicas(store, base.budgets, metrics),
        internal,
        state,
    )


def open_responses(authorizer: Authorizer, store: Store, events: EventHub) -> OpenResponses:
    """Return the registry of open responses. Each is authorized again whenever credentials, roles or scopes change."""
    responses = OpenResponses(authorizer, shared_store=store.revisions is not None)
    events.subscribe(CredentialsChanged, lambda _: responses.recheck())
    events.subscribe(TemporaryScopesChanged, lambda _: responses.recheck())
    return responses


def intake_within(limits: Limits) -> Intake:
    return Intake(limits.result_bytes, MessageReader(limits.json_depth, limits.json_nodes))


def server_specs(loaded: LoadedConfig, accounts: ServerAccounts, owner: str = ANONYMOUS) -> Mapping[str, ServerSpec]:
    """How each server is reached or started; `owner` is whose processes list what it offers."""
    return {
        name: replace(_spec(name, server, loaded), owner=owner, credentials=accounts.of(name, server))
        for name, server in loaded.root.servers.items()
        if server.enabled
    }


def guest_spec(new: NewServer) -> ServerSpec:
    """A server that a caller brought along."""
    transport = Transport.STDIO if new.command is not None else Transport.HTTP
    return ServerSpec(
        new.name,
        transport,
        new.url or "",
        dict(new.headers),
        new.command or "",
        new.args,
        dict(new.env),
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
        name,
        transport,
        server.url or "",
        dict(server.headers),
        server.command or "",
        tuple(server.args),
        dict(server.env),
        server.cwd,
        Instances(server.instances),
        None if server.generation == "auto" else generation_of(server.generation),
        keeps_questions=server.questions == "inbox",
        asks_models=server.sampling == "provider" and bool(loaded.root.providers),
        restart_limit=server.restart.limit,
        restart_within_s=server.restart.within.total_seconds(),
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


def keys_in(state_dir: Path) -> Keys:
    """The keys of this installation, made if they are not there yet."""
    remove_abandoned(state_dir, clock.wall())
    return Keys(operator_token(state_dir), gateway_secret(state_dir), stored_passphrase(state_dir))


def open_house(loaded: LoadedConfig, *, local: bool = False, start: Start = AS_CONFIGURED) -> App:
    """Build on the configured store: a file, whose lock only one process may have, or a database that gateways share."""
    keys, url, anchored, internal = keys_in(loaded.state_dir), shared_store.shared_url(loaded), None, None
    if url is None:
        store: Store = open_store(claimed_store_path(loaded), keys=keys_of(loaded.root.store))
    else:
        keys = Keys(*shared_store.agreed_keys(loaded, url, keys.operator_token, keys.secret))
        internal = shared_store.bound_for_others(loaded)
        store = shared_store.open_shared(loaded, url, internal, start)
        anchored = loaded.state_dir / f"audit-{store.ownership.owner}"
    tracing, state = build_tracing(loaded.root), HeldFolder(loaded.state_dir)
    return build(loaded, store, keys, tracing=tracing, local=local, store_file=anchored, internal=internal, state=state)


def open_stdio_house(loaded: LoadedConfig) -> App:
    """The same for a gateway that a client starts: several may run at once, so each takes the first store that is free."""
    if loaded.root.store is not None:
        return open_house(loaded, local=True)
    for number in range(1, MOST_STDIO_STORES + 1):
        file = loaded.state_dir / f"stdio-{number}.db"
        try:
            store = open_store(file)
        except StoreInUse:
            continue
        keys, tracing, state = keys_in(loaded.state_dir), build_tracing(loaded.root), HeldFolder(loaded.state_dir)
        return build(loaded, store, keys, tracing=tracing, local=True, store_file=file, state=state)
    raise GatewayFault(
        "store_unavailable", f"{MOST_STDIO_STORES} gateways of this kind are running already; stop some."
    )


def build_for_check(loaded: LoadedConfig) -> int:
    """Everything that `serve` would build, on a store that is thrown away; the number of servers.

    Raises ConfigError, TaskgateError or OSError, as the start would.
    """
    shared_store.check_configured(loaded)
    check_exposure(loaded.root, loaded.root.listen.host)
    with TemporaryDirectory(prefix="taskgate-check-") as folder:
        store = open_store(Path(folder) / "check.db")

        async def construct() -> int:
            outbound = Outbound()
            try:
                tracing = build_tracing(loaded.root)
                app = build(loaded, store, tracing=tracing, store_file=Path(folder) / "check.db")
                build_channels(loaded.root, "http://127.0.0.1", outbound, passphrase_set=False, now_s=clock.wall)
                if tracing is not None:
                    await asyncio.to_thread(tracing.close)
                return len(app.servers)
            finally:
                await outbound.close()
                await store.close()

        return asyncio.run(construct())
