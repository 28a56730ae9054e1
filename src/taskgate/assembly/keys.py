"""The keys of this installation: the operator token, the signing secret and the approval passphrase."""

from __future__ import annotations

import secrets
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from taskgate import clock
from taskgate.atomic_files import remove_abandoned
from taskgate.inbound.gateway_secrets import gateway_secret, operator_token, stored_passphrase
from taskgate.lazy_dataclass import dataclass

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Keys:
    """The operator's credential and the keys that sign what the gateway issues."""

    operator_token: str = field(repr=False)
    secret: bytes = field(repr=False)
    passphrase: str | None = field(default=None, repr=False)
    """The hash of the passphrase that approvals by the operator need, if one was set."""


def fresh_keys() -> Keys:
    """Return keys for an app that is never opened or ends with its process."""
    return Keys(secrets.token_urlsafe(32), secrets.token_bytes(32))


def keys_in(state_dir: Path) -> Keys:
    """Return the keys of this installation; create them if they do not exist."""
    remove_abandoned(state_dir, clock.wall())
    return Keys(operator_token(state_dir), gateway_secret(state_dir), stored_passphrase(state_dir))
