"""Settings: where each value comes from, and what is said about those that can't be used."""

from collections.abc import Mapping
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from extender.settings import tree
from extender.settings.load import SettingsError, load_settings, settings_elsewhere
from extender.settings.schema import settings_schema
from extender.settings.tree import Settings

Environment = Mapping[str, str]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings from a file's text, environment variables and flags."""

    def load(text: str | None = None, environment: Environment | None = None, **flags: Any) -> Settings:
        path = None
        if text is not None:
            path = tmp_path / "kerf.yaml"
            path.write_text(text)
        for name, value in (environment or {}).items():
            monkeypatch.setenv(name, value)
        return load_settings(path, {name.replace("__", "."): value for name, value in flags.items()})

    return load


def faults_of(load: Any, text: str | None = None, environment: Environment | None = None, **flags: Any) -> list[str]:
    """What is said about settings that can't be used."""
    with pytest.raises(SettingsError) as caught:
        load(text, environment, **flags)
    return caught.value.faults


FILE, ENV, FLAG = "server: {port: 1}", {"KERF_SERVER__PORT": "2"}, {"server__port": 3}


@pytest.mark.parametrize(
    ("text", "environment", "flags", "port"),
    [
        pytest.param(None, {}, {}, 8888, id="default"),
        pytest.param("", {}, {}, 8888, id="empty file"),
        pytest.param("server:", {}, {}, 8888, id="section without settings"),
        pytest.param(FILE, {}, {}, 1, id="file"),
        pytest.param(FILE, ENV, {}, 2, id="environment before file"),
        pytest.param(FILE, ENV, FLAG, 3, id="flag before all"),
        pytest.param(FILE, {}, FLAG, 3, id="flag before file"),
        pytest.param(None, ENV, FLAG, 3, id="flag before environment"),
        pytest.param(None, {"kerf_server__port": "4"}, {}, 4, id="environment in lower case"),
        pytest.param(FILE, {"KERF_SERVER__PORT": ""}, {}, 1, id="empty variable says nothing"),
        pytest.param(FILE, {"KERF_PORT": "5"}, {}, 1, id="KERF_PORT is the demo's alone"),
    ],
)
def test_precedence(load: Any, text: str | None, environment: Environment, flags: Any, port: int) -> None:
    assert load(text, environment, **flags).server.port == port


def test_one_section_from_several_sources(load: Any) -> None:
    text = "server: {host: 0.0.0.0, port: 1, drain_s: 3}\ndecisions: {mode: scores}"
    settings = load(text, {"KERF_SERVER__PORT": "2", "KERF_DECISIONS__POLICY": "spread"}, server__drain_s=4)
    assert (settings.server.host, settings.server.port, settings.server.drain_s) == ("0.0.0.0", 2, 4.0)  # noqa: S104
    assert (settings.decisions.mode, settings.decisions.policy) == ("scores", "spread")
    assert settings.server.max_body_mib == 64


def test_aliases_from_file_and_environment(load: Any) -> None:
    assert load("models: {aliases: {big: [H100]}}").models.aliases == {"big": ["H100"]}
    assert load(None, {"KERF_MODELS__ALIASES": '{"big": ["H200"]}'}).models.aliases == {"big": ["H200"]}


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(
            {
                "KERF_PORT": "tcp://10.0.0.1:8888",
                "KERF_SERVICE_HOST": "10.0.0.1",
                "KERF_SERVICE_PORT": "8888",
                "KERF_SERVICE_PORT_HTTP": "8888",
                "KERF_PORT_8888_TCP": "tcp://10.0.0.1:8888",
                "KERF_PORT_8888_TCP_ADDR": "10.0.0.1",
                "KERF_PORT_8888_TCP_PORT": "8888",
                "KERF_PORT_8888_TCP_PROTO": "tcp",
            },
            id="a Service named kerf",
        ),
        pytest.param(
            {"KERF_SERVER_PORT": "tcp://10.0.0.1:80", "KERF_SERVER_SERVICE_HOST": "10.0.0.1"},
            id="a Service named kerf-server",
        ),
        pytest.param({"KERF_CONFIG": "/nowhere"}, id="option of the command line"),
    ],
)
def test_variables_that_kubernetes_sets_are_not_settings(load: Any, environment: Environment) -> None:
    assert load(None, environment) == load_settings()
    assert load(None, environment).server.port == 8888


