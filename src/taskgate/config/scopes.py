"""Who callers are, and the scopes and profiles that say what each piece of work may see."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from taskgate.config.json_text import read_json
from taskgate.config.problems import (
    ConfigError,
    Entry,
    Mapping,
    Node,
    Problem,
    Scalar,
    Sequence,
    did_you_mean,
    one_of,
    problem_at,
)
from taskgate.config.words import Duration, HttpUrl, Name, Patterns, ScopeName, Section, Sha256, Words

# Who callers are: tokens of issuers, and what scopes require of whoever uses them.


def _issuer(text: str) -> str:
    if "?" in text or "#" in text:
        raise ValueError("an issuer has neither ? nor #; write it exactly as its tokens do")
    return text


Issuer = Annotated[HttpUrl, AfterValidator(_issuer)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]


class ClaimNames(Section):
    """Where an issuer's tokens hold which fact: a claim's name, or a path such as realm_access.roles."""

    groups: str = Field(default="groups", description="Groups or roles; Cedar and `require` see them.")
    tenant: str | None = Field(
        default=None, description="The tenant. With it every token must name one, and tenants are kept apart."
    )
    scopes: str = Field(default="scope", description="OAuth scopes, as a list or with spaces between.")


class Issued(Section):
    """What tokens of one issuer must say, whoever verifies them."""

    issuer: Issuer = Field(description="The issuer, exactly as its tokens name it.")
    audiences: Words | None = Field(
        default=None,
        description="Audiences to accept. Default: the address of the scope that is asked for, and nothing else.",
    )
    skew: Duration = Field(default=timedelta(seconds=60), description="How far clocks may be apart.")
    claims: ClaimNames = Field(default_factory=ClaimNames, description="Where the facts stand.")
    require: dict[str, Words] = Field(
        default_factory=dict, description="Claims that every token must have, each with the values that are accepted."
    )
    roles: dict[Literal["viewer", "approver", "operator", "admin"], Words] = Field(
        default_factory=dict, description="Roles of this gateway, each with the groups whose members have it."
    )


class Jwt(Issued):
    """An issuer whose signed tokens are verified with its public keys."""

    jwks_url: HttpUrl | None = Field(default=None, description="Where its keys are. Default: its metadata tell.")
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"), min_length=1, description="The only algorithms that are accepted."
    )


class Introspection(Issued):
    """An issuer that is asked about each opaque token (RFC 7662)."""

    url: HttpUrl = Field(description="Its introspection endpoint.")
    client_id: str = Field(description="Who we are to it.")
    client_secret: str = Field(repr=False, description="Our secret there, such as ${env:SECRET}.")
    remember: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=5))] = Field(
        default=timedelta(seconds=5), description="How long an answer is good; a revoked token works until then."
    )


class OidcLogin(Jwt):
    """An OpenID provider where people log in to the pages. Their ID tokens say who they are."""

    audiences: None = Field(default=None, description="Not used: an ID token is issued for `client_id`.")
    client_id: str = Field(description="Who we are to it; its redirect address is PUBLIC_URL/login/callback.")
    client_secret: str | None = Field(
        default=None,
        repr=False,
        description="Our secret there, such as ${env:SECRET}; without one PKCE alone proves it.",
    )
    scopes: Words = Field(default=("openid", "profile"), description="What is asked for; openid must be among it.")


class Certificate(Section):
    """Whoever shows a certificate with this name, signed by `listen.tls.client_ca` or named by a trusted proxy."""

    name: Annotated[str, Field(pattern=r"^(dns|uri|email|cn):.+")] = Field(
        description="A name in the certificate: dns:HOST, uri:ADDRESS, email:ADDRESS or cn:COMMON NAME."
    )
    id: Name = Field(description="The principal's name.")
    roles: Words = Field(default=(), description="Roles and groups.")
    scope: ScopeName | None = Field(default=None, description="The only scope it may use.")
    tenant: Name | None = Field(default=None, description="The tenant it belongs to.")


class Auth(Section):
    """Who must say who they are. Without `tokens` and issuers nobody must, and the gateway listens on loopback only."""

    none: bool = Field(
        default=False,
        description="Written as `auth: none`: listen beyond loopback although anybody who reaches the address may call.",
    )
    anonymous: ScopeName | None = Field(
        default=None, description="The one scope that may be used without a token although others need one."
    )
    jwt: tuple[Jwt, ...] = Field(default=(), description="Issuers whose signed tokens are accepted.")
    login: OidcLogin | None = Field(default=None, description="Where people log in to the pages, beside login links.")
    certificates: tuple[Certificate, ...] = Field(default=(), description="Callers known by their certificate.")
    introspection: Introspection | None = Field(default=None, description="An issuer that is asked about tokens.")


class ScopeRequirement(Section):
    """What a scope requires of whoever uses it. All of it must hold."""

    groups: Words = Field(default=(), description="At least one of these groups or roles.")
    oauth_scopes: Words = Field(default=(), description="All of these OAuth scopes; a client may ask for them (403).")
    claims: dict[str, Words] = Field(
        default_factory=dict, description="Each of these claims with one of the values given."
    )


class ScopeProfile(Section):
    """A named bundle of servers that scopes share. `servers` and `tags` are a union; the lists then narrow."""

    description: str = Field(default="", description="For people.")
    extends: Name | None = Field(default=None, description="Another profile to start from; the lists of both apply.")
    servers: Words = Field(default=(), description='Server ids; "*" means all.')
    tags: Words = Field(default=(), description="Servers that bear any of these tags.")
    exclude_servers: Words = Field(default=(), description="Never these servers, however they were selected.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools; without it all.")
    tool_denylist: Patterns = Field(default=(), description="Never these tools.")


class ProfileOverrides(Section):
    """Narrows a scope's profile further, for this scope only."""

    servers: Words | None = Field(default=None, description="Only these of the profile's servers.")
    exclude_servers: Words = Field(default=(), description="None of these servers.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools.")
    tool_denylist: Patterns = Field(default=(), description="Never these tools.")


