"""Runs MLTaskScheduler's `MLFlow` objects: converts each to a pipeline, and reports its phase.

A flow names the namespace in which its stages run. So that users of one namespace can't run pods in another, that
namespace has to accept their flows by an annotation. A stage's `rule`, who may run it, is enforced on admission by a
policy of the chart, as only the API server knows the user.

All writes are idempotent: a pipeline's name is derived from the flow and its UID, and a status is written with the
resourceVersion that it was computed from. Nothing is deleted: the pipeline of a deleted flow is cancelled, and an owner
reference leaves the rest to the garbage collector.
"""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from extender.kube import objects
from extender.kube.cache import Cache, Index
from extender.kube.client import ApiError, Transport
from extender.kube.decoding import Decoder
from extender.kube.watches import Lister, Reflector
from extender.parts.pipelines.specs import ACCEPTED, API_VERSION, KIND, Condition, Metadata, Pipeline
from extender.parts.pipelines.states import Phase
from extender.parts.pipelines.work_queue import FairWorkers, WorkQueue

logger = logging.getLogger(__name__)

_STAGE: Final = re.compile(r"stage(\d+)")
_MAX_NAME: Final = 30

_FLOW_KIND: Final = "MLFlow"
_RULES: Final = "for the API server to check it, have the cluster run the MLFlow itself (setting pipelines.mlflows)"

Manifest = dict[str, Any]


class ConversionError(ValueError):
    """An object can't be converted; `faults` has a message for each place."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass
class Converted:
    """A pipeline, and notes on what was changed or left out."""

    manifest: Manifest
    notes: list[str] = field(default_factory=list)


def convert(flow: Any, *, steps_in_order: bool = False, rules_hold: bool = False) -> Converted:
    """The Pipeline of an MLFlow object: stages ordered by number, `mlfun` as the image of a step's only container.

    Steps of a stage run in parallel; with `steps_in_order` each becomes a separate stage. `rules_hold`: whether the API
    server has enforced the stages' `rule`; otherwise it is noted as left out. Raises ConversionError.
    """
    faults: list[str] = []
    if not isinstance(flow, dict) or flow.get("kind") != _FLOW_KIND:
        kind = flow.get("kind") if isinstance(flow, dict) else type(flow).__name__
        raise ConversionError([f"expected an object of kind {_FLOW_KIND}, not {kind}"])
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
        faults.append(f"spec.pipeline: a pipeline runs in one namespace, but its stages name several ({where})")
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
    """The stages' keys by number."""
    numbers: dict[int, str] = {}
    for key in map(str, pipeline):
        match = _STAGE.fullmatch(key)
        if match is None:
            faults.append(f"spec.pipeline.{key}: not a stage; write stage1, stage2, ...")
        elif (same := numbers.setdefault(int(match[1]), key)) != key:
            faults.append(f"spec.pipeline.{key}: the same stage as {same}")
    return numbers


