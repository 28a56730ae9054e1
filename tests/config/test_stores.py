"""Each configuration has a store of its own in a state folder, the same one at every start."""

from __future__ import annotations

from pathlib import Path

from taskgate.assembly.stores import claimed_store_path, store_path
from taskgate.config.load import LoadedConfig, default_config, load


def configured(folder: Path, name: str) -> LoadedConfig:
    path = folder / name
    path.write_text("schema: 1\nservers: {a: {command: cat}}\n")
    return load(path, {"TASKGATE_STATE_DIR": str(folder / "state")})


def test_the_first_configuration_has_the_plain_name_and_the_next_one_its_own(tmp_path: Path) -> None:
    one, two = configured(tmp_path, "one.yaml"), configured(tmp_path, "two.yaml")
    first = claimed_store_path(one)
    assert first == tmp_path / "state" / "taskgate.db"
    second = claimed_store_path(two)
    assert second != first
    assert second.parent == first.parent
    for _ in range(2):
        # The order does not matter.
        assert (claimed_store_path(two), claimed_store_path(one)) == (second, first)
    assert store_path(two) == second


def test_looking_up_a_store_does_not_claim_it(tmp_path: Path) -> None:
    one, two = configured(tmp_path, "one.yaml"), configured(tmp_path, "two.yaml")
    assert store_path(one) == store_path(two)
    assert not (tmp_path / "state").exists()


def test_a_configuration_that_was_moved_keeps_its_store(tmp_path: Path) -> None:
    one = configured(tmp_path, "one.yaml")
    first = claimed_store_path(one)
    (tmp_path / "one.yaml").unlink()
    assert claimed_store_path(configured(tmp_path, "moved.yaml")) == first


def test_the_demo_and_wrapped_agents_have_separate_stores(tmp_path: Path) -> None:
    demo = default_config({"TASKGATE_STATE_DIR": str(tmp_path / "state")})
    assert claimed_store_path(demo).name == "demo.db"
    wrapped = configured(tmp_path, ".taskgate-wrap-claude.yaml")
    assert claimed_store_path(wrapped).name.startswith("taskgate-")
    assert claimed_store_path(configured(tmp_path, "one.yaml")).name == "taskgate.db"
