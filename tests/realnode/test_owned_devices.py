"""Kerf allocates the devices of a real node's DRA driver: containers have what it wrote in their claims."""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.controlplane.api import Object
from tests.controlplane.kerf import DRA_RBAC, QUEUE_RBAC
from tests.e2e.clusters import KerfCluster
from tests.e2e.test_direct import PLAIN
from tests.e2e.test_queueing import skipped
from tests.realnode.claims import claim, claiming, request, template
from tests.realnode.dra import DeviceKey, partitioned, room, taken, whole
from tests.realnode.driven import Drive, Driven, controllers
from tests.realnode.fixtures import kerf_places

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]


@pytest.fixture(scope="module")
def cluster(node_plane: ControlPlane) -> Iterator[KerfCluster]:
    """Kerf with its queue, which allocates, and a kube-scheduler that knows nothing of it."""
    node_plane.apply(QUEUE_RBAC, DRA_RBAC)
    settings = ("--set=queue.enabled=true", "--set=queue.extender=false", "--set=dra.allocate=true")
    with controllers(node_plane), kerf_places(node_plane, *settings, config=PLAIN) as cluster:
        yield cluster


@dataclass
class Tally:
    """Of pods that have run."""

    exact: int = 0
    """Whose container had just what their claims say."""
    told: int = 0
    """Of which /explain named the same GPUs."""
    wrong: list[str] = field(default_factory=list)


@dataclass
class Waves:
    """Pods that come in waves and go as the next wave comes, while Kerf allocates."""

    cluster: KerfCluster
    driven: Driven
    tally: Tally = field(default_factory=Tally)
    before: list[str] = field(default_factory=list)

    def come(self, requests: Mapping[str, Object], by_template: Collection[str] = ()) -> None:
        """Create a pod for each request, take the wave before away, and look at what each container has."""
        claims = self.driven.claims
        for name, asked in requests.items():
            made = (template(name, asked), claiming(name, (), [name]))
            claims.create(*(made if name in by_template else (claim(name, asked), claiming(name, [name]))))
        for name in self.before:
            claims.delete_pod(name)
        self.before = list(requests)
        for name in requests:
            seen, written = self.driven.seen(name), claims.written(name)
            explained = self.cluster.kerf.get(f"/explain/pod/default/{name}")
            gpus = {int(device.split("-")[1]) for _, device in seen}
            self.tally.exact += seen == written
            self.tally.told += explained["node"] == self.driven.node.name and set(explained["gpus"] or ()) == gpus
            if seen != written:
                self.tally.wrong.append(f"{name}: has {seen}, written is {written}")
            assert not claims.events(name, "FailedPrepareDynamicResources")

    def go(self) -> None:
        """End the wave before, and wait until nothing has a device."""
        for name in self.before:
            self.driven.claims.end(name)
        self.driven.freed(*self.before)
        self.before = []

    def holders(self) -> Counter[DeviceKey]:
        """How many claims each device is prepared for."""
        return Counter(device for devices in self.driven.driver.prepared().values() for device in devices)


def test_containers_have_what_kerf_wrote_100_of_100(cluster: KerfCluster, drive: Drive) -> None:
    """Waves of ten pods of mixed sizes on 16 GPUs; some wait until those before them have gone."""
    waves, rng = Waves(cluster, drive([{"devices": whole(16)}])), random.Random(1)
    for wave in range(10):
        names = [f"w{wave}-{number}" for number in range(10)]
        requests = {name: request(count=rng.choice([1, 1, 1, 2])) for name in names}
        waves.come(requests, by_template=rng.sample(names, 5))
        assert set(waves.holders().values()) == {1}
    assert waves.tally == Tally(100, 100)


def test_partitions_are_those_that_kerf_wrote(cluster: KerfCluster, drive: Drive) -> None:
    """Waves in an order by chance on four GPUs that can be cut as MIG cuts them: each fits where it is packed well."""
    waves, rng = Waves(cluster, drive(partitioned(4))), random.Random(2)
    driver = waves.driven.driver
    limit = room(driver.slices)
    profiles = [
        "",
        *["3g.20gb"] * 2,
        *["2g.10gb"] * 2,
        *["1g.5gb"] * 3,
    ]  # "": a whole GPU, the others need two at least
    for wave in range(5):
        waves.go()
        ordered = rng.sample(profiles, len(profiles))
        waves.come({f"w{wave}-{number}": request(profile=profile) for number, profile in enumerate(ordered)})
        used = taken(driver.devices[device] for device in waves.holders())
        assert all(used[counter] <= limit[counter] for counter in used)
        assert set(waves.holders().values()) == {1}
    assert waves.tally == Tally(40, 40)


def test_while_a_kubelets_restart_takes_its_slices_away_nothing_is_given_twice(
    cluster: KerfCluster, drive: Drive
) -> None:
    """A kubelet that starts removes the node's slices; drivers publish them again half a minute later."""
    driven = drive([{"devices": whole(2)}])
    driven.submit("old")
    kept = driven.seen("old")
    num_registered = driven.driver.num_registered
    driven.node.restart_kubelet(kill=True)
    wait_until(lambda: not driven.driver.published(), 20.0, "its slices are removed")
    driven.submit("new")
    skipped(cluster, "new", "by ResourceClaim")
    driven.driver.wait_registered(num_registered)
    driven.driver.wait_published()
    assert driven.seen("new") == driven.claims.written("new")
    assert driven.seen("new").isdisjoint(kept)
    assert driven.seen("old") == kept == driven.claims.written("old")
    driven.submit("third")
    skipped(cluster, "third", "by ResourceClaim")
