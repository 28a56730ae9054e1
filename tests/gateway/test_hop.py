"""Signed requests between gateways: valid ones are accepted once and in time, all others are rejected."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from taskgate.access.proof import HopProof
from taskgate.core.identity.caller import Caller, CredentialFacts
from taskgate.inbound.http.hop import (
    HOP,
    MAX_NONCES,
    WINDOW_MS,
    HopNotAccepted,
    HopProblem,
    HopRefused,
    HopSigner,
    HopVerifier,
    Keyed,
    forwarded_headers,
    hop_key,
)

KEY = hop_key(b"the secret of a store")
FACTS = CredentialFacts(frozenset({"read", "write"}), "agent", 5)
CALLER = Caller("ann", frozenset({"approver", "caller"}), "work", "", "10.1.2.3", FACTS)
PROOF = HopProof(CALLER, "digest-of-a-token", 7)
HEADERS = [(b"accept", b"application/json"), (b"mcp-session-id", b"s1")]
BODY = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(clock: Clock) -> HopVerifier:
    return HopVerifier(KEY, "b", clock)


def signed(clock: Clock, *, key: bytes = KEY, home: str = "b", headers: list[tuple[bytes, bytes]] = HEADERS) -> bytes:
    return HopSigner(key, "a", clock).sign(b"POST", b"/mcp/work?x=1", headers, BODY, home=home, proof=PROOF)


def sent(signature: bytes) -> list[tuple[bytes, bytes]]:
    """The headers as they arrive, with what the HTTP client adds."""
    return [(b"host", b"b"), (b"content-length", b"40"), *HEADERS, (HOP, signature)]


def test_signed_request_contains_caller(clock: Clock, verifier: HopVerifier) -> None:
    assert verifier.verify(b"POST", b"/mcp/work?x=1", sent(signed(clock)), BODY) == PROOF


@pytest.mark.parametrize(
    ("method", "url", "headers", "body"),
    [
        (b"DELETE", b"/mcp/work?x=1", HEADERS, BODY),
        (b"POST", b"/mcp/other?x=1", HEADERS, BODY),
        (b"POST", b"/mcp/work", HEADERS, BODY),
        (b"POST", b"/mcp/work?x=1", HEADERS[:1], BODY),
        (b"POST", b"/mcp/work?x=1", [*HEADERS, (b"idempotency-key", b"k")], BODY),
        (b"POST", b"/mcp/work?x=1", [HEADERS[0], (b"mcp-session-id", b"s2")], BODY),
        (b"POST", b"/mcp/work?x=1", HEADERS, BODY.replace(b"1,", b"2,")),
    ],
)
def test_changed_request_is_rejected(
    clock: Clock, verifier: HopVerifier, method: bytes, url: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    with pytest.raises(HopRefused) as caught:
        verifier.verify(method, url, [*headers, (HOP, signed(clock))], body)
    assert caught.value.problem is HopProblem.SIGNATURE


def test_changed_caller_or_time_is_rejected(clock: Clock, verifier: HopVerifier) -> None:
    claims = signed(clock).split(b" ")
    for place in range(6):
        forged = b" ".join([*claims[:place], claims[place] + b"1", *claims[place + 1 :]])
        with pytest.raises(HopRefused) as caught:
            verifier.verify(b"POST", b"/mcp/work?x=1", sent(forged), BODY)
        assert caught.value.problem is HopProblem.SIGNATURE


@pytest.mark.parametrize("value", [b"", b"x", b"1 a b 1 1 1 1", b" " * 7, b"\xff \xff"])
def test_malformed_signature_header_is_rejected(verifier: HopVerifier, value: bytes) -> None:
    with pytest.raises(HopRefused) as caught:
        verifier.verify(b"POST", b"/mcp", [(HOP, value)], b"")
    assert caught.value.problem is HopProblem.SIGNATURE


def test_missing_or_repeated_signature_is_rejected(clock: Clock, verifier: HopVerifier) -> None:
    token = [(b"authorization", b"Bearer operator")]
    for headers in ([], token, [*sent(signed(clock)), (HOP, signed(clock))]):
        with pytest.raises(HopRefused) as caught:
            verifier.verify(b"POST", b"/mcp/work?x=1", headers, BODY)
        assert caught.value.problem is HopProblem.UNSIGNED


def test_signature_of_another_key_is_rejected(clock: Clock, verifier: HopVerifier) -> None:
    with pytest.raises(HopRefused) as caught:
        verifier.verify(b"POST", b"/mcp/work?x=1", sent(signed(clock, key=hop_key(b"another"))), BODY)
    assert caught.value.problem is HopProblem.SIGNATURE


def test_request_for_another_gateway_is_rejected(clock: Clock, verifier: HopVerifier) -> None:
    with pytest.raises(HopNotAccepted) as caught:
        verifier.verify(b"POST", b"/mcp/work?x=1", sent(signed(clock, home="c")), BODY)
    assert caught.value.problem is HopProblem.OTHER_TARGET


@pytest.mark.parametrize("claims", [b"", b"1 a b", b"2 a b 1 1 e30=", b"1 a b 1 1 e30= more", b"1 a b soon 1 e30="])
def test_claims_of_another_version_are_not_accepted(clock: Clock, verifier: HopVerifier, claims: bytes) -> None:
    """Its caller is answered, and may retry: an internal error would leave it waiting."""
    signed_text = b"%b\nPOST\n/mcp\n%b\n" % (claims, hashlib.sha256(BODY).hexdigest().encode())
    signature = claims + b" " + Keyed(KEY).hex_digest(signed_text)
    with pytest.raises(HopNotAccepted) as caught:
        verifier.verify(b"POST", b"/mcp", [(HOP, signature)], BODY)
    assert caught.value.problem is HopProblem.OTHER_VERSION


def test_replayed_request_is_rejected(clock: Clock, verifier: HopVerifier) -> None:
    headers = sent(signed(clock))
    verifier.verify(b"POST", b"/mcp/work?x=1", headers, BODY)
    for _ in range(2 * WINDOW_MS // 1000):
        with pytest.raises(HopRefused) as caught:
            verifier.verify(b"POST", b"/mcp/work?x=1", headers, BODY)
        assert caught.value.problem in (HopProblem.REPLAYED, HopProblem.NOT_IN_TIME)
        clock.ms += 1000


def test_nonce_is_kept_while_request_is_valid(clock: Clock, verifier: HopVerifier) -> None:
    """Also one whose time was ahead, and when old numbers are deleted."""
    early = Clock()
    early.ms = clock.ms + WINDOW_MS
    verifier.verify(b"POST", b"/mcp/work?x=1", sent(signed(clock)), BODY)
    clock.ms += WINDOW_MS
    headers = sent(signed(early))
    verifier.verify(b"POST", b"/mcp/work?x=1", headers, BODY)
    for _ in range(9):
        clock.ms += 1000
        verifier.verify(b"POST", b"/mcp/work?x=1", sent(signed(clock)), BODY)
        with pytest.raises(HopRefused) as caught:
            verifier.verify(b"POST", b"/mcp/work?x=1", headers, BODY)
        assert caught.value.problem is HopProblem.REPLAYED


@pytest.mark.parametrize("off_ms", [-WINDOW_MS - 1, WINDOW_MS + 1])
def test_expired_or_future_request_is_rejected(clock: Clock, verifier: HopVerifier, off_ms: int) -> None:
    headers = sent(signed(clock))
    clock.ms -= off_ms
    with pytest.raises(HopNotAccepted) as caught:
        verifier.verify(b"POST", b"/mcp/work?x=1", headers, BODY)
    assert caught.value.problem is HopProblem.NOT_IN_TIME


def test_number_of_nonces_is_limited(clock: Clock, verifier: HopVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskgate.inbound.http.hop.MAX_NONCES", 3)
    assert MAX_NONCES > 3
    for _ in range(3):
        verifier.verify(b"POST", b"/mcp/work?x=1", sent(signed(clock)), BODY)
    with pytest.raises(HopNotAccepted) as caught:
        verifier.verify(b"POST", b"/mcp/work?x=1", sent(signed(clock)), BODY)
    assert caught.value.problem is HopProblem.TOO_MANY


def test_credentials_and_framing_are_not_forwarded() -> None:
    given = [
        (b"authorization", b"Bearer x"),
        (b"cookie", b"a=b"),
        (b"host", b"h"),
        (b"content-length", b"3"),
        (b"connection", b"close"),
        (HOP, b"forged by a caller"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"accept", b"a"),
        (b"idempotency-key", b"k"),
    ]
    assert forwarded_headers(given) == [(b"accept", b"a"), (b"idempotency-key", b"k")]


@pytest.mark.parametrize("key", [b"", b"k", KEY, b"k" * 64, b"k" * 65, b"k" * 500])
@pytest.mark.parametrize("text", [b"", b"x", b"x" * 64, b"x" * 5000])
def test_signatures_are_hmac_sha256(key: bytes, text: bytes) -> None:
    keyed, expected = Keyed(key), hmac.new(key, text, hashlib.sha256).hexdigest().encode("ascii")
    assert [keyed.hex_digest(text) for _ in range(2)] == [expected] * 2


def test_nonces_are_unique(clock: Clock, verifier: HopVerifier) -> None:
    signers = [HopSigner(KEY, "a", clock) for _ in range(3)]
    made = [
        signer.sign(b"POST", b"/mcp", HEADERS, BODY, home="b", proof=PROOF) for signer in signers for _ in range(50)
    ]
    assert len({one.split(b" ")[4] for one in made}) == 150
    for one in made:
        assert verifier.verify(b"POST", b"/mcp", sent(one), BODY) == PROOF
