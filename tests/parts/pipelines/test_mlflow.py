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
    assert made.notes == [
        "spec.pipeline.stage2.name: LSTM-model-build is renamed to lstm-model-build",
        "spec.pipeline.stage2.rule: ['dev'] is left out; for the API server to check it, have the cluster "
        "run the MLFlow itself (setting pipelines.mlflows)",
        "metadata.namespace: openfaas-fn, where the stages run, not ml-faas",
    ]


def test_steps_in_order() -> None:
    stages = convert(flow(), steps_in_order=True).manifest["spec"]["stages"]
    names = [stage["name"] for stage in stages]
    assert names == ["data-preprocess-load-data", "data-preprocess-data-clean", "lstm-model-build"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda found: found.update(kind="Pod"), "expected an object of kind MLFlow, not Pod"),
        (lambda found: found.update(spec={}), "spec.pipeline: stage1, stage2, ... are expected"),
        (lambda found: found["spec"]["pipeline"].update(first={}), "spec.pipeline.first: no stage"),
        (lambda found: found["spec"]["pipeline"]["stage1"].update(step=[]), "spec.pipeline.stage1.step: at least one"),
        (
            lambda found: found["spec"]["pipeline"]["stage1"].update(step=True),
            "spec.pipeline.stage1.step: at least one",
        ),
        (lambda found: found["spec"]["pipeline"]["stage1"].update(step=["x"]), "stage1.step[0]: a name and an image"),
        (
            lambda found: found["spec"]["pipeline"]["stage1"].update(namespace="a"),
            "several (spec.pipeline.stage1 in a,",
        ),
        (lambda found: found["spec"]["pipeline"]["stage2"].update(name="data-preprocess"), "two stages would be named"),
        (lambda found: found["spec"]["pipeline"]["stage2"].update(name="%"), "stage2.name: '%' has no letter or digit"),
        (lambda found: found["metadata"].pop("name"), "metadata.name: a name is needed"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change: Any, fault: str) -> None:
    found = flow()
    change(found)
    with pytest.raises(ConversionError) as error:
        convert(found)
    assert any(fault in text for text in error.value.faults), error.value.faults


@pytest.mark.parametrize("odd", [None, 3, [], "text", {"kind": "MLFlow", "metadata": 3, "spec": {"pipeline": [1]}}])
def test_nonsense_is_refused(odd: Any) -> None:
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


def test_rules_that_hold_are_not_said_to_be_left_out() -> None:
    assert not [note for note in convert(flow(), rules_hold=True).notes if "rule" in note]
