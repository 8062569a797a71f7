"""`kerf pipeline convert`, and what the setting for pipelines needs."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from extender.cli.main import app
from extender.parts.pipelines.settings import PART
from extender.settings.load import SettingsError, load_settings, settings_elsewhere
from extender.settings.tree import lacking

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
    assert f"{path}, document 1: spec.pipeline.stage1.name: Prepare is renamed to prepare" in result.stderr
    assert f"{path}, document 2: spec.pipeline.stage1.rule: ['dev'] is left out" in result.stderr


def test_every_fault_is_said_and_nothing_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "flows.yaml"
    path.write_text(f"kind: Pod\n---\n{FLOW}---\n{FLOW.replace('mlfun', 'image')}")
    result = convert(str(path), str(tmp_path / "nobody.yaml"))
    assert (result.exit_code, result.stdout) == (2, "")
    for word in (f"{path}, document 1: ", "document 3: spec.pipeline.stage1.step[0]: ", "nobody.yaml"):
        assert word in result.stderr


def test_pipelines_need_the_queue_and_flows_pipelines() -> None:
    with pytest.raises(SettingsError, match=r"^pipelines: enabled needs queue\.enabled: their pods wait in the queue$"):
        load_settings(flags={"pipelines.enabled": True})
    with pytest.raises(SettingsError, match=r"^pipelines: mlflows needs enabled"):
        load_settings(flags={"pipelines.mlflows": True, "queue.enabled": True})
    assert lacking(load_settings(flags={"pipelines.enabled": True, "queue.enabled": True})) == []


def test_settings_by_their_old_names_work_and_say_what_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("queue: {enabled: true, pipelines: true}")
    new.write_text("queue: {enabled: true}")
    assert settings_elsewhere(old.read_text()).pipelines.enabled  # type: ignore[attr-defined]
    loaded = [load_settings(old), load_settings(new, assignments=["queue.pipelines=true"])]
    monkeypatch.setenv("KERF_QUEUE__PIPELINES", "true")
    loaded += [load_settings(new)]
    assert all(PART.wanted(settings.pipelines) for settings in loaded)  # type: ignore[attr-defined]
    assert [text.partition(";")[0] for text in caplog.messages] == [
        "setting queue.pipelines was renamed to pipelines.enabled"
    ] * 3


def test_a_new_name_counts_where_both_are_given_and_a_wrong_value_is_told_by_it() -> None:
    both = {"queue.enabled": True, "queue.pipelines": True, "pipelines.enabled": False}
    assert not PART.wanted(load_settings(flags=both).pipelines)  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match=r"pipelines\.enabled: Input should be a valid boolean"):
        load_settings(flags={"queue.pipelines": "perhaps"})


def test_a_new_section_that_is_none_is_told_beside_an_old_name(tmp_path: Path) -> None:
    path = tmp_path / "kerf.yaml"
    for wrong in ("7", "[1]", "perhaps"):
        path.write_text(f"queue: {{enabled: true, pipelines: true}}\npipelines: {wrong}\n")
        with pytest.raises(SettingsError, match=r"^pipelines: Input should be a valid dictionary"):
            load_settings(path)
        assert settings_elsewhere(path.read_text()).pipelines.enabled  # type: ignore[attr-defined]
