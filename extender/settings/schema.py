"""The JSON Schema of the settings: for editors of the file, and for the chart, which refuses what Kerf would refuse."""

from collections.abc import Mapping
from typing import Any, Final

from extender.settings.tree import GONE, RENAMED, Settings, sections

_SAID_ELSEWHERE: Final = ("title", "description", "default")
"""docs/reference/configuration.md has them, and the file would be three times as large."""
_PREFIX: Final = "#/$defs/"


def settings_schema() -> dict[str, Any]:
    """What a settings file may say, without references: all sections, each of which may be a heading alone."""
    tree = Settings.model_json_schema()
    schemas = _plain(tree["properties"], tree["$defs"], named=True)
    for old, new in RENAMED.items():
        (section, name), (to, called) = old.split("."), new.split(".")
        schemas[section]["properties"][name] = schemas[to]["properties"][called] | {"deprecated": True}
    for name, kind in sections():
        for key in kind.EXPERIMENTAL:
            schemas[name]["properties"][key]["$comment"] = "experimental"
    for gone in GONE:
        section, _, key = gone.partition(".")
        (schemas[section]["properties"] if key else schemas)[key or section] = {"deprecated": True}
    properties = {name: schema | {"type": ["object", "null"]} for name, schema in schemas.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(schema: Any, definitions: Mapping[str, Any], *, named: bool = False) -> Any:
    """A schema with its references followed; `named` if the keys are names of settings."""
    if isinstance(schema, list):
        return [_plain(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].removeprefix(_PREFIX)], definitions)
    return {
        key: _plain(value, definitions, named=key == "properties" and not named)
        for key, value in schema.items()
        if named or key not in _SAID_ELSEWHERE
    }
