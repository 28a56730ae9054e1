"""Signs and verifies messages by the Standard Webhooks convention, so that receivers can use a library.

The signature covers the message id, the time and the exact bytes: `HMAC-SHA256(secret, "id.timestamp.body")`, base64, prefixed with
`v1,`. During a change of the secret a header may contain several signatures, separated by spaces.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_S = 300
_ENCODED = "whsec_"
MAX_ID_LENGTH = 200


class BadSignature(ValueError):
    """The message was not signed with the secret, or its timestamp is outside the tolerance."""


def key_of(secret: str) -> bytes:
    """The key bytes: base64 after `whsec_`, else the text itself."""
    if not secret.startswith(_ENCODED):
        return secret.encode()
    try:
        return base64.b64decode(secret[len(_ENCODED) :], validate=True)
    except binascii.Error as error:
        raise ValueError("the webhook secret after whsec_ is not base64") from error


def signed_headers(key: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a message."""
    return {
        ID: message_id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: f"v1,{_mac(key, message_id, str(timestamp), body)}",
    }


def check_signature(key: bytes, headers: Mapping[str, str], body: bytes, now_s: float) -> str:
    """Return the id of a correctly signed, recent message. Raises BadSignature."""
    message_id, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not message_id or len(message_id) > MAX_ID_LENGTH:
        raise BadSignature("the message id is missing or too long")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise BadSignature("the timestamp is missing or invalid")
    expected = _mac(key, message_id, timestamp, body).encode()
    given = (part.partition(",") for part in headers.get(SIGNATURE, "").split(" "))
    # Every candidate is compared, in constant time each.
    fits = [hmac.compare_digest(expected, mac.encode()) for version, _, mac in given if version == "v1"]
    if not any(fits):
        raise BadSignature("the signature does not match")
    if abs(now_s - int(timestamp)) > TOLERANCE_S:
        raise BadSignature("the timestamp is outside the tolerance")
    return message_id


def _mac(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
