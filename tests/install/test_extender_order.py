"""Whether `kerf install check` sees an extender that comes after Kerf."""

import asyncio
import json
from typing import Any, cast

import pytest
import yaml

from extender.cli.install.kerf import CheckedCluster
from extender.cli.install.schedulers import _after_kerf, extender_order
from extender.kube.client import Transport
from tests.controlplane.kerf import ROOT

SHIPPED = (ROOT / "scheduler-config" / "decisive.yaml").read_text()
STORAGE = {"urlPrefix": "http://storage.example:8899/scheduler", "filterVerb": "filter", "weight": 1}


def configured(first: list[Any], last: list[Any]) -> str:
    document = yaml.safe_load(SHIPPED)
    document["extenders"] = [*first, *document["extenders"], *last]
    return yaml.safe_dump(document)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SHIPPED, []),
        (configured([STORAGE], []), []),
        (configured([], [STORAGE]), [STORAGE["urlPrefix"]]),
        (configured([], [{**STORAGE, "filterVerb": ""}]), []),
        (configured([], [{"urlPrefix": "http://[", "filterVerb": "filter"}]), ["http://["]),
        (configured([], [7, None]), []),
        ("kind: KubeSchedulerConfiguration\nextenders: 7", []),
        ("KubeSchedulerConfiguration: [", []),
        ("other: text", []),
        (None, []),
    ],
)
def test_who_filters_after_kerf(text: Any, found: list[str]) -> None:
    assert list(_after_kerf(text)) == found


def test_the_check_says_where_and_what_to_do() -> None:
    class Maps:
        async def get(self, path: str, query: Any = None) -> bytes:
            items = [
                {
                    "metadata": {"namespace": "kube-system", "name": "scheduler"},
                    "data": {"c.yaml": configured([], [STORAGE])},
                },
                {"metadata": {"namespace": "kube-system", "name": "none"}},
            ]
            return json.dumps({"metadata": {}, "items": items}).encode()

    async def scenario() -> list[str]:
        return [f"{item.told} {item.fix}" async for item in extender_order(CheckedCluster(cast(Transport, Maps()), {}))]

    (told,) = asyncio.run(scenario())
    assert "ConfigMap kube-system/scheduler, c.yaml: http://storage.example:8899/scheduler filters after Kerf" in told
    assert "last under `extenders`" in told
