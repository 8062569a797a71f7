"""What commands print: texts of others reach a terminal as text, and give it no commands.

Authors of pods and nodes choose names, annotations and messages, and a server may say anything. All that is printed
goes through here or through `consoles`: control characters are written out, JSON and YAML stay what they are.
"""

import json
import re
from typing import Any, Final

import typer

from extender.core.texts import printable

_OWN: Final = re.compile(r"([\n\t])")
"""What texts of several lines are made of."""


def shown(text: str) -> str:
    """A text as a terminal may have it: lines and tabs are left, all other control characters are written out."""
    if text.isprintable():
        return text
    return "".join(part if part in ("\n", "\t") else printable(part) for part in _OWN.split(text))


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print on standard output, or standard error."""
    typer.echo(shown(text), err=err, nl=nl)


def as_json(value: Any, indent: int | None = 2) -> str:
    """JSON in which nothing but line breaks and spaces stands that can't be read."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return text if text.isprintable() else re.sub(r"[^\n -~]", _escaped, text)


def as_yaml(*documents: Any) -> str:
    """YAML of one document or several, likewise."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Texts that can't be printed as they are stand in quotes, where escapes mean what they do in JSON."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = shown(value) == value
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    dumped = yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1 << 16)
    return re.sub(r"[^\n -~]", _escaped, dumped).rstrip()


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]
