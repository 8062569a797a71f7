"""Descriptions of YAML errors without the text, which may hold a secret."""

import yaml


def yaml_fault(error: yaml.YAMLError) -> str:
    """Return what is wrong with a YAML text and where, without quoting it."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"invalid YAML ({type(error).__name__})"
    mark = error.problem_mark
    return f"invalid YAML: {error.problem}, line {mark.line + 1}, column {mark.column + 1}"
