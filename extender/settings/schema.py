"""JSON Schema of the settings, for editors and the chart."""

from collections.abc import Mapping
from typing import Any, Final

from extender.settings.tree import GONE, RENAMED, Settings, sections

_OMITTED: Final = ("title", "description", "default")
"""Left out: they are in docs/reference/configuration.md, and would triple the file's size."""
_PREFIX: Final = "#/$defs/"


def settings_schema() -> dict[str, Any]:
    """Return the schema of a settings file, without references; each section may be empty."""
    tree = Settings.model_json_schema()
    schemas = _plain(tree["properties"], tree["$defs"], named=True)
    for old, new in RENAMED.items():
        (section, name), (new_section, new_name) = old.split("."), new.split(".")
        schemas[section]["properties"][name] = schemas[new_section]["properties"][new_name] | {"deprecated": True}
    for name, kind in sections():
        for key in kind.EXPERIMENTAL:
            schemas[name]["properties"][key]["$comment"] = "experimental"
    for gone in GONE:
        section, _, key = gone.partition(".")
        (schemas[section]["properties"] if key else schemas)[key or section] = {"deprecated": True}
    properties = {name: schema | {"type": ["object", "null"]} for name, schema in schemas.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(schema: Any, definitions: Mapping[str, Any], *, named: bool = False) -> Any:
    """Resolve the references of a schema; `named` if its keys are names of settings."""
    if isinstance(schema, list):
        return [_plain(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].removeprefix(_PREFIX)], definitions)
    return {
        key: _plain(value, definitions, named=key == "properties" and not named)
        for key, value in schema.items()
        if named or key not in _OMITTED
    }
