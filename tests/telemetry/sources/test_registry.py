"""Sources by name: each is there, one that is not is said so, and a named one is read where the settings say."""

import pkgutil

import pytest
from typer.testing import CliRunner

from extender.cli.main import app
from extender.settings.telemetry import TelemetrySettings
from extender.telemetry.errors import SourceError
from extender.telemetry.service import wanted_of
from extender.telemetry.sources.registry import SOURCES, open_source
from extender.telemetry.sources.source import Command


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_there(name: str) -> None:
    assert callable(pkgutil.resolve_name(SOURCES[name]))


def test_a_source_that_there_is_not() -> None:
    fault = "no source 'promteus'; use one of auto, off, prometheus, exporters"
    with pytest.raises(SourceError, match=fault):
        open_source(Command("promteus"))
    result = CliRunner().invoke(app, ["config", "check", "--set", "telemetry.source=promteus"])
    assert result.exit_code == 1
    assert fault in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("given", "kind", "addresses", "discover"),
    [
        pytest.param({}, "exporters", (), True, id="whatever is found"),
        pytest.param({"url": "http://p"}, "prometheus", ("http://p",), True, id="a Prometheus"),
        pytest.param({"exporters": ["http://n"]}, "exporters", ("http://n",), True, id="exporters"),
        pytest.param(
            {"source": "prometheus", "addresses": ["http://a", "http://b"], "url": "http://p"},
            *("prometheus", ("http://a", "http://b"), False),
            id="by name",
        ),
        pytest.param({"source": "none-needed"}, "none-needed", (), False, id="by name, without an address"),
    ],
)
def test_what_settings_name(given: dict[str, object], kind: str, addresses: tuple[str, ...], discover: bool) -> None:
    wanted = wanted_of(TelemetrySettings.model_validate(given))
    assert (wanted.kind, wanted.addresses, wanted.discover) == (kind, addresses, discover)
