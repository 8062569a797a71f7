"""Assembles the what_if part: its HTTP call and its panel of the page."""

from pathlib import Path

from extender.api.contributions import Contribution, Kernel
from extender.api.openapi import EXAMPLE_JOB
from extender.api.posts import BAD_REQUEST, TOO_LARGE, UNAVAILABLE, Call, Caller
from extender.explain.counting import CountsGpuHours, stranding_in
from extender.explain.what_if import AnswersWhatIf
from extender.parts.what_if.answers import WhatIfAnswers
from extender.parts.what_if.questions import WhatIf, WhatIfResult
from extender.parts.what_if.settings import WhatIfSettings
from extender.parts.what_if.waiting import waiting_in


def build(kernel: Kernel, wanted: WhatIfSettings) -> Contribution:
    """Answers questions one at a time, each in a separate process."""
    base, queue = kernel.base, kernel.queue

    answers = WhatIfAnswers(
        transport=base.transport,
        ledger=base.ledger,
        mirror=base.mirror,
        clock=base.clock,
        policy=kernel.settings.decisions.policy,
        policies=kernel.placer.policies_apart,
        turns=kernel.turns,
        waiting=lambda: waiting_in(queue.backlog if queue else None),
        stranding=stranding_in(lambda: kernel.get(CountsGpuHours)),
    )
    call = Call(
        path="/what-if",
        verb="what-if",
        asks=WhatIf,
        answers=WhatIfResult,
        answer=answers.answer,
        summary="Where a batch of pods would go and what would stay pending, on a copy of the cluster. "
        "Changes nothing.",
        faults=(BAD_REQUEST, TOO_LARGE, UNAVAILABLE),
        caller=Caller.READER,
        needs_current_view=True,
        example={"objects": [EXAMPLE_JOB], "drain": ["t4-1"]},
    )
    return Contribution(calls=[call], offers={AnswersWhatIf: answers}, panel=Path(__file__).parent / "page")
