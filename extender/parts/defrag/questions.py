"""What is asked, for whom room is to be made, read strictly and bounded; and what `POST /defrag` answers."""

from typing import Annotated, Any, Final

import msgspec

from extender.explain.manifests.objects import Texts
from extender.explain.processes import QuestionError
from extender.kube.transport import is_name
from extender.parts.defrag.plan import RoomPlan


class Figures(msgspec.Struct, rename="camel"):
    """Of the cluster at one moment."""

    free_nodes: int
    """Nodes with GPUs, all of which are free."""
    usable_gpus: int | None
    """Free GPUs on nodes where the target's first pod fits, in multiples of what it asks; None where the target has no
    pods, or they ask for no number of GPUs."""


class LeftPod(msgspec.Struct):
    """A pod without GPUs that stays on a node to be emptied."""

    pod: str
    """`namespace/name`."""
    node: str
    why: str
    """Kerf does not move it."""


class RoomAnswer(RoomPlan):
    """What `POST /defrag` answers: the plan, and what it changes."""

    id: str = ""
    """By which `POST /defrag/apply` knows it, for a while; "" where there is nothing to carry out."""
    before: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    after: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    left: list[LeftPod] = msgspec.field(default_factory=list)
    """Where nodes are to be emptied: pods that `kubectl drain` has to evict."""
    open: list[str] = msgspec.field(default_factory=list)
    """Of those nodes the ones that take pods again afterwards, since they are not cordoned."""
    gpus: float = 0.0
    """That it makes usable: those that the target asks for, shares as parts, or those of nodes that it empties."""
    on_sick: list[str] = msgspec.field(default_factory=list)
    """Where pods shall leave sick GPUs: all that are on one, `namespace/name`."""


MAX_PODS: Final = 1_000
_MAX_NODES: Final = 1_000
_MAX_GPUS: Final = 1_024
_MAX_MOVES: Final = 100_000
_Nodes = Annotated[int, msgspec.Meta(ge=1, le=_MAX_NODES)]


class RoomQuestion(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """For whom room is to be made: one of `for`, `pods`, `gpus`, `freeNodes`, `empty` and `heal`.

    Beside or instead of `pods` there may be `objects` and `manifest`.
    """

    for_: str = msgspec.field(name="for", default="")
    """A pod that waits, `namespace/name`, or a gang by its name as the queue tells it."""
    pods: list[dict[str, Any]] = []
    """Manifests of pods that do not exist yet."""
    objects: list[dict[str, Any]] = []
    """The same of objects that make pods, such as Jobs, with their PodGroups."""
    manifest: Texts = ""
    """The same as text, YAML or JSON, of one document or several; or as several texts."""
    namespace: str = "default"
    """Of objects that name none."""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=_MAX_GPUS)] | None = None
    """So many whole GPUs of one node, on as many nodes as `nodes` says."""
    nodes: _Nodes | None = None
    """1 where it is left out."""
    free_nodes: _Nodes | None = None
    """So many nodes with GPUs and without pods, those included that are so already."""
    empty: list[str] = []
    """Names of nodes that shall have no pods."""
    heal: bool = False
    """Whether pods shall leave sick GPUs."""
    max_moves: Annotated[int, msgspec.Meta(ge=0, le=_MAX_MOVES)] | None = None
    """Most pods to move."""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Of the target, where no pod says one: nobody of a higher one is moved for it."""

    @property
    def given(self) -> bool:
        """Whether it is for pods that do not exist."""
        return bool(self.pods or self.objects or self.manifest)


_TARGETS: Final = "for, pods (or objects, manifest), gpus (with nodes), freeNodes, empty and heal"
_decoder: Final = msgspec.json.Decoder(RoomQuestion)


class Needs(msgspec.Struct):
    """What a question needs to know of the cluster beside what runs."""

    namespace: str
    """Whose pending pods matter, "" for none."""


def read_question(body: bytes) -> RoomQuestion:
    """Raises QuestionError."""
    try:
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise QuestionError(f"invalid request: {error}") from None
    targets = [
        *(name for name, is_there in (("for", asked.for_), ("pods", asked.given), ("empty", asked.empty)) if is_there),
        *(["gpus"] if asked.gpus is not None else []),
        *(["freeNodes"] if asked.free_nodes is not None else []),
        *(["heal"] if asked.heal else []),
    ]
    if asked.nodes is not None and asked.gpus is None:
        raise QuestionError("nodes: says on how many nodes `gpus` are wanted; write gpus too")
    if len(targets) != 1:
        found = f"{' and '.join(targets)} are two questions" if targets else "room for what?"
        raise QuestionError(f"{found}: write one of {_TARGETS}")
    if asked.for_:
        namespace, _, name = asked.for_.partition("/")
        if not is_name(namespace) or not name or "/" in name:
            raise QuestionError(f"for: {asked.for_[:80]!r} names no pod or gang; write NAMESPACE/NAME")
        if asked.priority is not None:
            raise QuestionError("priority: what waits says its own; leave it out")
    if len(asked.pods) > MAX_PODS:
        raise QuestionError(f"pods: more than {MAX_PODS}")
    if len(asked.empty) > _MAX_NODES:
        raise QuestionError(f"empty: more than {_MAX_NODES} nodes")
    return asked


def needs_of(asked: RoomQuestion) -> Needs:
    """What a question needs."""
    return Needs(asked.for_.partition("/")[0])
