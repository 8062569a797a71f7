"""Safe output for terminals: control characters in untrusted text are escaped.

Names, annotations, messages and servers' answers are untrusted. All output of commands goes through this module or
`consoles`; JSON and YAML stay valid.
"""

import json
import re
from typing import Any, Final

import typer

from extender.core.texts import printable

_OWN: Final = re.compile(r"([\n\t])")
"""Control characters that are kept."""


def shown(text: str) -> str:
    """A text that is safe for a terminal: control characters other than newline and tab are escaped."""
    if text.isprintable():
        return text
    return "".join(part if part in ("\n", "\t") else printable(part) for part in _OWN.split(text))


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print on standard output, or standard error."""
    typer.echo(shown(text), err=err, nl=nl)


def as_json(value: Any, indent: int | None = 2) -> str:
    """JSON with all unprintable characters escaped."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return text if text.isprintable() else re.sub(r"[^\n -~]", _escaped, text)


def as_yaml(*documents: Any) -> str:
    """YAML documents with all unprintable characters escaped."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes unprintable texts, so that JSON escapes are valid in them."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = shown(value) == value
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    dumped = yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1 << 16)
    return re.sub(r"[^\n -~]", _escaped, dumped).rstrip()


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]
