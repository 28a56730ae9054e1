"""`Raw`: one value of a JSON document as the bytes in which it was received."""

from __future__ import annotations

from msgspec import Raw as Raw
