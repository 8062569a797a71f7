"""Policies of other packages: the example package as pip installs it, in the service and in the simulator."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from extender.core.occupancies import ObservedRules
from extender.core.policies import registry
from extender.core.policies.policy import Options
from extender.settings.decisions import DecisionSettings
from extender.settings.load import SettingsError, describe_settings, load_settings
from model.simulations.baselines import UnknownPolicyError, baseline
from model.simulations.replays import replay
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import workload
from tests.api.bodies import node, pod
from tests.api.services import running
from tests.docs.example import broken
from tests.model.builders import write_openb

EVEN = """
from extender.core.policies.policy import Policy
def even(cluster, request, rows, fit): return fit.free_units.astype(float)
def policy(options): return Policy("NAME", even, f"counts from {options.rules.min_unmanaged_mib} MiB")
"""


@pytest.fixture
def install(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a package with these entry points and the source of its module `kerf_broken`, beside the example."""

    def package(entries: str, source: str) -> None:
        broken(tmp_path, f"[kerf.policies]\n{entries}", source)
        monkeypatch.syspath_prepend(tmp_path)
        for module in ("kerf_broken", "kerf_later"):
            monkeypatch.delitem(sys.modules, module, raising=False)

    return package


def test_the_service_ranks_nodes_by_the_policy_of_the_deployment_or_the_pod(example: Path) -> None:
    assert load_settings(flags={"decisions.policy": "roomiest"}).decisions.policy == "roomiest"
    objects = [node("small", 2), node("large", 8), pod("held", 5, node_name="large")]
    for policy, best in (("roomiest", "large"), ("tightest", "small")):
        with running(objects, decisions__policy=policy) as kerf:
            asking = pod("asking", 1)
            kerf.create(asking)
            assert kerf.filter(asking, ["small", "large"])["NodeNames"] == [best]
            assert kerf.get("/version").json()["policy"] == policy
            chooses = pod("chooses", 1, annotations={"kerf.dev/policy": "roomiest"})
            kerf.create(chooses)
            assert kerf.filter(chooses, ["small", "large"])["NodeNames"] == ["large"]
    assert "| `roomiest` | most idle GPUs first |" in describe_settings()


def test_the_simulator_runs_the_policy(example: Path, tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=6, num_pods=40)
    arrivals = workload(tmp_path, "small", 1, read_nodes(tmp_path), read_pods(tmp_path, "small"))
    done = replay(arrivals, baseline("roomiest"), 1)
    assert arrivals.nodes.num_gpus[int(done.placed[0])] == arrivals.nodes.num_gpus.max()
    assert (done.placed >= 0).sum() > 5


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("", "has no attribute 'policy'"),
        ("def policy(options): return 1", "it is not a Policy of that name but 1"),
        ("def policy(options): raise SystemError('no')", "SystemError: no"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_policy_affects_no_other(install: Callable[[str, str], None], source: str, fault: str) -> None:
    install("odd = kerf_broken:policy", source)
    assert load_settings(flags={"decisions.policy": "roomiest"}).decisions.policy == "roomiest"
    assert fault in registry.faults["odd"]
    assert registry.faults["odd"] in describe_settings()
    with pytest.raises(SettingsError, match="policy odd"):
        load_settings(flags={"decisions.policy": "odd"})
    with pytest.raises(UnknownPolicyError, match="policy odd"):
        baseline("odd")


def test_a_policy_is_created_with_the_deployments_options(install: Callable[[str, str], None]) -> None:
    install("odd = kerf_broken:policy", EVEN.replace("NAME", "odd"))
    load_settings()
    assert registry.POLICIES["odd"].description == "counts from 1024 MiB"
    options = Options(rules=ObservedRules(min_unmanaged_mib=7))
    assert registry.policies_of(options)["odd"].description == "counts from 7 MiB"


def test_a_policy_that_could_not_be_loaded_is_reported_until_it_can(
    install: Callable[[str, str], None], tmp_path: Path
) -> None:
    install("even = kerf_broken:policy\nodd = kerf_later:policy", EVEN.replace("NAME", "even"))
    load_settings()
    assert registry.faults.keys() == {"odd"}
    assert registry.faults["odd"].startswith("policy odd of package kerf-broken could not be loaded: ModuleNotFound")
    (tmp_path / "kerf_later.py").write_text(EVEN.replace("NAME", "odd"))
    importlib.invalidate_caches()
    load_settings()
    assert registry.faults == {}
    assert {"even", "odd", "roomiest"} <= registry.POLICIES.keys()


def test_the_name_of_a_built_in_policy_is_refused(install: Callable[[str, str], None]) -> None:
    install("binpack = kerf_example.policy:policy", "")
    before = registry.POLICIES["binpack"]
    load_settings()
    assert registry.POLICIES["binpack"] is before
    assert registry.faults["binpack"].endswith("ValueError: Kerf already has a policy of that name")


def test_without_packages_only_built_in_policies_exist() -> None:
    with pytest.raises(ValueError, match="no policy of that name; use one of tightest, binpack, spread, live,"):
        DecisionSettings(policy="roomiest")
