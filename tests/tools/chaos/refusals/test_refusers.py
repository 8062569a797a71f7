"""The extender behind Kerf refuses what it is to refuse, and says so."""

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.tools.chaos.boards import Board
from tests.tools.chaos.faults import Fault, Kind
from tests.tools.chaos.refusals.manifests import REFUSED, WORDS_BEHIND
from tests.tools.chaos.refusals.refusers import Refuser


def asked(labels: dict[str, str], *names: str) -> dict[str, Any]:
    return {"Pod": {"metadata": {"labels": labels}}, "NodeNames": list(names)}


@pytest.mark.parametrize(
    ("faults", "labels", "now_s", "left", "counted"),
    [
        ([], {}, 1.0, ["a", "b"], 0),
        ([], {REFUSED: "true"}, 1.0, [], 0),
        ([Fault(Kind.NODE_REFUSED_BEHIND, 0.5, 1.0, target="a")], {}, 1.0, ["b"], 1),
        ([Fault(Kind.NODE_REFUSED_BEHIND, 0.5, 1.0, target="a")], {}, 1.6, ["a", "b"], 0),
        ([Fault(Kind.NODE_REFUSED_BEHIND, 0.5, 1.0)], {}, 1.0, [], 1),
        ([Fault(Kind.NODE_REFUSED_BEHIND, 0.5, 1.0, target=name) for name in "ab"], {}, 1.0, [], 2),
        ([Fault(Kind.NODE_REFUSED_BEHIND, 0.5, 1.0, target="c")], {}, 1.0, ["a", "b"], 0),
        ([Fault(Kind.NODE_REFUSED_BEHIND, 0.5, 1.0, target="1b")], {}, 1.0, ["a"], 1),
    ],
)
def test_it_refuses_pods_always_and_nodes_for_a_while(
    faults: list[Fault], labels: dict[str, str], now_s: float, left: list[str], counted: int
) -> None:
    now = 0.0

    async def run() -> None:
        nonlocal now
        board = Board(lambda: now)
        board.begin(faults)
        now = now_s
        refuser = Refuser(board)
        await refuser.start()
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(f"{refuser.url}/filter", json=asked(labels, "a", "b")) as answer:
                    told = await answer.json()
                assert told["NodeNames"] == left
                assert told.get("FailedNodes", {}) == dict.fromkeys({"a", "b"} - set(left), WORDS_BEHIND)
        await refuser.stop()
        assert board.counts[Kind.NODE_REFUSED_BEHIND] == counted

    asyncio.run(run())
