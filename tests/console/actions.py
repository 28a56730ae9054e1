"""Every action of the console, as the target of its form; `tests/structure` compares them with the table of routes."""

from __future__ import annotations

import re
from typing import Final

ACTIONS: Final = (
    "/approvals/{id}/approve",
    "/approvals/{id}/deny",
    "/approvals/{id}/recall",
    "/definitions/accept",
    "/elicitations/{id}/{action}",
    "/grants/{id}/revoke",
    "/inbox/questions/{id}",
    "/inbox/together",
    "/login",
    "/logout",
    "/oauth/connect/{ticket}",
    "/rules",
    "/servers/{name}/connect",
    "/servers/{name}/{action}",
    "/system/reload",
    "/tasks/cancel",
    "/tasks/stop-scripts",
    "/tasks/{id}/cancel",
    "/tasks/{id}/rerun",
    "/try",
)
OBSERVER: Final = """
addEventListener("submit", ({target}) => {
  if (target.method !== "post") return;
  const sent = JSON.parse(localStorage.getItem("sent") ?? "[]");
  localStorage.setItem("sent", JSON.stringify([...sent, new URL(target.getAttribute("action"), location.href).pathname]));
}, true);
"""
"""Records the path of every form that a page sends, in the storage of the browser for this site."""


def action_of(path: str) -> str | None:
    """The action that a form with this target belongs to. Fixed parts take precedence over placeholders, as in the route table."""
    exact_first = sorted(ACTIONS, key=lambda action: action.count("{"))
    return next((one for one in exact_first if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), path)), None)
