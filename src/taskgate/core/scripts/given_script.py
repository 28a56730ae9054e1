"""What a caller gave to `run_script`, read from the stored arguments."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.raw_json import Raw

NO_INPUTS: Final = b"{}"


class GivenScript(msgspec.Struct):
    code: str
    inputs: Raw = Raw(NO_INPUTS)
    """As the caller sent them. They may have megabytes, and are decoded by the worker only."""
    resume_of: str | None = None

    @property
    def inputs_json(self) -> bytes:
        """The inputs as a JSON object, also where the caller gave none."""
        inputs = bytes(self.inputs)
        return NO_INPUTS if inputs == b"null" else inputs


read_given: Final = msgspec.json.Decoder(GivenScript).decode
