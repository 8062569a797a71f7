"""The author of hostile pods: makes, changes and deletes them in a process of its own, so that no call waits for it."""

import contextlib
import itertools
import json
import multiprocessing
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self

from tests.controlplane import Api, ApiError, ControlPlane
from tests.tools.bench.hostile_pods import Object

NAMESPACE = "hostile"
_NUM_WRITERS = 3


class Author:
    """Creates, changes and deletes pods of one namespace, from entry to exit."""

    def __init__(self, plane: ControlPlane, pods: list[tuple[str, list[Object]]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(plane.api("admin"), pods, theirs), daemon=True)
        self._theirs = theirs
        self.made: Counter[str] = Counter()
        """Pods that there are, by kind."""
        self.refused: Counter[str] = Counter()
        """Pods that the API server would not have."""
        self._done = False
        self._stored: list[bytes] = []
        self._next = itertools.count()

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()

    def stored(self) -> bytes | None:
        """One of the pods that kube-scheduler would ask about, in turn."""
        return self._stored[next(self._next) % len(self._stored)] if self._stored else None

    def begin(self, phase: str) -> None:
        """Do one thing to all pods."""
        self._done = False
        self._pipe.send(phase)

    def is_done(self) -> bool:
        """Whether it has done that. Raises EOFError when the author has ended."""
        while self._pipe.poll():
            match self._pipe.recv():
                case bytes() as pod:
                    self._stored.append(pod)
                case _Made(kind, accepted=True):
                    self.made[kind] += 1
                case _Made(kind):
                    self.refused[kind] += 1
                case _:
                    self._done = True
        return self._done


@dataclass(frozen=True)
class _Made:
    """What became of a pod that was to be created."""

    kind: str
    accepted: bool


def _work(api: Api, pods: list[tuple[str, list[Object]]], pipe: Connection) -> None:
    """The author's process: does a phase when it is told to, says what there is and when it is done."""
    there: list[list[str]] = []

    def create(item: tuple[str, list[Object]]) -> None:
        kind, manifests = item
        paths: list[str] = []
        stored: Object = {}
        try:
            for manifest in manifests:
                path = _path(manifest)
                stored = api.request("POST", path, _body(manifest))
                paths.append(f"{path}/{manifest['metadata']['name']}")
        except (ApiError, ValueError):
            tell(_Made(kind, accepted=False))
            if not paths:
                return
        there.append(paths)
        if stored.get("kind") != "Pod":
            return
        tell(_Made(kind, accepted=True))
        if not stored["spec"].get("nodeName") and not stored["spec"].get("schedulingGates"):
            tell(json.dumps(stored).encode())

    def change(paths: list[str]) -> None:
        with contextlib.suppress(ApiError):
            labels = {"changed": str(time.monotonic_ns() % 1000)}
            api.request("PATCH", paths[-1], {"metadata": {"labels": labels}}, "application/merge-patch+json")

    def delete(paths: list[str]) -> None:
        for path in paths:
            with contextlib.suppress(ApiError):
                api.request("DELETE", path, {"gracePeriodSeconds": 0})

    lock = threading.Lock()

    def tell(what: object) -> None:
        with lock:
            pipe.send(what)

    with ThreadPoolExecutor(_NUM_WRITERS) as pool, contextlib.suppress(EOFError):
        while True:
            match pipe.recv():
                case "created":
                    list(pool.map(create, pods))
                case "changed":
                    list(pool.map(change, there))
                case "deleted":
                    list(pool.map(delete, there))
            tell(None)


def _path(manifest: Object) -> str:
    namespace = f"/namespaces/{NAMESPACE}"
    if manifest["kind"] == "Pod":
        return f"/api/v1{namespace}/pods"
    return f"/apis/resource.k8s.io/v1{namespace}/resourceclaims"


def _body(manifest: Object) -> bytes:
    """As text: what is nested deeply is text already, since Python's encoder gives up before Go's decoder does."""
    text = json.dumps({key: value for key, value in manifest.items() if key != "deep"})
    for mark, deep in manifest.get("deep", {}).items():
        text = text.replace(f'"{mark}"', deep)
    return text.encode()
