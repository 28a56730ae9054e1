"""Secrets that were sent to a server: what counts as one, and in which forms they are found and removed."""

from __future__ import annotations

import base64
import html
import json
import string
from random import Random
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.redaction.fields import HIDDEN
from taskgate.core.redaction.sent_secrets import SHORTEST, SentSecrets, configured_secrets, header_secrets

TOKEN = "tok+en/with=special&chars<and>'quotes\"`\\0123456789"
PLAIN = "access-0123456789abcdef"


def gson(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if c in "=&<>'" else c for c in text)


def dotnet(text: str) -> str:
    return "".join(f"\\u{ord(c):04X}" if c in "+&<>'\"`" else c for c in text)


ENCODED = {
    "plain": TOKEN,
    "json": json.dumps(TOKEN)[1:-1],
    "php": json.dumps(TOKEN)[1:-1].replace("/", "\\/"),
    "gson": gson(TOKEN),
    "dotnet": dotnet(TOKEN),
    "url": quote(TOKEN, safe=""),
    "url path": quote(TOKEN),
    "url lower": quote(TOKEN, safe="").replace("%2B", "%2b").replace("%2F", "%2f").replace("%3D", "%3d")
    .replace("%3C", "%3c").replace("%3E", "%3e").replace("%5C", "%5c"),
    "form": quote_plus(TOKEN),
    "html": html.escape(TOKEN),
}  # fmt: skip


@pytest.mark.parametrize("encoded", ENCODED.values(), ids=ENCODED)
def test_a_secret_is_removed_in_every_form_in_which_servers_quote_it(encoded: str) -> None:
    found = SentSecrets([TOKEN]).in_text(f"401 for Authorization: Bearer {encoded}, again Bearer {encoded}!")
    assert found == f"401 for Authorization: Bearer {HIDDEN}, again Bearer {HIDDEN}!"


@given(st.randoms(), st.integers(SHORTEST, 60), st.binary(max_size=5), st.binary(max_size=5))
def test_a_secret_is_removed_from_base64_wherever_it_stands_in_it(
    chance: Random, length: int, before: bytes, after: bytes
) -> None:
    secret = "".join(chance.choices(string.ascii_letters + string.digits, k=length))
    data = before + secret.encode() + after
    for encoded in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        left = SentSecrets([secret], within_base64=True).in_text(encoded)
        assert HIDDEN in left
        assert len(left.replace(HIDDEN, "")) <= 4 * (len(before) + len(after) + 4) // 3 + 4


def test_basic_credentials_are_removed_encoded_and_decoded() -> None:
    credentials = base64.b64encode(b"someone:correct horse battery").decode()
    secrets = SentSecrets(header_secrets("Authorization", f"Basic {credentials}"))
    assert secrets.in_text(f"denied: Basic {credentials}") == f"denied: Basic {HIDDEN}"
    assert secrets.in_text("denied: someone:correct horse battery") == f"denied: {HIDDEN}"
    assert secrets.in_text("password=correct horse battery") == f"password={HIDDEN}"


def test_a_secret_that_was_cut_is_removed_but_not_its_first_characters_elsewhere() -> None:
    secret = "0123456789abcdefghijklmnopqrstuvwxyz"
    secrets = SentSecrets([secret])
    assert secrets.in_text("got 0123456789abcdefghijklmnopq...") == f"got {HIDDEN}..."
    assert secrets.in_text("got 0123456789abcd and no more") == "got 0123456789abcd and no more"


def test_another_token_of_the_same_issuer_stays() -> None:
    header = base64.urlsafe_b64encode(b'{"alg":"RS256","typ":"JWT","kid":"2026-01"}').decode().rstrip("=")
    ours, other = f"{header}.{'a' * 100}.{'b' * 40}", f"{header}.{'c' * 100}.{'d' * 40}"
    secrets = SentSecrets([ours])
    assert secrets.in_text(f"{ours} is not {other}") == f"{HIDDEN} is not {other}"
    assert secrets.in_text(ours[:-60]) == HIDDEN


def test_a_secret_inside_another_is_removed_completely() -> None:
    inner, outer = "0123456789abcdef", "before-0123456789abcdef-after"
    assert SentSecrets([inner, outer]).in_text(f"<{outer}> <{inner}>") == f"<{HIDDEN}> <{HIDDEN}>"


def test_short_values_are_not_redacted() -> None:
    secrets = SentSecrets(["a" * (SHORTEST - 1), ""])
    assert not secrets
    assert secrets.in_text("a" * (SHORTEST - 1)) == "a" * (SHORTEST - 1)
    assert SentSecrets(["a" * SHORTEST])


DOCUMENTS: list[tuple[str, str]] = [
    ('{"message":"Bearer SECRET"}', '{"message":"Bearer [hidden]"}'),
    ('{ "code" : -32000.0, "message" :\t"x" }', '{ "code" : -32000.0, "message" :\t"x" }'),
    ('{"a":[1,"SECRET",{"SECRET":"y"}],"n":1E3}', '{"a":[1,"[hidden]",{"[hidden]":"y"}],"n":1E3}'),
    ('{"message":"\\"SECRET\\" \\\\"}', '{"message":"\\"[hidden]\\" \\\\"}'),
    ("[]", "[]"),
    ('"SECRET"', '"[hidden]"'),
]


