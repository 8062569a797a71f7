"""Settings: the source of each value, and what is reported about invalid ones."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from pydantic import ValidationError

from extender.settings import tree
from extender.settings.load import SettingsError, load_settings, settings_elsewhere
from extender.settings.schema import settings_schema
from extender.settings.tree import Settings
from tests.golden import Golden

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Settings from a file's text, environment variables and flags."""

    def load(text: str | None = None, environment: Mapping[str, str] | None = None, **flags: Any) -> Settings:
        path = None
        if text is not None:
            path = tmp_path / "kerf.yaml"
            path.write_text(text)
        with monkeypatch.context() as patched:
            for name, value in (environment or {}).items():
                patched.setenv(name, value)
            return load_settings(path, {name.replace("__", "."): value for name, value in flags.items()})

    return load


def faults_of(load: Load, text: str | None = None, environment: Any = None, **flags: Any) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(text, environment, **flags)
    return raised.value.faults


def test_flags_come_before_variables_and_variables_before_the_file(load: Load) -> None:
    file, variable, flag = "server: {port: 1}", {"KERF_SERVER__PORT": "2"}, {"server__port": 3}
    for text, environment, flags, port in (
        (None, {}, {}, 8888),
        ("", {}, {}, 8888),
        ("server:", {}, {}, 8888),
        (file, {}, {}, 1),
        (file, variable, {}, 2),
        (file, variable, flag, 3),
        (file, {}, flag, 3),
        (None, variable, flag, 3),
        (None, {"kerf_server__port": "4"}, {}, 4),
        (file, {"KERF_SERVER__PORT": ""}, {}, 1),
        (file, {"KERF_PORT": "5"}, {}, 1),  # of the demo only
    ):
        assert load(text, environment, **flags).server.port == port
    text = "server: {host: 0.0.0.0, port: 1, drain_s: 3}\ndecisions: {mode: scores}"
    settings = load(text, {"KERF_SERVER__PORT": "2", "KERF_DECISIONS__POLICY": "spread"}, server__drain_s=4)
    assert (settings.server.host, settings.server.port, settings.server.drain_s) == ("0.0.0.0", 2, 4.0)  # noqa: S104
    assert (settings.decisions.mode, settings.decisions.policy) == ("scores", "spread")
    assert settings.server.max_body_mib == 64
    assert load("models: {aliases: {big: [H100]}}").models.aliases == {"big": ["H100"]}
    assert load(None, {"KERF_MODELS__ALIASES": '{"big": ["H200"]}'}).models.aliases == {"big": ["H200"]}


def test_variables_that_kubernetes_sets_are_not_settings(load: Load) -> None:
    service = {"KERF_PORT": "tcp://10.0.0.1:8888", "KERF_SERVICE_HOST": "10.0.0.1", "KERF_SERVICE_PORT": "8888"}
    links = {"KERF_SERVICE_PORT_HTTP": "8888", "KERF_PORT_8888_TCP": "tcp://10.0.0.1:8888"}
    links |= {f"KERF_PORT_8888_TCP_{name}": "x" for name in ("ADDR", "PORT", "PROTO")}
    named_kerf_server = {"KERF_SERVER_PORT": "tcp://10.0.0.1:80", "KERF_SERVER_SERVICE_HOST": "10.0.0.1"}
    for environment in ({**service, **links}, named_kerf_server, {"KERF_CONFIG": "/nowhere"}):
        assert load(None, environment) == load_settings()


def test_a_fault_names_the_place_and_what_would_be_right(load: Load, golden: Golden) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "server: {prot: 1}"},
        {"text": "sever: {port: 1}"},
        {"text": "1: {port: 1}"},
        {"environment": {"KERF_SERVER__PROT": "1"}},
        {"environment": {"KERF_SEVER__PORT": "1"}},
        {"server__prot": 1},
        {"server__port__x": 1},
        {"sever__port": 1},
        {"port": 1},
        {"server__port": 65536},
        {"server__port": "http"},
        {"server__drain_s": float("inf")},
        {"cluster__max_age_s": 0},
        {"decisions__mode": "best"},
        {"decisions__policy": "worst"},
        {"telemetry__addresses": ["/run/loads.json"]},
        {"log__level": "loud"},
        {"text": "[1, 2]"},
        {"text": "server: 7"},
        {"text": "server: ["},
        {"environment": {"KERF_MODELS__ALIASES": "big=H100"}},
        {"environment": {"KERF_SERVER": "port=1"}},
    ]
    lines = list[str]()
    for given in rows:
        (fault,) = faults_of(load, **given)
        lines.append(f"{given}: {fault.rpartition('/')[2] if fault.startswith('/') else fault}")
    golden("settings-faults.txt", lines)


def test_all_faults_are_reported_at_once(load: Load) -> None:
    faults = faults_of(
        load,
        "server: {prot: 1}\nlog: {level: loud}\nnonsense: 1",
        {"KERF_CLUSTER__MAX_AGE_S": "0", "KERF_CLUSTER__NAME": "x", "KERF_MODELS__ALIASES": "{"},
        decisions__policy="worst",
        port=1,
    )
    places = ["server.prot", "log.level", "nonsense", "cluster.max_age_s", "environment variable KERF_CLUSTER__NAME"]
    places += ["models.aliases", "decisions.policy", "port"]
    assert sorted(fault.split(": ")[0] for fault in faults) == sorted(places)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "kerf.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (Path("/nowhere/kerf.yaml"), tmp_path, binary):
        with pytest.raises(SettingsError, match=str(path)):
            load_settings(path)


