"""Say which file a command uses if only the working folder leads to it: a person who types it needs no consent, but sees it."""

from __future__ import annotations

import os
import sys

from taskgate.consent import is_found_by_folder


def say_found_file(path: str | None, explicit: str | None = None) -> None:
    """Print the path to stderr if nothing but the working folder led to the file."""
    if path is not None and is_found_by_folder(path, explicit, os.environ):
        print(f"Using {os.path.abspath(path)}", file=sys.stderr, flush=True)
