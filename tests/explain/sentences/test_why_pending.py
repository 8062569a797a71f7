"""The sentence and the remedies of a pending pod, from what is known of it: every reason to wait, and hostile names."""

from collections.abc import Iterator, Mapping
from typing import Any

from extender.core.fit.reasons import Kind, Reason, Remedy
from extender.core.resources.requests import AskedUnit, GpuRequest, named
from extender.explain.sentences.nearest import Nearest
from extender.explain.sentences.pending import Lacking, Standing, why_pending
from extender.explain.sentences.remedies import to_json
from extender.explain.sentences.words import bounded, listed
from extender.planning.wait_reasons import Code, WaitReason
from extender.plugins.pod_resources import UNMARKED
from tests.core.fit.claims import OF_A100, ask, asked
from tests.golden import Golden

TWO = GpuRequest(2)
SHORT = Nearest("needs 2 GPUs; n has 1 free", node="n", whole=True, missing=1, reason=Reason.BUSY)
HELD = SHORT._replace(in_the_way=frozenset(range(5)))
ROOM = Nearest("needs 2 GPUs; there is room now on n", fits=True, node="n")
MIG = GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),))
OF_CLAIMS = GpuRequest(2, AskedUnit.CLAIM, devices=asked(ask(OF_A100, count=2)))
PARAMETERS: dict[str, object] = {
    **{"cpu": 8.0, "memory_mib": 4096, "text": "its text", "head": "default/first", "namespace": "team", "limit": 4.0},
    **{"used": 2.0, "asked": 4.0, "gang": "default/ring", "here": 1, "size": 3, "gates": "a/b", "claim": "c"},
    **{"why": "w", "taints": "nvidia.com/gpu", "nodes": 2, "resource": "rdma/hca", "units": 2, "port": "80/TCP"},
    **{"topology": "kubernetes.io/hostname", "whom": "it", "node": "n", "words": "Insufficient cpu"},
    **{"right": "patch pods", "user": "someone", "manifest": "manifests/queue/rbac.yaml", "error": "timed out"},
}


def holder(pod: str | None, *gpus: int, units: int = 0, state: str = "BOUND", shared: bool = False) -> dict[str, Any]:
    return {"pod": pod, "units": units or len(gpus), "gpus": list(gpus), "state": state, "shared": shared}


def change(text: str, *nodes: str, what: str = "count", **more: str) -> Mapping[str, Any]:
    return {"change": what, "text": text, "nodes": nodes, **more}


def lacks(nearest: Nearest, request: GpuRequest = TWO, **more: Any) -> Lacking:
    return Lacking("team/p", request, nearest, **more)


def over_quota(limit: float, used: float, requested: float) -> WaitReason:
    return Code.OVER_QUOTA.reason(namespace="team", limit=limit, used=used, asked=requested)


RULES = (
    "0/9 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) didn't match pod affinity rules, "
    "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match pod topology spread constraints, "
    "1 node(s) had untolerated taint {a: b}, 1 node(s) had volume node affinity conflict, 1 node(s) were unschedulable"
)
GATE = "held by scheduling gate a/b"
UNASKED = "kube-scheduler has not asked Kerf about any pod for 5 min"
HOLDERS = [holder("a/x", 0), holder("a/y", 1), holder("a/x", 2), holder(None, 3), holder("a/z", 4, state="RESERVED")]
CHANGES = [
    *(change("more room", "z", what="room"), change("1 GPU instead of 2", "a", "b", "c", "d")),
    *(change("without the condition x for request gpu", "a"), change("any model instead of model a", "b")),
]
OF_CLAIM = [change("", what="room", who="a/c has it")]
LONG = "n" * 100
CASES: list[tuple[str, Lacking, Standing]] = [
    ("room, in the queue", lacks(ROOM), Standing(queued=True)),
    ("room, kube-scheduler's rules", lacks(ROOM), Standing(scheduler=RULES)),
    ("room, an unknown rule", lacks(ROOM), Standing(scheduler="something new")),
    ("room by now", lacks(ROOM), Standing(scheduler="something old", by_kerf=True)),
    ("room by now, no message", lacks(ROOM), Standing(scheduler="word", by_kerf=True)),
    ("room by now, offered nodes unknown", lacks(ROOM, of_all=True), Standing(by_kerf=True)),
    ("room on two nodes", lacks(ROOM._replace(num_fit=2)), Standing()),
    ("room, not tried yet", lacks(ROOM), Standing(unseen=True)),
    ("room, Kerf is not called", lacks(ROOM), Standing(unseen=True, unasked=UNASKED)),
    ("Kerf is not called", lacks(SHORT), Standing(unasked=UNASKED)),
    ("the gate of a queue that is off", lacks(ROOM), Standing(scheduler=GATE, gated=True, unattended=True)),
    ("another gate", lacks(ROOM), Standing(scheduler=GATE, gated=True)),
    ("without its marker", lacks(ROOM), Standing(scheduler=f"0/1 nodes are available: {UNMARKED}")),
    ("has bypassed the queue", lacks(SHORT), Standing(passed="came without its gate")),
    ("quota, all of it", lacks(ROOM), Standing(over_quota(4.0, 2.0, 4.0), queued=True)),
    ("quota, more than it", lacks(ROOM), Standing(over_quota(2.5, 2.0, 3.0), queued=True)),
    ("quota, nobody to wait for", lacks(ROOM), Standing(over_quota(4.0, 0.0, 4.0), queued=True)),
    ("a long name", lacks(ROOM), Standing(Code.GANG_INCOMPLETE.reason(gang=LONG, here=1, size=2), queued=True)),
    ("holders", lacks(HELD, holders=HOLDERS), Standing()),
    ("holders without a running pod", lacks(HELD, holders=HOLDERS[3:]), Standing()),
    ("holders of no single node", lacks(HELD._replace(node=""), holders=HOLDERS), Standing()),
    ("moves, just enough", lacks(SHORT._replace(free_elsewhere=1)), Standing()),
    ("moves, more than enough", lacks(SHORT._replace(free_elsewhere=3, missing=2)), Standing()),
    ("moves, too few", lacks(SHORT._replace(free_elsewhere=1, missing=2)), Standing()),
    ("moves, nothing missing", lacks(SHORT._replace(free_elsewhere=4, missing=0)), Standing()),
    ("moves, parts of GPUs", lacks(SHORT._replace(whole=False, missing=200)), Standing()),
    ("moves, replicas", lacks(SHORT._replace(free_elsewhere=2), GpuRequest(2, AskedUnit.SHARED)), Standing()),
    ("moves, not for MIG", lacks(SHORT._replace(free_elsewhere=4), MIG), Standing()),
    ("moves, no planner", lacks(SHORT._replace(free_elsewhere=1), makes_room=False), Standing()),
    ("no what-if answers", lacks(SHORT._replace(free_elsewhere=1), answers_what_if=False), Standing()),
    ("changes", lacks(SHORT, changes=CHANGES), Standing()),
    ("room elsewhere", lacks(SHORT, elsewhere=LONG), Standing()),
    ("the check's own remedy", lacks(Nearest("no", node="n", reason=Reason.NO_GPUS, number=1)), Standing()),
    ("no node has GPUs", lacks(Nearest("no", node="n", reason=Reason.NO_GPUS)), Standing()),
    ("unhealthy", lacks(Nearest("no", node=LONG, reason=Reason.UNHEALTHY)), Standing()),
    ("claims", lacks(Nearest("no", node="n"), OF_CLAIMS, changes=OF_CLAIM), Standing()),
]  # fmt: skip