def _stages(
    given: Any, place: str, steps_in_order: bool, namespaces: dict[str, str], notes: list[str], faults: list[str]
) -> list[Manifest]:
    """The Pipeline stages of one stage; appends to `faults` and `notes`."""
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
    """A name that is a valid label value."""
    name = _cut(re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-"))
    if not name:
        faults.append(f"{place}: {text!r} has no letter or digit")
    elif name != text:
        notes.append(f"{place}: {text} is renamed to {name}")
    return name


def _cut(name: str) -> str:
    """A name of at most `_MAX_NAME` characters; a longer one is cut and gets a hash, to stay unique."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 5].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:4]}"


_FLOW_API_VERSION: Final = "kopf.dev/v1"
_FLOWS_PATH: Final = f"/apis/{_FLOW_API_VERSION}/mlflows"
_FLOW: Final = "kerf.dev/flow"
"""On a pipeline: NAMESPACE/NAME of its flow."""
_FLOW_UID: Final = "kerf.dev/flow-uid"
_TAKES_FLOWS_FROM: Final = "kerf.dev/takes-flows-from"
"""On a namespace: comma-separated names of other namespaces whose flows may run pods in it."""

_MAX_LABEL: Final = 63
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_RECHECK_S: Final = 30.0
"""How often a namespace is checked that does not accept a flow's pods yet."""
_FORBIDDEN: Final = 403
"""Kerf lacks a right, or a quota or policy refuses; may succeed later."""
_INVALID: Final = (400, 422)
_NOT_FOUND, _CONFLICT = 404, 409
_SOON_S: Final = 1.0
"""Time for the watch to show a flow that was changed meanwhile."""
_FINISHED: Final = (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)
"""Phases that a flow keeps if its pipeline is deleted."""

_Manifest = dict[str, Any]
_pipeline_decoder: Final = Decoder(Pipeline, whole=True)


class FlowStatus(objects.Object, rename="camel"):
    phase: str = ""
    """Phase of its pipeline."""
    pipeline: str = ""
    """NAMESPACE/NAME of its pipeline."""
    observed_generation: int = 0
    conditions: list[Condition] = msgspec.field(default_factory=list)


class Flow(objects.Named):
    """The fields of a flow that are read; `convert` checks the spec."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: Any = None
    status: FlowStatus = msgspec.field(default_factory=FlowStatus)

    @property
    def path(self) -> str:
        """Path of its URL."""
        return f"/apis/{_FLOW_API_VERSION}/namespaces/{self.metadata.namespace}/mlflows/{self.metadata.name}"


def _annotation(pipeline: Pipeline, name: str) -> str:
    return (pipeline.metadata.annotations or {}).get(name, "")


BY_FLOW: Final[Index[Pipeline]] = Index("flow", lambda item: [uid] if (uid := _annotation(item, _FLOW_UID)) else [])
"""Pipelines by the flow's UID in their annotation."""


class Flows:
    """Reconciles flows and their pipelines."""

    def __init__(
        self,
        transport: Transport,
        pipelines: Cache[Pipeline, Pipeline],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        standby: Callable[[], str] = lambda: "",
    ) -> None:
        """`pipelines` is the cache of all pipelines, with the index `BY_FLOW`."""
        self._transport = transport
        self._wall_clock = wall_clock
        self.due = WorkQueue(clock)
        self._turns = FairWorkers("MLFlow", self.due, self._key_of, self._reconcile, standby)
        self.flows = Cache[Flow, Flow](lambda flow: flow)
        self.flows.subscribe(self._flow_changed)
        self._pipelines = pipelines
        pipelines.subscribe(self._pipeline_changed)
        self.reflector = Reflector(transport, _FLOWS_PATH, Flow, self.flows, clock, whole=True)

    def _flow_changed(self, old: Flow | None, new: Flow | None) -> None:
        """Requeue a flow that was added, removed, or changed in anything but its status."""
        if (flow := new or old) is not None and (old is None or new is None or _version(old) != _version(new)):
            self.due.touch(flow.metadata.uid)

    def _pipeline_changed(self, old: Pipeline | None, new: Pipeline | None) -> None:
        """Requeue the flow of a pipeline."""
        for pipeline in (old, new):
            for uid in BY_FLOW.groups(pipeline) if pipeline is not None else ():
                self.due.touch(uid)

    async def run_round(self) -> None:
        """Reconcile every flow that is due."""
        await self._turns.run_round()

    def _key_of(self, uid: str) -> str:
        flow = self.flows.get(uid)
        return flow.key if flow is not None else ""

    async def _reconcile(self, uid: str) -> None:
        flow = self.flows.get(uid)
        await (self._advance(flow) if flow is not None else self._cancel(uid))

    async def _advance(self, flow: Flow) -> None:
        """Create its pipeline if it has none, and report the pipeline's phase. Raises ClusterError."""
        if flow.metadata.deletion_timestamp:
            return
        if not flow.status.pipeline:
            await self._begin(flow)
            return
        known = self._pipelines.by_group(BY_FLOW, flow.metadata.uid)
        pipeline = next((one for one in known if one.key == flow.status.pipeline), None)
        if pipeline is None:
            pipeline = await self._find(*flow.status.pipeline.split("/", 1))
        if pipeline is None and flow.status.phase in _FINISHED:
            return
        phase = "Cancelled" if pipeline is None else pipeline.status.phase or "Waiting"  # None: it was deleted
        await self._write_status(flow, FlowStatus(phase, flow.status.pipeline), flow.status.conditions)

    async def _begin(self, flow: Flow) -> None:
        """Create the pipeline of a flow that has none. Raises ClusterError."""
        try:
            converted = convert(_manifest(flow), steps_in_order=True, rules_hold=True)
        except ConversionError as error:
            await self._refuse(flow, "Invalid", str(error))
            return
        if why := await self._why_not_accepted(flow, converted):
            await self._refuse(flow, "NamespaceTakesNoFlows", why)
            self.due.touch(flow.metadata.uid, _RECHECK_S)
            return
        try:
            pipeline = await self._create(flow, converted)
        except ApiError as error:
            if error.status in (_FORBIDDEN, *_INVALID):
                await self._refuse(flow, "Refused", error.message)
            if error.status in _INVALID:
                return
            raise
        accepted = Condition(ACCEPTED, "True", "Valid", "\n".join(converted.notes))
        await self._write_status(flow, FlowStatus(pipeline.status.phase or "Waiting", pipeline.key), [accepted])

    async def _why_not_accepted(self, flow: Flow, converted: Converted) -> str:
        """Why its pods may not run in their namespace, "" if they may. Raises ClusterError."""
        own, target = flow.metadata.namespace, converted.manifest["metadata"]["namespace"]
        if own == target:
            return ""
        lister = Lister(
            self._transport, "/api/v1/namespaces", objects.Named, {"fieldSelector": f"metadata.name={target}"}
        )
        for namespace in (await lister.all()).items:
            accepted = (namespace.metadata.annotations or {}).get(_TAKES_FLOWS_FROM, "")
            if own in (name.strip() for name in accepted.split(",")):
                return ""
        return (
            f"namespace {target}, where the stages are to run, accepts no flows from {own}: "
            f"kubectl annotate namespace {target} {_TAKES_FLOWS_FROM}={own}"
        )

    async def _create(self, flow: Flow, converted: Converted) -> Pipeline:
        """Its pipeline, created or existing. Raises ClusterError; ApiError 409 if it belongs to something else."""
        manifest, own = converted.manifest, flow.metadata
        target, name = manifest["metadata"]["namespace"], _pipeline_name(flow)
        manifest["metadata"] = {
            "name": name,
            "namespace": target,
            "annotations": {_FLOW: flow.key, _FLOW_UID: own.uid},
        }
        if target == own.namespace:  # the garbage collector takes an owner in another namespace for deleted
            owner = {"apiVersion": _FLOW_API_VERSION, "kind": _FLOW_KIND, "name": own.name, "uid": own.uid}
            manifest["metadata"]["ownerReferences"] = [owner]
        path = f"/apis/{API_VERSION}/namespaces/{target}/pipelines"
        try:
            return _pipeline_decoder.decode(await self._transport.post(path, msgspec.json.encode(manifest)))
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            existing = await self._find(target, name)
            if existing is None or _annotation(existing, _FLOW_UID) != own.uid:
                why = f"pipeline {target}/{name} belongs to someone else"
                raise ApiError(_CONFLICT, "AlreadyExists", why) from error
            return existing

    async def _find(self, namespace: str, name: str) -> Pipeline | None:
        """A pipeline read from the API server, None if there is none. Raises ClusterError."""
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/pipelines"
        page = await Lister(
            self._transport, path, Pipeline, {"fieldSelector": f"metadata.name={name}"}, whole=True
        ).all()
        return next(iter(page.items), None)

    async def _cancel(self, uid: str) -> None:
        """Cancel the pipelines of a deleted flow. Raises ClusterError."""
        for pipeline in self._pipelines.by_group(BY_FLOW, uid):
            if pipeline.spec.cancel or pipeline.status.completion_time or pipeline.metadata.deletion_timestamp:
                continue
            if await self._exists(_annotation(pipeline, _FLOW), uid):
                continue  # it exists, but can't be read
            await self._transport.patch(pipeline.path, b'{"spec":{"cancel":true}}')
            logger.info("pipeline %s is cancelled: its MLFlow was deleted", pipeline.key)

    async def _exists(self, key: str, uid: str) -> bool:
        """Whether the API server has a flow. Raises ClusterError."""
        namespace, _, name = key.partition("/")
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):  # anyone may write the annotation
            return False
        path = f"/apis/{_FLOW_API_VERSION}/namespaces/{namespace}/mlflows"
        page = await Lister(self._transport, path, objects.Named, {"fieldSelector": f"metadata.name={name}"}).all()
        return uid in {found.metadata.uid for found in page.items} | {found.uid for found in page.unread}

    async def _refuse(self, flow: Flow, reason: str, message: str) -> None:
        await self._write_status(flow, FlowStatus("Failed"), [Condition(ACCEPTED, "False", reason, message)])

    async def _write_status(self, flow: Flow, status: FlowStatus, conditions: list[Condition]) -> None:
        """Write a status if it changed, unless the flow changed meanwhile."""
        before = {item.type: item for item in flow.status.conditions}
        now = datetime.fromtimestamp(self._wall_clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for item in conditions:
            last = before.get(item.type)
            item.last_transition_time = last.last_transition_time if last and last.status == item.status else now
        status.observed_generation, status.conditions = flow.metadata.generation, conditions
        if status == flow.status:
            return
        body = {"metadata": {"resourceVersion": flow.metadata.resource_version}, "status": status}
        try:
            await self._transport.patch(f"{flow.path}/status", msgspec.json.encode(body))
        except ApiError as error:
            if error.status == _CONFLICT:
                self.due.touch(flow.metadata.uid, _SOON_S)
            elif error.status != _NOT_FOUND:
                raise


def _version(flow: Flow) -> tuple[int, bool]:
    return flow.metadata.generation, bool(flow.metadata.deletion_timestamp)


def _pipeline_name(flow: Flow) -> str:
    """A deterministic name, different for each flow of the same name."""
    suffix = f"-{flow.metadata.uid[:8]}"
    return flow.metadata.name[: _MAX_LABEL - len(suffix)].replace(".", "-").rstrip("-") + suffix


def _manifest(flow: Flow) -> _Manifest:
    metadata = {"name": flow.metadata.name, "namespace": flow.metadata.namespace}
    return {"kind": _FLOW_KIND, "metadata": metadata, "spec": flow.spec}
