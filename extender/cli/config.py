"""`kerf config`: show or check settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from extender.cli.main import Group
from extender.cli.printing import echo
from extender.cli.settings import ConfigOption, SetOption, load

if TYPE_CHECKING:
    from extender.settings.section import Section
    from extender.settings.tree import Settings

app = typer.Typer(cls=Group, help="Show or check settings.", no_args_is_help=True, add_completion=False)


@app.command()
def show(config: ConfigOption = None, settings: SetOption = None) -> None:
    """Print the settings in effect as YAML that --config accepts: the kernel's, then each part's, non-defaults first.
    Secrets are masked."""
    from extender.settings.tree import KernelSettings

    shown = {name: (_section(name, section), section == type(section)()) for name, section in load(config, settings)}
    kernel = sorted(KernelSettings.model_fields, key=lambda name: shown[name][1])
    echo("# The kernel\n" + "\n".join(shown[name][0] for name in kernel))
    for name in (name for name in shown if name not in KernelSettings.model_fields):
        echo(f"\n# Part {name}\n{shown[name][0]}")


def _section(name: str, section: "Section") -> str:
    """A section as YAML, non-default values first."""
    import yaml

    defaults = type(section)()
    values = section.model_dump(mode="json")
    order = sorted(values, key=lambda key: getattr(section, key) == getattr(defaults, key))
    return yaml.safe_dump({name: {key: values[key] for key in order}}, sort_keys=False).rstrip()


@app.command()
def describe() -> None:
    """Print every setting with its default and meaning, as Markdown."""
    from extender.settings.load import describe_settings

    echo(describe_settings().rstrip())


@app.command()
def schema() -> None:
    """Print the JSON Schema of a settings file."""
    import json

    from extender.settings.schema import settings_schema

    echo(json.dumps(settings_schema(), indent=2))


@app.command()
def check(config: ConfigOption = None, settings: SetOption = None) -> None:
    """Report all errors in the settings, with exit status 1, and files that are missing on this machine."""
    loaded = load(config, settings, failing_with=1)
    missing = list(_missing_files(loaded))
    for where, path in missing:
        echo(f"{where}: there is no {path} on this machine", err=True)
    echo("settings are valid" + (", but these files must exist where they are used" if missing else ""))


def _missing_files(loaded: "Settings") -> Iterator[tuple[str, Path]]:
    """Settings that name a missing file or folder, except folders that parts create."""
    from extender.settings.tree import PARTS

    makes = {part.name: part.makes for part in PARTS}
    for section, group in loaded:
        for name, path in group:
            created = name in makes.get(section, ())
            chosen = name in group.model_fields_set
            if isinstance(path, Path) and chosen and not (path.exists() or (created and path.parent.exists())):
                yield f"{section}.{name}", path
