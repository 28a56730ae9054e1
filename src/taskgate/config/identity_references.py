"""Check who is named in a configuration: tokens, certificates, approvers, requirements of scopes, and people.

What an issuer puts into its tokens is not known, so with one, unknown groups are no mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from taskgate.config.cross_references import References, each, glob_of
from taskgate.config.problems import Mark, did_you_mean, one_of, problem_at
from taskgate.config.tree import Entry, Mapping, Node, text_of
from taskgate.core.governance.approval import GROUP_PREFIX, ROLE_PREFIX
from taskgate.core.identity.identity import principal_name, tenant_of
from taskgate.core.identity.roles import GATEWAY_ROLES, Permission, allows, groups_in

_SLACK = "slack:"


class _Holder(msgspec.Struct, frozen=True):
    """A token or a client certificate of the configuration."""

    key: str
    mark: Mark
    name: str
    """The principal: with a tenant, the id follows it."""
    roles: tuple[tuple[str, Node, str], ...]
    """Each role with its node and key."""
    scope: Entry | None

    @property
    def role_names(self) -> frozenset[str]:
        return frozenset(role for role, _, _ in self.roles)

    @property
    def may_decide(self) -> bool:
        return allows(self.role_names, Permission.DECIDE)


def check_identities(found: References) -> None:
    """Add all references of tokens, certificates, approvers and people to what does not exist, and all contradictions."""
    scopes = found.root.map("scopes").entries
    seen: dict[tuple[str, str], int] = {}
    for position, token in enumerate(found.root.list("tokens")):
        if not isinstance(token, Mapping):
            continue
        key = f"tokens[{position}]"
        scope = token.text("scope")
        if scope is not None and scope not in scopes:
            found.unknown(token.entries["scope"].value.mark, f"{key}.scope", "scope", scope, list(scopes))
        for name in ("id", "sha256"):
            reference = (token.text(name) or "").lower()
            if reference and seen.setdefault((name, reference), position) != position:
                mark = token.entries[name].value.mark
                found.problems.append(problem_at(mark, f"{key}.{name}", "is used by two tokens", "give each its own"))
    _check_auth(found)
    holders = _holders(found.root)
    _check_scope_of_holders(found, holders)
    _check_approvers(found, holders)
    _check_requirements(found, holders)
    _check_roles(found, holders)
    _check_people(found)


def _check_auth(found: References) -> None:
    auth = found.root.map("auth")
    scopes = list(found.root.map("scopes").entries) or ["default"]
    scope = auth.text("anonymous")
    if scope is not None and scope not in scopes:
        found.unknown(auth.entries["anonymous"].value.mark, "auth.anonymous", "scope", scope, scopes)
    issuers = [each.text("issuer") for each in auth.list("jwt") if isinstance(each, Mapping)]
    if len(issuers) != len(set(issuers)):
        hint = "write each issuer once, with all its audiences and algorithms"
        found.problems.append(problem_at(auth.entries["jwt"].key_mark, "auth.jwt", "names an issuer twice", hint))


def _holders(root: Mapping) -> list[_Holder]:
    lists = (("tokens", root.list("tokens")), ("auth.certificates", root.map("auth").list("certificates")))
    return [
        _holder(node, f"{key}[{position}]")
        for key, nodes in lists
        for position, node in enumerate(nodes)
        if isinstance(node, Mapping)
    ]


def _holder(node: Mapping, key: str) -> _Holder:
    name = principal_name(node.text("tenant") or "", node.text("id") or "")
    roles = ((text_of(role) or "", role, where) for role, where in each(node.get("roles"), f"{key}.roles"))
    return _Holder(key=key, mark=node.mark, name=name, roles=tuple(roles), scope=node.entries.get("scope"))


def _has_issuer(root: Mapping) -> bool:
    auth = root.map("auth")
    return bool(auth.list("jwt")) or any(isinstance(auth.get(key), Mapping) for key in ("login", "introspection"))


def _check_scope_of_holders(found: References, holders: Iterable[_Holder]) -> None:
    """Warn about credentials that open nothing. An unknown scope of a token is an error."""
    scopes = found.root.map("scopes")
    for holder in holders:
        name = text_of(holder.scope.value) if holder.scope is not None else None
        if name is None or holder.scope is None or (holder.key.startswith("tokens") and name not in scopes.entries):
            continue
        key, mark = f"{holder.key}.scope", holder.scope.value.mark
        if name not in (scopes.entries or ("default",)):
            found.unknown(mark, key, "scope", name, list(scopes.entries) or ["default"], lenient=True)
        elif (scopes.map(name).text("enabled") or "").lower() in ("false", "no", "off"):
            message = f'the scope "{name}" is disabled, so this credential opens nothing'
            found.warnings.append(problem_at(mark, key, message, "enable the scope, or remove the credential"))
        elif (groups := _required_groups(scopes.map(name))) and not groups & holder.role_names:
            message = (
                f'the scope "{name}" requires one of the groups {one_of(sorted(groups))}, and this credential has none'
            )
            found.warnings.append(problem_at(mark, key, message, f"add one to {holder.key}.roles"))


def _required_groups(scope: Mapping) -> set[str]:
    return {text_of(node) or "" for node, _ in each(scope.map("require").get("groups"), "")}


def _check_approvers(found: References, holders: list[_Holder]) -> None:
    """Warn about approvers of workflows that are no known token, group or role, or that may not decide."""
    for entry in found.root.map("approval"):
        if not isinstance(entry.value, Mapping):
            continue
        for node, where in each(entry.value.get("approvers"), f"approval.{entry.key}.approvers"):
            _check_approver(found, holders, node, where)
        for position, channel in enumerate(entry.value.list("channels")):
            users = channel.get("approvers") if isinstance(channel, Mapping) else None
            for user in users if isinstance(users, Mapping) else ():
                _check_user(found, holders, user, f"approval.{entry.key}.channels[{position}].approvers.{user.key}")


def _check_user(found: References, holders: list[_Holder], user: Entry, key: str) -> None:
    """Check the token of a Slack user. It may also be written without its tenant."""
    name = text_of(user.value) or ""
    known = [holder.name for holder in holders]
    if not _may_be_elsewhere(name) and name not in known and not any(each.endswith(f"/{name}") for each in known):
        found.unknown(user.value.mark, key, "token with the id", name, known, lenient=True)


def _may_be_elsewhere(name: str) -> bool:
    """Whether this may be the subject of an issuer, a user of this machine, or the owner of the gateway."""
    return name in ("*", "operator") or ":" in name or "#" in name


def _check_approver(found: References, holders: list[_Holder], node: Node, key: str) -> None:
    reference = text_of(node) or ""
    if reference.startswith(ROLE_PREFIX):
        what, name = "token with the role", reference.removeprefix(ROLE_PREFIX)
        known = {role for holder in holders for role in holder.role_names} | GATEWAY_ROLES
    elif reference.startswith(GROUP_PREFIX):
        what, name = "token with the group", reference.removeprefix(GROUP_PREFIX)
        known = set(groups_in(role for holder in holders for role in holder.role_names))
        if name in GATEWAY_ROLES:
            message = f'"{name}" is a role of the gateway, so no group has this name'
            found.warnings.append(problem_at(node.mark, key, message, f"write {ROLE_PREFIX}{name}"))
            return
    elif not reference or _may_be_elsewhere(reference):
        return
    else:
        what, name, known = "token with the id", reference, {holder.name for holder in holders}
    is_name = what == "token with the id"
    glob = glob_of(name)
    matching = {each for each in known if glob is not None and glob.matches(each)}
    if (not is_name or not _is_exact(name)) and _has_issuer(found.root):
        return
    with_tenant = [each for each in sorted(known) if is_name and each.endswith(f"/{name}")]
    if not matching and with_tenant:
        message = f'"{name}" belongs to a tenant, so its name is longer'
        found.warnings.append(problem_at(node.mark, key, message, f"write {with_tenant[0]}"))
    elif not matching:
        found.unknown(node.mark, key, what, name, sorted(known), lenient=True)
    elif not _any_may_decide(holders, matching, is_name=is_name):
        message = f'"{reference}" names only credentials without a role that may decide'
        hint = "add the role approver to their roles"
        found.warnings.append(problem_at(node.mark, key, message, hint))


def _any_may_decide(holders: list[_Holder], names: set[str], *, is_name: bool) -> bool:
    """Whether any holder with one of these names or roles may decide. The owner of the gateway has roles without a token."""
    if not is_name and any(allows((role,), Permission.DECIDE) for role in names):
        return True
    matching = (each for each in holders if (each.name in names if is_name else each.role_names & names))
    return any(holder.may_decide for holder in matching)


def _is_exact(text: str) -> bool:
    glob = glob_of(text)
    return glob is not None and glob.literal


def _check_requirements(found: References, holders: list[_Holder]) -> None:
    """Warn about requirements of scopes that no credential of this configuration can fulfil."""
    if _has_issuer(found.root):
        return
    known = sorted({role for holder in holders for role in holder.role_names})
    for entry in found.root.map("scopes"):
        required = entry.value.map("require") if isinstance(entry.value, Mapping) else Mapping({}, entry.key_mark)
        for node, where in each(required.get("groups"), f"scopes.{entry.key}.require.groups"):
            if (group := text_of(node)) is not None and group not in known:
                found.unknown(node.mark, where, "token with the group", group, known, lenient=True)
        for name in ("oauth_scopes", "claims"):
            if (condition := required.entries.get(name)) is not None:
                message = (
                    "only tokens of an issuer can fulfil this, and none is configured, so no caller may use the scope"
                )
                hint = "add auth.jwt or auth.introspection, or remove it"
                found.warnings.append(
                    problem_at(condition.key_mark, f"scopes.{entry.key}.require.{name}", message, hint)
                )


def _check_roles(found: References, holders: Iterable[_Holder]) -> None:
    """Warn about a group that is not used anywhere and is written like a role of the gateway: it gives no permission."""
    if "cedar" in found.root.entries:
        return
    used = set(_groups_in_use(found.root))
    for holder in holders:
        for role, node, key in holder.roles:
            if role not in used and role not in GATEWAY_ROLES and (hint := did_you_mean(role, sorted(GATEWAY_ROLES))):
                message = f'"{role}" is no role of the gateway, and no workflow or scope uses a group of this name'
                found.warnings.append(problem_at(node.mark, key, message, hint))


def _groups_in_use(root: Mapping) -> Iterator[str]:
    for entry in root.map("scopes"):
        if isinstance(entry.value, Mapping):
            yield from _required_groups(entry.value)
    for entry in root.map("approval"):
        if isinstance(entry.value, Mapping):
            for node, _ in each(entry.value.get("approvers"), ""):
                yield (text_of(node) or "").removeprefix(ROLE_PREFIX).removeprefix(GROUP_PREFIX)


def _check_people(found: References) -> None:
    """An identity that belongs to two people would make them count as one. One of a tenant limits all of the person's."""
    owner: dict[str, str] = {}
    tenant_of_token = _tenants_of_tokens(found)
    for entry in found.root.map("people"):
        _check_tenants(found, entry, tenant_of_token)
        for node, where in each(entry.value, f"people.{entry.key}"):
            reference = text_of(node)
            if reference is not None and owner.setdefault(reference, entry.key) != entry.key:
                message = f'"{reference}" is also an identity of {owner[reference]}'
                found.problems.append(problem_at(node.mark, where, message, "assign each identity to one person"))


def _tenants_of_tokens(found: References) -> dict[str, str]:
    tokens = [token for token in found.root.list("tokens") if isinstance(token, Mapping)]
    return {name: token.text("tenant") or "" for token in tokens if (name := token.text("id")) is not None}


def _check_tenants(found: References, person: Entry, tenant_of_token: dict[str, str]) -> None:
    """A person belongs to one tenant, so that lists, pages and votes have the same limit."""
    key, first = f"people.{person.key}", ""
    tenants = {}
    for node, where in each(person.value, key):
        reference = text_of(node) or ""
        tenant = tenants[reference] = tenant_of_token.get(reference, tenant_of(reference))
        if tenant and first and tenant != first:
            message = f'"{reference}" belongs to the tenant {tenant}, other identities of {person.key} to {first}'
            found.problems.append(problem_at(node.mark, where, message, "write one entry of `people` for each tenant"))
        first = first or tenant
    without = [name for name, tenant in tenants.items() if not tenant and not name.startswith(_SLACK)]
    if first and without:
        message = f"{', '.join(without)} has no tenant; it is limited to {first}, as all identities of {person.key}"
        hint = "list names without a tenant as another person if they may see all tenants"
        found.warnings.append(problem_at(person.key_mark, key, message, hint))
