"""The revisions of records that every gateway caches, where several gateways share the store."""

from __future__ import annotations

from collections.abc import Mapping

from taskgate.store.operation import Query
from taskgate.store.reader import Reader


class FindRevisions(Query[Mapping[str, int]], frozen=True):
    """The current revision of each topic (`ports.topics`)."""

    def run(self, reader: Reader) -> Mapping[str, int]:
        return dict(reader.run("revisions").fetchall())
