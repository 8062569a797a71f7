"""Kerf's rights are the least: each single one taken away breaks something, and Kerf says what it lacks."""

import asyncio
import importlib
import logging
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.controlplane import podgroups
from tests.controlplane.kerf import RBAC, ROOT, SERVICE_ACCOUNT
from tests.controlplane.objects import POD_GROUPS
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install import queue_rights, rights
from tests.install.rights import Flow
from tests.install.stages import Rule, Stage

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, podgroups.NEEDED]

Manifest = dict[str, Any]
FILES = (RBAC, *(ROOT / "manifests" / "queue" / name for name in ("rbac.yaml", "pipelines.yaml", "mlflows.yaml")))
FLOWS = rights.FLOWS | queue_rights.FLOWS
for path in sorted(ROOT.glob("tests/parts/*/rights.py")):
    of_part = importlib.import_module(f"tests.parts.{path.parent.name}.rights")
    FILES, FLOWS = (*FILES, *of_part.FILES), FLOWS | of_part.FLOWS
ROLES = [
    document
    for path in FILES
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] in ("ClusterRole", "Role")
]


def rules_of(role: Manifest) -> list[Rule]:
    """Every verb on every resource that a role gives."""
    return [
        Rule(group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    ]


RULES = [rule for role in ROLES for rule in rules_of(role)]


def test_every_rule_has_a_flow_that_needs_it() -> None:
    new = [str(rule) for rule in RULES if rule not in FLOWS]
    assert not new, (
        f"no flow needs {new}: enter one for each in FLOWS of rights.py or queue_rights.py in "
        "tests/install or of rights.py of a part's tests, or give the right up"
    )
    gone = [str(rule) for rule in FLOWS if rule not in RULES]
    assert not gone, f"the chart no longer gives {gone}: take them out of FLOWS"
    assert len(set(RULES)) == len(RULES), "a right is given twice"
    assert not [rule for rule in RULES if "*" in (rule.group, rule.resource, rule.verb)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp("rights")
    with ControlPlane(directory, users={"kerf": SERVICE_ACCOUNT}, flags=podgroups.SERVER_FLAGS) as running:
        running.apply(*FILES, POD_GROUPS)
        wait_until(lambda: served(running, "kerf.dev/v1alpha1"), 20.0, "pipelines are served")
        wait_until(lambda: served(running, "kopf.dev/v1"), 20.0, "flows are served")
        wait_until(lambda: served(running, "scheduling.x-k8s.io/v1alpha1"), 20.0, "PodGroups are served")
        wait_until(lambda: all(may(running, rule) for rule in RULES), 20.0, "the rights are in effect")
        yield running


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all, which ends when all connections have: asyncio waits for the other side's end of TLS for
    half a minute."""
    selector = selectors.DefaultSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as found:
        found.get_loop()
        idle = len(selector.get_map())
        yield found
        deadline = time.monotonic() + 60.0
        while len(selector.get_map()) > idle and time.monotonic() < deadline:
            found.run(asyncio.sleep(0.05))
        open_now = [key.fileobj for key in selector.get_map().values()]
        assert len(open_now) <= idle, f"still open: {open_now}, at work: {asyncio.all_tasks(found.get_loop())}"


@pytest.fixture
def stage(plane: ControlPlane) -> Iterator[Stage]:
    found = Stage(plane)
    logger = logging.getLogger("extender")
    level = logger.level
    logger.addHandler(found)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(found)
    logger.setLevel(level)
    found.clean()


def served(plane: ControlPlane, api: str) -> bool:
    """Whether the API server has taken a definition up."""
    groups = plane.request("GET", "/apis")["groups"]
    return any(version["groupVersion"] == api for group in groups for version in group["versions"])


def may(plane: ControlPlane, rule: Rule) -> bool:
    """Whether Kerf's account may do something, as the authorizer has it now."""
    resource, _, subresource = rule.resource.partition("/")
    attributes = {"group": rule.group, "resource": resource, "subresource": subresource, "verb": rule.verb}
    if rule.group == "coordination.k8s.io":
        attributes |= {"namespace": "kube-system", "name": rule.name}
    review = {"kind": "SubjectAccessReview", "spec": {"user": SERVICE_ACCOUNT, "resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = plane.request("POST", path, {"apiVersion": "authorization.k8s.io/v1", **review})
    return bool(answer["status"]["allowed"])


@contextmanager
def without(plane: ControlPlane, lacking: Rule) -> Iterator[None]:
    """One right less, until the end."""
    (role,) = (role for role in ROLES if lacking in rules_of(role))
    rest = [rule.manifest() for rule in rules_of(role) if rule != lacking]
    plane.apply({**role, "rules": rest})
    wait_until(lambda: not may(plane, lacking), 10.0, f"{lacking} is taken away")
    try:
        yield
    finally:
        plane.apply(role)
        wait_until(lambda: may(plane, lacking), 10.0, f"{lacking} is given back")


@pytest.mark.parametrize("flow", list(dict.fromkeys(FLOWS.values())), ids=lambda flow: str(flow.__name__))
def test_with_all_rights_it_works(stage: Stage, runner: asyncio.Runner, flow: Flow) -> None:
    assert runner.run(flow(stage)), stage.said


@pytest.mark.parametrize("lacking", RULES, ids=str)
def test_without_one_it_does_not_and_says_why(stage: Stage, runner: asyncio.Runner, lacking: Rule) -> None:
    stage.lacking = lacking
    with without(stage.plane, lacking):
        assert not runner.run(FLOWS[lacking](stage)), f"nothing breaks without {lacking}: give the right up"
    assert stage.refused, f"broken without {lacking}, and not a word of why:\n{stage.said}"
