"""What a pod's author has misspelt, in the event that a real kube-scheduler writes."""

import pytest

from tests.controlplane.objects import gpu_node
from tests.e2e.clusters import KerfCluster

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({"kerf.dev/gpu-modle": "h100"}, "kerf.dev/gpu-modle: no such key; do you mean kerf.dev/gpu-model?"),
        ({"kerf.dev/gpu-share": "50%"}, 'kerf.dev/gpu-share: "50%" is not a share; write thousandths of a GPU'),
        ({"kerf.dev/gpu-model": "a%d|100%"}, "of model a%d|100%"),
        ({"kerf.dev/gpu-memory-each": "40"}, 'kerf.dev/gpu-memory-each: "40" is 40 MiB; do you mean 40Gi?'),
    ],
    ids=["key", "share", "model", "size"],
)
def test_the_event_says_it_as_kerf_does(cluster: KerfCluster, annotations: dict[str, str], sentence: str) -> None:
    cluster.add_nodes(gpu_node("n", gpus=2))
    cluster.submit("wrong", annotations=annotations)
    event = cluster.event("wrong", "FailedScheduling")
    assert sentence in event
    assert "MISSING" not in event
    cluster.pending("wrong")
    told = cluster.kerf.get("/explain/pod/default/wrong")
    assert sentence in told["sentence"] or sentence in str(told["reasons"])
