"""Which devices, and for whom: whatever pods, devices and annotations there are."""

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.parts.agent.choice import (
    CandidatePod,
    HandledPods,
    PreferenceRequest,
    candidate_pods,
    choose,
    gpu_of,
    likeliest,
    promised,
    served,
    spared,
)
from extender.parts.agent.kubelet import Listing
from extender.parts.agent.pods import Pod
from tests.parts.agent.pods import GPU, container, gpu_pod

NOTHING = HandledPods((), (), "")
GPUS = [f"GPU-{number}" for number in range(6)]
DEVICES = [*GPUS, *(f"GPU-{number}::{replica}" for number in range(3) for replica in range(12))]


def read(manifest: dict[str, object]) -> Pod:
    return msgspec.convert(manifest, Pod)


def asker(assigned: str = "", held: str = "") -> CandidatePod:
    return CandidatePod(read(gpu_pod("p")), assigned.split(), frozenset(held.split()), True)


@st.composite
def calls(draw: st.DrawFn) -> PreferenceRequest:
    available = draw(st.lists(st.sampled_from(DEVICES), min_size=1, unique=True))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=3))
    return PreferenceRequest(GPU, available, must, draw(st.integers(len(must), len(available))))


@given(calls(), st.lists(st.sampled_from([*GPUS, "GPU-9", ""]), unique=True), st.sets(st.sampled_from(DEVICES)))
def test_what_is_chosen_is_available_assigned_and_no_more_than_asked(
    call: PreferenceRequest, assigned: list[str], held: set[str]
) -> None:
    chosen = choose(CandidatePod(read(gpu_pod("p")), assigned, frozenset(held), True), call)
    assert len(set(chosen)) == len(chosen) <= max(call.size, len(call.must_include))
    assert set(call.must_include) <= set(chosen) <= {*call.available, *call.must_include}
    others = [device for device in chosen if device not in call.must_include]
    assert {gpu_of(device) for device in others} <= set(assigned)
    left = {gpu_of(device) for device in set(call.available).difference(chosen)}
    assert len(chosen) >= call.size or not left.intersection(assigned), "something assigned was left"


@given(calls(), st.sets(st.sampled_from(GPUS)), st.data())
def test_promised_gpus_are_spared_as_long_as_others_are_left(
    call: PreferenceRequest, gpus: set[str], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(list(call.available)), unique=True, max_size=call.size))
    rest = spared(call, chosen, gpus)
    assert len(rest) >= call.size
    assert set(rest) <= set(call.available)
    assert {*call.must_include, *chosen} <= set(rest)
    taken = {gpu_of(device) for device in rest if device not in chosen and device not in call.must_include}
    assert not taken.intersection(gpus) or rest == list(call.available)


def test_replicas_are_of_their_gpu() -> None:
    uuid = "GPU-3f0d9b4e-1c1e-4c55-a2a2-0d7a4a6a0c11"
    assert {gpu_of(uuid + replica) for replica in ("", "::0", "::11", "-0", "-9")} == {uuid}


def test_examples() -> None:
    for assigned, held, call, chosen in (
        ("b a", "", PreferenceRequest(GPU, ["a", "b", "c"], [], 1), ["b"]),
        ("b a", "b", PreferenceRequest(GPU, ["a", "c"], [], 1), ["a"]),
        ("b a", "", PreferenceRequest(GPU, ["a", "b", "c"], ["a"], 2), ["a", "b"]),
        ("b", "", PreferenceRequest(GPU, ["a", "b", "c"], [], 2), ["b"]),
        ("", "", PreferenceRequest(GPU, ["a"], [], 1), []),
        # Replicas in turn, the lowest first: 10 sorts after 9.
        ("a b", "", PreferenceRequest(GPU, ["a::10", "a::9", "b::3", "c::0"], [], 3), ["a::9", "b::3", "a::10"]),
        ("a b", "a::1", PreferenceRequest(GPU, ["a::2", "b::2"], [], 1), ["b::2"]),
    ):
        assert choose(asker(assigned, held), call) == chosen


def test_every_order_of_containers_uses_up_exactly_what_is_assigned() -> None:
    """Sizes of containers that make up 4 GPUs, whichever comes first."""
    for sizes in itertools.permutations((2, 1, 1)):
        held: set[str] = set()
        for size in sizes:
            call = PreferenceRequest(GPU, sorted(set(GPUS) - held), [], size)
            held |= set(choose(asker(" ".join(GPUS[1:5]), " ".join(held)), call))
        assert held == set(GPUS[1:5])


