"""For which kind of client a list or a tool definition is rendered."""

from __future__ import annotations

from taskgate.core.catalog.rendering import STATELESS_AUDIENCE, Audience
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateful import supports_tasks
from taskgate.gateway.requests.request import Request


def audience_of(request: Request) -> Audience:
    session = request.session
    if session is None:
        return STATELESS_AUDIENCE
    return Audience(Generation.STATEFUL, supports_tasks(session.version), session.task_aware, session.renders_apps)
