"""Build gates, policies, workflows and approvers from the governance section of a configuration."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from taskgate.config.files import read_text
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.catalog.pin import PinMode
from taskgate.core.digest import digest_of_bytes
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.pipeline import EnforcementProfile, Gates, UnknownWorkflow, check_workflows
from taskgate.core.governance.rules import RuleSet, compile_rules
from taskgate.core.governance.visibility import ExposeMode, Layers, expose
from taskgate.core.governance.workflow import OnTimeout, Workflow
from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.identity.identity import principal_name
from taskgate.core.identity.roles import GATEWAY_ROLES, OWNER_ROLES
from taskgate.core.patterns import PatternSet
from taskgate.core.redaction.fields import compile_redaction
from taskgate.core.scoping.registry import ApprovalDemand, ApprovalPolicy
from taskgate.core.settings.approval import ElicitationChannel
from taskgate.core.settings.approval import Workflow as WorkflowConfig
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.governance import Governance, Record
from taskgate.core.settings.section import as_written
from taskgate.core.settings.servers import Server
from taskgate.core.strict_json import canonical
from taskgate.gateway.governing import Elicits, Governing, KnownToken, RecordSettings
from taskgate.inbound.peer_user import local_principal
from taskgate.operating_system import own_user
from taskgate.ports.policy_engine import PolicyEngine

_MAX_POLICY_BYTES = 4 * 1024 * 1024


def build_gates(root: GatewayFile, policy: PolicyEngine | None) -> Gates:
    governance = root.governance
    visibility = Layers(
        {
            name: (expose(ExposeMode(server.expose.mode), server.expose.tools),)
            for name, server in root.servers.items()
            if server.expose.mode != "all"
        }
    )
    records = {name: approval_policy(server) for name, server in root.servers.items()}
    workflows = {name: _workflow(name, workflow) for name, workflow in root.approval.items()}
    revision, profile = _revision(root, policy), EnforcementProfile(root.profile)
    gates = Gates(
        revision,
        rules=_rules(governance),
        visibility=visibility,
        records=records,
        workflows=workflows,
        profile=profile,
        tags={name: frozenset(server.tags) for name, server in root.servers.items() if server.tags},
    )
    try:
        check_workflows(gates, policy.workflows() if policy is not None else None)
    except UnknownWorkflow as error:
        raise ConfigError(
            [
                Problem(
                    file="configuration",
                    line=0,
                    column=0,
                    key="approval",
                    message=str(error),
                    hint="name a workflow of `approval`",
                )
            ]
        ) from None
    return gates


def _rules(governance: Governance) -> RuleSet:
    return compile_rules(
        governance.rules,
        default=governance.defaults.action,
        default_workflow=governance.defaults.approval,
        force_required=governance.force_required,
    )


def approval_policy(server: Server) -> ApprovalPolicy:
    requested_values = server.approval_policy
    per_tool = tuple(
        (PatternSet.of([pattern]), ApprovalDemand(word)) for pattern, word in requested_values.tools.items()
    )
    return ApprovalPolicy(ApprovalDemand(requested_values.default), per_tool, requested_values.approval)


def build_governing(root: GatewayFile, policy: PolicyEngine | None) -> Governing:
    names = principal_names(root)
    _refuse_reserved(names)
    roles = {names[token.id]: frozenset(token.roles) for token in root.tokens}
    people = _people(root)
    calling = {names[token.id]: token.may_call for token in root.tokens}
    approvers = {
        name: Approver(name, owned, calling[name], identities=people.get(name, frozenset()))
        for name, owned in roles.items()
        if owned & GATEWAY_ROLES
    }
    approvers[OPERATOR] = Approver(OPERATOR, OWNER_ROLES, identities=people.get(OPERATOR, frozenset()))
    return Governing(
        policy=policy,
        approvers=approvers,
        roles=roles,
        redactions={name: compile_redaction(workflow.redact_fields) for name, workflow in root.approval.items()},
        elicits=_elicits(root.approval),
        grants=root.governance.grants.enabled,
        longest_grant_ms=round(root.governance.grants.longest * 1000),
        pins=PinMode.ENFORCE if root.pins == "strict" else PinMode(root.pins),
        pin_new_tools=root.pins == "strict",
        public_url=str(root.public_url).rstrip("/") if root.public_url is not None else None,
        tokens=tuple(
            KnownToken(
                id=token.id,
                principal=names[token.id],
                roles=roles[names[token.id]],
                sha256=token.sha256.lower(),
                expires_ms=None if token.expires is None else int(token.expires.timestamp() * 1000),
            )
            for token in root.tokens
        ),
        token_ids={name: token for token, name in names.items()},
        people=people,
        record=_record(root.governance.record),
        operators_own=_operators_own(root),
        principals=frozenset(names.values())
        | {principal_name(each.tenant or "", each.id) for each in root.auth.certificates},
    )


def _operators_own(root: GatewayFile) -> frozenset[str]:
    """Return whether all callers are programs of the operator: without identities and `auth: none`, only this machine is served."""
    local = not root.requires_identity and not root.auth.none
    return frozenset({ANONYMOUS, local_principal(own_user())}) if local else frozenset()


def principal_names(root: GatewayFile) -> dict[str, str]:
    """Return the name of the principal of each token, by the token's id."""
    return {token.id: principal_name(token.tenant or "", token.id) for token in root.tokens}


