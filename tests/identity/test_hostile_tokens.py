"""Forged, stolen, expired and foreign tokens: each is refused for the right reason."""

from __future__ import annotations

import hmac
import json
import warnings
from collections.abc import Callable

import httpx2
import pytest
from joserfc.jwk import ECKey, RSAKey
from tests.identity.issuer import EC, OTHER_RSA, RSA, Issuer, an_issuer, encoded, public, signed
from tests.virtual_time import virtual_time

from taskgate.core.identity.claims import TokenProblem, TokenRefused
from taskgate.core.settings.identity import Issued
from taskgate.identity.documents import Documents
from taskgate.identity.signed_tokens import Issuer as Known
from taskgate.identity.signing_keys import SigningKeys
from taskgate.identity.verifier import Verifier

Forge = Callable[[Issuer], str | bytes]
LOGOUT = "http://schemas.openid.net/event/backchannel-logout"
PUBLIC_PEM = RSA.as_pem(private=False)


def unsigned(issuer: Issuer, alg: str, signature: bytes = b"") -> bytes:
    return b".".join((encoded({"alg": alg, "typ": "JWT"}), encoded(issuer.claims()), signature))


def twice(issuer: Issuer, name: str) -> str:
    """A payload with a duplicate claim, correctly signed."""
    text = json.dumps(issuer.claims())[:-1] + f', "{name}": "gate2"}}'
    return signed({"alg": "RS256", "kid": "rsa-1"}, text.encode(), RSA)


def with_payload(payload: bytes) -> str:
    return signed({"alg": "RS256", "kid": "rsa-1"}, payload, RSA)


def cut(issuer: Issuer) -> str:
    return issuer.token()[:-8]


def swapped(issuer: Issuer) -> bytes:
    """The claims of another token with a valid header and signature."""
    head, _, signature = issuer.token().encode().split(b".")
    return b".".join((head, encoded(issuer.claims(sub="root")), signature))


def by_public_key(issuer: Issuer) -> str:
    """The classic confusion: the public key as the secret of an HMAC."""
    text = b".".join((encoded({"alg": "HS256", "kid": "rsa-1"}), encoded(issuer.claims())))
    return (text + b"." + encoded(hmac.digest(PUBLIC_PEM, text, "sha256"))).decode()


def own_key(issuer: Issuer, header: str) -> str:
    """Signed by the sender, with the sender's own key (or where to find it) in the header."""
    value: object = OTHER_RSA.as_dict(private=False) if header == "jwk" else f"{issuer.url}/evil"
    parts = issuer.token().split(".")
    head = encoded({"alg": "RS256", "kid": "rsa-1", header: value}).decode()
    forged = signed({"alg": "RS256", "kid": "rsa-1"}, json.dumps(issuer.claims()).encode(), OTHER_RSA).split(".")
    return ".".join((head, parts[1], forged[2]))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    WEAK = RSAKey.generate_key(1024)