NO_SUCH = "no such setting; `kerf config show` lists them"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        pytest.param({"text": "server: {prot: 1}"}, f"server.prot: {NO_SUCH}", id="key of the file"),
        pytest.param({"text": "sever: {port: 1}"}, f"sever: {NO_SUCH}", id="section of the file"),
        pytest.param({"text": "1: {port: 1}"}, f"1: {NO_SUCH}", id="section that is a number"),
        pytest.param(
            {"environment": {"KERF_SERVER__PROT": "1"}},
            f"environment variable KERF_SERVER__PROT: {NO_SUCH}",
            id="variable",
        ),
        pytest.param(
            {"environment": {"KERF_SEVER__PORT": "1"}},
            f"environment variable KERF_SEVER__PORT: {NO_SUCH}",
            id="section of a variable",
        ),
        pytest.param({"server__prot": 1}, f"server.prot: {NO_SUCH}", id="flag"),
        pytest.param({"server__port__x": 1}, f"server.port.x: {NO_SUCH}", id="flag that goes too deep"),
        pytest.param({"sever__port": 1}, f"sever: {NO_SUCH}", id="section of a flag"),
        pytest.param({"port": 1}, "port: write section.name=value, as in server.port=9000", id="flag without section"),
        pytest.param({"server__port": 65536}, "server.port: Input should be less than or equal to 65535", id="range"),
        pytest.param({"server__port": "http"}, "server.port: Input should be a valid integer", id="type"),
        pytest.param({"server__drain_s": float("inf")}, "server.drain_s: Input should be a finite number", id="inf"),
        pytest.param({"cluster__max_age_s": 0}, "cluster.max_age_s: Input should be greater than 0", id="zero"),
        pytest.param({"decisions__mode": "best"}, "decisions.mode: Input should be 'decisive' or 'scores'", id="mode"),
        pytest.param(
            {"decisions__policy": "worst"},
            "no policy of that name; use one of tightest, binpack, spread, live, genius, alnair, fgd",
            id="policy",
        ),
        pytest.param(
            {"telemetry__addresses": ["/run/loads.json"]},
            "telemetry.addresses: Value error, name their source in telemetry.source",
            id="addresses of no source",
        ),
        pytest.param({"log__level": "loud"}, "log.level: String should match", id="log level"),
        pytest.param({"text": "[1, 2]"}, "expected a mapping of sections, not list", id="file is a list"),
        pytest.param({"text": "server: 7"}, "server: Input should be a valid dictionary", id="section is a number"),
        pytest.param({"text": "server: ["}, "invalid YAML: expected", id="invalid YAML"),
        pytest.param(
            {"environment": {"KERF_MODELS__ALIASES": "big=H100"}},
            "models.aliases: Input should be a valid dictionary (is 'big=H100')",
            id="variable that is no JSON",
        ),
        pytest.param(
            {"environment": {"KERF_SERVER": "port=1"}},
            "server: Input should be a valid dictionary",
            id="section as a variable",
        ),
    ],
)
def test_a_fault_names_the_place_and_what_would_be_right(load: Any, given: Any, fault: str) -> None:
    (said,) = faults_of(load, **given)
    assert fault in said


def test_all_faults_are_reported_at_once(load: Any) -> None:
    faults = faults_of(
        load,
        "server: {prot: 1}\nlog: {level: loud}\nnonsense: 1",
        {"KERF_CLUSTER__MAX_AGE_S": "0", "KERF_CLUSTER__NAME": "x", "KERF_MODELS__ALIASES": "{"},
        decisions__policy="worst",
        port=1,
    )
    places = {fault.split(": ")[0] for fault in faults}
    assert places == {
        "server.prot",
        "log.level",
        "nonsense",
        "cluster.max_age_s",
        "environment variable KERF_CLUSTER__NAME",
        "models.aliases",
        "decisions.policy",
        "port",
    }
    assert len(faults) == len(places)


@pytest.mark.parametrize("path", ["/nowhere/kerf.yaml", "/"], ids=["missing", "a folder"])
def test_a_file_that_can_not_be_read(path: str) -> None:
    with pytest.raises(SettingsError, match=r"^/.*: \[Errno"):
        load_settings(Path(path))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "kerf.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"kerf\.yaml"):
        load_settings(path)


