"""Calls that are recorded to try other rules on them: encode and decode; arguments are encrypted."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate.core.governance.rehearse import RecordedCall
from taskgate.store.sealing import Sealing

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(RecordedCall).decode


def encode_recorded_call(sealing: Sealing, call: RecordedCall) -> bytes:
    if not sealing.seals or call.arguments is None:
        return _encode(call)
    plain = _encode(replace(call, arguments=None))
    return sealing.seal_into(plain, call.arguments.encode(), call.principal)


def decode_recorded_call(sealing: Sealing, body: bytes) -> RecordedCall:
    call = _decode(body)
    arguments = sealing.open_in(body, call.principal)
    return call if arguments is None else replace(call, arguments=arguments.decode())
