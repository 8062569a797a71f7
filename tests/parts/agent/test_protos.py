"""The kubelet's definitions, and what was made of them."""

from pathlib import Path

from tests.parts.agent.protos import DEFINITIONS, FOLDER, write


def test_the_modules_are_what_the_definitions_give(tmp_path: Path) -> None:
    """`make protos` writes them."""
    write(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(made) == 2 * len(DEFINITIONS) == 4
    assert {name: (FOLDER / name).read_text() for name in made} == made


def test_each_definition_names_its_source_and_licence() -> None:
    for path in DEFINITIONS:
        head = path.read_text()[:1500]
        assert "Copyright The Kubernetes Authors" in head
        assert "Apache License, Version 2.0" in head
        assert "k8s.io/kubelet v" in head
