"""Names and expiry of client certificates, from TLS or from the header of a trusted proxy."""

from __future__ import annotations

import base64
import hashlib
import ssl
from collections.abc import Mapping
from typing import Any, Final

from taskgate import clock

_KINDS: Final = {"DNS": "dns", "URI": "uri", "email": "email"}
MAX_NAMES: Final = 50


def names_in_certificate(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the `dns:`, `uri:`, `email:` and `cn:` names of a verified client certificate."""
    if not certificate:
        return ()
    names = [f"{_KINDS[kind]}:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    for part in certificate.get("subject", ()):
        names += [f"cn:{value}" for key, value in part if key == "commonName"]
    return tuple(names[:MAX_NAMES])


def expiry_of(certificate: Mapping[str, Any] | None) -> clock.Expiry | None:
    ends = certificate.get("notAfter") if certificate else None
    return None if ends is None else clock.Expiry(ssl.cert_time_to_seconds(ends))


def thumbprint_of(tls: Any) -> str:
    """Return the SHA-256 of the peer's certificate as tokens name it (RFC 8705); empty if it has none."""
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if not certificate:
        return ""
    return base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()).rstrip(b"=").decode("ascii")


def names_in_header(value: bytes) -> tuple[str, ...]:
    """Return the certificate name in a trusted proxy's header: a prefixed name, or the CN of a subject like
    `CN=agent,O=Example`."""
    text = value.decode("latin-1").strip()
    if text.startswith(("dns:", "uri:", "email:", "cn:")):
        return (text,)
    parts = (part.strip().partition("=") for part in text.split(","))
    found = [text for key, _, text in parts if key.upper() == "CN" and text]
    # Several common names are ambiguous, so none counts.
    return (f"cn:{found[0]}",) if len(found) == 1 else ()
