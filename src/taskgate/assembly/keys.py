"""The keys of this installation: the operator token, the signing secret and the approval passphrase."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from taskgate import clock
from taskgate.atomic_files import remove_abandoned
from taskgate.inbound.gateway_secrets import gateway_secret, operator_token, stored_passphrase


class Keys(msgspec.Struct, frozen=True):
    """The operator's credential and the keys that sign what the gateway issues."""

    operator_token: str
    secret: bytes
    passphrase: str | None = None
    """The hash of the passphrase that approvals by the operator need, if one was set."""

    def __repr__(self) -> str:
        return "Keys([hidden])"


def fresh_keys() -> Keys:
    """Return keys for an app that is never opened or ends with its process."""
    return Keys(secrets.token_urlsafe(32), secrets.token_bytes(32))


def keys_in(state_dir: Path) -> Keys:
    """Return the keys of this installation; create them if they do not exist."""
    remove_abandoned(state_dir, clock.wall())
    return Keys(operator_token(state_dir), gateway_secret(state_dir), stored_passphrase(state_dir))
