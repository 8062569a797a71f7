"""Page sizes of lists: the authors of objects choose how large they are."""

import asyncio
import json

import pytest

from extender.kube import objects
from extender.kube.client import Query, UnreachableError
from extender.kube.watches import Lister

MIB = 2**20


class Pods:
    """A list of pods of these bytes; a page of more than `most` bytes times out."""

    def __init__(self, sizes: list[int], most: float = float("inf")) -> None:
        self.sizes = sizes
        self.most = most
        self.asked: list[int] = []
        self.bytes: list[int] = []

    async def get(self, path: str, query: Query) -> bytes:
        begin, limit = int(query.get("continue", "0")), int(query["limit"])
        self.asked.append(limit)
        end = begin + limit
        metadata = {"resourceVersion": "7", "continue": str(end) if end < len(self.sizes) else ""}
        items = [
            {"metadata": {"name": f"p{begin + number}", "uid": str(begin + number), "annotations": {"a": "x" * size}}}
            for number, size in enumerate(self.sizes[begin:end])
        ]
        page = json.dumps({"metadata": metadata, "items": items}).encode()
        if len(page) > self.most:
            raise UnreachableError("timed out")
        self.bytes.append(len(page))
        return page


def lister(pods: Pods, page_size: int = 500) -> Lister[objects.Pod]:
    return Lister(pods, "/api/v1/pods", objects.Pod, page_size=page_size)  # type: ignore[arg-type]


def names(pods: Pods, page_size: int = 500) -> list[str]:
    return [item.metadata.name for item in asyncio.run(lister(pods, page_size).all()).items]


def test_pages_of_small_objects_grow_to_the_configured_size() -> None:
    pods, few = Pods([10] * 1200), Pods([10] * 60)
    assert names(pods) == [f"p{number}" for number in range(1200)]
    assert pods.asked == [32, 64, 128, 256, 500, 500]
    assert len(names(few, page_size=20)) == 60
    assert few.asked == [20, 20, 20]


def test_pages_of_large_objects_have_a_few_megabytes() -> None:
    large, behind_small = Pods([MIB // 4] * 64), Pods([10] * 32 + [MIB // 4] * 80)
    assert (len(names(large)), len(names(behind_small))) == (64, 112)
    assert max(large.bytes[1:]) <= 2.1 * MIB
    assert large.bytes[0] <= 8.1 * MIB, "the size of the first ones is not known"
    assert sorted(behind_small.bytes)[-2] <= 2.1 * MIB


def test_pages_shrink_after_a_timeout() -> None:
    pods = Pods([MIB // 16] * 64, most=MIB)
    one = lister(pods)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            asyncio.run(one.all())
    assert pods.asked == [32, 8, 16]
    pods.most = 4 * MIB
    assert len(asyncio.run(one.all()).items) == 64
