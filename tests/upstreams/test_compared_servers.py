"""Two readings of one configuration give equal servers, so that a reload restarts none of them."""

from __future__ import annotations

from msgspec.structs import replace

from taskgate.upstreams.spec import ServerSpec, Transport


def test_two_readings_of_a_server_are_equal() -> None:
    one = ServerSpec(id="a", transport=Transport.HTTP, hide=lambda text: text, sent_secrets=frozenset({"one"}))
    again = replace(one, hide=lambda text: text, sent_secrets=frozenset())
    moved = replace(one, url="http://127.0.0.1:9/mcp")
    assert (one == again, one != again, one == moved, one != moved) == (True, False, False, True)
