"""The topics of live updates: what an open page can subscribe to."""

from __future__ import annotations

from typing import Final

TOPICS: Final = ("tasks", "inbox", "servers", "scopes", "definitions")