UNREADABLE, SIGNATURE, ALGORITHM = TokenProblem.UNREADABLE, TokenProblem.SIGNATURE, TokenProblem.ALGORITHM
TABLE: dict[str, tuple[Forge, TokenProblem]] = {
    "no algorithm": (lambda i: unsigned(i, "none"), ALGORITHM),
    "no algorithm, oddly spelt": (lambda i: unsigned(i, "nOnE", b"eA"), ALGORITHM),
    "empty algorithm": (lambda i: unsigned(i, ""), ALGORITHM),
    "public key as a shared secret": (by_public_key, ALGORITHM),
    "algorithms as a list": (lambda i: own_header(i, {"alg": ["RS256"]}), ALGORITHM),
    "an algorithm that is a map": (lambda i: own_header(i, {"alg": {"RS256": 1}}), ALGORITHM),
    "an algorithm that is not on the list": (lambda i: i.token({"alg": "RS512"}), ALGORITHM),
    "another kind of key than the id's": (lambda i: i.token({"alg": "ES256"}, EC), SIGNATURE),
    "signed with another key": (lambda i: i.token(key=OTHER_RSA), SIGNATURE),
    "an unknown key": (lambda i: i.token({"kid": "rsa-9"}, OTHER_RSA), SIGNATURE),
    "no key id, and signed with another key": (lambda i: i.token({"kid": None}, OTHER_RSA), SIGNATURE),
    "a key id that is a path": (lambda i: i.token({"kid": "../../dev/null"}, OTHER_RSA), SIGNATURE),
    "a key id of a kilobyte": (lambda i: i.token({"kid": "k" * 1024}), TokenProblem.KEY_ID),
    "its own key in the header": (lambda i: own_key(i, "jwk"), SIGNATURE),
    "its own key set in the header": (lambda i: own_key(i, "jku"), SIGNATURE),
    "its own certificate in the header": (lambda i: own_key(i, "x5u"), SIGNATURE),
    "a weak key": (lambda i: i.token({"kid": "weak"}, WEAK), SIGNATURE),
    "a key meant for encryption": (lambda i: i.token({"kid": "enc"}, OTHER_RSA), SIGNATURE),
    "a key bound to another algorithm": (lambda i: i.token({"kid": "bound"}, OTHER_RSA), SIGNATURE),
    "claims of another token": (swapped, SIGNATURE),
    "a signature that was cut": (cut, SIGNATURE),
    "no signature at all": (lambda i: i.token().rsplit(".", 1)[0] + ".", SIGNATURE),
    "another issuer": (lambda i: i.token(iss="https://login.example"), TokenProblem.OTHER_ISSUER),
    "an issuer that only begins the same": (lambda i: i.token(iss=i.url + "/"), TokenProblem.OTHER_ISSUER),
    "no issuer": (lambda i: i.token(iss=None), TokenProblem.OTHER_ISSUER),
    "issuers as a list": (lambda i: i.token(iss=[i.url]), TokenProblem.OTHER_ISSUER),
    "another audience": (lambda i: i.token(aud="https://elsewhere.example"), TokenProblem.OTHER_AUDIENCE),
    "an audience that only begins the same": (lambda i: i.token(aud="gate2"), TokenProblem.OTHER_AUDIENCE),
    "no audience": (lambda i: i.token(aud=None), TokenProblem.NO_AUDIENCE),
    "an audience that is a map": (lambda i: i.token(aud={"gate": True}), TokenProblem.NO_AUDIENCE),
    "expired": (lambda i: i.token(exp=i.claims()["iat"] - 61), TokenProblem.EXPIRED),
    "no end": (lambda i: i.token(exp=None), TokenProblem.NO_EXPIRY),
    "an end in words": (lambda i: i.token(exp="tomorrow"), TokenProblem.NO_EXPIRY),
    "an end beyond all numbers": (lambda i: i.token(exp=1e300), TokenProblem.NO_EXPIRY),
    "an end that is true": (lambda i: i.token(exp=True), TokenProblem.NO_EXPIRY),
    "not valid yet": (lambda i: i.token(nbf=i.claims()["iat"] + 120), TokenProblem.NOT_YET_VALID),
    "issued in the future": (lambda i: i.token(iat=i.claims()["iat"] + 3600), TokenProblem.ISSUED_IN_FUTURE),
    "no subject": (lambda i: i.token(sub=None), TokenProblem.NO_SUBJECT),
    "a subject that is a number": (lambda i: i.token(sub=7), TokenProblem.NO_SUBJECT),
    "a subject with a line break": (lambda i: i.token(sub="ann\nroot"), TokenProblem.NO_SUBJECT),
    "a subject without end": (lambda i: i.token(sub="a" * 300), TokenProblem.NO_SUBJECT),
    "an audience twice": (lambda i: twice(i, "aud"), UNREADABLE),
    "a subject twice": (lambda i: twice(i, "sub"), UNREADABLE),
    "claims that are a list": (lambda _: with_payload(b"[]"), UNREADABLE),
    "claims that are no JSON": (lambda _: with_payload(b"{"), UNREADABLE),
    "claims that are no text": (lambda _: with_payload(b"\xff\xfe"), UNREADABLE),
    "claims without a floor": (lambda _: with_payload(b'{"a":' * 200 + b"1" + b"}" * 200), UNREADABLE),
    "a number that JSON does not have": (lambda _: with_payload(b'{"exp": NaN}'), UNREADABLE),
    "an extension that must be understood": (lambda i: own_header(i, {"crit": ["exp"]}), TokenProblem.EXTENSIONS),
    "an unencoded payload": (lambda i: own_header(i, {"b64": False}), TokenProblem.EXTENSIONS),
    "a token inside a token": (lambda i: own_header(i, {"cty": "JWT"}), TokenProblem.NESTED),
    "compressed": (lambda i: own_header(i, {"zip": "DEF"}), TokenProblem.NESTED),
    "an identity token's cousin": (lambda i: i.token({"typ": "logout+jwt"}), TokenProblem.NOT_ACCESS_TOKEN),
    "a logout token": (lambda i: i.token(events={LOGOUT: {}}), TokenProblem.NOT_ACCESS_TOKEN),
    "a refresh token": (lambda i: i.token(typ="Refresh"), TokenProblem.NOT_ACCESS_TOKEN),
    "bound to a key of the sender (DPoP)": (lambda i: i.token(cnf={"jkt": "x" * 43}), TokenProblem.PROOF),
    "bound to a key and to a certificate": (lambda i: i.token(cnf={"jkt": "x", "x5t#S256": "x"}), TokenProblem.PROOF),
    "a signature that is no text": (lambda i: i.token().encode()[:-2] + b"\xff\xfe", TokenProblem.NOT_SIGNED),
    "too long": (lambda i: i.token(note="x" * 20_000), TokenProblem.TOO_LONG),
    "encrypted": (lambda _: "eyJ.a.b.c.d", TokenProblem.UNKNOWN),
    "four parts": (lambda i: i.token() + ".x", TokenProblem.UNKNOWN),
    "not a token": (lambda _: "hello", TokenProblem.UNKNOWN),
    "a thousand groups": (lambda i: i.token(groups=[f"g{n}" for n in range(1000)]), TokenProblem.MANY_VALUES),
}  # fmt: skip


