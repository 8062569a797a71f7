"""MLTaskScheduler's `MLFlow` objects as pipelines: the form without a schema, whose stages nobody kept in order."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from extender.pipelines.specs import API_VERSION, KIND

_STAGE: Final = re.compile(r"stage(\d+)")
_MAX_NAME: Final = 30

FLOW_KIND: Final = "MLFlow"
_RULES: Final = "for the API server to check it, have the cluster run the MLFlow itself (setting queue.mlflows)"

Manifest = dict[str, Any]


class ConversionError(ValueError):
    """An object that can't be converted; `faults` has one sentence for each place."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass
class Converted:
    """A pipeline, and what of the original has no counterpart."""

    manifest: Manifest
    notes: list[str] = field(default_factory=list)


def convert(flow: Any, *, steps_in_order: bool = False, rules_hold: bool = False) -> Converted:
    """The Pipeline of an MLFlow object: stages by their numbers, `mlfun` as the image of a step's one container.

    Steps of a stage run side by side; with `steps_in_order` each becomes a stage of its own. `rules_hold` where the API
    server has refused who may not run a stage by its `rule`; else that is noted as left out. Raises ConversionError.
    """
    faults: list[str] = []
    if not isinstance(flow, dict) or flow.get("kind") != FLOW_KIND:
        kind = flow.get("kind") if isinstance(flow, dict) else type(flow).__name__
        raise ConversionError([f"expected an object of kind {FLOW_KIND}, not {kind}"])
    given = flow.get("metadata")
    metadata: Manifest = given if isinstance(given, dict) else {}
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        faults.append("metadata.name: a name is needed")
    spec = flow.get("spec")
    pipeline = spec.get("pipeline") if isinstance(spec, dict) else None
    if not isinstance(pipeline, dict) or not pipeline:
        raise ConversionError([*faults, "spec.pipeline: stage1, stage2, ... are expected"])
    numbers = _numbers(pipeline, faults)
    converted = Converted({})
    stages: list[Manifest] = []
    namespaces: dict[str, str] = {}
    for number in sorted(numbers):
        place = f"spec.pipeline.{numbers[number]}"
        stages += _stages(pipeline[numbers[number]], place, steps_in_order, namespaces, converted.notes, faults)
        rule = pipeline[numbers[number]].get("rule") if isinstance(pipeline[numbers[number]], dict) else None
        if rule and not rules_hold:
            converted.notes.append(f"{place}.rule: {rule} is left out; {_RULES}")
    twice = sorted(name for name, count in Counter(stage["name"] for stage in stages).items() if count > 1)
    if twice:
        faults.append(f"spec.pipeline: two stages would be named {', '.join(twice)}")
    if len(set(namespaces)) > 1:
        where = ", ".join(f"{namespaces[item]} in {item}" for item in sorted(namespaces))
        faults.append(f"spec.pipeline: a pipeline runs in one namespace, and its stages say several ({where})")
    if faults:
        raise ConversionError(faults)
    namespace = next(iter(namespaces), metadata.get("namespace") or "default")
    if metadata.get("namespace") not in (None, namespace):
        converted.notes.append(f"metadata.namespace: {namespace}, where the stages run, not {metadata['namespace']}")
    converted.manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"stages": stages},
    }
    return converted


def _numbers(pipeline: Manifest, faults: list[str]) -> dict[int, str]:
    """The stages' keys by their numbers."""
    numbers: dict[int, str] = {}
    for key in map(str, pipeline):
        match = _STAGE.fullmatch(key)
        if match is None:
            faults.append(f"spec.pipeline.{key}: no stage; write stage1, stage2, ...")
        elif (same := numbers.setdefault(int(match[1]), key)) != key:
            faults.append(f"spec.pipeline.{key}: the same stage as {same}")
    return numbers


def _stages(
    given: Any, place: str, steps_in_order: bool, namespaces: dict[str, str], notes: list[str], faults: list[str]
) -> list[Manifest]:
    """What one stage becomes; faults and notes are added to."""
    if not isinstance(given, dict):
        faults.append(f"{place}: name, namespace, schedulerName and step are expected")
        return []
    name = _label(given.get("name") or place.rpartition(".")[2], f"{place}.name", notes, faults)
    if isinstance(given.get("namespace"), str):
        namespaces.setdefault(given["namespace"], place)
    scheduler = given.get("schedulerName")
    steps = []
    listed = given.get("step")
    for index, step in enumerate(listed if isinstance(listed, list) else ()):
        where = f"{place}.step[{index}]"
        image = step.get("mlfun") if isinstance(step, dict) else None
        if not isinstance(image, str) or not image:
            faults.append(f"{where}: a name and an image (mlfun) are expected")
            continue
        pod: Manifest = {"containers": [{"name": "main", "image": image}]}
        if isinstance(scheduler, str) and scheduler:
            pod = {"schedulerName": scheduler, **pod}
        title = _label(step.get("name") or f"step-{index + 1}", f"{where}.name", notes, faults)
        steps.append({"name": title, "template": {"spec": pod}})
    if not steps:
        faults.append(f"{place}.step: at least one is needed")
    if steps_in_order and len(steps) > 1:
        return [{"name": _cut(f"{name}-{step['name']}"), "steps": [step]} for step in steps]
    return [{"name": name, "steps": steps}]


def _label(text: Any, place: str, notes: list[str], faults: list[str]) -> str:
    """A name as Kubernetes takes it for a label."""
    name = _cut(re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-"))
    if not name:
        faults.append(f"{place}: {text!r} has no letter or digit")
    elif name != text:
        notes.append(f"{place}: {text} is called {name}")
    return name


def _cut(name: str) -> str:
    """A name that is short enough; one that was not is told from others that begin alike by its hash."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 5].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:4]}"
