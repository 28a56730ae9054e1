"""Parts that exist only if other gateways share the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.methods.following import Following
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.shared_inbox import SharedInbox
from taskgate.gateway.reload import Reload
from taskgate.gateway.tasks.conversation_homes import ConversationHomes
from taskgate.ports.account_connector import AccountConnector
from taskgate.ports.topics import GRANTS, PINS, SCOPES, SERVERS, TOKENS

if TYPE_CHECKING:
    pass
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import CatalogGroup, QuestionGroup


def changed_elsewhere(
    grants: StandingGrants,
    lists: CatalogGroup,
    temporary_scopes: TemporaryScopes,
    reload: Reload,
    base: Foundation,
    *,
    accounts: AccountConnector,
) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """Return, for each kind of record that another gateway may have changed, the function that reloads it."""

    async def identity_records() -> None:
        await base.people.load()
        await base.separated.load()
        await accounts.reload_accounts()
        await reload.drained_elsewhere()

    return {
        GRANTS: grants.load,
        TOKENS: identity_records,
        PINS: partial(lists.pins.load_again, lists.catalogs.offers),
        SCOPES: temporary_scopes.synchronize,
        SERVERS: reload.dynamic_servers_changed_elsewhere,
    }


def shared_sessions(
    base: Foundation, following: Following, ends: SessionEnds, activity: Activity
) -> SharedSessions | None:
    """Return None if no other gateway can continue a session."""
    rows, wakeups = base.session_rows, base.store.wakeups
    if rows is None or wakeups is None:
        return None
    return SharedSessions(
        rows,
        wakeups,
        base.sessions,
        following,
        ends,
        plan=base.plan,
        elsewhere=base.sessions_elsewhere,
        state_signer=base.state_signer,
        conversations=ConversationHomes(
            rows,
            base.sessions_elsewhere,
            lambda: [feed.key.stream for feed in activity.feeds() if feed.key.session_id is None],
        ),
    )


def shared_inbox(base: Foundation, asking: QuestionGroup) -> SharedInbox | None:
    """Return None if no other gateway can show the questions that wait here."""
    rows, wakeups = base.store.shared, base.store.wakeups
    if rows is None or wakeups is None:
        return None
    return SharedInbox(rows, wakeups, asking.activity.inbox, asking.pages, base.events)
