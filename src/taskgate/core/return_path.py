"""The path to return to after a login, if it is a safe path of this gateway."""

from __future__ import annotations

import re
from typing import Final

MAX_PATH: Final = 512
# No second slash at the front (browsers read //host as another site), no backslash (some read it as a slash), nothing unseen.
_PATH: Final = re.compile(r"/(?:[A-Za-z0-9._~-][A-Za-z0-9._~/-]*)?(?:\?[A-Za-z0-9._~=&%:-]*)?")
_NOWHERE: Final = ("/login", "/logout")


def safe_return(wished: str | None) -> str | None:
    """The path to return to, or None if the wish is no path of ours."""
    if not wished or len(wished) > MAX_PATH or _PATH.fullmatch(wished) is None:
        return None
    return None if wished.partition("?")[0] in _NOWHERE else wished
