"""Loads the settings: one frozen tree from flags, environment and file, in that order of precedence.

Environment variables are `KERF_` + section + `__` + name, as in `KERF_SERVER__PORT=9000`. All errors are reported
together, each with its place and a correction.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from extender.core.fit import filters
from extender.core.policies import registry
from extender.core.vendors import registry as vendors
from extender.kube.yaml_faults import yaml_fault
from extender.settings import parts
from extender.settings.section import Section
from extender.settings.tree import (
    ENV_PREFIX,
    GONE,
    NESTED,
    PARTS,
    RENAMED,
    KernelSettings,
    Settings,
    lacking,
    sections,
)

logger = logging.getLogger(__name__)


class SettingsError(ValueError):
    """Invalid settings; `faults` has a sentence for each error."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class _Loader(yaml.SafeLoader):
    """YAML with only true and false as booleans, as in YAML 1.2: `source: off` is a string."""


_BOOLEAN: Final = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|false)$", re.IGNORECASE), list("tTfF"))


def load_settings(
    path: Path | None = None, flags: Mapping[str, Any] | None = None, assignments: Iterable[str] = ()
) -> Settings:
    """Load settings from assignments ("server.port=9000", the value in YAML), flags ("server.port": 9000), environment
    and a YAML file, in that order of precedence. Raises SettingsError."""
    registry.load_installed()
    filters.load_installed()
    unknown = _unknown_variables()
    assigned, faults = _assigned(assignments)
    faults += (*unknown.values(), *filters.faults.values(), *vendors.faults.values(), *parts.faults.values())
    from_file: dict[str, Any] = {}
    if path is not None:
        try:
            from_file = yaml.load(path.read_text(), _Loader) or {}  # noqa: S506 - a SafeLoader
        except (OSError, UnicodeDecodeError) as error:
            faults.append(f"{path}: {error}")
        except yaml.YAMLError as error:
            faults.append(f"{path}: {yaml_fault(error)}")
        if not isinstance(from_file, dict):
            faults.append(f"{path}: expected a mapping of sections, not {type(from_file).__name__}")
            from_file = {}
    given, unnamed = _nested({**(flags or {}), **assigned})
    faults += unnamed

    class _Loaded(Settings):
        @model_validator(mode="before")
        @classmethod
        def _migrate(cls, given: dict[str, Any]) -> dict[str, Any]:
            for old, new in _rename(given):
                logger.warning(
                    "setting %s was renamed to %s; the old name will stop working in the next version", old, new
                )
            for gone, instead in _drop_gone(given):
                logger.warning("setting %s was removed (%s); it will be an error in the next version", gone, instead)
            return given

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, _Environment(settings_cls), _FileSource(settings_cls, from_file)

    loaded = Settings.model_construct()
    try:
        loaded = _Loaded(**given)
        faults += lacking(loaded)
    except ValidationError as error:
        faults += [_fault(detail) for detail in error.errors() if _place(detail) not in unknown]
    if faults:
        raise SettingsError(faults)
    return Settings.model_construct(**{name: getattr(loaded, name) for name in Settings.model_fields})


def settings_elsewhere(
    text: str = "", variables: Mapping[str, str] | None = None, assignments: Iterable[str] = ()
) -> Settings:
    """Return the settings of another Kerf from its file, environment and command line; invalid ones get defaults."""
    try:
        from_file = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError:
        from_file = None
    in_file = from_file.items() if isinstance(from_file, dict) else ()
    tree = {section: dict(values) for section, values in in_file if isinstance(values, dict)}
    from_variables = [
        f"{name.removeprefix(ENV_PREFIX).lower().replace(NESTED, '.')}={value}"
        for name, value in (variables or {}).items()
        if name.startswith(ENV_PREFIX)
    ]
    for section, values in _nested(_assigned([*from_variables, *assignments])[0])[0].items():
        tree.setdefault(section, {}).update(values)
    _rename(tree)
    loaded: dict[str, Any] = {name: _valid_part(kind, tree.get(name, {})) for name, kind in sections()}
    return Settings.model_construct(**loaded)


def _rename(tree: dict[str, Any]) -> list[tuple[str, str]]:
    """Rename settings that have an old name; the new name wins if both are set. Returns the (old, new) names found."""
    renamed: list[tuple[str, str]] = []
    for old, new in RENAMED.items():
        (section, name), (new_section, new_name) = old.split("."), new.split(".")
        if isinstance(values := tree.get(section), dict) and name in values:
            tree[section] = {key: value for key, value in values.items() if key != name}
            if isinstance(new_values := tree.get(new_section) or {}, dict):  # else left for validation to report
                tree[new_section] = {new_name: values[name], **new_values}
            renamed.append((old, new))
    return renamed


def _drop_gone(tree: dict[str, Any]) -> list[tuple[str, str]]:
    """Drop removed settings; returns those found, and what applies instead."""
    dropped: list[tuple[str, str]] = []
    for gone, instead in GONE.items():
        section, _, key = gone.partition(".")
        if not key and section in tree:
            del tree[section]
        elif isinstance(values := tree.get(section), dict) and key in values:
            tree[section] = {name: value for name, value in values.items() if name != key}
        else:
            continue
        dropped.append((gone, instead))
    return dropped


