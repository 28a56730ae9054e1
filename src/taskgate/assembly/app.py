"""A gateway with its servers and adapters, as built from one configuration, and how a reload replaces its parts."""

from __future__ import annotations

import msgspec
from msgspec import field

from taskgate.access.authorize import Authorizer
from taskgate.access.open_responses import OpenResponses
from taskgate.assembly import scripts, shared_store
from taskgate.assembly.audit_keeper import AuditKeeper
from taskgate.assembly.channels import Outbound, build_channels
from taskgate.assembly.identity import build_credentials, build_verifier, close_verifiers
from taskgate.assembly.keys import Keys
from taskgate.assembly.listener import arrivals_by, guard
from taskgate.assembly.places import Places
from taskgate.assembly.plan import build_plan
from taskgate.assembly.replicas import Replicas
from taskgate.assembly.server_accounts import ServerAccounts
from taskgate.assembly.server_specs import server_specs
from taskgate.config.load import LoadedConfig
from taskgate.core.errors import TaskgateError
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.plan import Plan
from taskgate.held_folder import HeldFolder
from taskgate.identity.verifier import Verifier
from taskgate.inbound.http.hop import hop_key
from taskgate.inbound.http.internal_listener import InternalSocket
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.approval_channel import ApprovalChannel
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.server import Server


class App(msgspec.Struct, eq=False):
    """A complete gateway that is not open yet."""

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
    """The socket on which other gateways on the same store reach this one."""
    state: HeldFolder | None
    """The state folder, if this gateway has one."""
    retired: list[Server] = field(default_factory=list)
    retired_verifiers: list[Verifier | None] = field(default_factory=list)

    @property
    def hop_key(self) -> bytes | None:
        return hop_key(self.keys.secret) if self.internal is not None else None

    def reload(self, loaded: LoadedConfig) -> None:
        """Apply a new configuration. Servers that did not change keep their sessions."""
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
            # A new verifier: cached credentials may have been verified by rules that no longer apply.
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
        if self.store.revisions is not None:
            self.store.reconfigured(shared_store.configuration_digest(loaded), scripts.version_for(loaded.root))
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
        """Create the approval channels; called when the address for their callbacks is known."""
        base = self.gateway.configuration.address.base()
        self.gateway.configuration.announcer.adopt(self._channels(self.loaded.root, base))

    async def forget_audit(self, portions: int) -> bool:
        """Delete up to that many portions of audit rows older than `audit.keep`; return whether there may be more."""
        keep = self.loaded.root.audit.keep
        return keep is not None and await self.audit.forget(round(keep * 1000), portions)

    async def close_store(self) -> None:
        """Anchor the audit log and close the store, as the last step."""
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