def found(
    *pods: dict[str, object],
    size: int = 1,
    past: HandledPods = NOTHING,
    **listed: dict[str, dict[str, tuple[str, ...]]],
) -> str:
    """The name of the pod for which the kubelet asks; all are listed, without devices unless given."""
    known = {pod.key: pod for pod in map(read, pods)}
    listing = {
        key: listed.get(pod.metadata.name, {item.name: {} for item in pod.lasting}) for key, pod in known.items()
    }
    call = PreferenceRequest(GPU, GPUS, [], size)
    best = likeliest(candidate_pods(known, listing, call, {}), call, past)
    return best.pod.metadata.name if best else ""


def test_who_asks() -> None:
    one, two = gpu_pod("one", 1), gpu_pod("two", 2)
    assert found(one, two) == "one"
    assert found(one, two, size=2) == "two"
    assert found(one, two, size=3) == ""
    assert found(one, one={"main": {GPU: ("GPU-0",)}}) == ""
    # A second container of a pod whose first one has its devices.
    pair = gpu_pod("pair", containers=[container("x", 1), container("y", 2)])
    assert found(pair, size=2, pair={"x": {GPU: ("GPU-0",)}, "y": {}}) == "pair"
    assert found(pair, size=1, pair={"x": {GPU: ("GPU-0",)}, "y": {}}) == ""


def test_who_asks_where_more_than_one_may() -> None:
    old = gpu_pod("old", created="2026-01-01T00:00:00Z")
    new = gpu_pod("new", created="2026-01-01T00:00:01Z")
    assert found(old, new) == found(new, old) == "new"
    assert found(old, new, past=HandledPods((), {new["metadata"]["uid"]}, "")) == "old"
    assert found(old, new, past=HandledPods({new["metadata"]["uid"]}, (), "")) == "old"
    leaving = gpu_pod("leaving", created="2026-01-01T00:00:02Z")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:03Z"
    assert found(old, leaving) == "old"
    # Only an init container asks, of which nobody knows whether it has its devices.
    init = gpu_pod("init", init=[container("i", 1)], containers=[container("m")], created="2026-01-02T00:00:00Z")
    assert found(init) == "init"
    assert found(init, old) == "old"
    elsewhere = gpu_pod("elsewhere", 1, "GPU-99", created="2026-01-02T00:00:00Z")
    assert found(elsewhere, old) == "old"


def test_who_is_served() -> None:
    pod = read(gpu_pod("p", containers=[container("x", 1), container("y", 1, "nvidia.com/mig-1g.5gb"), container("z")]))
    assert not served(pod, {"x": {GPU: ("GPU-0",)}, "y": {}, "z": {}})
    assert served(pod, {"x": {GPU: ("GPU-0",)}, "y": {"nvidia.com/mig-1g.5gb": ("MIG-0",)}, "z": {}})
    assert not served(read(gpu_pod("q", containers=[container("x")])), {"x": {}})


def test_what_is_promised() -> None:
    alone = read(gpu_pod("by-annotation-alone", assigned="GPU-0", containers=[container("m")]))
    waiting, running, done = (read(gpu_pod(f"p{number}", 1, f"GPU-{number}")) for number in (1, 2, 3))
    done.status.phase = "Failed"
    listing: Listing = {running.key: {"main": {GPU: ("GPU-2",)}}, alone.key: {"m": {}}}
    pods = [alone, waiting, running, done]
    assert promised(pods, listing, None, NOTHING, {}) == {"GPU-0", "GPU-1"}
    assert promised(pods, listing, CandidatePod(waiting, (), frozenset(), True), NOTHING, {}) == {"GPU-0"}


@given(st.text(), st.text(), st.dictionaries(st.integers(0, 9), st.sampled_from(GPUS)))
def test_any_assignment_is_read(uuids: str, gpus: str, known: dict[int, str]) -> None:
    pod = read(gpu_pod("p", annotations={"kerf.dev/assigned-uuids": uuids, "kerf.dev/assigned-gpus": gpus}))
    assigned = pod.assigned(known)
    assert len(set(assigned)) == len(assigned)
    assert "" not in assigned


def asks(limit: object) -> int:
    pod = read(gpu_pod("p"))
    assert pod.spec.containers
    (main,) = pod.spec.containers
    assert main.resources
    main.resources.limits = {GPU: limit}  # type: ignore[dict-item]
    return main.asks(GPU)


@given(st.text() | st.integers() | st.floats())
def test_any_limit_is_read(limit: object) -> None:
    assert 0 <= asks(limit) <= 1024


def test_limits_as_the_api_server_writes_them() -> None:
    for limit, number in (("2", 2), (2, 2), ("1k", 1000), ("2e0", 2), ("1.5", 0), ("-1", 0), ("2k", 0)):
        assert asks(limit) == number
