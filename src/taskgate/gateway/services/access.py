"""What access control uses: the scopes in force, the address in OAuth metadata, and where refusals are recorded."""

from __future__ import annotations

import msgspec

from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress


class AccessServices(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    temporary_scopes: TemporaryScopes
    address: PublicAddress
    denials: Denials

    @property
    def default_scope(self) -> str:
        return self.plan.value.default_scope

    def has_scope(self, scope: str) -> bool:
        return scope in self.plan.value.scopes
