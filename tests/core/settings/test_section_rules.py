"""Rules within one section: which values and combinations of keys are accepted, and at which key others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskgate.config import ConfigError, load_text
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.identity import Auth, Certificate, Introspection, Jwt, OidcLogin, Token
from taskgate.core.settings.store import Store, keys_of

DIGEST = "a1" * 32
ISSUER = "https://login.example/tenant"
KEY = "k" * 32


def read(text: str) -> GatewayFile:
    return load_text(text, environment={}).root


@pytest.mark.parametrize(
    ("text", "key", "part"),
    [
        ("approval: {a: {channels: [{type: slack, channel: C, bot_token: t}]}}", "approval.a.channels[0]", "app_token"),
        ("approval: {a: {approvers: []}}", "approval.a", "no approvers"),
        ("approval: {a: {approvers: [ann, ann], approvals_needed: 2}}", "approval.a", "only 1"),
        ("auth: {jwt: [{issuer: 'https://login.example/?x=1'}]}", "auth.jwt[0].issuer", "not an issuer"),
        ("auth: {jwt: [{issuer: 'https://login.example/#x'}]}", "auth.jwt[0].issuer", "not an issuer"),
        ("listen: {trusted_proxies: [10.0.0.0/8, proxy.example]}", "listen.trusted_proxies", '"proxy.example"'),
        ("listen: {trusted_proxies: 10.0.0.0/33}", "listen.trusted_proxies", '"10.0.0.0/33"'),
        ("listen: {internal: gateway-a}", "listen.internal", "not an address"),
        ("listen: {internal: ':7468'}", "listen.internal", "not an address"),
        ("listen: {internal: 'gateway-a:http'}", "listen.internal", "not an address"),
        ("listen: {internal: 'gateway-a:٧'}", "listen.internal", "not an address"),
        ("listen: {internal: 'gateway-a:65536'}", "listen.internal", "not an address"),
        ("listen: {internal: '0.0.0.0:7468'}", "listen.internal", "other gateways"),
        ("listen: {internal: '[::]:7468'}", "listen.internal", "other gateways"),
        ("listen: {internal: '*:7468'}", "listen.internal", "other gateways"),
        ("listen: {tls: {cert: a, key: b, require_client_cert: true}}", "listen.tls", "client_ca"),
        ("providers: {p: {kind: openai, models: [{name: m}, {name: n}, {name: m}]}}", "providers.p", "listed twice"),
        (
            "servers: {a: {url: 'http://h/mcp', auth: {type: client_credentials, client_id: c}}}",
            "servers.a.auth",
            "client_secret",
        ),
        (
            "servers: {a: {url: 'http://h/mcp', auth: {type: token_exchange, client_secret: c}}}",
            "servers.a.auth",
            "client_id",
        ),
        (
            "servers: {a: {url: 'http://h/mcp', auth: {type: forward_identity, per_user: true}}}",
            "servers.a.auth",
            "per_user",
        ),
        ("servers: {a: {command: x, auth: {type: forward_identity}}}", "servers.a", "servers with a url"),
        ("servers: {a: {url: 'http://h/mcp', transport: stdio}}", "servers.a", "needs command"),
        ("servers: {a: {command: x, transport: http}}", "servers.a", "transport http needs url"),
        ("servers: {a: {command: x, transport: sse}}", "servers.a", "transport sse needs url"),
        ("servers: {a: {url: 'http://h/sse', transport: sse, generation: 2026-07-28}}", "servers.a", "generation"),
        ("store: {url: 'mysql://h/d'}", "store.url", "not a store URL"),
        ("store: {url: 'sqlite:///'}", "store.url", "not a store URL"),
        (f"store: {{url: 'postgres://h/d', key: {KEY[1:]}}}", "store.key", "at least 32 characters"),
        (f"store: {{url: 'postgres://h/d', key: [{KEY}, {KEY[1:]}]}}", "store.key", "at least 32 characters"),
        ("tasks: {default_ttl_ms: 1001, max_ttl_ms: 1000}", "tasks", "default_ttl_ms is larger than max_ttl_ms"),
        (
            "tasks: {tool_face_default_ttl_ms: 1001, tool_face_max_ttl_ms: 1000}",
            "tasks",
            "tool_face_default_ttl_ms is larger than tool_face_max_ttl_ms",
        ),
        (f"tokens: [{{id: 'a b', sha256: {DIGEST}}}]", "tokens[0].id", "letters, digits"),
        (f"tokens: [{{id: {'x' * 65}, sha256: {DIGEST}}}]", "tokens[0].id", "at most 64"),
        (
            "tokens: [{id: a, sha256: 9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08}]",
            "tokens[0].sha256",
            "guessable",
        ),
        ("public_url: 'http://[::1'", "public_url", "not a URL"),
        ("public_url: 'http://h.example:99999'", "public_url", "not a URL"),
        ("public_url: 'http://h.example:0'", "public_url", "not an http or https URL"),
        ("public_url: 'ftp://h.example'", "public_url", "not an http or https URL"),
        ("public_url: 'http://h.example/a b'", "public_url", "not an http or https URL"),
    ],
)
def test_wrong_values_and_contradictions_are_refused_at_their_key(text: str, key: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert part in problem.message
    assert problem.hint


@pytest.mark.parametrize(
    ("text", "value_of", "value"),
    [
        (
            "approval: {a: {channels: [{type: slack, channel: C, bot_token: t, app_token: x}]}}",
            lambda root: root.approval["a"].channels[0].mode,
            "socket",
        ),
        (
            "approval: {a: {channels: [{type: slack, channel: C, bot_token: t, mode: reactions}]}}",
            lambda root: root.approval["a"].channels[0].app_token,
            None,
        ),
        (
            "approval: {a: {approvers: 'role:finance', approvals_needed: 3}}",
            lambda root: root.approval["a"].approvers,
            ("role:finance",),
        ),
        (f"auth: {{jwt: [{{issuer: '{ISSUER}'}}]}}", lambda root: root.auth.jwt[0].issuer, ISSUER),
        (
            "listen: {trusted_proxies: [10.1.2.3/8, '::1']}",
            lambda root: root.listen.trusted_proxies,
            ("10.1.2.3/8", "::1"),
        ),
        ("listen: {internal: 'gateway-a:65535'}", lambda root: root.listen.internal, "gateway-a:65535"),
        ("listen: {internal: '[::1]:7468'}", lambda root: root.listen.internal, "[::1]:7468"),
        ("listen: {internal: /run/taskgate/a.sock}", lambda root: root.listen.internal, "/run/taskgate/a.sock"),
        ("listen: {tls: {cert: a, key: b}}", lambda root: root.listen.tls.client_ca, None),
        (
            "listen: {tls: {cert: a, key: b, client_ca: c, require_client_cert: true}}",
            lambda root: root.listen.tls.require_client_cert,
            True,
        ),
        (
            "providers: {p: {kind: openai, models: [{name: m}, {name: n}]}}",
            lambda root: [model.name for model in root.providers["p"].models],
            ["m", "n"],
        ),
        (
            "servers: {a: {url: 'http://h/mcp', auth: {type: token_exchange, client_id: c, client_secret: s}}}",
            lambda root: root.servers["a"].auth.client_secret,
            "s",
        ),
        (
            "servers: {a: {url: 'http://h/mcp', auth: {type: authorization_code, per_user: true}}}",
            lambda root: root.servers["a"].auth.per_user,
            True,
        ),
        (
            "servers: {a: {url: 'http://h/sse', transport: sse, generation: 2025-11-25}}",
            lambda root: root.servers["a"].transport,
            "sse",
        ),
        (
            "servers: {a: {url: 'http://h/mcp', transport: http, generation: 2026-07-28}}",
            lambda root: root.servers["a"].generation,
            "2026-07-28",
        ),
        ("servers: {a: {command: x, transport: stdio}}", lambda root: root.servers["a"].transport, "stdio"),
        ("store: {url: 'postgresql://h/d'}", lambda root: root.store.url, "postgresql://h/d"),
        (f"store: {{url: 'postgres://h/d', key: {KEY}}}", lambda root: root.store.key, (KEY,)),
        ("tasks: {default_ttl_ms: 1000, max_ttl_ms: 1000}", lambda root: root.tasks.default_ttl_ms, 1_000),
        (
            "tasks: {tool_face_default_ttl_ms: 1000, tool_face_max_ttl_ms: 1000}",
            lambda root: root.tasks.tool_face_max_ttl_ms,
            1_000,
        ),
        (f"tokens: [{{id: {'x' * 64}, sha256: {DIGEST.upper()}}}]", lambda root: root.tokens[0].sha256, DIGEST),
        ("public_url: 'https://[::1]:8443/x'", lambda root: root.public_url, "https://[::1]:8443/x"),
    ],
)
def test_allowed_values_and_combinations_are_read(text: str, value_of: Callable[[Any], Any], value: object) -> None:
    assert value_of(read(text)) == value


@pytest.mark.parametrize(
    ("root", "required"),
    [
        (GatewayFile(), False),
        (GatewayFile(tokens=(Token(id="ann", sha256=DIGEST),)), True),
        (GatewayFile(auth=Auth(jwt=(Jwt(issuer=ISSUER),))), True),
        (GatewayFile(auth=Auth(certificates=(Certificate(name="dns:h.example", id="ann"),))), True),
        (
            GatewayFile(
                auth=Auth(introspection=Introspection(issuer=ISSUER, url=ISSUER, client_id="c", client_secret="s"))
            ),
            True,
        ),
        (GatewayFile(auth=Auth(login=OidcLogin(issuer=ISSUER, client_id="c"))), False),
        (GatewayFile(auth=Auth(anonymous="default")), False),
    ],
)
def test_every_way_for_callers_to_authenticate_requires_identity(root: GatewayFile, required: bool) -> None:
    assert root.requires_identity is required


def test_store_without_keys_is_not_encrypted() -> None:
    assert keys_of(None) == ()
    assert keys_of(Store(url="sqlite:///x")) == ()
    assert keys_of(Store(url="sqlite:///x", key=("new", "old"))) == ("new", "old")
