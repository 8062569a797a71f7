"""MLTaskScheduler's `MLFlow` objects as pipelines: the form without a schema, whose stages nobody kept in order.

MLTaskScheduler's `MLFlow` objects, taken as they are written: each becomes a pipeline, which does what it says.

A flow names the namespace in which its stages run. Who may write flows in one namespace would so run pods in any
other: that one has to say, by an annotation, whose flows it takes. Who may run a stage (`rule`) the API server has
checked by then, by a policy of the chart: nobody else knows who writes an object.

Everything here can be done twice: a pipeline's name follows from the flow and its UID, and a status is written against
the version that it was made from. Nothing is deleted: of a flow that is gone the pipeline is cancelled, and what the
garbage collector may delete with it says so.
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
from extender.parts.pipelines.turns import Due, Turns

logger = logging.getLogger(__name__)

_STAGE: Final = re.compile(r"stage(\d+)")
_MAX_NAME: Final = 30

_FLOW_KIND: Final = "MLFlow"
_RULES: Final = "for the API server to check it, have the cluster run the MLFlow itself (setting pipelines.mlflows)"

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


_FLOW_API_VERSION: Final = "kopf.dev/v1"
_FLOWS_PATH: Final = f"/apis/{_FLOW_API_VERSION}/mlflows"
_FLOW: Final = "kerf.dev/flow"
"""On a pipeline: NAMESPACE/NAME of the flow that it is of."""
_FLOW_UID: Final = "kerf.dev/flow-uid"
_TAKES_FLOWS_FROM: Final = "kerf.dev/takes-flows-from"
"""On a namespace: names of others, separated by commas, whose flows may run pods in it."""

_MAX_LABEL: Final = 63
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_AGAIN_S: Final = 30.0
"""How often a namespace is asked that takes a flow's pods not yet."""
_FORBIDDEN: Final = 403
"""To Kerf, or by a quota or a policy: it may be otherwise later."""
_INVALID: Final = (400, 422)
_NOT_FOUND, _CONFLICT = 404, 409
_SOON_S: Final = 1.0
"""After which a flow has been told anew that somebody has changed meanwhile."""
_FINISHED: Final = (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)
"""What stays of a flow whose pipeline somebody has tidied up."""

_Manifest = dict[str, Any]
_pipeline_decoder: Final = Decoder(Pipeline, whole=True)


class FlowStatus(objects.Object, rename="camel"):
    phase: str = ""
    """Its pipeline's."""
    pipeline: str = ""
    """NAMESPACE/NAME."""
    observed_generation: int = 0
    conditions: list[Condition] = msgspec.field(default_factory=list)


