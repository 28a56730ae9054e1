"""Any text survives the way through a header, and a broken encoding is never taken for a value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.mcp.param_headers import decode_header_value, encode_header_value


@given(st.text())
def test_any_text_survives_the_way_through_a_header(text: str) -> None:
    encoded = encode_header_value(text)
    assert all(" " <= character <= "~" for character in encoded)
    assert encoded == encoded.strip()
    assert decode_header_value(encoded) == text


@pytest.mark.parametrize("text", ["", "plain", "with space", "a=?base64?b"])
def test_what_a_header_can_carry_stays_as_it_is(text: str) -> None:
    assert encode_header_value(text) == text


@pytest.mark.parametrize("text", [" padded", "é", "a\nb", "=?base64?YQ==?=", "=?BASE64?YQ==?=", "=?x"])
def test_what_it_cannot_carry_or_could_mistake_is_encoded(text: str) -> None:
    assert encode_header_value(text).startswith("=?base64?")


@pytest.mark.parametrize("value", ["=?base64?YQ?=", "=?base64?!?=", "=?base64?/w==?=", "=?base64?YR==?="])
def test_a_broken_encoding_is_no_value(value: str) -> None:
    assert decode_header_value(value) is None


@pytest.mark.parametrize("value", ["=?base64?=", "=?base64?YQ==", "YQ==?="])
def test_half_an_encoding_is_a_plain_value(value: str) -> None:
    assert decode_header_value(value) == value
