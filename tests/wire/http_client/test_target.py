"""URLs and headers of requests: validation and rendering."""

from __future__ import annotations

import pytest

from taskgate.mcp.http import Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://host/", {}),
        ("http:///path", {}),
        ("http://user:secret@host/", {}),
        ("http://host/", {"X": "a\r\nY: b"}),
        ("http://host/", {"X": "a\0"}),
        ("http://host/", {"X Y": "a"}),
        ("http://host/", {"": "a"}),
        ("http://host/", {"Content-Length": "1"}),
        ("http://host/", {"Accept-Encoding": "gzip"}),
        ("http://host/", {"x": "1", "X": "2"}),
        ("http://host:99999/", {}),
    ],
)
def test_invalid_url_or_header_is_rejected(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        Target.parse(url, headers)


@pytest.mark.parametrize("header", [(b"x", b"a\nb"), (b"x:", b"a"), (b"", b"a"), (b"x", b"\x7f")])
def test_invalid_header_of_one_call_is_rejected(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError):
        Target.parse("http://host/").render(b"POST", [header], b"")


@pytest.mark.parametrize("method", [b"HEAD", b"CONNECT", b"GET /x", b""])
def test_method_that_changes_framing_is_rejected(method: bytes) -> None:
    with pytest.raises(ValueError):
        Target.parse("http://host/").render(method, (), b"")


def test_origin_and_host_header() -> None:
    assert Target.parse("https://Example.com/a").origin == (True, "example.com", 443, False)
    assert b"Host: example.com\r\n" in Target.parse("https://Example.com/a").fixed
    assert b"Host: [::1]:81\r\n" in Target.parse("http://[::1]:81").fixed
    assert Target.parse("http://[::1]:81").path == b"/"
    assert Target.parse("http://bücher.example/").origin.host == "xn--bcher-kva.example"
    assert b"Host: other\r\n" in Target.parse("http://host/", {"Host": "other"}).fixed


def test_other_path_of_same_origin_keeps_fixed_headers() -> None:
    base = Target.parse("http://host:81/sse", {"X": "1"})
    other = base.at("/messages?id=1")
    assert other.origin == base.origin
    expected = Target.parse("http://host:81/messages?id=1", {"X": "1"})
    assert other.render(b"GET", (), b"") == expected.render(b"GET", (), b"")
    assert base.at("messages").path == b"/messages"
    assert base.at("http://host:81/m").path == b"/m"
    with pytest.raises(ValueError, match="origin"):
        base.at("http://elsewhere/m")
    with pytest.raises(ValueError, match="origin"):
        base.at("//elsewhere/m")