def own_header(issuer: Issuer, more: dict[str, object]) -> bytes:
    """A header that libraries refuse to write."""
    _head, claims, signature = issuer.token().encode().split(b".")
    return b".".join((encoded({"alg": "RS256", "kid": "rsa-1", **more}), claims, signature))


def a_verifier(issuer: Issuer, client: httpx2.AsyncClient) -> Verifier:
    documents = Documents(lambda: client)
    rules = Issued(issuer=issuer.url, audiences=("gate",))
    keys = SigningKeys(issuer.url, None, documents)
    return Verifier([Known(rules, frozenset({"RS256", "ES256"}), keys)], None, documents)


@pytest.mark.parametrize("what", TABLE)
@virtual_time
async def test_a_hostile_token_is_refused(what: str) -> None:
    forge, problem = TABLE[what]
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        issuer.keys += [
            public(OTHER_RSA, "enc", use="enc"),
            public(OTHER_RSA, "bound", alg="PS256"),
            public(WEAK, "weak"),
            {"kty": "oct", "kid": "rsa-1", "k": encoded(PUBLIC_PEM).decode()},
            public(ECKey.generate_key("P-256"), "ec-2"),
        ]
        verifier = a_verifier(issuer, client)
        made = forge(issuer)
        credential = made.encode() if isinstance(made, str) else made
        with pytest.raises(TokenRefused) as refused:
            await verifier.verify(credential)
        assert refused.value.problem is problem
        assert verifier.remembered(credential) is None
        assert issuer.count("/evil") == 0
        # A valid token is accepted, also right after a refused one.
        assert (await verifier.verify(issuer.token().encode())).identity.principal == f"{issuer.url}#ann"
        await verifier.close()


def test_the_table_of_hostile_tokens_is_complete() -> None:
    assert len(TABLE) >= 40


@virtual_time
async def test_valid_tokens_of_each_accepted_kind_are_accepted() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        verifier = a_verifier(issuer, client)
        now = issuer.claims()["iat"]
        for token in (
            issuer.token(),
            issuer.token({"typ": "at+jwt"}),
            issuer.token({"alg": "ES256", "kid": "ec-1"}, EC),
            issuer.token({"kid": None}),
            issuer.token(aud=["other", "gate"]),
            issuer.token(exp=now - 30, iat=now + 30, nbf=now + 30),
        ):
            assert (await verifier.verify(token.encode())).identity.principal == f"{issuer.url}#ann"
        await verifier.close()
