"""The rules that the house is built by, held by the code as it is: `faults.py` says how each fault is found."""

from functools import cache
from pathlib import Path
from typing import Final

from tests.tools.house.faults import Outside, splats
from tests.tools.house.sources import Tree

ROOT: Final = Path(__file__).parents[3]

GIVEN: Final = {
    # What the one cache and the one commit take the place of.
    "extender/api/build.py: base.mirror.listeners = [placer, rank.mix]": "the cache's handlers",
    "extender/api/optional_parts.py: base.mirror.listeners = meter.holders": "the cache's handlers",
    "extender/explain/workload_tables/build.py: base.mirror.listeners = bound": "the cache's handlers",
    "extender/explain/workload_tables/build.py: base.mirror.listeners = holders": "the cache's handlers",
    "extender/queueing/direct/dispatch.py: self.mirror.listeners = self.follower": "the cache's handlers",
    "extender/telemetry/service.py: base.mirror.listeners = [observer, owners]": "the cache's handlers",
    "extender/usage/holders.py: ledger.rows.written = self.changed.add": "the cache's handlers",
    "extender/scheduling/waking/waker.py: unbound.left = self.placed": "the cache's handlers",
    "extender/queueing/build.py: base.leadership.catch_ups = controller.claims.catch_up": "one take-over for all",
    "extender/queueing/build.py: base.leadership.catch_ups = controller.list_again": "one take-over for all",
    "extender/queueing/defrag/build.py: base.leadership.catch_ups = mover.catch_up": "one take-over for all",
    "extender/queueing/defrag/build.py: queue.aside = mover.others": "the queue is a part of what the mover is made of",
    "extender/queueing/defrag/build.py: queue.place_kept = mover.place_kept": "as above",
    # Doors of the kernel: what is made later is told to them, once, and before it is needed.
    "extender/kube/watches/feeds.py: Subscribers.add(set_aside, sink)": "the door by which watches are heard",
    "extender/metrics/registry.py: Metrics.add(read)": "the door by which metrics are read",
    "extender/kube/background.py: Tasks.begin(work)": "work that begins and ends, which is no part",
    # State that comes and goes while Kerf runs.
    "extender/ranking/on_trial.py: OnTrial.put(score)": "a model on trial",
    "extender/scheduling/fence.py: Fence.shut(standing)": "a term of the lease",
    "extender/scheduling/fence.py: Fence.take_over(deadline)": "a term of the lease",
    "extender/scheduling/fence.py: Fence.take_over(standing)": "a term of the lease",
    "extender/scheduling/placer.py: Placer.expect(candidates)": "the candidates of one call",
    "extender/server/connection_limits.py: Doors.enter(connection)": "a connection",
    # Hooks of libraries that take them in no other way.
    "extender/api/app.py: app.state.service = service": "Starlette keeps an app's objects there",
    "extender/api/app.py: app.state.streams = _install_page(app, service, parts)": "as above",
    "extender/api/openapi.py: app.openapi = openapi": "FastAPI",
    "extender/server/certificates.py: listener.sni_callback = newest": "ssl",
    "extender/telemetry/sources/prometheus_client.py: response.json = lambda **_: self.decoder.decode(response": (
        "requests"
    ),
}
"""What is given to objects that are made, and why it still is. What goes is to be taken off; nothing is to be added."""


@cache
def wheel() -> Tree:
    """The wheel's modules."""
    return Tree.of(ROOT)


def test_no_call_splats_what_was_made_for_it() -> None:
    tools = Tree.of(ROOT, ("tests/tools",)).modules.values()
    modules = [*wheel().modules.values(), *(module for module in tools if "test_" not in module.name)]
    assert not [str(fault) for module in modules for fault in splats(module)]


def test_nothing_is_given_to_what_is_made() -> None:
    outside = Outside(wheel())
    found = {f"{at.path}: {at.text}" for module in wheel().modules.values() for at in outside.faults(module)}
    assert found == GIVEN.keys()