class Scope(Section):
    """What is served at /mcp/NAME."""

    enabled: bool = Field(default=True, description="A disabled scope answers 404.")
    default_servers: Words | None = Field(
        default=None,
        description='Servers a session gets if it does not choose; "*" means all. Default: those of profile and tags.',
    )
    allowed_servers: Words | None = Field(
        default=None, description="The most a session may ask for. Default: default_servers."
    )
    tags: Words = Field(default=(), description="Servers that bear any of these tags are part of default_servers.")
    profile: Name | None = Field(default=None, description="A profile to take servers and lists from.")
    profile_overrides: ProfileOverrides = Field(default_factory=ProfileOverrides, description="Narrows the profile.")
    tool_allowlist: Patterns | None = Field(default=None, description="Only these tools; without it all.")
    tool_denylist: Patterns = Field(default=(), description="Never these tools.")
    mode: Literal["direct", "facade", "both", "search"] = Field(
        default="direct",
        description="The servers' tools, the facade tools, both, or three search tools for big catalogs.",
    )
    names: Literal["prefixed", "plain"] = Field(
        default="prefixed", description="server__tool, or the tools' own names."
    )
    helper_tools: Literal["auto", "always", "never"] = Field(
        default="auto", description="Whether tools such as get_task are listed: auto lists them where they help."
    )
    require: ScopeRequirement | None = Field(default=None, description="What callers need to use this scope.")


class Token(Section):
    """A caller or approver, known by the digest of a token."""

    id: Name = Field(description="The principal's name.")
    sha256: Sha256 = Field(repr=False, description="Digest of the token; `taskgate token new NAME` makes one.")
    roles: Words = Field(
        default=(), description="viewer, approver, operator, admin, or groups of your own; Cedar sees them all."
    )
    scope: ScopeName | None = Field(default=None, description="The only scope this token may use.")
    may_call: bool = Field(
        default=True,
        description="Whether this token may call tools. One that may not can also decide what anonymous callers ask.",
    )
    tenant: Name | None = Field(default=None, description="The tenant it belongs to; tenants are kept apart.")
    expires: AwareDatetime | None = Field(
        default=None, description="From when on it is refused, such as 2027-01-31T00:00:00Z."
    )


_LISTS = {
    "mcp.default_server_ids": "default_servers",
    "mcp.allowed_server_ids": "allowed_servers",
    "mcp.tool_allowlist": "tool_allowlist",
    "mcp.tool_denylist": "tool_denylist",
    "mcp.tags": "tags",
}
_WORDS = {"mcp.profile": "profile", "mcp.mode": "mode", "mcp.names": "names", "mcp.helper_tools": "helper_tools"}
_OVERRIDES = {"server_ids": "servers", "default_server_ids": "servers"}
_KNOWN = ["mcp.enabled", *_WORDS, "mcp.profile_overrides", *_LISTS]


