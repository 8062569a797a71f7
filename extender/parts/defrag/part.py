"""Assembles making room: its planner, mover and policy, with their HTTP calls, metrics and page data."""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from extender.api.contributions import Contribution, Kernel, Work
from extender.api.posts import BAD_REQUEST, NOT_FOUND, REFUSED, TOO_LARGE, UNAVAILABLE, Call, Caller
from extender.api.reads import Reads
from extender.core.occupancies import ObservedRules, unhealthy_gpus
from extender.explain.making_room import MakesRoom
from extender.parts.defrag.answers import RoomAnswers, queued_in
from extender.parts.defrag.applying import Applied, Apply, Applying, Stop, Stopped
from extender.parts.defrag.checks import crowded
from extender.parts.defrag.facts import Costs
from extender.parts.defrag.metrics import mover_metrics, policy_metrics
from extender.parts.defrag.mover import Mover, build_mover
from extender.parts.defrag.policy import build_policy
from extender.parts.defrag.questions import Figures, RoomAnswer, RoomQuestion
from extender.parts.defrag.settings import DefragSettings
from extender.parts.defrag.state import RoomState, state_of
from extender.parts.defrag.targets import by_node
from extender.planning.quotas import Quotas
from extender.queueing.kept_places import PlaceKeeper
from extender.settings.telemetry import TelemetrySettings
from extender.telemetry.service import rules_of


def build(kernel: Kernel, wanted: DefragSettings) -> Contribution:
    """The part. Plans are carried out only with `wanted.record` and the queue, and searched for with `wanted.mode`."""
    mover = build_mover(kernel, wanted)
    room = _build_room(kernel, wanted, mover)
    policy = build_policy(kernel, wanted, room, mover)
    why_off = "setting defrag.record names no ConfigMap" if kernel.queue else "the queue is off (setting queue.enabled)"
    applying = Applying(
        room, mover, f"no pods are moved here: {why_off}", lambda: policy.state() if policy is not None else None
    )

    def metrics() -> Iterator[Metric]:
        if mover is not None:
            yield from mover_metrics(mover)
        if policy is not None:
            yield from policy_metrics(policy)

    def routes(reads: Reads) -> None:
        @reads.get("/defrag")
        async def moves() -> RoomState:
            """State of the current plan that makes room, or of the last one."""
            return applying.state()

    work: list[Work] = [each for each in (mover, policy) if each is not None]
    return Contribution(
        work=work,
        metrics=metrics,
        routes=routes,
        calls=_calls(applying),
        examples={
            RoomAnswer: RoomAnswer(
                False, [], 0.0, [], [], ["no moves help"], before=Figures(1, 8), after=Figures(1, 8)
            ),
            RoomState: state_of(None, [], 0, ""),
            Applied: Applied("3f9a"),
            Stopped: Stopped(True),
        },
        catch_up=mover.catch_up if mover is not None else None,
        offers={MakesRoom: room, **({PlaceKeeper: mover} if mover is not None else {})},
        shown={"moves": policy.to_json if policy is not None else dict},
    )


def _calls(applying: Applying) -> list[Call]:
    return [
        Call(
            path="/defrag",
            verb="defrag",
            asks=RoomQuestion,
            answers=RoomAnswer,
            answer=applying.answers.answer,
            summary="The cheapest moves of running pods that make others fit, or nodes empty. Changes nothing.",
            faults=(BAD_REQUEST, TOO_LARGE, UNAVAILABLE),
            caller=Caller.READER,
            needs_current_view=True,
            example={"for": "research/train-1", "maxMoves": 10},
        ),
        Call(
            path="/defrag/apply",
            verb="defrag-apply",
            asks=Apply,
            answers=Applied,
            answer=applying.apply,
            summary="Carries out a plan that POST /defrag returned: pods are evicted.",
            faults=(BAD_REQUEST, NOT_FOUND, REFUSED, TOO_LARGE),
            caller=Caller.OPERATOR,
            example={"id": "3f9a"},
        ),
        Call(
            path="/defrag/stop",
            verb="defrag-stop",
            asks=Stop,
            answers=Stopped,
            answer=applying.stop,
            summary="Stops evicting pods; the move under way is finished.",
            faults=(BAD_REQUEST, REFUSED, TOO_LARGE),
            caller=Caller.OPERATOR,
            example={"why": "maintenance begins"},
        ),
    ]


def _build_room(kernel: Kernel, wanted: DefragSettings, mover: Mover | None) -> RoomAnswers:
    """The planner of moves, which takes turns with what-if questions."""
    settings, base, queue = kernel.settings, kernel.base, kernel.queue
    backlog = queue.backlog if queue else None
    rules = _trusted_rules(settings.telemetry)
    return RoomAnswers(
        transport=base.transport,
        ledger=base.ledger,
        mirror=base.mirror,
        clock=base.clock,
        wall_clock=time.time,
        policy=settings.decisions.policy,
        policies=kernel.placer.policies_apart,
        turns=kernel.turns,
        quotas=Quotas(settings.queue.quotas) if queue else Quotas(),
        queued=lambda: queued_in(backlog),
        costs=lambda: Costs(
            wanted.restart_s,
            exempt=frozenset(wanted.exempt_namespaces),
            crowded=crowded(queue.backlog.entries) if queue and mover else frozenset(),
        ),
        gated_in=lambda: queue.namespaces.names if queue and mover else None,
        sick=lambda cluster: by_node(cluster, unhealthy_gpus(cluster, rules)),
    )


def _trusted_rules(wanted: TelemetrySettings) -> ObservedRules | None:
    """Rules by which samples show that a GPU is unhealthy; None if anyone who may create a Service could forge them."""
    configured = wanted.source not in ("auto", "off") or wanted.url or wanted.exporters
    return rules_of(wanted) if configured else None
