"""Configured tokens and revocations as JSON, for administrators."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.identity.access import Access
from taskgate.core.timestamps import iso
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.governing import KnownToken
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.revocations import Revocation, Revocations
from taskgate.replies.tokens import TokenRow, Tokens, TokensRevoked

LONGEST_REASON: Final = 500
_REVOKE: Final = closed_object(("name",), name=TEXT, reason=TEXT)


class PeopleApi(msgspec.Struct, eq=False):
    _plan: Live[Plan]
    _revocations: Revocations

    def routes(self) -> tuple[Route, ...]:
        admin = Access.CONFIGURE
        return (
            get(
                "/tokens",
                admin,
                self._tokens,
                "Configured tokens and revocations.",
                command="taskgate tokens list",
                answer=Tokens,
            ),
            post(
                "/tokens/revoke",
                admin,
                self._revoke,
                "Revoke a token or a principal.",
                _REVOKE,
                command="taskgate tokens revoke NAME",
                answer=TokensRevoked,
            ),
        )

    async def _tokens(self, visit: Visit) -> Answer:
        """Tokens of the configuration, and revoked subjects of issuers."""
        user = visit.user
        tokens = [token for token in self._plan.value.governing.tokens if user.reaches(token.principal)]
        rows = [_row(token, self._revocations.revoked.get(token.sha256)) for token in tokens]
        known = {token.sha256 for token in tokens}
        revoked_subjects = [
            _with_revocation(TokenRow(id=name, principal=name, roles=(), expires_at=None), revoked)
            for name, revoked in self._revocations.revoked.items()
            if name not in known and "#" in name and user.reaches(name)
        ]
        return json_answer(Tokens(tokens=rows + revoked_subjects))

    async def _revoke(self, visit: Visit) -> Answer:
        user, body = visit.user, visit.request.json()
        name, reason = body.get("name"), body.get("reason", "")
        if set(body) - {"name", "reason"} or type(name) is not str or type(reason) is not str or not name:
            raise ValueError('send "name" (the id of a token or the name of a principal) and optionally "reason"')
        tokens = self._plan.value.governing.tokens
        found = [token for token in tokens if name in (token.id, token.principal) and user.reaches(token.principal)]
        for token in found:
            await self._revocations.revoke(token.sha256, token.principal, user.id, reason[:LONGEST_REASON])
        if not found:
            if "#" not in name or "\0" in name or not user.reaches(name):
                return problem(404, "Token not found. Run `taskgate tokens list` to see the names.")
            await self._revocations.revoke(name, name, user.id, reason[:LONGEST_REASON])
        return json_answer(TokensRevoked(revoked=[token.principal for token in found] or [name], by=user.id))


def _row(token: KnownToken, revoked: Revocation | None) -> TokenRow:
    ends = iso(token.expires_ms) if token.expires_ms is not None else None
    row = TokenRow(id=token.id, principal=token.principal, roles=sorted(token.roles), expires_at=ends)
    return row if revoked is None else _with_revocation(row, revoked)


def _with_revocation(row: TokenRow, revoked: Revocation) -> TokenRow:
    return msgspec.structs.replace(row, revoked_at=iso(revoked.at_ms), revoked_by=revoked.by, reason=revoked.reason)
