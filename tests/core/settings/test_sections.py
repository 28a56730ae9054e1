"""Sections: what each type of key accepts, where faults are reported, and how values are shown."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, field

from taskgate.config.load import load_text
from taskgate.config.problems import ConfigError, Mark
from taskgate.config.tree import Mapping, from_plain
from taskgate.config.validation import validated
from taskgate.core.settings.section import SECRET, Section, as_written, read_by
from taskgate.core.settings.values import Bytes, Duration, Milliseconds, Moment, Strings


def no_zero(text: str) -> str | None:
    return None if text == "0" else text


def even(text: str) -> int:
    if int(text) % 2:
        raise ValueError("is odd; write an even number")
    return int(text)


def no_repetition(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("repeats a name")
    return names


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Shape(Section, tag_field="type"):
    pass


class Dot(Shape, tag="dot"):
    size: Annotated[int, Meta(ge=1)] = 1


class Line(Shape, tag="line"):
    length: Annotated[float, Meta(gt=0, le=10, description="How long.")]


class Inner(Section):
    size: Annotated[int, Meta(ge=1)] = 1


class Sample(Section):
    text: Annotated[str, Meta(pattern="^[a-z]*$")] = ""
    truth: bool = False
    whole: Annotated[Annotated[int, Meta(lt=100)] | None, read_by(no_zero)] = None
    even: Annotated[int, read_by(even)] = 0
    number: float = 0.0
    length: Annotated[Duration, Meta(le=3600)] = 0.0
    millis: Milliseconds = 0
    size: Bytes = 1
    time: Moment | None = None
    secret: Annotated[str, Meta(extra=SECRET)] = ""
    unset: None = None
    word: Literal["a", "b"] = field(name="from", default="a")
    colour: Colour = Colour.RED
    names: Annotated[tuple[str, ...], Meta(min_length=1)] = ("x",)
    several: Annotated[Strings, read_by(no_repetition)] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    inner: Inner = Inner()
    shapes: tuple[Dot | Line, ...] = ()

    def __post_init__(self) -> None:
        if self.text == "a" and self.word == "b":
            raise ValueError("text a needs word a; change one")


def read(section: type[Section], value: Any) -> tuple[Any, list[tuple[str, str]]]:
    """What a section makes of plain values, and key and message of each fault."""
    tree = from_plain(value, Mark("file", 1, 1))
    assert isinstance(tree, Mapping)
    found, problems = validated(section, tree)
    return found, [(problem.key, f"{problem.message}; {problem.hint}") for problem in problems]


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("text", "abc", "abc"),
        ("truth", "YES", True),
        ("truth", "0", False),
        ("whole", " 7 ", 7),
        ("whole", "1_0", 10),
        ("whole", "0", None),
        ("even", "4", 4),
        ("number", "1e3", 1000.0),
        ("length", "1h", 3600.0),
        ("length", "1.5ms", 0.0015),
        ("millis", "45s", 45_000),
        ("millis", "45_000", 45_000),
        ("size", "4KiB", 4096),
        ("time", "2027-01-31T00:00:00Z", datetime(2027, 1, 31, tzinfo=UTC)),
        ("time", "1767225600", datetime(2026, 1, 1, tzinfo=UTC)),
        ("time", "1767225600000", datetime(2026, 1, 1, tzinfo=UTC)),
        ("secret", "s", "s"),
        ("from", "b", "b"),
        ("word", "b", "b"),
        ("colour", "blue", Colour.BLUE),
        ("names", ["a", "b"], ("a", "b")),
        ("several", "a", ("a",)),
        ("several", ["a", "b"], ("a", "b")),
        ("numbers", {"a": "1", "b": None}, {"a": 1}),
        ("inner", {"size": 2}, Inner(size=2)),
        ("shapes", [{"type": "line", "length": 1}, {"type": "dot"}], (Line(length=1.0), Dot())),
    ],
)
def test_values_of_each_type_are_read(key: str, given: Any, value: Any) -> None:
    found, faults = read(Sample, {key: given})
    assert faults == []
    assert getattr(found, "word" if key == "from" else key) == value


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"text": ["a"]}, "text", "must be text; found a list"),
        ({"text": "A"}, "text", "does not match the pattern '^[a-z]*$'"),
        ({"truth": "maybe"}, "truth", 'must be true or false; found "maybe"'),
        ({"truth": []}, "truth", "must be true or false"),
        ({"whole": "1.5"}, "whole", "must be a whole number"),
        ({"whole": "100"}, "whole", "must be at most 99"),
        ({"even": "3"}, "even", "is odd; write an even number"),
        ({"number": "x"}, "number", "must be a number"),
        ({"number": "nan"}, "number", "must be a number"),
        ({"length": "5"}, "length", "has no unit"),
        ({"length": "2h"}, "length", "must be at most 1h"),
        ({"length": {}}, "length", "must be a number; found a map"),
        ({"millis": "-1"}, "millis", "must be at least 0"),
        ({"size": "0"}, "size", "must be at least 1"),
        ({"time": "2027-01-31"}, "time", "is not a time with a time zone"),
        ({"time": "2027-01-31T00:00:00"}, "time", "is not a time with a time zone"),
        ({"time": "9" * 15}, "time", "is not a time with a time zone"),
        ({"unset": "x"}, "unset", "must not be set"),
        ({"from": "c"}, "from", '"c" is not one of a, b'),
        ({"from": []}, "from", "must be one of a, b"),
        ({"colour": "bluw"}, "colour", 'is not one of red, blue; did you mean "blue"?'),
        ({"names": "a"}, "names", "must be a list"),
        ({"names": []}, "names", "must not be empty"),
        ({"names": ["a", {}]}, "names[1]", "must be text; found a map"),
        ({"names": [None]}, "names[0]", "must be text; found no value"),
        ({"several": ["a", "a"]}, "several", "repeats a name"),
        ({"several": {}}, "several", "must be a list"),
        ({"numbers": []}, "numbers", "must be a map of keys"),
        ({"numbers": {"a": "x"}}, "numbers.a", "must be a whole number"),
        ({"inner": "x"}, "inner", "must be a map of keys"),
        ({"inner": {"size": "0"}}, "inner.size", "must be at least 1"),
        ({"inner": {"sice": "0"}}, "inner.sice", 'unknown key; did you mean "size"?'),
        ({"shapes": [{}]}, "shapes[0]", "has no type"),
        ({"shapes": ["dot"]}, "shapes[0]", "must be a map of keys"),
        ({"shapes": [{"type": "box"}]}, "shapes[0]", '"box" is not one of dot, line'),
        ({"shapes": [{"type": "line"}]}, "shapes[0].length", "required key is missing; add it: How long."),
        ({"shapes": [{"type": "line", "length": "11"}]}, "shapes[0].length", "must be at most 10"),
        ({"text": "a", "from": "b"}, "", "text a needs word a; change one"),
        ({"from": "a", "word": "a"}, "word", "unknown key"),
    ],
)
def test_faults_name_their_place_and_what_is_wrong(given: Any, key: str, message: str) -> None:
    found, faults = read(Sample, given)
    assert found is None
    assert [fault[0] for fault in faults] == [key]
    assert message in faults[0][1]


def test_all_faults_are_reported_at_once() -> None:
    _, faults = read(Sample, {"truth": "x", "names": [{}, []], "numbers": {"a": "x", "b": "y"}, "more": "1"})
    assert [key for key, _ in faults] == ["truth", "names[0]", "names[1]", "numbers.a", "numbers.b", "more"]


def test_sections_are_immutable_values() -> None:
    section = Inner(size=2)
    with pytest.raises(AttributeError):
        section.size = 3  # type: ignore[misc]
    assert section == read(Inner, {"size": "2"})[0] != Inner()
    assert hash(section) == hash(Inner(size=2))


def test_secrets_are_not_in_the_representation_of_a_section() -> None:
    shown = repr(Sample(secret="hush", text="abc"))
    assert "hush" not in shown
    assert "text='abc'" in shown


def test_sections_are_written_as_in_a_file_without_defaults() -> None:
    given = {
        "length": "10m",
        "from": "b",
        "colour": "blue",
        "time": "2027-01-31T00:00:00+00:00",
        "numbers": {"a": 1},
        "inner": {"size": 2},
        "shapes": [{"type": "dot"}, {"type": "line", "length": 2.0}],
    }
    section, _ = read(Sample, {**given, "number": "0", "several": []})
    assert as_written(section) == given
    assert read(Sample, as_written(section))[0] == section


@pytest.mark.parametrize("key", ["scopes: {a: {scripts: {}}}", "apps: {task_card: [x]}", "facade: {add_server: {}}"])
def test_words_given_as_maps_or_lists_are_problems(key: str) -> None:
    with pytest.raises(ConfigError):
        load_text(f"schema: 1\n{key}\n")


def test_place_of_a_fault_in_a_text_that_stands_for_a_list_is_its_key() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(f"schema: 1\ngovernance: {{force_required: {'a' * 300}}}\n")
    assert [problem.key for problem in caught.value.problems] == ["governance.force_required"]
