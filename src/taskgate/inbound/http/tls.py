"""TLS of the listener: certificate and key, reloaded when their files change.

TLS 1.2 or newer, no compression, no renegotiation, the default ciphers of the library. If a changed certificate cannot
be loaded, the previous one stays in use.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from taskgate.telemetry.logs import log


class TlsFiles(msgspec.Struct, frozen=True):
    """`client_ca` verifies client certificates; without it none is requested."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    require_client_cert: bool = False


class _ModernContext(ssl.SSLContext):
    def __new__(cls, files: TlsFiles) -> _ModernContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: TlsFiles) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        self.set_alpn_protocols(["http/1.1"])
        if files.client_ca is not None:
            self.verify_mode = ssl.CERT_REQUIRED if files.require_client_cert else ssl.CERT_OPTIONAL


class ListenerTls:
    """One context for the listener. New connections use the certificate that was loaded last."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises OSError and ssl.SSLError."""
        self._files = files
        self.context = _ModernContext(files)
        self._seen = self._stamps()
        self._load(self.context)

    def refresh(self) -> None:
        """Reload changed files. An incomplete or invalid file is ignored until it changes again."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            # Tested in a separate context first: with only half of a pair loaded, every connection would fail.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except (OSError, ssl.SSLError) as fault:
            log.error("reloading the TLS certificate failed; the previous one stays in use", why=str(fault))
            return
        log.info("TLS certificate reloaded")

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._files.cert, self._files.key)
        if self._files.client_ca is not None:
            context.load_verify_locations(self._files.client_ca)

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        files = [self._files.cert, self._files.key, *([self._files.client_ca] if self._files.client_ca else [])]
        return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in (file.stat() for file in files))
