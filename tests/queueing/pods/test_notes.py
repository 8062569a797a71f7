"""Why pods wait, as it is written on them."""

import asyncio

from extender.kube.objects import Pod
from extender.planning.wait_reasons import Code
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.notes import Notes
from tests.queueing.watches import pod

LEFT_OUT = Code.LEFT_OUT.reason()


class Writer:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def note(self, pod: Pod, reason: str, count: int) -> bool:
        self.notes.append(reason)
        return True


def test_why_a_pod_waits_is_written_once_and_again_after_a_nomination_took_it_off() -> None:
    now = [0.0]
    writer = Writer()
    notes = Notes(writer, lambda: now[0])  # type: ignore[arg-type]
    entry = Entry(pod(), created=0.0, seen=0.0)
    entry.pass_over(LEFT_OUT, 0.0)

    def written_at(moment: float) -> int:
        now[0] = moment
        asyncio.run(notes.write([entry]))
        return len(writer.notes)

    assert [written_at(moment) for moment in (0.5, 2.0, 40.0, 80.0)] == [0, 1, 1, 1]
    entry.reserve("n")
    assert written_at(120.0) == 1
    entry.put_back(121.0)
    entry.pass_over(LEFT_OUT, 0.0)
    assert [written_at(moment) for moment in (122.0, 160.0)] == [2, 2]