def _valid_part(kind: type[Section], values: Mapping[str, Any]) -> Section:
    """Return a section from its valid values, even if their combination is invalid."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        invalid = {detail["loc"][0] for detail in error.errors() if detail["loc"]} & values.keys()
    if not invalid:
        return kind.model_construct(**values)
    return _valid_part(kind, {name: value for name, value in values.items() if name not in invalid})


def describe_settings() -> str:
    """Return all settings with defaults and meaning, and the policies, as Markdown."""
    of_parts = "".join(f"\n{_describe_section(part.name, part.settings)}" for part in PARTS)
    return f"{_describe_kernel()}\n{of_parts}"


def _describe_section(name: str, kind: type[Section]) -> str:
    """Return one section as Markdown, as in a part's page."""
    purpose = " ".join((kind.__doc__ or "").split())
    lines = [f"## {name}", "", purpose, "", "| setting | default | meaning |", "|---|---|---|"]
    defaults = kind().model_dump(mode="json")
    for key, field in kind.model_fields.items():
        default = "empty" if defaults[key] in (None, "") else str(defaults[key])
        meaning = "*Experimental.* " if key in kind.EXPERIMENTAL else ""
        meaning += " ".join((field.description or "").split())
        lines.append(f"| `{name}.{key}` | {default} | {meaning} |")
    return "\n".join((*lines, ""))


def _describe_kernel() -> str:
    """Return the kernel's settings and the policies as Markdown: docs/reference/configuration.md."""
    registry.load_installed()
    own = (_describe_section(name, kind) for name, kind in sections() if name in KernelSettings.model_fields)
    lines = ["\n".join(own)]
    lines += ["## Policies", "", "Values of `decisions.policy` and of a pod's `kerf.dev/policy`.", ""]
    lines += ["| policy | ranking |", "|---|---|"]
    lines += [
        f"| `{name}` | {registry.renamed(policy) or policy.description} |"
        for name, policy in registry.POLICIES.items()
        if name != registry.AUTO
    ]
    lines += ["", *registry.faults.values()]
    return "\n".join(lines)


class _FileSource(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        # An empty section has no effect, unless it was removed.
        return {str(name): values for name, values in self._values.items() if values is not None or name in GONE}


class _Environment(EnvSettingsSource):
    """Environment source that leaves values with invalid JSON for validation to report."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value

    def __call__(self) -> dict[str, Any]:
        in_environment = {name.upper().partition(NESTED)[0] for name in self.env_vars}
        gone = (section for section in GONE if f"{ENV_PREFIX}{section}".upper() in in_environment)
        return {**super().__call__(), **dict.fromkeys(gone)}


def _unknown_variables() -> dict[str, str]:
    """Return the faults of environment variables that match no setting, by dotted name. Only nested names are certainly
    Kerf's: Kubernetes sets KERF_PORT and others for a Service named kerf."""
    known = {
        f"{ENV_PREFIX}{section}{NESTED}{name}".upper() for section, kind in sections() for name in kind.model_fields
    }
    known |= {f"{ENV_PREFIX}{old.replace('.', NESTED)}".upper() for old in (*RENAMED, *GONE)}
    return {
        name.upper().removeprefix(ENV_PREFIX).lower().replace(NESTED, "."): (
            f"environment variable {name}: no such setting; `kerf config show` lists them"
        )
        for name in sorted(os.environ)
        if name.upper().startswith(ENV_PREFIX) and NESTED in name
        if not known & {name.upper(), name.upper().partition(NESTED)[0]}
    }


def _assigned(assignments: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return values by dotted name, and the faults of invalid assignments."""
    assigned: dict[str, Any] = {}
    faults: list[str] = []
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            faults.append(f"--set {name}: write section.name=value, as in server.port=9000")
            continue
        try:
            assigned[name.strip()] = yaml.load(value, _Loader) if value else ""  # noqa: S506 - a SafeLoader
        except yaml.YAMLError as error:
            faults.append(f"--set {name}: {yaml_fault(error)}")
        except ValueError as error:
            faults.append(f"--set {name}: {error}")
    return assigned, faults


def _nested(flags: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return flags as a tree, and a fault for each without a section."""
    tree: dict[str, Any] = {}
    faults: list[str] = []
    for dotted, value in flags.items():
        section, _, name = dotted.partition(".")
        if section and name:
            tree.setdefault(section, {})[name] = value
        else:
            faults.append(f"{dotted}: write section.name=value, as in server.port=9000")
    return tree, faults


def _place(detail: Any) -> str:
    return ".".join(str(part) for part in detail["loc"])


def _fault(detail: Any) -> str:
    place = _place(detail)
    if detail["type"] == "extra_forbidden":
        return f"{place}: no such setting; `kerf config show` lists them"
    # Values of headers, and addresses with a user, may be secrets.
    secret = place.startswith("telemetry.headers") or "@" in str(detail["input"])
    return f"{place}: {detail['msg']}" + ("" if secret else f" (is {detail['input']!r})")
