"""`kerf pipeline convert`, and what the setting for pipelines needs."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from extender.cli.main import app
from extender.settings.load import SettingsError, load_settings

FLOW = """
kind: MLFlow
metadata: {name: lstm}
spec:
  pipeline:
    stage1: {name: Prepare, namespace: team, rule: [dev], step: [{name: load, mlfun: example/load}]}
"""


def convert(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "convert", *arguments])


def test_pipelines_go_to_standard_output_and_notes_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "flows.yaml"
    path.write_text(f"{FLOW}---\n{FLOW.replace('lstm', 'other')}")
    result = convert(str(path))
    made = list(yaml.safe_load_all(result.stdout))
    assert [item["metadata"] for item in made] == [{"name": name, "namespace": "team"} for name in ("lstm", "other")]
    assert f"{path}, document 1: spec.pipeline.stage1.name: Prepare is called prepare" in result.stderr
    assert f"{path}, document 2: spec.pipeline.stage1.rule: ['dev'] is left out" in result.stderr


def test_every_fault_is_said_and_nothing_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "flows.yaml"
    path.write_text(f"kind: Pod\n---\n{FLOW}---\n{FLOW.replace('mlfun', 'image')}")
    result = convert(str(path), str(tmp_path / "nobody.yaml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}, document 1: expected an object of kind MLFlow, not Pod" in result.stderr
    assert "document 3: spec.pipeline.stage1.step[0]: a name and an image (mlfun) are expected" in result.stderr
    assert "nobody.yaml" in result.stderr


def test_pipelines_need_the_queue() -> None:
    with pytest.raises(SettingsError, match="queue: Value error, pipelines needs enabled"):
        load_settings(flags={"queue.pipelines": True})
    assert load_settings(flags={"queue.pipelines": True, "queue.enabled": True}).queue.pipelines
