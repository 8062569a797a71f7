"""The question and answer of `POST /defrag`. Questions are validated strictly, and bounded."""

from typing import Annotated, Any, Final

import msgspec

from extender.explain.manifests.objects import Texts
from extender.explain.processes import QuestionError
from extender.kube.transport import is_name
from extender.parts.defrag.plan import RoomPlan


class Figures(msgspec.Struct, rename="camel"):
    """Figures of the cluster before or after the moves."""

    free_nodes: int
    """GPU nodes whose GPUs are all free."""
    usable_gpus: int | None
    """Free GPUs on nodes where the target's first pod fits, in multiples of its request; None if the target has no
    pods, or they request no number of GPUs."""


class LeftPod(msgspec.Struct):
    """A pod without GPUs that Kerf leaves on a node to be emptied."""

    pod: str
    """`namespace/name`."""
    node: str
    why: str
    """Why Kerf does not move it."""


class RoomAnswer(RoomPlan):
    """Answer of `POST /defrag`: the plan and its effect."""

    id: str = ""
    """ID for `POST /defrag/apply`, valid for a while; "" if there is nothing to carry out."""
    before: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    after: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    left: list[LeftPod] = msgspec.field(default_factory=list)
    """With `empty`: pods that are left to `kubectl drain`."""
    open: list[str] = msgspec.field(default_factory=list)
    """With `empty`: the nodes that take pods again afterwards, since they are not cordoned."""
    gpus: float = 0.0
    """GPUs that the moves make usable: the target's, shares as fractions, or those of emptied nodes."""
    on_sick: list[str] = msgspec.field(default_factory=list)
    """With `heal`: all pods on unhealthy GPUs, `namespace/name`."""


MAX_PODS: Final = 1_000
_MAX_NODES: Final = 1_000
_MAX_GPUS: Final = 1_024
_MAX_MOVES: Final = 100_000
_Nodes = Annotated[int, msgspec.Meta(ge=1, le=_MAX_NODES)]


class RoomQuestion(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What to make room for: exactly one of `for`, `pods`, `gpus`, `freeNodes`, `empty` and `heal`.

    `objects` and `manifest` may be given beside or instead of `pods`.
    """

    for_: str = msgspec.field(name="for", default="")
    """A waiting pod, `namespace/name`, or a gang by its name in the queue."""
    pods: list[dict[str, Any]] = []
    """Manifests of pods that do not exist yet."""
    objects: list[dict[str, Any]] = []
    """Manifests of objects that create pods, such as Jobs, with their PodGroups."""
    manifest: Texts = ""
    """Manifests as text, YAML or JSON, with one or several documents; or several texts."""
    namespace: str = "default"
    """Namespace of objects that name none."""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=_MAX_GPUS)] | None = None
    """Number of whole free GPUs on each of `nodes` nodes."""
    nodes: _Nodes | None = None
    """Number of nodes for `gpus`, 1 by default."""
    free_nodes: _Nodes | None = None
    """Number of GPU nodes without pods, including those that are empty already."""
    empty: list[str] = []
    """Names of nodes to be emptied."""
    heal: bool = False
    """Whether to move pods off unhealthy GPUs."""
    max_moves: Annotated[int, msgspec.Meta(ge=0, le=_MAX_MOVES)] | None = None
    """Most pods to move."""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """The target's priority, unless its pods have one: pods of higher priority are not moved."""

    @property
    def given(self) -> bool:
        """Whether the target is pods that do not exist."""
        return bool(self.pods or self.objects or self.manifest)


_TARGETS: Final = "for, pods (or objects, manifest), gpus (with nodes), freeNodes, empty and heal"
_decoder: Final = msgspec.json.Decoder(RoomQuestion)


class Needs(msgspec.Struct):
    """Data that a question needs beside running pods."""

    namespace: str
    """Namespace whose pending pods matter, "" for none."""


def read_question(body: bytes) -> RoomQuestion:
    """Parse and validate a question. Raises QuestionError."""
    try:
        question = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise QuestionError(f"invalid request: {error}") from None
    targets = [
        *(["for"] if question.for_ else []),
        *(["pods"] if question.given else []),
        *(["empty"] if question.empty else []),
        *(["gpus"] if question.gpus is not None else []),
        *(["freeNodes"] if question.free_nodes is not None else []),
        *(["heal"] if question.heal else []),
    ]
    if question.nodes is not None and question.gpus is None:
        raise QuestionError("nodes: the number of nodes for `gpus`; write gpus too")
    if len(targets) != 1:
        fault = f"{' and '.join(targets)} can't be combined" if targets else "room for what?"
        raise QuestionError(f"{fault}: write one of {_TARGETS}")
    if question.for_:
        namespace, _, name = question.for_.partition("/")
        if not is_name(namespace) or not name or "/" in name:
            raise QuestionError(f"for: {question.for_[:80]!r} is not the name of a pod or gang; write NAMESPACE/NAME")
        if question.priority is not None:
            raise QuestionError("priority: waiting pods have their own; leave it out")
    if len(question.pods) > MAX_PODS:
        raise QuestionError(f"pods: more than {MAX_PODS}")
    if len(question.empty) > _MAX_NODES:
        raise QuestionError(f"empty: more than {_MAX_NODES} nodes")
    return question


def needs_of(question: RoomQuestion) -> Needs:
    """The data that a question needs."""
    return Needs(question.for_.partition("/")[0])
