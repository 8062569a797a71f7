"""`kerf config`: look at settings, or check them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from extender.cli.main import Group
from extender.cli.printing import echo
from extender.cli.settings import ConfigOption, SetOption, load

if TYPE_CHECKING:
    from extender.settings.tree import Settings

app = typer.Typer(cls=Group, help="Show or check settings.", no_args_is_help=True, add_completion=False)


@app.command()
def show(config: ConfigOption = None, settings: SetOption = None) -> None:
    """Print the settings in effect as YAML that --config accepts; secrets are shown as stars."""
    import yaml

    echo(yaml.safe_dump(load(config, settings).model_dump(mode="json"), sort_keys=False).rstrip())


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
    """Report all errors in the settings at once, with exit status 1, and files that are not on this machine."""
    loaded = load(config, settings, failing_with=1)
    missing = list(_missing_files(loaded))
    for where, path in missing:
        echo(f"{where}: there is no {path} on this machine", err=True)
    echo("settings are valid" + (", but where they are used these files have to be" if missing else ""))


def _missing_files(loaded: "Settings") -> Iterator[tuple[str, Path]]:
    """Settings that name a file or folder that is not here; that of histories is made."""
    from extender.settings.tree import PARTS

    makes = {part.name: part.makes for part in PARTS}
    for section, group in loaded:
        for name, path in group:
            made = name in makes.get(section, ())
            chosen = name in group.model_fields_set
            if isinstance(path, Path) and chosen and not (path.exists() or (made and path.parent.exists())):
                yield f"{section}.{name}", path
