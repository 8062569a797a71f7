"""Policies of other packages: the example package as pip installs it, in the service and in the simulator."""

import importlib
import sys
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


def test_the_service_ranks_nodes_by_it(example: Path) -> None:
    settings = load_settings(flags={"decisions.policy": "roomiest"})
    assert settings.decisions.policy == "roomiest"
    objects = [node("small", 2), node("large", 8), pod("held", 5, node_name="large")]
    for policy, best in (("roomiest", "large"), ("tightest", "small")):
        with running(objects, decisions__policy=policy) as kerf:
            asking = pod("asking", 1)
            kerf.create(asking)
            assert kerf.filter(asking, ["small", "large"])["NodeNames"] == [best]
            assert kerf.get("/version").json()["policy"] == policy


def test_a_pod_chooses_it(example: Path) -> None:
    load_settings()
    with running([node("small", 2), node("large", 8)], decisions__policy="tightest") as kerf:
        asking = pod("asking", 1, annotations={"kerf.dev/policy": "roomiest"})
        kerf.create(asking)
        assert kerf.filter(asking, ["small", "large"])["NodeNames"] == ["large"]


def test_the_simulator_runs_it(example: Path, tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=6, num_pods=40)
    arrivals = workload(tmp_path, "small", 1, read_nodes(tmp_path), read_pods(tmp_path, "small"))
    done = replay(arrivals, baseline("roomiest"), 1)
    first = int(done.placed[0])
    fits = arrivals.nodes.num_gpus[first]
    assert fits == arrivals.nodes.num_gpus.max()
    assert (done.placed >= 0).sum() > 5


def test_it_is_described(example: Path) -> None:
    assert "| `roomiest` | most idle GPUs first |" in describe_settings()


@pytest.mark.parametrize(
    ("entry", "source", "fault"),
    [
        ("odd = kerf_broken:policy", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("odd = kerf_broken:policy", "", "has no attribute 'policy'"),
        ("odd = kerf_broken:policy", "def policy(options): return 1", "it is not a Policy of that name but 1"),
        ("odd = kerf_broken:policy", "def policy(options): raise SystemError('no')", "SystemError: no"),
        ("odd = kerf_broken:policy", "import sys; sys.exit(3)", "SystemExit: 3"),
    ],
    ids=["import", "attribute", "no policy", "raises", "exits"],
)
def test_a_broken_one_costs_itself_only(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, source: str, fault: str
) -> None:
    broken(tmp_path, f"[kerf.policies]\n{entry}", source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kerf_broken", raising=False)
    assert load_settings(flags={"decisions.policy": "roomiest"}).decisions.policy == "roomiest"
    assert fault in registry.faults["odd"]
    assert registry.faults["odd"] in describe_settings()
    with pytest.raises(SettingsError, match="policy odd"):
        load_settings(flags={"decisions.policy": "odd"})
    with pytest.raises(UnknownPolicyError, match="policy odd"):
        baseline("odd")


def test_it_is_made_as_the_deployment_wants_it(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from extender.core.policies.policy import Policy
def even(cluster, request, rows, fit): return fit.free_units.astype(float)
def policy(options): return Policy("odd", even, f"counts from {options.rules.min_unmanaged_mib} MiB")
"""
    broken(tmp_path, "[kerf.policies]\nodd = kerf_broken:policy", source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kerf_broken", raising=False)
    load_settings()
    assert registry.POLICIES["odd"].description == "counts from 1024 MiB"
    options = Options(rules=ObservedRules(min_unmanaged_mib=7))
    assert registry.policies_of(options)["odd"].description == "counts from 7 MiB"


def test_one_that_could_not_be_loaded_is_told_of_with_its_package_until_it_can(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
from extender.core.policies.policy import Policy
def even(cluster, request, rows, fit): return fit.free_units.astype(float)
def policy(options): return Policy("NAME", even, "")
"""
    broken(
        tmp_path, "[kerf.policies]\neven = kerf_broken:policy\nodd = kerf_later:policy", source.replace("NAME", "even")
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("kerf_broken", "kerf_later"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    load_settings()
    assert registry.faults == {
        "odd": "policy odd of package kerf-broken could not be loaded: "
        "ModuleNotFoundError: No module named 'kerf_later'"
    }
    (tmp_path / "kerf_later.py").write_text(source.replace("NAME", "odd"))
    importlib.invalidate_caches()
    load_settings()
    assert registry.faults == {}
    assert {"even", "odd", "roomiest"} <= registry.POLICIES.keys()


def test_a_name_of_kerfs_own_is_not_taken(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, "[kerf.policies]\nbinpack = kerf_example.policy:policy", "")
    monkeypatch.syspath_prepend(tmp_path)
    before = registry.POLICIES["binpack"]
    load_settings()
    assert registry.POLICIES["binpack"] is before
    assert registry.faults["binpack"].endswith(
        "could not be loaded: ValueError: Kerf already has a policy of that name"
    )


def test_without_packages_there_are_kerfs_own_alone() -> None:
    with pytest.raises(ValueError, match="no policy of that name; use one of tightest, binpack, spread, live,"):
        DecisionSettings(policy="roomiest")
