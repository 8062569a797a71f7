"""The run steps of workflows, run as they are: on this machine, with what they call away from it played.

Contexts (`${{ ... }}`) are looked up by name and nothing else; all jobs have one checkout, as if each artifact that is
uploaded were downloaded where the next one needs it.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"
_EXPRESSION = re.compile(r"\$\{\{ *([\w.-]+) *\}\}")
_WORD = re.compile(r"^(?:python3 -m release ([\w-]+)|sudo --preserve-env env \"PATH=\$PATH\" \.ci/run$)")

Workflow = dict[str, Any]


def load(name: str) -> Workflow:
    """A workflow."""
    found = yaml.safe_load((WORKFLOWS / name).read_text())
    return {"on" if key is True else key: part for key, part in found.items()}  # a truth value to YAML 1.1


def steps_of(workflow: Workflow) -> Iterator[tuple[str, dict[str, Any]]]:
    """All steps with their jobs, jobs after those that they need."""
    done: set[str] = set()
    waiting = dict(workflow["jobs"])
    while waiting:
        ready = [name for name, job in waiting.items() if needs_of(job) <= done]
        assert ready, f"jobs need each other: {waiting.keys()}"
        for name in ready:
            yield from ((name, step) for step in waiting.pop(name).get("steps", ()))
            done.add(name)


def needs_of(job: Mapping[str, Any]) -> set[str]:
    """Jobs that have to be done before."""
    needs = job.get("needs", [])
    return {needs} if isinstance(needs, str) else set(needs)


@dataclass
class Runner:
    """Runs steps, and remembers what they have told."""

    checkout: Path
    tools: Path
    """Programs that are played: they come first in PATH."""
    contexts: dict[str, str]
    """`github.ref_name` and the like."""
    told: dict[str, dict[str, str]] = field(default_factory=dict)
    """Outputs by job and step."""

    def run(self, workflow: Workflow) -> list[str]:
        """Run every run step; the steps of `release` that were."""
        ran = []
        for job, step in steps_of(workflow):
            if "run" not in step:
                continue
            word = _WORD.match(step["run"])
            assert word, f"{step['run']!r} is no command of this project"
            if word[1]:
                self._run(workflow, job, step)
                ran.append(word[1])
        return ran

    def _run(self, workflow: Workflow, job: str, step: Mapping[str, Any]) -> None:
        assert "${{" not in step["run"], "a context in a command can be anything: hand it over by a variable"
        given = {**workflow.get("env", {}), **workflow["jobs"][job].get("env", {}), **step.get("env", {})}
        outputs = self.checkout.parent / "outputs"
        outputs.write_text("")
        variables = {name: self._resolved(str(text), workflow, job) for name, text in given.items()}
        path = f"{self.tools}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **variables, "PATH": path, "GITHUB_OUTPUT": str(outputs), "GITHUB_ACTIONS": "true"}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.checkout,
            env=environment,
        )
        assert done.returncode == 0, f"{step['run']}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        if "id" in step:
            lines = outputs.read_text().splitlines()
            self.told[f"{job}.{step['id']}"] = dict(line.split("=", 1) for line in lines)

    def _resolved(self, text: str, workflow: Workflow, job: str) -> str:
        def value(match: re.Match[str]) -> str:
            scope, *rest = match[1].split(".")
            if scope == "steps":
                return self.told[f"{job}.{rest[0]}"][rest[2]]
            if scope == "needs":
                assert rest[0] in needs_of(workflow["jobs"][job]), f"{job} does not need {rest[0]}"
                return self._resolved(workflow["jobs"][rest[0]]["outputs"][rest[2]], workflow, rest[0])
            return self.contexts[match[1]]

        resolved = _EXPRESSION.sub(value, text)
        assert "${{" not in resolved, text
        return resolved
