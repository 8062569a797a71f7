"""The telemetry sources, and how the settings select them."""

import pkgutil

import pytest
from typer.testing import CliRunner

from extender.cli.main import app
from extender.settings.telemetry import TelemetrySettings
from extender.telemetry.errors import SourceError
from extender.telemetry.service import wanted_of
from extender.telemetry.sources.registry import SOURCES, open_source
from extender.telemetry.sources.source import Command


def test_every_source_is_there() -> None:
    for path in SOURCES.values():
        assert callable(pkgutil.resolve_name(path))


def test_a_source_that_there_is_not() -> None:
    with pytest.raises(SourceError, match="'promteus'; use one of auto, off, prometheus, exporters"):
        open_source(Command("promteus"))
    result = CliRunner().invoke(app, ["config", "check", "--set", "telemetry.source=promteus"])
    assert (result.exit_code, "'promteus'" in result.stderr) == (1, True)


def test_settings_select_the_sources() -> None:
    for settings, kind, addresses, discover in (
        ({}, "exporters", (), True),
        ({"url": "http://p"}, "prometheus", ("http://p",), True),
        ({"exporters": ["http://n"]}, "exporters", ("http://n",), True),
        ({"source": "prometheus", "addresses": ["http://a"], "url": "http://p"}, "prometheus", ("http://a",), False),
        ({"source": "none-needed"}, "none-needed", (), False),
    ):
        wanted = wanted_of(TelemetrySettings.model_validate(settings))
        assert (wanted.kind, wanted.addresses, wanted.discover) == (kind, addresses, discover)
