"""What is wrong with a YAML text, for logs."""

import yaml


def yaml_fault(error: yaml.YAMLError) -> str:
    """What is wrong with a text and where, without the text itself: it may hold a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"no YAML ({type(error).__name__})"
    mark = error.problem_mark
    return f"no YAML: {error.problem}, line {mark.line + 1}, column {mark.column + 1}"
