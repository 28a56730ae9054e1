"""The gateway's own resources: their URIs and how they are listed."""

from __future__ import annotations

from typing import Final

DIAGRAMS: Final = "taskgate://diagrams"
DIAGRAMS_ALIAS: Final = "emceepee://diagrams"
STATUS: Final = "taskgate://status"
LISTED: Final = (
    {
        "uri": DIAGRAMS,
        "name": "diagrams",
        "title": "How this gateway works",
        "description": "Mermaid diagrams of tasks, questions and calls.",
        "mimeType": "application/json",
    },
    {
        "uri": DIAGRAMS_ALIAS,
        "name": "diagrams-alias",
        "description": f"The same as {DIAGRAMS}, under an older name.",
        "mimeType": "application/json",
    },
    {
        "uri": STATUS,
        "name": "status",
        "title": "State of the servers",
        "description": "Servers in your scope, what they work on for you, and what waits for you.",
        "mimeType": "application/json",
    },
)
SERVER: Final = "taskgate"
"""The server name of these resources in lists in which every entry has a server."""
