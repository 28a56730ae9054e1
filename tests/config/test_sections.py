"""Sections: what each type of field accepts, where faults are reported, and the plain values of a section."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import pytest

from taskgate.config.load import load_text
from taskgate.config.problems import ConfigError
from taskgate.config.sections import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Fault,
    Field,
    Invalid,
    SecretStr,
    Section,
    iso_duration,
    model_validator,
)


def no_zero(value: Any) -> Any:
    return None if value == "0" else value


def even(value: int) -> int:
    if value % 2:
        raise ValueError("is odd; write an even number")
    return value


class Dot(Section):
    type: Literal["dot"] = Field(default="dot")
    size: int = Field(default=1, ge=1)


class Line(Section):
    type: Literal["line"] = Field(default="line")
    length: float = Field(gt=0, le=10)


class Sample(Section):
    text: str = Field(default="", pattern="^[a-z]*$")
    truth: bool = Field(default=False)
    whole: Annotated[int | None, BeforeValidator(no_zero)] = Field(default=None, lt=100)
    even: Annotated[int, AfterValidator(even)] = Field(default=0)
    number: float = Field(default=0.0)
    length: timedelta = Field(default=timedelta(0))
    time: AwareDatetime | None = Field(default=None)
    secret: SecretStr | None = Field(default=None, repr=False)
    unset: None = Field(default=None)
    word: Literal["a", "b"] = Field(default="a", alias="from")
    names: tuple[str, ...] = Field(default=("x",), min_length=1)
    numbers: dict[str, int] = Field(default_factory=dict)
    dot: Dot = Field(default_factory=Dot.model_construct)
    shapes: tuple[Annotated[Dot | Line, Field(discriminator="type")], ...] = Field(default=())
    origin: str = Field(default="", exclude=True)

    @model_validator
    def _check(self) -> Sample:
        if self.text == "a" and self.word == "b":
            raise ValueError("text a needs word a; change one")
        return self


@pytest.mark.parametrize(
    ("key", "given", "read"),
    [
        ("text", "abc", "abc"),
        ("truth", "YES", True),
        ("truth", 0, False),
        ("truth", True, True),
        ("whole", " 7 ", 7),
        ("whole", 7.0, 7),
        ("whole", "0", None),
        ("even", 4, 4),
        ("number", "1e3", 1000.0),
        ("number", 2, 2.0),
        ("length", timedelta(hours=1), timedelta(hours=1)),
        ("time", "2027-01-31T00:00:00Z", datetime(2027, 1, 31, tzinfo=UTC)),
        ("time", "1767225600", datetime(2026, 1, 1, tzinfo=UTC)),
        ("time", "1767225600000", datetime(2026, 1, 1, tzinfo=UTC)),
        ("secret", "s", SecretStr("s")),
        ("from", "b", "b"),
        ("names", ["a", "b"], ("a", "b")),
        ("numbers", {"a": "1"}, {"a": 1}),
        ("dot", {"size": 2}, Dot(size=2)),
        ("dot", Dot(size=3), Dot(size=3)),
        ("shapes", [{"type": "line", "length": 1}, Dot()], (Line(length=1.0), Dot())),
    ],
)
def test_values_of_each_type_are_read(key: str, given: Any, read: Any) -> None:
    found = Sample.model_validate({key: given})
    attribute = "word" if key == "from" else key
    assert getattr(found, attribute) == read
    assert found.model_dump(exclude_unset=True).keys() == {attribute}


@pytest.mark.parametrize(
    ("given", "path", "kind"),
    [
        ("text", (), "type"),
        ({"text": 1}, ("text",), "type"),
        ({"text": "A"}, ("text",), "value"),
        ({"truth": "maybe"}, ("truth",), "type"),
        ({"truth": []}, ("truth",), "type"),
        ({"whole": "1.5"}, ("whole",), "type"),
        ({"whole": 1.5}, ("whole",), "type"),
        ({"whole": float("inf")}, ("whole",), "type"),
        ({"whole": 100}, ("whole",), "value"),
        ({"even": 3}, ("even",), "value"),
        ({"number": "x"}, ("number",), "type"),
        ({"number": None}, ("number",), "type"),
        ({"length": "1h"}, ("length",), "type"),
        ({"time": "2027-01-31"}, ("time",), "type"),
        ({"time": "2027-01-31T00:00:00"}, ("time",), "type"),
        ({"time": "9" * 15}, ("time",), "type"),
        ({"time": 1}, ("time",), "type"),
        ({"secret": 1}, ("secret",), "type"),
        ({"unset": "x"}, ("unset",), "type"),
        ({"from": "c"}, ("from",), "word"),
        ({"from": []}, ("from",), "word"),
        ({"names": "a"}, ("names",), "type"),
        ({"names": []}, ("names",), "empty"),
        ({"names": ["a", 1]}, ("names", 1), "type"),
        ({"numbers": []}, ("numbers",), "type"),
        ({"numbers": {"a": "x"}}, ("numbers", "a"), "type"),
        ({"numbers": {1: "1"}}, ("numbers", 1), "type"),
        ({"dot": {"size": 0}}, ("dot", "size"), "value"),
        ({"dot": {"colour": 0}}, ("dot", "colour"), "unknown"),
        ({"shapes": [{}]}, ("shapes", 0), "no variant"),
        ({"shapes": ["dot"]}, ("shapes", 0), "type"),
        ({"shapes": [{"type": "box"}]}, ("shapes", 0), "variant"),
        ({"shapes": [{"type": []}]}, ("shapes", 0), "variant"),
        ({"shapes": [{"type": "line"}]}, ("shapes", 0, "length"), "missing"),
        ({"shapes": [{"type": "line", "length": 11}]}, ("shapes", 0, "length"), "value"),
        ({"text": "a", "from": "b"}, (), "value"),
        ({"from": "a", "word": "a"}, ("word",), "unknown"),
    ],
)
def test_faults_name_their_place_and_kind(given: Any, path: tuple[str | int, ...], kind: str) -> None:
    with pytest.raises(Invalid) as caught:
        Sample.model_validate(given)
    assert [(fault.path, fault.kind) for fault in caught.value.faults] == [(path, kind)]


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        Sample.model_validate({"text": 1, "names": [1, 2], "numbers": {"a": "x", "b": "y"}, "more": 1})
    places = [fault.path for fault in caught.value.faults]
    assert places == [("text",), ("names", 0), ("names", 1), ("numbers", "a"), ("numbers", "b"), ("more",)]
    assert str(caught.value).splitlines()[0] == "text: must be text"
    assert str(Fault("value", "is odd")) == "is odd"


def test_sections_are_immutable_values() -> None:
    section = Dot(size=2)
    with pytest.raises(AttributeError):
        section.size = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del section.size
    assert section == Dot.model_validate({"size": "2"})
    assert section != Dot()
    assert section != 2
    assert hash(section) == hash(Dot(size=2))
    copy = Dot().model_copy(update={"size": 2})
    assert copy == section
    assert copy.model_dump(exclude_unset=True) == {"size": 2}
    assert repr(section) == "Dot(type='dot', size=2)"


def test_plain_values_hide_secrets_and_convert_times() -> None:
    given = {"secret": "hush", "length": timedelta(minutes=10), "time": "2027-01-31T00:00:00Z", "origin": "here"}
    section = Sample.model_validate(given)
    shown = section.model_dump(mode="json", include={"secret", "length", "time", "names", "dot", "origin"})
    assert shown == {
        "secret": "**********",
        "length": "PT10M",
        "time": "2027-01-31T00:00:00Z",
        "names": ["x"],
        "dot": {"type": "dot", "size": 1},
    }
    assert section.model_dump(include={"names", "length"}) == {"names": ("x",), "length": timedelta(minutes=10)}
    assert "hush" not in repr(section) + repr(section.secret) + section.model_dump_json()
    assert Dot().model_dump_json(exclude={"type"}) == '{"size":1}'


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(0), "PT0S"),
        (timedelta(minutes=90), "PT1H30M"),
        (timedelta(days=7), "P7D"),
        (timedelta(days=366, seconds=1), "P1Y1DT1S"),
        (timedelta(milliseconds=1250), "PT1.25S"),
        (timedelta(milliseconds=250), "PT0.25S"),
    ],
)
def test_durations_are_written_as_iso_8601(length: timedelta, text: str) -> None:
    assert iso_duration(length) == text


def test_declarations_that_cannot_be_read_are_errors() -> None:
    with pytest.raises(TypeError):
        type("NoField", (Section,), {"__annotations__": {"size": int}, "size": 1})

    class Unknown(Section):
        value: set[int] = Field(default=())

    assert Unknown.model_validate({}).value == ()
    with pytest.raises(TypeError):
        Unknown.model_validate({"value": 1})


@pytest.mark.parametrize("key", ["scopes: {a: {scripts: {}}}", "apps: {task_card: [x]}", "facade: {add_server: {}}"])
def test_words_given_as_maps_or_lists_are_problems(key: str) -> None:
    with pytest.raises(ConfigError):
        load_text(f"schema: 1\n{key}\n")


def test_place_of_a_fault_in_a_text_that_stands_for_a_list_is_its_key() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(f"schema: 1\ngovernance: {{force_required: {'a' * 300}}}\n")
    assert [problem.key for problem in caught.value.problems] == ["governance.force_required"]
