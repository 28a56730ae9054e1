"""To whom a list is shown: what its revision of the protocol can express, and what it said about itself."""

from __future__ import annotations

from typing import NamedTuple

from taskgate.core.generations import Generation


class Audience(NamedTuple):
    generation: Generation
    speaks_tasks: bool = True
    """Whether its revision has tasks at all: before 2025-11-25 nothing may be said about them."""
    task_aware: bool = False
    """Whether it declared that it knows tasks. Fixed for a session: what one call does changes nothing that is shown."""


STATELESS_AUDIENCE = Audience(Generation.STATELESS)