class Flow(objects.Named):
    """What is read of a flow; what `convert` makes of its spec is told to its author."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: Any = None
    status: FlowStatus = msgspec.field(default_factory=FlowStatus)

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"/apis/{_FLOW_API_VERSION}/namespaces/{self.metadata.namespace}/mlflows/{self.metadata.name}"


def _annotation(pipeline: Pipeline, name: str) -> str:
    return (pipeline.metadata.annotations or {}).get(name, "")


BY_FLOW: Final[Index[Pipeline]] = Index("flow", lambda item: [uid] if (uid := _annotation(item, _FLOW_UID)) else [])
"""By UID of the flow that they say they are of."""


class Flows:
    """The flows, and the pipelines that they become."""

    def __init__(
        self,
        transport: Transport,
        pipelines: Cache[Pipeline, Pipeline],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        standby: Callable[[], str] = lambda: "",
    ) -> None:
        """`pipelines` are all that there are, with the index `BY_FLOW`."""
        self._transport = transport
        self._wall_clock = wall_clock
        self.due = Due(clock)
        self._turns = Turns("MLFlow", self.due, self._key_of, self._look, standby)
        self.flows = Cache[Flow, Flow](lambda flow: flow)
        self.flows.subscribe(self._flow_changed)
        self._pipelines = pipelines
        pipelines.subscribe(self._pipeline_changed)
        self.reflector = Reflector(transport, _FLOWS_PATH, Flow, self.flows, clock, whole=True)

    def _flow_changed(self, old: Flow | None, new: Flow | None) -> None:
        """Look at a flow that is new, is to be something else, or is gone. A status is Kerf's own."""
        if (flow := new or old) is not None and (old is None or new is None or _asked(old) != _asked(new)):
            self.due.touch(flow.metadata.uid)

    def _pipeline_changed(self, old: Pipeline | None, new: Pipeline | None) -> None:
        """Look at the flow that a pipeline is of."""
        for pipeline in (old, new):
            for uid in BY_FLOW.groups(pipeline) if pipeline is not None else ():
                self.due.touch(uid)

    async def run_round(self) -> None:
        """Look at every flow that is due."""
        await self._turns.run_round()

    def _key_of(self, uid: str) -> str:
        flow = self.flows.get(uid)
        return flow.key if flow is not None else ""

    async def _look(self, uid: str) -> None:
        flow = self.flows.get(uid)
        await (self._advance(flow) if flow is not None else self._cancel(uid))

    async def _advance(self, flow: Flow) -> None:
        """Make its pipeline if there is none, and say how that does. Raises ClusterError."""
        if flow.metadata.deletion_timestamp:
            return
        if not flow.status.pipeline:
            await self._begin(flow)
            return
        known = self._pipelines.by(BY_FLOW, flow.metadata.uid)
        pipeline = next((one for one in known if one.key == flow.status.pipeline), None)
        if pipeline is None:
            pipeline = await self._find(*flow.status.pipeline.split("/", 1))
        if pipeline is None and flow.status.phase in _FINISHED:
            return
        phase = "Cancelled" if pipeline is None else pipeline.status.phase or "Waiting"  # somebody has deleted it
        await self._say(flow, FlowStatus(phase, flow.status.pipeline), flow.status.conditions)

    async def _begin(self, flow: Flow) -> None:
        """Make the pipeline of a flow that has none. Raises ClusterError."""
        try:
            converted = convert(_manifest(flow), steps_in_order=True, rules_hold=True)
        except ConversionError as error:
            await self._refuse(flow, "Invalid", str(error))
            return
        if why := await self._not_taken(flow, converted):
            await self._refuse(flow, "NamespaceTakesNoFlows", why)
            self.due.touch(flow.metadata.uid, _AGAIN_S)
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
        await self._say(flow, FlowStatus(pipeline.status.phase or "Waiting", pipeline.key), [accepted])

    async def _not_taken(self, flow: Flow, converted: Converted) -> str:
        """Why its pods may not run where it says, "" where they may. Raises ClusterError."""
        own, there = flow.metadata.namespace, converted.manifest["metadata"]["namespace"]
        if own == there:
            return ""
        lister = Lister(
            self._transport, "/api/v1/namespaces", objects.Named, {"fieldSelector": f"metadata.name={there}"}
        )
        for namespace in (await lister.all()).items:
            taken = (namespace.metadata.annotations or {}).get(_TAKES_FLOWS_FROM, "")
            if own in (name.strip() for name in taken.split(",")):
                return ""
        return (
            f"namespace {there}, in which the stages are to run, takes no flows of {own}: "
            f"kubectl annotate namespace {there} {_TAKES_FLOWS_FROM}={own}"
        )

    async def _create(self, flow: Flow, converted: Converted) -> Pipeline:
        """Its pipeline, made or found made. Raises ClusterError; ApiError 409 where it is somebody else's."""
        manifest, own = converted.manifest, flow.metadata
        there, name = manifest["metadata"]["namespace"], _pipeline_name(flow)
        manifest["metadata"] = {
            "name": name,
            "namespace": there,
            "annotations": {_FLOW: flow.key, _FLOW_UID: own.uid},
        }
        if there == own.namespace:  # an owner in another namespace would be taken for gone
            owner = {"apiVersion": _FLOW_API_VERSION, "kind": _FLOW_KIND, "name": own.name, "uid": own.uid}
            manifest["metadata"]["ownerReferences"] = [owner]
        path = f"/apis/{API_VERSION}/namespaces/{there}/pipelines"
        try:
            return _pipeline_decoder.decode(await self._transport.post(path, msgspec.json.encode(manifest)))
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            mine = await self._find(there, name)
            if mine is None or _annotation(mine, _FLOW_UID) != own.uid:
                why = f"pipeline {there}/{name} belongs to someone else"
                raise ApiError(_CONFLICT, "AlreadyExists", why) from error
            return mine

    async def _find(self, namespace: str, name: str) -> Pipeline | None:
        """A pipeline as the API server has it now. Raises ClusterError."""
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/pipelines"
        page = await Lister(
            self._transport, path, Pipeline, {"fieldSelector": f"metadata.name={name}"}, whole=True
        ).all()
        return next(iter(page.items), None)

    async def _cancel(self, uid: str) -> None:
        """Cancel what runs of a flow that is gone. Raises ClusterError."""
        for pipeline in self._pipelines.by(BY_FLOW, uid):
            if pipeline.spec.cancel or pipeline.status.completion_time or pipeline.metadata.deletion_timestamp:
                continue
            if await self._exists(_annotation(pipeline, _FLOW), uid):
                continue  # set aside, as one that can't be read
            await self._transport.patch(pipeline.path, b'{"spec":{"cancel":true}}')
            logger.info("pipeline %s is cancelled: its MLFlow is gone", pipeline.key)

    async def _exists(self, key: str, uid: str) -> bool:
        """Whether the API server has a flow. Raises ClusterError."""
        namespace, _, name = key.partition("/")
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):  # by whoever has written the pipeline
            return False
        path = f"/apis/{_FLOW_API_VERSION}/namespaces/{namespace}/mlflows"
        page = await Lister(self._transport, path, objects.Named, {"fieldSelector": f"metadata.name={name}"}).all()
        return uid in {found.metadata.uid for found in page.items} | {found.uid for found in page.unread}

    async def _refuse(self, flow: Flow, reason: str, message: str) -> None:
        await self._say(flow, FlowStatus("Failed"), [Condition(ACCEPTED, "False", reason, message)])

    async def _say(self, flow: Flow, status: FlowStatus, conditions: list[Condition]) -> None:
        """Write a status, if it says something new and the flow is still as it was read."""
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


def _asked(flow: Flow) -> tuple[int, bool]:
    return flow.metadata.generation, bool(flow.metadata.deletion_timestamp)


def _pipeline_name(flow: Flow) -> str:
    """The same each time it is asked for, and another for each flow of a name."""
    ending = f"-{flow.metadata.uid[:8]}"
    return flow.metadata.name[: _MAX_LABEL - len(ending)].replace(".", "-").rstrip("-") + ending


def _manifest(flow: Flow) -> _Manifest:
    metadata = {"name": flow.metadata.name, "namespace": flow.metadata.namespace}
    return {"kind": _FLOW_KIND, "metadata": metadata, "spec": flow.spec}