def gather_scopes(root: Mapping) -> tuple[Mapping, list[Problem]]:
    """The root with every scope in our own form."""
    scopes = root.get("scopes")
    if not isinstance(scopes, Mapping):
        return root, []
    problems: list[Problem] = []
    for entry in scopes:
        if isinstance(entry.value, Mapping):
            scope = _in_our_form(entry.value, f"scopes.{entry.key}", problems)
            scopes = scopes.with_value(entry.key, scope)
    return root.with_value("scopes", scopes), problems


def _in_our_form(scope: Mapping, path: str, problems: list[Problem]) -> Mapping:
    settings = scope.get("config")
    if isinstance(settings, Mapping):
        return _converted(settings, f"{path}.config", problems).with_entries(*scope.without("config"))
    strings = [entry for entry in scope if entry.key.startswith("mcp.")]
    if not strings:
        return scope
    rest = scope.without(*(entry.key for entry in strings))
    given = Mapping({entry.key: entry for entry in strings}, scope.mark)
    return _converted(given, path, problems).with_entries(*rest)


def _converted(settings: Mapping, path: str, problems: list[Problem]) -> Mapping:
    scope = Mapping({}, settings.mark).with_value("enabled", _switch(settings, path, problems))
    scope = scope.with_value("default_servers", Sequence((), settings.mark))
    if "mcp.profile" in settings.entries or "mcp.tags" in settings.entries:
        scope = scope.without("default_servers")
    for entry in settings:
        if not entry.key.startswith("mcp.") or entry.key == "mcp.enabled":
            continue
        key = f"{path}.{entry.key}"
        if entry.key in _LISTS:
            scope = scope.with_value(_LISTS[entry.key], _list(entry, key, problems), entry.key_mark)
        elif entry.key in _WORDS:
            scope = scope.with_value(_WORDS[entry.key], entry.value, entry.key_mark)
        elif entry.key == "mcp.profile_overrides":
            scope = scope.with_value("profile_overrides", _overrides(entry, key, problems), entry.key_mark)
        else:
            hint = did_you_mean(entry.key, _KNOWN) or f"known here: {one_of(_KNOWN)}"
            problems.append(problem_at(entry.key_mark, key, "unknown key", hint))
    return scope


def _switch(settings: Mapping, path: str, problems: list[Problem]) -> Scalar:
    entry = settings.entries.get("mcp.enabled")
    if entry is None:
        return Scalar("false", settings.mark)
    text = settings.text("mcp.enabled")
    if text not in ("true", "false"):
        problems.append(problem_at(entry.key_mark, f"{path}.mcp.enabled", 'must be "true" or "false"'))
    return Scalar(text if text in ("true", "false") else "false", entry.value.mark)


def _list(entry: Entry, key: str, problems: list[Problem]) -> Sequence:
    value = entry.value
    if isinstance(value, Sequence):
        return value
    text = value.text if isinstance(value, Scalar) else None
    if text is None:
        problems.append(problem_at(entry.key_mark, key, "must be a list", 'write ["a","b"] or a,b'))
        return Sequence((), value.mark)
    if not text.strip().startswith("["):
        words = [word.strip() for word in text.split(",") if word.strip()]
        return Sequence(tuple(Scalar(word, value.mark) for word in words), value.mark)
    node = _json(text, entry, key, problems)
    if isinstance(node, Sequence):
        return Sequence(tuple(_moved(item, value) for item in node.items), value.mark)
    return Sequence((), value.mark)


def _overrides(entry: Entry, key: str, problems: list[Problem]) -> Node:
    value = entry.value
    node = _json(value.text, entry, key, problems) if isinstance(value, Scalar) and value.text else value
    if not isinstance(node, Mapping):
        problems.append(problem_at(entry.key_mark, key, "must be a JSON object", 'write {"tool_denylist": ["x"]}'))
        return Mapping({}, value.mark)
    result = Mapping({}, value.mark)
    for part in node:
        name = part.key.removeprefix("mcp.")
        result = result.with_value(_OVERRIDES.get(name, name), _moved(part.value, value), entry.key_mark)
    return result


def _json(text: str, entry: Entry, key: str, problems: list[Problem]) -> Node | None:
    try:
        return read_json(text, entry.key_mark.file)
    except ConfigError as error:
        problems.append(problem_at(entry.key_mark, key, error.problems[0].message))
        return None


def _moved(node: Node, to: Node) -> Node:
    """The node with the place of the string it was read from."""
    match node:
        case Scalar():
            return Scalar(node.text, to.mark)
        case Sequence():
            return Sequence(tuple(_moved(item, to) for item in node.items), to.mark)
        case Mapping():
            return Mapping({e.key: Entry(e.key, to.mark, _moved(e.value, to)) for e in node}, to.mark)
