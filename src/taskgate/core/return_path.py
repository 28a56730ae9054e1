"""The path to return to after a login, if it is a safe path of this gateway."""

from __future__ import annotations

import re
from typing import Final

MAX_PATH: Final = 512
# No second slash at the front (browsers read //host as another site), no backslash (some read it as a slash), no
# invisible characters.
_PATH: Final = re.compile(r"/(?:[A-Za-z0-9._~-][A-Za-z0-9._~/-]*)?(?:\?[A-Za-z0-9._~=&%:-]*)?")
_NOWHERE: Final = ("/login", "/logout")


def safe_return(requested: str | None) -> str | None:
    """Return the path, or None if it is not a path of this gateway."""
    if not requested or len(requested) > MAX_PATH or _PATH.fullmatch(requested) is None:
        return None
    return None if requested.partition("?")[0] in _NOWHERE else requested
