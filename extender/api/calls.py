"""The paths that take a JSON body: what kube-scheduler, the API server and people ask, each one line of a table."""

from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from extender.api import preemption_wire, wire
from extender.api.readiness import UnavailableError
from extender.api.verbs import Verbs
from extender.api.webhooks import assigned_gpus, gate, reviews
from extender.api.webhooks.assigned_gpus import Injection
from extender.explain.defrag.applying import Applied, Apply, Stop, Stopped
from extender.explain.defrag.questions import RoomQuestion
from extender.explain.defrag.room_answers import RoomAnswer
from extender.explain.what_if.questions import WhatIf, WhatIfResult

if TYPE_CHECKING:
    from extender.api.service import Service

_FAULTS = BAD_REQUEST, TOO_LARGE, UNAVAILABLE = 400, 413, 503
NOT_FOUND, REFUSED = 404, 409


class Caller(Enum):
    """Who calls, which settles what a call has to bring."""

    SCHEDULER = "kube-scheduler"
    """A certificate, where there is a CA for them."""
    API_SERVER = "the API server"
    """Nothing: it has no certificate by default, and there is nothing to be had."""
    READER = "explanation"
    """Nothing more than the guard has asked."""
    OPERATOR = "operation"
    """An operator's token, which the guard has seen."""

    @property
    def guarded(self) -> bool:
        """Whether the guard comes before it."""
        return self in (Caller.READER, Caller.OPERATOR)


class Call(NamedTuple):
    """One path."""

    path: str
    verb: str
    """In metrics."""
    asks: type
    answers: type | str
    """A type, or the name of its schema."""
    answer: Callable[[bytes], bytes | Awaitable[bytes]]
    """Body to body; raises what has a status of its own (endpoints._STATUSES)."""
    summary: str
    fault: Callable[[str], bytes] | None = None
    """How a fault is told with status 200; None where the status tells it."""
    faults: tuple[int, ...] = ()
    """The statuses otherwise."""
    caller: Caller = Caller.SCHEDULER


def calls_of(service: "Service") -> list[Call]:
    """All of them."""

    def seeing(answer: Callable[[bytes], Awaitable[bytes]]) -> Callable[[bytes], Awaitable[bytes]]:
        async def answered(body: bytes) -> bytes:
            if blind := service.blindness():
                raise UnavailableError(blind.sentence)
            return await answer(body)

        return answered

    return [
        *_verbs(service.verbs),
        *_hooks(service),
        Call(
            path="/what-if",
            verb="what-if",
            asks=WhatIf,
            answers=WhatIfResult,
            answer=seeing(service.what_if.answer),
            summary="Where a batch of pods would go and what would stay pending, on a copy of the cluster. "
            "Changes nothing.",
            faults=_FAULTS,
            caller=Caller.READER,
        ),
        Call(
            path="/defrag",
            verb="defrag",
            asks=RoomQuestion,
            answers=RoomAnswer,
            answer=seeing(service.applying.answers.answer),
            summary="The cheapest moves of running pods by which others would fit, or nodes be empty. Changes nothing.",
            faults=_FAULTS,
            caller=Caller.READER,
        ),
        Call(
            path="/defrag/apply",
            verb="defrag-apply",
            asks=Apply,
            answers=Applied,
            answer=service.applying.apply,
            summary="Carries out a plan that POST /defrag has told: pods are evicted.",
            faults=(BAD_REQUEST, NOT_FOUND, REFUSED, TOO_LARGE),
            caller=Caller.OPERATOR,
        ),
        Call(
            path="/defrag/stop",
            verb="defrag-stop",
            asks=Stop,
            answers=Stopped,
            answer=service.applying.stop,
            summary="Evicts nobody any more; the move under way is finished.",
            faults=(BAD_REQUEST, REFUSED, TOO_LARGE),
            caller=Caller.OPERATOR,
        ),
    ]


def _verbs(verbs: Verbs) -> list[Call]:
    """What kube-scheduler asks: by the entries `others` too, which it may skip (extender.plugins.managed_resources)."""
    filtering = Call(
        path="/filter",
        verb="filter",
        asks=wire.ExtenderArgs,
        answers=wire.FilterResult,
        answer=verbs.filter,
        summary="Which candidate nodes fit a pod. Errors are reported in `Error`, always with status 200.",
        fault=_filter_fault,
    )
    prioritizing = Call(
        path="/prioritize",
        verb="prioritize",
        asks=wire.ExtenderArgs,
        answers="HostPriorityList",
        answer=verbs.prioritize,
        summary="Scores of candidate nodes, 0 to 10. The protocol has no field for errors, so they get another status.",
        faults=_FAULTS,
    )
    return [
        filtering,
        prioritizing,
        filtering._replace(
            path="/others/filter",
            verb="others-filter",
            answer=partial(verbs.filter, others=True),
            summary="Like /filter, for the second extender entry. GPU pods of the first pass; those of neither are "
            "rejected.",
        ),
        prioritizing._replace(
            path="/others/prioritize",
            verb="others-prioritize",
            answer=partial(verbs.prioritize, others=True),
            summary="Like /prioritize, for the second extender entry. Pods of the first get no scores.",
        ),
        Call(
            path="/preempt",
            verb="preempt",
            asks=preemption_wire.ExtenderPreemptionArgs,
            answers=preemption_wire.PreemptionResult,
            answer=verbs.evictions.preempt,
            summary="Which of the proposed evictions would make room for a pod; none if in doubt.",
            faults=(BAD_REQUEST, TOO_LARGE),
        ),
        Call(
            path="/bind",
            verb="bind",
            asks=wire.ExtenderBindingArgs,
            answers=wire.BindResult,
            answer=verbs.bind,
            summary="Binds a pod to a node with its GPUs. Errors are reported in `Error`, always with status 200.",
            fault=wire.encode_bind_result,
        ),
    ]


def _hooks(service: "Service") -> list[Call]:
    """What the API server asks."""
    classes, affinity = service.settings.dra.rewrite_extended_resources, service.affinity

    def injection() -> Injection:
        return assigned_gpus.settled(service.settings.webhook, service.placer.snapshot())

    mutating = Call(
        path="/mutate",
        verb="mutate",
        asks=reviews.AdmissionReview,
        answers=reviews.AdmissionAnswer,
        answer=lambda body: assigned_gpus.mutate(body, injection, affinity),
        summary="Tells a pod's containers which GPUs they have. Always allows the pod; errors become warnings.",
        fault=partial(reviews.allow, ""),
        caller=Caller.API_SERVER,
    )
    gating = mutating._replace(
        path="/gate",
        verb="gate",
        answer=lambda body: gate.gate(body, classes, affinity),
        summary="Adds the queue's scheduling gate to pods that opt in. Always allows the pod; errors become warnings.",
    )
    return [mutating, gating]


def _filter_fault(text: str) -> bytes:
    return wire.encode_filter_result(wire.FilterResult(error=text))
