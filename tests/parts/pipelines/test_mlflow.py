"""MLFlow objects as pipelines."""

from typing import Any

import pytest
import yaml

from extender.parts.pipelines.mlflow import ConversionError, convert

FLOW = """
apiVersion: kopf.dev/v1
kind: MLFlow
metadata: {name: lstm-pipeline, namespace: ml-faas}
spec:
  pipeline:
    stage2:
      name: LSTM-model-build
      namespace: openfaas-fn
      schedulerName: default-scheduler
      rule: [dev]
      step:
      - {name: train-model, mlfun: example/lstm-train-model:0.0.1}
    stage1:
      name: data-preprocess
      namespace: openfaas-fn
      schedulerName: default-scheduler
      step:
      - {name: load-data, mlfun: example/lstm-load-data:0.0.1}
      - {name: data-clean, mlfun: example/lstm-data-clean:0.0.1}
"""


def flow() -> Any:
    return yaml.safe_load(FLOW)


def test_m8_stages_by_their_numbers() -> None:
    made = convert(flow())
    assert made.manifest["metadata"] == {"name": "lstm-pipeline", "namespace": "openfaas-fn"}
    stages = made.manifest["spec"]["stages"]
    assert [stage["name"] for stage in stages] == ["data-preprocess", "lstm-model-build"]
    assert [step["name"] for step in stages[0]["steps"]] == ["load-data", "data-clean"]
    spec = stages[1]["steps"][0]["template"]["spec"]
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["containers"] == [{"name": "main", "image": "example/lstm-train-model:0.0.1"}]
    places = [note.partition(": ")[0] for note in made.notes]
    assert places == ["spec.pipeline.stage2.name", "spec.pipeline.stage2.rule", "metadata.namespace"]
    held = [note.partition(": ")[0] for note in convert(flow(), rules_hold=True).notes]
    assert held == ["spec.pipeline.stage2.name", "metadata.namespace"]


def test_what_is_wrong_is_said_with_its_place() -> None:
    for keys, value, fault in (
        (["kind"], "Pod", "expected an object of kind MLFlow, not Pod"),
        (["spec"], {}, "spec.pipeline: stage1, stage2, ... are expected"),
        (["spec", "pipeline", "first"], {}, "spec.pipeline.first: not a stage"),
        (["spec", "pipeline", "stage1", "step"], [], "spec.pipeline.stage1.step: at least one"),
        (["spec", "pipeline", "stage1", "step"], True, "spec.pipeline.stage1.step: at least one"),
        (["spec", "pipeline", "stage1", "step"], ["x"], "stage1.step[0]: a name and an image"),
        (["spec", "pipeline", "stage1", "namespace"], "a", "several (spec.pipeline.stage1 in a,"),
        (["spec", "pipeline", "stage2", "name"], "data-preprocess", "two stages would be named"),
        (["spec", "pipeline", "stage2", "name"], "%", "stage2.name: '%' has no letter or digit"),
        (["metadata", "name"], None, "metadata.name: a name is needed"),
    ):
        found = place = flow()
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        with pytest.raises(ConversionError) as error:
            convert(found)
        assert any(fault in text for text in error.value.faults), error.value.faults


def test_nonsense_is_refused() -> None:
    odd: Any
    for odd in (None, 3, [], "text", {"kind": "MLFlow", "metadata": 3, "spec": {"pipeline": [1]}}):
        with pytest.raises(ConversionError):
            convert(odd)


def test_long_names_that_begin_alike_stay_apart() -> None:
    """MLTaskScheduler's own example has such, once each step is a stage."""
    found = flow()
    steps = [{"name": f"train-the-very-same-model-{number}", "mlfun": "example/x"} for number in range(3)]
    found["spec"]["pipeline"]["stage2"]["step"] = steps
    names = [stage["name"] for stage in convert(found, steps_in_order=True).manifest["spec"]["stages"]]
    assert len(set(names)) == len(names) == 5
    assert all(len(name) <= 30 for name in names)
