"""Under which key the link of a caller is kept: what `instances` of the configuration means for each transport and generation."""

from __future__ import annotations

from typing import Final

from taskgate.core.generations import Generation
from taskgate.ports.upstream import LISTENER, LinkKey
from taskgate.upstreams.spec import Instances, ServerSpec, Transport

COMMON: Final = LinkKey(Generation.STATELESS)
"""The one link to a stateless server over HTTP: every request on it says for itself whose it is."""


def instances_of(spec: ServerSpec) -> Instances:
    if spec.instances is not Instances.AUTO:
        return spec.instances
    return Instances.PER_PRINCIPAL if spec.transport is Transport.STDIO else Instances.PER_SESSION


def key_in(spec: ServerSpec, caller: LinkKey, generation: Generation) -> LinkKey:
    """The key of the link that serves this caller in this generation."""
    by_stdio = spec.transport is Transport.STDIO
    if generation is Generation.STATELESS and not by_stdio:
        return COMMON
    if generation is not caller.generation:
        caller = caller._replace(generation=generation)
    if caller.resumes or (caller.session == LISTENER and not by_stdio):
        return caller
    if spec.instances is Instances.AUTO and not by_stdio:
        return caller
    match instances_of(spec):
        case Instances.SHARED:
            return LinkKey(generation)
        case Instances.PER_PRINCIPAL:
            return caller._replace(session="")
        case _:
            return caller
