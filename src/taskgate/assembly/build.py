"""Build an app from a configuration and a store. Nothing is started here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taskgate.access.authorize import Authorizer
from taskgate.access.open_responses import OpenResponses
from taskgate.assembly import scripts
from taskgate.assembly.audit_keeper import audit_keeper
from taskgate.assembly.channels import Outbound
from taskgate.assembly.identity import build_credentials, build_verifier
from taskgate.assembly.listener import arrivals_by, guard
from taskgate.assembly.places import Places
from taskgate.assembly.plan import build_plan
from taskgate.assembly.replicas import Replicas
from taskgate.assembly.server_accounts import ServerAccounts
from taskgate.assembly.stores import store_path
from taskgate.config.load import LoadedConfig
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.gateway.events import CredentialsChanged, EventHub, TemporaryScopesChanged
from taskgate.gateway.plan import Live
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.wiring.foundation import foundation
from taskgate.gateway.wiring.gateway import wire_gateway
from taskgate.held_folder import HeldFolder
from taskgate.inbound.http.internal_listener import InternalSocket
from taskgate.inbound.peer_user import local_principal
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.operating_system import own_user
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing
from taskgate.assembly.app import App
from taskgate.assembly.keys import Keys, fresh_keys
from taskgate.assembly.server_specs import ServerFactory, intake_within, server_specs


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
    """`local`: the only caller is the client that started this gateway. `store_file` replaces the configured store."""
    log.hide(loaded.secret_values.text)
    keys, outbound = keys or fresh_keys(), Outbound()
    verifier = build_verifier(loaded.root, outbound)
    plan = build_plan(loaded)
    http = HttpClient(max_response_bytes=plan.limits.result_bytes, max_event_bytes=plan.limits.result_bytes)
    reaper, intake = Reaper(), intake_within(plan.limits)
    metrics = Metrics(tracing.current_trace if tracing is not None else None)
    owner = local_principal(own_user()) if local else ANONYMOUS
    address = PublicAddress(Live(plan))
    accounts = ServerAccounts(outbound, loaded, keys.secret, address.base)
    places = Places(loaded, lambda known: server_specs(known, accounts, owner), keys.secret)
    factory = ServerFactory(
        specs=server_specs(loaded, accounts, owner), http=http, reaper=reaper, intake=intake, places=places
    )
    rows = store.shared if internal is not None else None
    base = foundation(
        address,
        store,
        metrics,
        seal_key=keys.secret,
        tracing=tracing,
        session_rows=rows,
        interpreter=scripts.interpreter(),
    )
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
        loaded=loaded,
        plan=plan,
        gateway=gateway,
        servers=factory.servers,
        http=http,
        reaper=reaper,
        authorizer=authorizer,
        responses=open_responses(authorizer, store, base.events),
        store=store,
        metrics=metrics,
        keys=keys,
        intake=intake,
        local=local,
        owner=owner,
        places=places,
        audit=audit_keeper(loaded, store, keys.secret, store_file or store_path(loaded)),
        outbound=outbound,
        verifier=verifier,
        accounts=accounts,
        replicas=Replicas(store, base.budgets, metrics),
        internal=internal,
        state=state,
    )


def open_responses(authorizer: Authorizer, store: Store, events: EventHub) -> OpenResponses:
    """Return the registry of open responses. Each is authorized again whenever credentials, roles or scopes change."""
    responses = OpenResponses(authorizer, shared_store=store.revisions is not None)
    events.subscribe(CredentialsChanged, lambda _: responses.recheck())
    events.subscribe(TemporaryScopesChanged, lambda _: responses.recheck())
    return responses
