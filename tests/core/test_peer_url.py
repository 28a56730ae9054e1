"""Addresses from servers: which may be shown, which are refused, and what a person is warned of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.text.peer_url import MAX_URL, UnsafeUrl, check_peer_url

REFUSED = [
    ("", "1 to 2048 characters"),
    ("https://example.test/" + "a" * MAX_URL, "1 to 2048 characters"),
    ("http://example.test/", "only https"),
    ("http://127.0.0.1/", "only https"),
    ("javascript:alert(1)", "only https"),
    ("JaVaScRiPt:alert(1)", "only https"),
    ("data:text/html,x", "only https"),
    ("file:///etc/passwd", "only https"),
    ("ftp://example.test/", "only https"),
    ("vbscript:x", "only https"),
    ("blob:https://example.test/x", "only https"),
    ("https:example.test", "only https"),
    ("//example.test/", "only https"),
    ("example.test", "only https"),
    ("https:///path", "no host"),
    ("https://", "no host"),
    ("https://./", "no host|not a name"),
    ("https://example.test../", "no host"),
    ("https://good.test@evil.test/", "name or a password"),
    ("https://user:pass@example.test/", "name or a password"),
    ("https://@example.test/", "name or a password"),
    ("https://example.test\\@evil.test/", "backslashes"),
    ("https://exam ple.test/", "spaces"),
    ("https://example.test/\n", "spaces"),
    ("java\tscript:alert(1)", "spaces"),
    ("https://exam\u200bple.test/", "invisible characters"),
    ("https://example.test/\u202egpj.exe", "invisible characters"),
    ("https://[::1", "not well formed"),
    ("https://example.test:99999/", "not well formed"),
    ("https://example.test:abc/", "not well formed"),
    ("https://2130706433/", "unusual notation"),
    ("https://0x7f000001/", "unusual notation"),
    ("https://0177.0.0.1/", "unusual notation"),
    ("https://0x7f.1/", "unusual notation"),
    ("https://127.1/", "unusual notation"),
    ("https://256.1.1.1/", "unusual notation"),
    ("https://[v1.x]/", "not well formed|unusual notation|not a name"),
    ("https://example.123/", "not a name"),
    ("https://-bad.test/", "not a name"),
    ("https://bad_.test/", "not a name"),
    ("https://" + "a" * 64 + ".test/", "not a name"),
    ("https://" + "é" * 64 + ".test/", "not a name"),
    ("https://a..test/", "not a name"),
    ("https://xn--a.test/", "not a name"),
    ("https://pаypal.test/", "mixes letters that look alike"),
    ("https://xn--pypal-4ve.test/", "mixes letters that look alike"),
    ("https://аррӏе.test/", "look like others"),
    ("https://%65vil.test/", "not a name"),
]


@pytest.mark.parametrize(("url", "problem"), REFUSED)
def test_a_deceptive_or_harmful_url_is_refused_without_being_quoted(url: str, problem: str) -> None:
    with pytest.raises(UnsafeUrl, match=problem) as caught:
        check_peer_url(url)
    assert caught.value.error_type == "unsafe_url"
    assert "evil" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.test/login?x=1#top", "example.test"),
        ("https://EXAMPLE.test.", "example.test"),
        ("HTTPS://login.example.test:443/", "login.example.test"),
        ("https://a-b.example.test/%41", "a-b.example.test"),
    ],
)
def test_an_ordinary_url_is_shown_without_a_warning(url: str, host: str) -> None:
    shown = check_peer_url(url)
    assert (shown.url, shown.host, shown.warnings) == (url, host, ())


@pytest.mark.parametrize(
    ("url", "host", "warning"),
    [
        ("https://bücher.test/", "bücher.test", "its ASCII form is xn--bcher-kva.test"),
        ("https://xn--bcher-kva.test/", "bücher.test", "its ASCII form is xn--bcher-kva.test"),
        ("https://москва.test/", "москва.test", "its ASCII form is xn--80adxhks.test"),
        ("https://例え.test/", "例え.test", "letters other than a-z"),
        ("https://example.test:8443/", "example.test", "the port 8443"),
        ("https://203.0.113.7/", "203.0.113.7", "an IP address and not a name"),
        ("https://8.8.8.8/", "8.8.8.8", "an IP address and not a name"),
        ("https://10.0.0.1/", "10.0.0.1", "private network"),
        ("https://169.254.169.254/", "169.254.169.254", "private network"),
        ("https://[::1]/", "[::1]", "private network"),
        ("https://[::ffff:10.0.0.1]/", "[::ffff:10.0.0.1]", "private network"),
    ],
)
def test_a_suspicious_url_is_shown_with_a_warning(url: str, host: str, warning: str) -> None:
    shown = check_peer_url(url)
    assert shown.host == host
    assert warning in " ".join(shown.warnings)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]/x", "http://a.localhost/"]
)
def test_loopback_may_be_allowed(url: str) -> None:
    assert check_peer_url(url, allow_loopback=True).url == url
    with pytest.raises(UnsafeUrl):
        check_peer_url(url)


def test_allowing_loopback_allows_no_other_address() -> None:
    for url in ("http://example.test/", "http://10.0.0.1/", "http://localhost.example.test/"):
        with pytest.raises(UnsafeUrl):
            check_peer_url(url, allow_loopback=True)


@given(st.text(max_size=60) | st.text(st.sampled_from("https:/@.[]#?\\%x1a:"), max_size=30))
def test_any_text_is_shown_as_https_or_refused(text: str) -> None:
    for url in (text, f"https://{text}"):
        try:
            shown = check_peer_url(url)
        except UnsafeUrl:
            continue
        assert shown.url.lower().startswith("https://")
        assert shown.ascii_host.isascii()
