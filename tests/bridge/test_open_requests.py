"""The bridge classifies lines exactly as parsing them would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.bridge.errors import failure
from taskgate.bridge.handshake import is_older
from taskgate.bridge.lines import Splitter
from taskgate.bridge.main import options
from taskgate.bridge.pending import ClientLine, Pending, answered, classify, encode, unsent

IDS = st.one_of(st.integers(-(2**60), 2**60), st.text(max_size=12))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["id", "method", "x"]), inner)
    ),
    max_leaves=8,
)
METHODS = st.sampled_from(["tools/call", "initialize", "notifications/cancelled", "ping", 'odd"method', "ünïcode"])


def written(message: dict[str, Any], spaces: bool, plain: bool) -> bytes:
    separators = (", ", ": ") if spaces else (",", ":")
    text = json.dumps(message, separators=separators, ensure_ascii=plain)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def truth(message: dict[str, Any]) -> ClientLine:
    if "method" not in message:
        return ClientLine(None, "")
    return ClientLine(encode(message["id"]) if "id" in message else None, message["method"])


@given(data=st.data(), spaces=st.booleans(), plain=st.booleans())
def test_lines_are_classified(data: st.DataObject, spaces: bool, plain: bool) -> None:
    members: dict[str, Any] = {"jsonrpc": "2.0"}
    if data.draw(st.booleans()):
        members["id"] = data.draw(IDS)
    if data.draw(st.booleans()):
        members["method"] = data.draw(METHODS)
        members["params"] = data.draw(st.dictionaries(st.sampled_from(["id", "jsonrpc", "a"]), VALUES))
    else:
        members[data.draw(st.sampled_from(["result", "error"]))] = data.draw(VALUES)
    message = {name: members[name] for name in data.draw(st.permutations(list(members)))}
    seen = classify(written(message, spaces, plain))
    if seen.method.startswith("notifications/"):
        # Such a line is a notification by its method, regardless of its other members.
        assert seen.method == message["method"]
    else:
        assert seen == truth(message)


@given(request_id=IDS, body=VALUES, member=st.sampled_from(["result", "error"]))
def test_responses_are_recognized(request_id: Any, body: Any, member: str) -> None:
    line = b'{"jsonrpc":"2.0","id":' + encode(request_id) + f',"{member}":'.encode() + encode(body) + b"}\n"
    assert answered(line) == encode(request_id)


def test_server_requests_and_notifications_are_not_responses() -> None:
    assert answered(b'{"jsonrpc":"2.0","id":3,"method":"ping"}\n') is None
    assert answered(b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"id":3,"result":1}}\n') is None


def line(request_id: Any, method: str, **params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}) + b"\n"


def test_crash_fails_calls_and_repeats_idempotent_requests() -> None:
    pending = Pending()
    for sent in (line(1, "tools/call"), line(2, "tools/list"), line(3, "tasks/get"), line(4, "tasks/cancel")):
        pending.sent(sent)
    pending.received(b'{"jsonrpc":"2.0","id":3,"result":{}}\n')
    again, over = pending.lost()
    assert [sent.id for sent in again] == [b"2"]
    assert [sent.id for sent in over] == [b"1", b"4"]
    pending.sent(line(2, "tools/list"))
    again, over = pending.lost()
    assert again == []
    assert [(sent.id, sent.again) for sent in over] == [(b"2", True)]


def test_cancelled_request_is_not_answered_after_crash() -> None:
    pending = Pending()
    pending.sent(line("x", "tools/call"))
    pending.sent(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}))
    assert pending.lost() == ([], [])


@pytest.mark.parametrize(
    "odd",
    [
        rb'{"jsonrpc":"2.0","id":"\x","method":"ping"}',
        b'{"jsonrpc":"2.0","id":"\\\xff","method":"ping"}',
        rb'{"method":"ping","params":{},"jsonrpc":"2.0","id":"\q"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":"x"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[[]]}}',
        b'{"jsonrpc":"2.0","id":null,"method":"resources/subscribe","params":[1]}',
        b'{"jsonrpc":"2.0","id":null,"method":"resources/subscribe","params":{"uri":[]}}',
    ],
)
def test_invalid_line_is_left_to_gateway(odd: bytes) -> None:
    pending = Pending()
    pending.sent(line("x", "tools/call"))
    pending.sent(odd + b"\n")
    assert unsent(odd) is None
    assert [sent.id for sent in pending.lost()[1]] == [b'"x"']
    assert pending.replay("own", []) == []


def test_session_setup_is_replayed_without_responses_to_client() -> None:
    pending = Pending()
    pending.sent(line(0, "initialize", protocolVersion="2025-11-25"))
    pending.received(b'{"jsonrpc":"2.0","id":0,"result":{}}\n')
    pending.sent(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    pending.sent(line(1, "resources/subscribe", uri="a:1"))
    pending.sent(line(2, "resources/subscribe", uri="a:2"))
    pending.sent(line(3, "resources/unsubscribe", uri="a:1"))
    again, _ = pending.lost()
    replayed = [json.loads(data) for data in pending.replay("own", [])]
    assert [data["method"] for data in replayed] == ["initialize", "notifications/initialized", "resources/subscribe"]
    assert replayed[2]["params"] == {"uri": "a:2"}
    assert [sent.method for sent in again] == ["resources/subscribe", "resources/subscribe", "resources/unsubscribe"]
    own = replayed[0]["id"]
    assert pending.received(encode({"jsonrpc": "2.0", "id": own, "result": {}})) is False
    assert pending.received(b'{"jsonrpc":"2.0","id":1,"result":{}}\n') is True


def test_unanswered_initialize_is_repeated_and_not_replayed() -> None:
    pending = Pending()
    pending.sent(line(0, "initialize"))
    again, _ = pending.lost()
    assert pending.replay("own", again) == []
    pending.forget(again[0])
    assert pending.replay("own", []) == []


@pytest.mark.parametrize("stateless", [False, True])
def test_bridge_errors_have_gateway_format(stateless: bool) -> None:
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}} if stateless else {}
    sent = unsent(line("a", "tools/call", **meta))
    assert sent is not None
    data = json.loads(failure(sent, "outcome_unknown", "gone", "maybe"))
    assert data["id"] == "a"
    assert data["error"]["code"] == (-32603 if stateless else -32000)
    assert (data["error"]["data"]["error_type"], data["error"]["data"]["executed"]) == ("outcome_unknown", "maybe")


@given(st.lists(st.binary(max_size=20).filter(lambda piece: b"\n" not in piece), max_size=8), st.integers(1, 7))
def test_splitter_does_not_depend_on_chunk_boundaries(lines: list[bytes], size: int) -> None:
    whole = b"".join(piece + b"\n" for piece in lines)
    splitter = Splitter(1000)
    found = [line for start in range(0, len(whole), size) for line in splitter.feed(whole[start : start + size])]
    assert found == [piece + b"\n" for piece in lines if piece]


def test_line_over_limit_does_not_affect_others() -> None:
    splitter = Splitter(5)
    assert splitter.feed(b"123456") == []
    assert splitter.too_long
    assert splitter.feed(b"789\nok\n") == [b"ok\n"]


def test_line_over_limit_is_reported_once() -> None:
    splitter = Splitter(5)
    reported = 0
    for piece in (b"1234", b"5678", b"9", b"abc", b"d\n", b"1234567", b"\nok\n"):
        splitter.feed(piece)
        reported += splitter.dropped_one()
    assert reported == 2


def test_bridge_accepts_only_its_own_options() -> None:
    assert options([]) == {}
    assert options(["-c", "x.yaml", "--scope=s"]) == {"config": "x.yaml", "scope": "s"}
    for words in (["--alone"], ["--help"], ["-c"], ["more"]):
        assert options(words) is None


def test_versions_are_compared_as_numbers() -> None:
    assert is_older("0.9.0", "0.10.0")
    assert not is_older("1.0.0", "1.0.0")
    assert not is_older("odd", "1.0.0")
