"""Access classes: what a route of the gateway requires of the request that it serves."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from taskgate.core.identity import Permission


class Access(StrEnum):
    """The one requirement that each route declares."""

    PUBLIC = "public"
    """Anyone: probes, documents that are looked up by machines, login pages, webhooks that carry their own signature."""
    LOGIN = "login"
    """Any verified credential; the route shows and changes only what belongs to its holder."""
    CALL = "call"
    """A credential that may call tools in the scope that the request names."""
    SEE = "see"
    DECIDE = "decide"
    ACT = "act"
    CONFIGURE = "configure"

    @property
    def permission(self) -> Permission | None:
        """The permission that a role must give; None for classes that need no role."""
        return _PERMISSIONS.get(self)


_PERMISSIONS: Final = {Access(permission.value): permission for permission in Permission}
