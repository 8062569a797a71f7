"""How long Kerf takes to answer filter and prioritize, beside echoes of the same bytes.

Each request goes to Kerf and to the bare echo in turn, to one and then the other first, over one kept-alive connection
each; the client's time counts for both alike. The bodies are made before, so that nothing else runs between two calls.
Kerf serves a real API server's nodes, and every request is for another pod: each answer contains a decision, a
reservation and a changed cluster.

- `echo_ms`: a bare ASGI app on Kerf's HTTP stack (`echo_app`) reads the same request and answers as many bytes as Kerf
  last did. This is the floor for a service in Python, and what Kerf's ratio is taken from.
- `go_raw_ms`: the same in Go's net/http, `/raw` of the Go echo.
- `go_echo_ms`: `/filter` and `/prioritize` of the Go echo, which decodes the request and encodes an answer as any
  extender must. Its answer to filter names every node, where Kerf's in decisive mode names one.

Both of Go's are measured with the same requests, in turn, after Kerf and the echo.
"""

import contextlib
import gc
import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.controlplane import ControlPlane
from tests.tools.bench import reports, requests, servers
from tests.tools.bench.clients import Client, Reply
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

_VERBS = ("filter", "prioritize")
ALL_NAMES = 10**9
_NUM_NAMES = (100, 750, ALL_NAMES)
"""kube-scheduler's sample of 100 nodes, of 15,000 nodes, and all nodes."""
_NUM_WARMING = 10
_PAIRS = (("kerf", "echo"), ("go_raw", "go_echo"))
"""Targets that are asked in turn."""
_TARGETS = tuple(itertools.chain(*_PAIRS))
_SEED = 20260105


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 5000
    requests: int = 300
    repetitions: int = 5
    mode: str = "decisive"
    pods: int = 0
    """Running pods, half of them with a GPU."""
    verbs: Sequence[str] = _VERBS
    names: Sequence[int] = _NUM_NAMES

    @property
    def gpu_pods(self) -> int:
        """Of the running ones."""
        return self.pods // 2

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Verbs and numbers of names."""
        sizes = sorted({min(size, self.nodes) for size in self.names})
        return list(itertools.product(self.verbs, sizes))

    @property
    def num_steps(self) -> int:
        """The cluster, then each row in each repetition."""
        return 1 + len(self.rows) * self.repetitions


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError when Kerf answers anything but a placement."""
    asked = len(plan.rows) * plan.repetitions * (plan.requests + _NUM_WARMING)
    free = plan.nodes * GPUS_PER_NODE - plan.gpu_pods
    if asked > free:
        raise BenchError(
            f"{asked} requests reserve more than the {free} GPUs that are free on {plan.nodes} nodes: "
            "ask for fewer requests or more nodes"
        )
    tell(f"{plan.nodes} nodes")
    with (
        servers.workspace() as directory,
        _plane(plan, directory) as plane,
        servers.kerf(plane, plan.mode) as kerf,
        servers.bare_echo(directory) as echo,
        servers.go_echo(plane) as go_echo,
        contextlib.ExitStack() as stack,
    ):
        urls = (kerf.url, echo.url, go_echo.url, go_echo.url)
        clients = {target: stack.enter_context(Client(url)) for target, url in zip(_TARGETS, urls, strict=True)}
        timings = [_Row(verb, size) for verb, size in plan.rows]
        session = _Session(clients, _node_names(plane), random.Random(_SEED))
        for repetition in range(plan.repetitions):
            for row in timings:
                tell(f"{row.verb}, {row.num_names} names, repetition {repetition + 1}")
                session.run(row, plan.requests)
    return {
        **{
            "nodes": plan.nodes,
            "pods": plan.pods,
            "mode": plan.mode,
            "requests": plan.requests,
            "repetitions": plan.repetitions,
        },
        "calls": [row.summary() for row in timings],
        "machine": reports.machine(),
    }


@contextlib.contextmanager
def _plane(plan: Plan, directory: Path) -> Iterator[ControlPlane]:
    """Nodes, and the pods that run on them."""
    with servers.plane_with_nodes(directory, plan.nodes) as plane:
        servers.run_pods(plane, plan.pods, plan.nodes)
        yield plane


@dataclass
class _Row:
    """One line of the report: what was measured for a verb and a number of names."""

    verb: str
    num_names: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {target: [] for target in _TARGETS})
    request_bytes: int = 0
    answer_bytes: int = 2

    def summary(self) -> reports.Report:
        """Milliseconds at the 50th and 99th percentile, over all repetitions."""
        quantiles = {f"{target}_ms": _quantiles_ms(values) for target, values in self.seconds.items()}
        kerf, echo = quantiles["kerf_ms"], quantiles["echo_ms"]
        return {
            **{"verb": self.verb, "names": self.num_names},
            **{"request_bytes": self.request_bytes, "answer_bytes": self.answer_bytes},
            **quantiles,
            "ratio": round(kerf["p50"] / echo["p50"], 3),
            "ratio_p99": round(kerf["p99"] / echo["p99"], 3),
        }


class _Session:
    """Sends requests over one connection per target."""

    def __init__(self, clients: dict[str, Client], node_names: list[str], rng: random.Random) -> None:
        self._clients = clients
        self._node_names = node_names
        self._rng = rng
        self._num_pods = 0

    def run(self, row: _Row, num_requests: int) -> None:
        """One repetition of a row."""
        bodies = [self._next_body(row.num_names) for _ in range(_NUM_WARMING + num_requests)]
        row.request_bytes = len(bodies[-1])
        gc.collect()
        gc.disable()  # the client's own pauses would fall on whoever is asked just then
        try:
            for pair, (number, body) in itertools.product(_PAIRS, enumerate(bodies)):
                for target in pair if number % 2 else pair[::-1]:
                    seconds = self._seconds(target, row, body)
                    if number >= _NUM_WARMING:
                        row.seconds[target].append(seconds)
        finally:
            gc.enable()

    def _next_body(self, num_names: int) -> bytes:
        self._num_pods += 1
        # kube-scheduler goes on in its list of nodes where it stopped for the last pod, and begins again at the end.
        # Requests for all nodes fill those at the list's beginning (best fit), so samples are taken from its end.
        size = len(self._node_names)
        start = self._rng.randrange(size // 2, size)
        names = (self._node_names[start:] + self._node_names[size // 2 if num_names <= size // 2 else 0 :])[:num_names]
        return requests.extender_args(self._num_pods, names)

    def _seconds(self, target: str, row: _Row, body: bytes) -> float:
        raw = f"?bytes={row.answer_bytes}"
        path = {"echo": f"/{raw}", "go_raw": f"/raw{raw}"}.get(target, f"/{row.verb}")
        reply = self._clients[target].post(path, body)
        if reply.status != 200:
            raise BenchError(f"{target} answers {row.verb} with status {reply.status}: {reply.body[:300]!r}")
        if target == "kerf":
            _check_placement(row, reply)
            row.answer_bytes = len(reply.body)
        return reply.seconds


def _check_placement(row: _Row, reply: Reply) -> None:
    """Refuse times of answers that are not what was asked for."""
    answer = msgspec.json.decode(reply.body)
    complete = len(answer) == row.num_names if row.verb == "prioritize" else answer["NodeNames"]
    if not complete:
        raise BenchError(f"Kerf places no pod: {reply.body[:300]!r}")


def _node_names(plane: ControlPlane) -> list[str]:
    return [item["metadata"]["name"] for item in plane.request("GET", "/api/v1/nodes")["items"]]


def _quantiles_ms(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": round(cuts[49] * 1000, 3), "p99": round(cuts[98] * 1000, 3)}
