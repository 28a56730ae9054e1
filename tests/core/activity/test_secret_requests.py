"""Forms that ask for a secret are found, in many languages and however the words are written.

`develop.json` and `kept.json` are 200 such forms and 200 honest ones by a writer who had not seen the words of the program,
`fresh.json` 100 and 100 by another one. The words were completed with `develop.json`. Of the others, as long as nothing was changed
to fit them, 173 of 200 forms that ask for a secret were flagged, and 6 of 200 honest ones: that is what to expect of forms that the
program has not seen. Since then the words were completed with them as well, so these lists only keep what was reached.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.core.questions import secret_requests
from taskgate.core.questions.secret_requests import MAX_SEARCHED, secret_fields
from taskgate.core.questions.secret_words import NUMERIC_SECRETS, SECRETS

FORMS = Path(__file__).parent / "forms"
FREE = {"answer": {"type": "string", "title": "Answer"}}
NUMBER = {"answer": {"type": "integer", "title": "Answer"}}


def asked(message: str, properties: dict[str, Any] | None = None) -> list[str]:
    return secret_fields(
        {"message": message, "requestedSchema": {"properties": FREE if properties is None else properties}}
    )


@pytest.mark.unmeasured
@pytest.mark.parametrize(("name", "at_least", "at_most"), [("develop", 100, 0), ("kept", 99, 2), ("fresh", 99, 2)])
def test_forms_of_another_writer_are_flagged(name: str, at_least: int, at_most: int) -> None:
    forms = json.loads((FORMS / f"{name}.json").read_text())
    flagged = {form["id"] for form in forms if secret_fields(form)}
    phishing = {form["id"] for form in forms if form["kind"] == "phishing"}
    assert (len(forms), len(phishing)) == (200, 100)
    assert len(flagged & phishing) >= at_least
    assert len(flagged - phishing) <= at_most


@pytest.mark.parametrize(
    "message",
    [
        "Please repeat your password.",
        "pass\u200bword",
        "pаsswоrd",  # two Cyrillic letters
        "ΡASSWORD",  # a Greek capital
        "P4$$W0RD",
        "p a s s w o r d of the server",
        "p.i.n.",
        "drowssap, read it backwards",
        "<b>pass</b>word",
        "your &#112;ass&#x77;ord",
        "パスワ一ド",  # the sign for one in the place of a long vowel
        "请输入您的支 付 密 码",
        "كـلـمـة الـسـر",
        "Ihr Zugangsschl\u00fcssel",
        "vaše heslo",
        "motdepasse",
        "paste the whole content of your .env",
        "Name of your first pet",
        "the three digits on the back of your card",
        "What do you key in at the ATM?",
        "Which word do you put in below your user name when you log in?",
        "Quels chiffres tapez-vous au distributeur ?",
        "ﾊﾟｽﾜｰﾄﾞ",
        "ㅂㅣㅁㅣㄹㅂㅓㄴㅎㅗ",
        "We have just texted you six digits",
        "Which word unlocks your keychain?",
        "everything between BEGIN and END",
        "postgres://user:…@host/db",
        "run kubectl config view --raw and paste the output",
        "Въведете паролата си",
    ],
)
def test_message_that_asks_for_a_secret_is_found(message: str) -> None:
    assert asked(message) == ["answer"]


@pytest.mark.parametrize(
    "message",
    [
        "Which phone number should receive the SMS reminder?",
        "Enter your GitHub username to sign in",
        "Name for the new API key",
        "Which token do you want to swap?",
        "GPIO pin number",
        "Max tokens",
        "Author and keyword of the article",
        "Quale parola devo cercare nel testo?",
        "Ταχυδρομικός κώδικας",
        "Which password manager does the team use?",
        "&#x110000; &#99999999;",
        "Drop a pin on the map",
        "¿A qué número debemos mandar el SMS?",
        "Paroles de la chanson",
        "Which account should be used?",
    ],
)
def test_honest_message_is_not_flagged(message: str) -> None:
    assert asked(message) == []


def test_field_is_found_by_its_name_title_description_and_pattern() -> None:
    fields = {
        "erisimAnahtari": {"type": "string"},
        "a": {"type": "string", "title": "P̣ỊṆ"},
        "b": {"type": "string", "description": "the code that we sent you by SMS (one-time code)"},
        "c": {"type": "string", "pattern": "^sk-[a-z]+"},
        "d": {"type": "string", "title": "Street"},
        "e": {"type": "string", "pattern": "^([a-z]+ ){11}[a-z]+$"},
        "f": {"type": "string", "writeOnly": True},
    }
    assert asked("Settings", fields) == ["erisimAnahtari", "a", "b", "c", "e", "f"]


def test_neutral_words_are_not_made_of_two_texts() -> None:
    """パスワード管理 is the management of passwords, and 管理者 an administrator."""
    assert asked("Settings", {"a": {"type": "string", "title": "パスワード", "description": "管理者のもの"}}) == ["a"]
    assert asked("Settings", {"a": {"type": "string", "title": "パスワード管理"}}) == []


def test_choice_beside_a_field_counts_for_the_field() -> None:
    choice = {"type": "string", "oneOf": [{"const": "1", "title": "API secret key"}]}
    assert asked("Choose", {"what": choice, "text": {"type": "string"}}) == ["text"]
    assert asked("Choose", {"what": {"enum": ["Passkeys", "User name and password"]}}) == []
    assert asked("Password?", {"sure": {"type": "boolean"}, "since": {"type": "string", "format": "date"}}) == []


def test_number_is_flagged_for_codes_only() -> None:
    assert asked("The PIN of your card", NUMBER) == ["answer"]
    assert asked("Minimal number of characters of a password", NUMBER) == []


def test_message_that_is_not_searched_counts_as_a_request_for_a_secret() -> None:
    assert asked("a" * (MAX_SEARCHED + 1)) == ["answer"]
    assert asked("a" * 10_000_000) == ["answer"]


def test_fields_for_secrets_are_found() -> None:
    properties = {
        "api_key": {"type": "string"},
        "name": {"type": "string"},
        "word": {"type": "string", "title": "Your password"},
        "pin2": {"format": "password"},
        "odd": 7,
    }
    assert secret_fields({"requestedSchema": {"properties": properties}}) == ["api_key", "word", "pin2"]
    assert secret_fields({}) == []
    assert secret_fields({"requestedSchema": {}}) == []


def test_fields_that_are_not_searched_count_as_secrets() -> None:
    properties: dict[str, Any] = {"name": {}, "long": {"title": "a" * MAX_SEARCHED}, "street": {}}
    assert secret_fields({"requestedSchema": {"properties": properties}}) == ["long", "street"]


def test_a_usual_form_is_searched_to_its_end() -> None:
    properties = {f"field_{number}": {"title": f"The field with number {number}"} for number in range(100)}
    assert secret_fields({"requestedSchema": {"properties": {**properties, "api_key": {}}}}) == ["api_key"]


def test_listed_word_is_found_as_it_is_written() -> None:
    """Words and forms are folded in the same way. The words are prepared at the first form, here again."""
    for prepared in ("_all_words", "_numeric_words", "_neutral", "_concepts", "_is_seen_non_ascii"):
        getattr(secret_requests, prepared).cache_clear()
    words = [" ".join(word.strip("\n ~.").split()) for word in f"{SECRETS},{NUMERIC_SECRETS}".split(",")]
    assert [word for word in words[::15] if asked(f"{word.upper()} !") != ["answer"] != asked(word)] == []
    assert asked("Which four digits do you key in at the ATM?", NUMBER) == ["answer"]
    assert asked("a gpio pin number", NUMBER) == []