@pytest.mark.parametrize(("before", "after"), DOCUMENTS)
def test_only_the_strings_of_a_document_that_hold_a_secret_change(before: str, after: str) -> None:
    found = SentSecrets([PLAIN]).in_json(before.replace("SECRET", PLAIN).encode())
    assert found.decode() == after


def test_characters_that_json_writers_escape_are_found() -> None:
    assert SentSecrets(["abc+defghijk/lmn"]).in_json(rb'{"m":"abc\u002Bdefghijk\/lmn"}') == b'{"m":"[hidden]"}'


def test_a_document_without_a_secret_is_the_same_object() -> None:
    document = json.dumps({"message": "nothing", "data": list(range(1000))}).encode()
    assert SentSecrets([PLAIN, TOKEN], within_base64=True).in_json(document) is document


def test_a_number_that_looks_like_a_secret_stays_a_number() -> None:
    document = b'{"id":123456789012345,"text":"123456789012345"}'
    assert SentSecrets(["123456789012345"]).in_json(document) == b'{"id":123456789012345,"text":"[hidden]"}'


def test_escapes_that_spell_a_part_of_a_secret_do_not_break_the_document() -> None:
    for secret, document in (
        ("npm_0123456789", rb'{"m":"x\npm_0123456789"}'),
        ("abcd0123456789", rb'"\uabcd0123456789"'),
    ):
        found = SentSecrets([secret]).in_json(document)
        assert json.loads(found) == json.loads(document)


def test_a_large_document_is_searched_in_steps() -> None:
    document = json.dumps({"rows": ["x" * 1000] * 1000 + [PLAIN]}).encode()
    steps, count = SentSecrets([PLAIN, TOKEN]).steps_in_json(document), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found = done.value
            break
        count += 1
    assert count > 10
    assert json.loads(found)["rows"][-1] == HIDDEN
    assert len(found) == len(document) - len(PLAIN) + len(HIDDEN)


def test_many_occurrences_take_linear_time() -> None:
    long = "x" * 24 + "y" * 4000
    text = ("x" * 24 + "y" * 3000 + " ") * 2000
    assert SentSecrets([long]).in_text(text) == f"{HIDDEN} " * 2000


@pytest.mark.parametrize(
    ("name", "value", "secrets"),
    [
        ("Authorization", "Bearer abc", ["abc"]),
        ("Authorization", "opaque", ["opaque"]),
        ("authorization", "Basic not-base64!", ["not-base64!"]),
        ("authorization", "Basic " + base64.b64encode(b"\xff\xfe").decode(), ["//4="]),
        ("Proxy-Authorization", "Token t", ["t"]),
        ("X-Api-Key", "k e y", ["k e y"]),
        ("Cookie", "a=1; b=22", ["a=1; b=22", "1", "22"]),
        ("X-Workspace", "w", ["w"]),
        ("User-Agent", "agent of a company", []),
        ("Accept-Language", "de", []),
    ],
)
def test_secrets_in_headers(name: str, value: str, secrets: list[str]) -> None:
    assert list(header_secrets(name, value)) == secrets


LONG = "0123456789abcdef"


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"headers": {"Authorization": f"Bearer {LONG}"}}, {LONG}),
        ({"headers": {"Authorization": "Bearer short"}}, set()),
        ({"env": {"API_TOKEN": LONG}}, {LONG}),
        ({"env": {"MODE": "production-europe"}}, set()),
        ({"env": {"GITHUB": "ghp_0123456789abcdefghij"}}, {"ghp_0123456789abcdefghij"}),
        ({"env": {"DATA": "/srv/data1/x2y3z4a5b6c7d8e9f0/g1h2i3"}}, set()),
        ({"env": {"PRIVATE_KEY": f"BEGIN\n{LONG}\nEND"}}, {f"BEGIN\n{LONG}\nEND", LONG}),
        ({"env": {"DB": f"postgresql://app:{LONG}@db/x"}}, {f"app:{LONG}", LONG, f"postgresql://app:{LONG}@db/x"}),
        ({"env": {"ROOT": "/home/someone/work"}, "referenced": {"/home/someone/work"}}, set()),
        ({"env": {"X": f"a{LONG}b"}, "referenced": {LONG, "another-reference"}}, {LONG}),
        ({"args": ["--verbose", "--api-key", LONG]}, {LONG}),
        ({"args": [f"--token={LONG}", "some-project-name"]}, {LONG}),
        ({"args": ["--folder", "some-project-folder"]}, set()),
        ({"args": ["--header", f"Authorization: Bearer {LONG}"]}, {LONG, f"Bearer {LONG}"}),
        ({"url": f"https://mcp.test/mcp?api_key={LONG}&page=some-long-word"}, {LONG}),
        ({"url": f"https://mcp.test/{LONG}", "referenced": {LONG}}, {LONG}),
        ({"url": "https://[bad"}, set()),
        ({}, set()),
    ],
)  # fmt: skip
def test_secrets_in_the_entry_of_a_server(entry: dict[str, Any], found: set[str]) -> None:
    whole: dict[str, Any] = {"url": "", "headers": {}, "env": {}, "args": (), "referenced": ()}
    assert configured_secrets(**{**whole, **entry}) == found
