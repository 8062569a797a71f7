"""`kerf config`: look at settings, or check them."""

import typer

from extender.cli.printing import echo
from extender.cli.settings import ConfigOption, SetOption, load

app = typer.Typer(help="Show or check settings.", no_args_is_help=True, add_completion=False)


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
    """Report all errors in the settings at once; exit status 1 if there is any."""
    load(config, settings, failing_with=1)
    echo("settings are valid")
