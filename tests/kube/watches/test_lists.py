"""How many objects a page is asked for: what they weigh is settled by whoever writes them."""

import asyncio
import json

import pytest

from extender.kube import objects
from extender.kube.client import Query, UnreachableError
from extender.kube.watches import Lister

MIB = 2**20


class Pods:
    """A list of pods of so many bytes each; a page of more than `most` bytes is not sent in time."""

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


def names(pods: Pods, page_size: int = 500) -> list[str]:
    lister = Lister(pods, "/api/v1/pods", objects.Pod, page_size=page_size)  # type: ignore[arg-type]
    return [item.metadata.name for item in asyncio.run(lister.all()).items]


def test_pages_of_small_objects_grow_to_the_size_that_is_set() -> None:
    pods = Pods([10] * 1200)
    assert names(pods) == [f"p{number}" for number in range(1200)]
    assert pods.asked == [32, 64, 128, 256, 500, 500]


def test_no_page_is_larger_than_was_set() -> None:
    pods = Pods([10] * 60)
    assert len(names(pods, page_size=20)) == 60
    assert pods.asked == [20, 20, 20]


def test_large_objects_come_in_pages_of_a_few_megabytes() -> None:
    pods = Pods([MIB // 4] * 64)
    assert len(names(pods)) == 64
    assert max(pods.bytes[1:]) <= 2.1 * MIB
    assert pods.bytes[0] <= 8.1 * MIB, "nobody knows the size of the first ones"


def test_large_objects_behind_small_ones_make_one_large_page() -> None:
    pods = Pods([10] * 32 + [MIB // 4] * 80)
    assert len(names(pods)) == 112
    assert sorted(pods.bytes)[-2] <= 2.1 * MIB


def test_after_a_time_out_fewer_are_asked_for() -> None:
    pods = Pods([MIB // 16] * 64, most=MIB)
    lister = Lister(pods, "/api/v1/pods", objects.Pod)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(UnreachableError):
            asyncio.run(lister.all())
    assert pods.asked == [32, 8, 16]
    pods.most = 4 * MIB
    assert len(asyncio.run(lister.all()).items) == 64
