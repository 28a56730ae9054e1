"""The key under which the link of a caller is kept: the effect of `instances` for each transport and generation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from taskgate.core.generations.generation import Generation
from taskgate.ports.link import LISTENER, LinkKey
from taskgate.upstreams.spec import Instances, ServerSpec, Transport, instances_of

COMMON: Final = LinkKey(Generation.STATELESS)
"""The key of the shared link to a stateless HTTP server, whose requests each identify their caller."""


def listening_caller(spec: ServerSpec, alive: Collection[LinkKey], announcer: LinkKey | None) -> LinkKey:
    """Return the caller whose link is used for lists. No process is started only for that if one is running.

    Over HTTP the stateless generation is tried first: its link is shared with calls and receives changes without a session.
    A process without calls uses the stateful generation, as most callers do.
    """
    if spec.transport is not Transport.STDIO:
        return LinkKey(Generation.STATELESS, session=LISTENER)
    if announcer is not None and announcer in alive:
        return announcer
    principal = "" if instances_of(spec) is Instances.SHARED else spec.owner
    return next(iter(alive), LinkKey(Generation.STATEFUL, principal))


def key_in(spec: ServerSpec, caller: LinkKey, generation: Generation) -> LinkKey:
    """Return the key of the link that serves this caller in this generation."""
    by_stdio = spec.transport is Transport.STDIO
    if generation is Generation.STATELESS and not by_stdio:
        # With an account per principal, no request may use the account of another one.
        return COMMON if not spec.credentials.per_principal else LinkKey(generation, caller.principal)
    if generation is Generation.STATELESS or generation is not caller.generation:
        # Stateless callers identify themselves with each request. The key of a session is kept, because each call looks it up.
        caller = caller._replace(generation=generation, conversation="")
    if caller.resumes or (caller.session == LISTENER and not by_stdio):
        return caller
    if spec.link_per_caller:
        return caller
    match instances_of(spec):
        case Instances.SHARED:
            return LinkKey(generation, caller.principal if spec.credentials.per_principal else "")
        case Instances.PER_PRINCIPAL:
            return caller._replace(session="", conversation="")
        case _:
            return caller
