"""Encoding of header values: any text is preserved, and invalid encodings are rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.mcp.param_headers import decode_header_value, encode_header_value


@given(st.text())
def test_any_text_is_preserved_by_encoding(text: str) -> None:
    encoded = encode_header_value(text)
    assert all(" " <= character <= "~" for character in encoded)
    assert encoded == encoded.strip()
    assert decode_header_value(encoded) == text


@pytest.mark.parametrize("text", ["", "plain", "with space", "a=?base64?b"])
def test_printable_ascii_is_not_encoded(text: str) -> None:
    assert encode_header_value(text) == text


@pytest.mark.parametrize("text", [" padded", "é", "a\nb", "=?base64?YQ==?=", "=?BASE64?YQ==?=", "=?x"])
def test_unsafe_or_ambiguous_value_is_encoded(text: str) -> None:
    assert encode_header_value(text).startswith("=?base64?")


@pytest.mark.parametrize("value", ["=?base64?YQ?=", "=?base64?!?=", "=?base64?/w==?=", "=?base64?YR==?="])
def test_invalid_encoding_is_rejected(value: str) -> None:
    assert decode_header_value(value) is None


@pytest.mark.parametrize("value", ["=?base64?=", "=?base64?YQ==", "YQ==?="])
def test_partial_encoding_is_a_plain_value(value: str) -> None:
    assert decode_header_value(value) == value