def _people(root: GatewayFile) -> dict[str, frozenset[str]]:
    """Return all identities of a person for each of them, as names of principals."""
    names = principal_names(root)
    known = [frozenset(names.get(each, each) for each in identities) for identities in root.people.values()]
    return {identity: identities for identities in known for identity in identities}


def _record(record: Record | None) -> RecordSettings | None:
    if record is None:
        return None
    keep_ms = round(record.keep * 1000)
    return RecordSettings(record.sample, keep_ms, compile_redaction(record.redact))


def load_policy(root: GatewayFile) -> PolicyEngine | None:
    """Load the Cedar policies, if there are any. Problems name file and line. The engine is imported only if it is used."""
    if not root.cedar.policies:
        return None
    from taskgate.policy.cedar import BadPolicy, load_cedar
    from taskgate.policy.cedar_statements import PolicyFile

    files = [PolicyFile(path, read_text(Path(path), _MAX_POLICY_BYTES)) for path in root.cedar.policies]
    try:
        return load_cedar(files, _entities(root.cedar.entities))
    except BadPolicy as error:
        raise ConfigError([_placed(problem) for problem in error.problems]) from None


def _placed(problem: str) -> Problem:
    """Parse a message of the engine: `file:line: text`."""
    place, separator, text = problem.partition(": ")
    file, _, line = place.rpartition(":")
    if separator and line.isdigit():
        return Problem(
            file=file, line=int(line), column=1, key="cedar.policies", message=text, hint="correct the policy"
        )
    return Problem(
        file="configuration",
        line=0,
        column=0,
        key="cedar",
        message=problem,
        hint="correct the policies or the entities",
    )


def _entities(path: str | None) -> list[Mapping[str, Any]]:
    if path is None:
        return []
    text = read_text(Path(path), _MAX_POLICY_BYTES)
    hint = "it must hold a list of Cedar entities, each with uid, attrs and parents"
    try:
        entities = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            [Problem(file=path, line=1, column=1, key="cedar.entities", message=f"is not JSON: {error}", hint=hint)]
        ) from None
    if not isinstance(entities, list) or not all(isinstance(e, dict) and "uid" in e for e in entities):
        raise ConfigError(
            [Problem(file=path, line=1, column=1, key="cedar.entities", message="is not a list of entities", hint=hint)]
        )
    return entities


def _revision(root: GatewayFile, policy: PolicyEngine | None) -> str:
    """Return a digest of everything that can change a decision; the same after a restart with the same files."""
    body = {
        "profile": root.profile,
        "governance": as_written(root.governance),
        "approval": {
            name: {key: value for key, value in as_written(workflow).items() if key != "channels"}
            for name, workflow in sorted(root.approval.items())
        },
        "records": {name: as_written(s.approval_policy) for name, s in sorted(root.servers.items())},
        "expose": {name: as_written(s.expose) for name, s in sorted(root.servers.items())},
        "policy": policy.revision if policy is not None else "",
    }
    return digest_of_bytes(canonical(body)).removeprefix("sha256:")[:16]


def _workflow(name: str, workflow: WorkflowConfig) -> Workflow:
    return Workflow(
        name=name,
        timeout_ms=round(workflow.timeout * 1000),
        approvals_needed=workflow.approvals_needed,
        approvers=tuple(workflow.approvers),
        self_approval=workflow.self_approval,
        on_timeout=OnTimeout.APPROVE if workflow.unsafe_on_timeout == "approve" else OnTimeout.DENY,
        redact_fields=tuple(workflow.redact_fields),
        channels=tuple(channel.type for channel in workflow.channels),
        decision_valid_ms=round(workflow.decision_valid_for * 1000),
        max_auth_age_s=None if workflow.max_auth_age is None else int(workflow.max_auth_age),
    )


def _elicits(workflows: Mapping[str, WorkflowConfig]) -> dict[str, Elicits]:
    return {
        name: Elicits(channel.mode)
        for name, workflow in workflows.items()
        for channel in workflow.channels
        if isinstance(channel, ElicitationChannel)
    }


def _refuse_reserved(ids: Collection[str]) -> None:
    for name in (OPERATOR, ANONYMOUS):
        if name in ids:
            message = f'the id "{name}" is taken by Taskgate itself'
            raise ConfigError(
                [
                    Problem(
                        file="configuration",
                        line=0,
                        column=0,
                        key="tokens",
                        message=message,
                        hint="give this token another id",
                    )
                ]
            )
