"""Consent of `import`, `install`, `init` and `wrap` to files of a project: its taskgate.yaml and its MCP settings.

These commands write what a client starts later, with a `-c` that counts as consent. So they take over a file that others may have
written only after its user has allowed it: with `taskgate allow`, with `--yes`, or at the question that they ask on a terminal.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from taskgate import clock
from taskgate.cli.command_line import Failed, Option, confirm, echo
from taskgate.cli.exit_codes import ExitCode
from taskgate.consent import Allowed, is_found_by_folder, place_of
from taskgate.folders import FOUND_NAME, find_config, state_folder, user_config

if TYPE_CHECKING:
    from taskgate.config.clients.client import Client, Host
    from taskgate.config.clients.found_servers import Gathered
    from taskgate.config.leaving import Leaving


AllowAll = Annotated[
    bool, Option("--yes", "-y", help="Allow the files of this project that are used, without a question.")
]


class ProjectFiles:
    """Asks for consent, or takes it as given (`yes`); without `asks` and `yes`, what is not allowed stays unused.

    A trial writes nothing: it shows what would happen after consent, with a note.
    """

    def __init__(self, *, yes: bool, asks: bool, is_trial: bool = False) -> None:
        self._is_trial = is_trial
        self._yes, self._asks = yes and not is_trial, asks and not is_trial and sys.stdin.isatty()
        self._allowed = Allowed(state_folder(os.environ))

    def configuration(self, explicit: Path | None) -> Path | None:
        """Return the file that `find_config` finds. Exits if only the working folder leads to it and it is not allowed."""
        named = str(explicit) if explicit is not None else None
        found = find_config(named, os.environ)
        if found is not None and is_found_by_folder(found, named, os.environ):
            self.require(Path(found))
        return Path(found) if found is not None else None

    def require(self, path: Path) -> None:
        """Exit unless a configuration file is allowed."""
        from taskgate.cli.allow import items_of

        if not self._consents(path, items_of(path)):
            self._refuse(f"{path} is not allowed, so it is not taken over. {_remedy(path)}")

    def settings(
        self, gathered: Gathered, clients: Iterable[Client], host: Host, *, required: bool = False
    ) -> Gathered:
        """Return what was found without the servers of shared settings files that are not allowed; notes name these.

        `required`: exits instead, where the servers would be removed from their file.
        """
        from taskgate.config.clients.found_servers import Gathered, shared_files

        refused = set()
        for path in sorted(shared_files(clients, host)):
            of_file = [item for item in gathered.found if item.path == path]
            if self._consents(path, [thing for item in of_file for thing in item.leaving(host.folder)]):
                continue
            names = ", ".join(item.name for item in of_file)
            why = f"{path} is not allowed, so its servers ({names}) are not taken over. {_remedy(path)}"
            if required:
                self._refuse(why)
            else:
                gathered.notes.append(why)
            if not self._is_trial:
                refused.add(path)
        kept = [item for item in gathered.found if item.path not in refused]
        return Gathered(kept, gathered.files, gathered.notes)

    def covers(self, path: Path) -> bool:
        """Whether everything that leaves a file is allowed, so that what a command adds to it may be allowed as well."""
        from taskgate.config.load import leaving_of_file
        from taskgate.config.problems import ConfigError

        try:
            items = leaving_of_file(path) if path.exists() else []
        except ConfigError:
            return False
        return {item.digest for item in items} <= (self._allowed.digests(str(path)) or frozenset())

    def written(self, path: Path) -> None:
        """Allow what a command has written, if clients could find the file by their folder only."""
        from taskgate.config.load import leaving_of_file

        if path.name == FOUND_NAME and place_of(str(path)) != place_of(user_config(os.environ)):
            digests = frozenset(item.digest for item in leaving_of_file(path))
            self._allowed.allow(str(path), digests, clock.wall())

    def _consents(self, path: Path, items: list[Leaving]) -> bool:
        from taskgate.cli.allow import line_of

        known = self._allowed.digests(str(path)) or frozenset()
        missing = [item for item in items if item.digest not in known]
        if not missing:
            return True
        if not self._yes:
            if not self._asks:
                return False
            echo(f"{path} is not allowed yet. It names:", err=True)
            for item in missing:
                echo(f"+ {line_of(item)}", err=True)
            if not confirm("Use it?", default=False, err=True):
                return False
        self._allowed.allow(str(path), frozenset(item.digest for item in items), clock.wall())
        return True

    def _refuse(self, why: str) -> None:
        if not self._is_trial:
            raise Failed(why, ExitCode.USAGE)
        echo(f"note: {why}", err=True)


def _remedy(path: Path) -> str:
    return f"Read it, then run: taskgate allow {shlex.quote(str(path))} (or add --yes)"