# Removed settings


def test_removed_settings_are_dropped_with_one_warning(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    everywhere = {"text": "access: {burst: 3}", "environment": {"KERF_ACCESS__BURST": "4"}, "access__burst": 5}
    rows: list[tuple[str, dict[str, Any]]] = [
        ("access.burst", {"text": "access: {burst: 3}"}),
        ("access.burst", {"text": "access: {burst: 200}"}),  # its default
        ("access.burst", {"text": "access: {burst: [no, number]}"}),
        ("access.burst", {"environment": {"KERF_ACCESS__BURST": "3"}}),
        ("access.burst", {"environment": {"kerf_access__burst": "3"}}),
        ("access.burst", {"access__burst": 3}),
        ("access.burst", everywhere),
        ("live", {"text": "live: {load: 1}"}),
        ("live", {"text": "live:"}),
        ("live", {"text": "live: 7"}),
        ("live", {"environment": {"KERF_LIVE__LOAD": "1"}}),
        ("live", {"environment": {"KERF_LIVE": '{"load": 1}'}}),
        ("live", {"live__load": 1}),
    ]
    for name, given in rows:
        caplog.clear()
        assert load(**given, access__calls_per_s=7) == load_settings(flags={"access.calls_per_s": 7})
        (message,) = caplog.messages
        assert message.startswith(f"setting {name} was removed")
    caplog.clear()
    assert load_settings(assignments=["access.burst=3", "genius.power=-1"]) == load_settings()
    assert sorted(message.split()[1] for message in caplog.messages) == ["access.burst", "genius"]


def test_beside_removed_settings_unknown_ones_are_faults(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    faults = faults_of(load, "access: {burst: 3, bursts: 3}\nlife:", {"KERF_LIVE__LOAD": "1", "KERF_LIFE__LOAD": "1"})
    assert [fault.split(": ")[0] for fault in faults] == ["environment variable KERF_LIFE__LOAD", "access.bursts"]
    caplog.clear()
    assert load(None, dict.fromkeys(("LIVE", "GENIUS", "KERF_LIVE_PORT"), "1")) == load_settings()
    assert not caplog.records


def test_the_schema_accepts_removed_settings_and_marks_experimental_ones() -> None:
    sections = settings_schema()["properties"]
    assert sections["live"] == {"deprecated": True, "type": ["object", "null"]}
    assert sections["access"]["properties"]["burst"] == {"deprecated": True}
    for name, kind in tree.sections():
        marked = {key for key, schema in sections[name]["properties"].items() if "$comment" in schema}
        assert marked == kind.EXPERIMENTAL <= kind.model_fields.keys()
        assert not kind.GONE.keys() & kind.model_fields.keys()


def test_settings_are_frozen() -> None:
    settings = load_settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.server.port = 1
    with pytest.raises(ValidationError, match="frozen"):
        settings.server = settings.server


def test_installed_packages_are_scanned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=entry_points)
    monkeypatch.setattr("extender.core.entry_points.entry_points", counted)
    monkeypatch.syspath_prepend(tmp_path)  # a path that was not scanned before
    for _ in range(2):
        load_settings()
    assert counted.call_count == 1


def test_settings_that_are_written_are_read_again(load: Load) -> None:
    settings = load(
        "models: {aliases: {big: [H100, H200]}}", decisions__mode="scores", server__host="::", cluster__context="it's"
    )
    assert load(yaml.safe_dump(settings.model_dump(mode="json"))) == settings


def test_settings_of_another_kerf_are_read_as_far_as_possible(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KERF_QUEUE__ENABLED", "true")  # ours, and not that Kerf's
    text = "telemetry: {source: off, of_a_newer: 1}\nserver: {port: many}\nqueue: {extender: false}\nnone:\nnew: {a: b}"
    variables = {"KERF_DECISIONS__RANK_CPU_PODS": "false", "KERF_LOG__LEVEL": "debug"}
    variables |= {"KERF_PORT": "tcp://10.0.0.1:80", "PATH": "/"}
    found = settings_elsewhere(text, variables, ["log.level=error", "nothing", "queue.order=[", "queue.skip_s=5"])
    assert (found.telemetry.source, found.decisions.rank_cpu_pods, found.log.level) == ("off", False, "error")
    assert (found.queue.extender, found.queue.enabled, found.queue.skip_s) == (False, False, 5)
    assert found.server == Settings.model_fields["server"].default
    for unreadable in ("", "[", "a", "- a", "1: {2: 3}"):
        assert settings_elsewhere(unreadable) == Settings.model_construct()
    monkeypatch.delenv("KERF_QUEUE__ENABLED")
    removed = "access: {burst: 3, calls_per_s: 7}\nlive: {load: 1}"
    found = settings_elsewhere(removed, {"KERF_GENIUS__POWER": "1"}, ["access.calls_at_once=3"])
    assert found == load_settings(flags={"access.calls_per_s": 7})
    assert not caplog.records
