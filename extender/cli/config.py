"""`kerf config`: look at settings, or check them."""

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
    """Print the settings in effect as YAML that --config accepts, the kernel's and then each part's, what is not at its
    default first; secrets are shown as stars."""
    from extender.settings.tree import KernelSettings

    shown = {name: (_section(name, section), section == type(section)()) for name, section in load(config, settings)}
    kernel = sorted(KernelSettings.model_fields, key=lambda name: shown[name][1])
    echo("# The kernel\n" + "\n".join(shown[name][0] for name in kernel))
    for name in (name for name in shown if name not in KernelSettings.model_fields):
        echo(f"\n# Part {name}\n{shown[name][0]}")


def _section(name: str, section: "Section") -> str:
    """A section as YAML, in which what is not at its default comes first."""
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