IS_GONE = "setting {} was removed ({}); it will be an error in the next version".format
BURST = IS_GONE("access.burst", "always 200")
LIVE = IS_GONE("live", "the policy has its own weights")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({"text": "access: {burst: 3}"}, BURST, id="key of the file"),
        pytest.param({"text": "access: {burst: 200}"}, BURST, id="as it is anyway"),
        pytest.param({"text": "access: {burst: [no, number]}"}, BURST, id="what it never could be"),
        pytest.param({"environment": {"KERF_ACCESS__BURST": "3"}}, BURST, id="variable"),
        pytest.param({"environment": {"kerf_access__burst": "3"}}, BURST, id="variable in lower case"),
        pytest.param({"access__burst": 3}, BURST, id="flag"),
        pytest.param(
            {"text": "access: {burst: 3}", "environment": {"KERF_ACCESS__BURST": "4"}, "access__burst": 5},
            BURST,
            id="all at once",
        ),
        pytest.param({"text": "live: {load: 1}"}, LIVE, id="section of the file"),
        pytest.param({"text": "live:"}, LIVE, id="heading of the file"),
        pytest.param({"text": "live: 7"}, LIVE, id="heading of something else"),
        pytest.param({"environment": {"KERF_LIVE__LOAD": "1"}}, LIVE, id="section of a variable"),
        pytest.param({"environment": {"KERF_LIVE": '{"load": 1}'}}, LIVE, id="section as a variable"),
        pytest.param({"live__load": 1}, LIVE, id="section of a flag"),
    ],
)
def test_what_is_no_setting_any_more_is_dropped_with_one_warning(
    load: Any, given: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(**given, access__calls_per_s=7) == load_settings(flags={"access.calls_per_s": 7})
    assert {record.getMessage() for record in caplog.records} == {told}
    assert len(caplog.records) == (2 if "environment" in given else 1), "of both that were loaded"


def test_what_is_no_setting_any_more_is_dropped_where_it_is_assigned(caplog: pytest.LogCaptureFixture) -> None:
    assert load_settings(assignments=["access.burst=3", "genius.power=-1"]) == load_settings()
    assert sorted(record.getMessage() for record in caplog.records) == [
        BURST,
        IS_GONE("genius", "the policy has Genius' own weights"),
    ]


def test_beside_what_is_no_setting_any_more_what_never_was_one_is_a_fault(load: Any) -> None:
    faults = faults_of(load, "access: {burst: 3, bursts: 3}\nlife:", {"KERF_LIVE__LOAD": "1", "KERF_LIFE__LOAD": "1"})
    assert faults == [f"environment variable KERF_LIFE__LOAD: {NO_SUCH}", f"access.bursts: {NO_SUCH}"]


@pytest.mark.parametrize("name", ["LIVE", "GENIUS", "KERF_LIVE_PORT"])
def test_a_variable_that_only_looks_like_one_is_not_told_of(
    load: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(None, {name: "1"}) == load_settings()
    assert not caplog.records


def test_a_kerf_elsewhere_may_have_what_is_no_setting_any_more(caplog: pytest.LogCaptureFixture) -> None:
    text, variables = "access: {burst: 3, calls_per_s: 7}\nlive: {load: 1}", {"KERF_GENIUS__POWER": "1"}
    found = settings_elsewhere(text, variables, ["access.calls_at_once=3"])
    assert found == load_settings(flags={"access.calls_per_s": 7})
    assert not caplog.records


def test_the_schema_takes_what_is_no_setting_any_more_and_marks_what_may_change() -> None:
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
    num_scans = 0

    def counted(**selection: str) -> EntryPoints:
        nonlocal num_scans
        num_scans += 1
        return entry_points(**selection)

    monkeypatch.setattr("extender.core.entry_points.entry_points", counted)
    monkeypatch.syspath_prepend(tmp_path)  # a path that no test before has scanned
    for _ in range(2):
        load_settings()
    assert num_scans == 1


def test_settings_written_out_are_the_same_when_read_again(load: Any) -> None:
    settings = load(
        "models: {aliases: {big: [H100, H200]}}", decisions__mode="scores", server__host="::", cluster__context="it's"
    )
    assert load(yaml.safe_dump(settings.model_dump(mode="json"))) == settings


def test_settings_of_a_kerf_elsewhere_are_read_as_far_as_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERF_QUEUE__ENABLED", "true")  # ours, and not that Kerf's
    text = "telemetry: {source: off, of_a_newer: 1}\nserver: {port: many}\nqueue: {extender: false}\nnone:\nnew: {a: b}"
    variables = {
        "KERF_DECISIONS__RANK_CPU_PODS": "false",
        "KERF_LOG__LEVEL": "debug",
        "KERF_PORT": "tcp://10.0.0.1:80",
        "PATH": "/",
    }
    found = settings_elsewhere(text, variables, ["log.level=error", "nothing", "queue.order=[", "queue.skip_s=5"])
    assert (found.telemetry.source, found.decisions.rank_cpu_pods, found.log.level) == ("off", False, "error")
    assert (found.queue.extender, found.queue.enabled, found.queue.skip_s) == (False, False, 5)
    assert found.server == Settings.model_fields["server"].default
    for unreadable in ("", "[", "a", "- a", "1: {2: 3}"):
        assert settings_elsewhere(unreadable) == Settings.model_construct()
