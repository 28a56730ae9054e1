"""The principal of a user of this machine."""

from __future__ import annotations

from taskgate.operating_system import user_name


def local_principal(uid: int) -> str:
    return f"local:{user_name(uid)}"