def told(title: str, sentence: str, remedies: list[Remedy]) -> Iterator[str]:
    yield f"{title}: {sentence}"
    for remedy in remedies:
        yield f"  {remedy.kind}: {remedy.text}{f' [{remedy.command}]' if remedy.command else ''}"


def of_codes() -> Iterator[str]:
    """What is said for each reason of the queue, with `<why>` for its own sentence."""
    for code in (code for code in Code if code is not Code.NOT_REACHED):
        why, seen = code.reason(**PARAMETERS), ""
        for nearest in (SHORT, ROOM):
            sentence, found = why_pending(lacks(nearest), Standing(why, queued=True))
            of_room = code in (Code.NO_GPU_ROOM, Code.LEFT_OUT)  # the nearest node says more
            assert (str(why) in sentence) is not (of_room and nearest is SHORT)
            assert found and all(remedy.text and "{" not in remedy.text for remedy in found)
            text = "\n".join(told(code.name, sentence.replace(str(why), "<why>"), found))
            if text != seen:
                yield text
            seen = text


def test_what_keeps_a_pod_pending_and_what_helps(golden: Golden) -> None:
    cases = (line for title, lacking, standing in CASES for line in told(title, *why_pending(lacking, standing)))
    golden("explain/pending.txt", [*of_codes(), *cases])


def test_waiting_for_holders_is_told_with_the_time_in_words() -> None:
    for seconds, words in (
        *((0.0, "1 min"), (29.0, "1 min"), (91.0, "2 min"), (5399.0, "90 min"), (5400.0, "2 h"), (9100.0, "3 h")),
        *((129599.0, "36 h"), (129600.0, "2 d"), (216001.0, "3 d")),
    ):
        _, (wait, *_) = why_pending(lacks(SHORT, holders=HOLDERS, ends_in_s=seconds), Standing())
        assert (wait.kind, wait.text.partition("to end, ")[2]) == (Kind.WAIT, f"expected in {words}")


def test_a_remedy_in_json() -> None:
    add = Remedy(Kind.NODES, "add", "kerf what-if")
    assert to_json(add) == {"kind": "nodes", "text": "add", "command": "kerf what-if"}
    assert to_json(Remedy(Kind.POD, "ask")) == {"kind": "pod", "text": "ask", "command": None}


def test_names_are_text_on_one_line_and_bounded() -> None:
    hostile = "a/\x1b[2J\n<img src=x>" + "y" * 300
    assert named(hostile).isprintable() and len(named(hostile)) <= 80
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"]) == "a, b, c and d"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    held = [holder(f"{hostile}{number}", number) for number in range(8)]
    nearest = SHORT._replace(node="n" * 253, in_the_way=frozenset(range(8)), words=f"needs {TWO}; \n" + "w" * 2000)
    hostile_change = change(hostile * 9, *[hostile] * 5)
    sentence, found = why_pending(Lacking(hostile, TWO, nearest, held, [hostile_change], elsewhere=hostile), Standing())
    for text in (sentence, *(str(to_json(remedy)["text"]) for remedy in found)):
        assert text.isprintable() and len(text) <= 1000
    assert bounded("x" * 2000).endswith(" ...")
