"""Topics of live updates. Pages declare the topics that they show, and event streams name the topics that changed."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Topic(StrEnum):
    TASKS = "tasks"
    INBOX = "inbox"
    SERVERS = "servers"
    SCOPES = "scopes"
    DEFINITIONS = "definitions"


MENU_TOPIC: Final = Topic.INBOX
"""The topic that every page follows: the menu shows the number of entries in the inbox."""
