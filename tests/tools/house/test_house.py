"""The rules that the house is built by, held by the code as it is: `faults.py` says how each fault is found."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from extender.cli.main import COMMANDS
from extender.core.faces import faces
from extender.settings.tree import PARTS
from tests.tools.house.faults import Outside, idle_names, splats
from tests.tools.house.sources import Module, Tree

_IMPORT: Final = re.compile(r"from extender\S* import \w")
ROOT: Final = Path(__file__).parents[3]

GIVEN: Final = {
    # Doors of the kernel: what is made later is told to them, once, and before it is needed.
    "extender/metrics/registry.py: Metrics.add(read)": "the door by which metrics are read",
    "extender/kube/background.py: Tasks.begin(work)": "work that begins and ends, which is no part",
    # State that comes and goes while Kerf runs.
    "extender/ranking/on_trial.py: OnTrial.put(score)": "a model on trial",
    "extender/scheduling/fence.py: Fence.shut(standing)": "a term of the lease",
    "extender/scheduling/fence.py: Fence.take_over(deadline)": "a term of the lease",
    "extender/scheduling/fence.py: Fence.take_over(standing)": "a term of the lease",
    "extender/scheduling/placer.py: Placer.expect(candidates)": "the candidates of one call",
    "extender/server/connections.py: OpenConnections.add(connection)": "a connection",
    # Hooks of libraries that take them in no other way.
    "extender/api/app.py: app.state.service = service": "Starlette keeps an app's objects there",
    "extender/api/app.py: app.state.streams = _install_page(app, service, parts)": "as above",
    "extender/api/openapi.py: app.openapi = openapi": "FastAPI",
    "extender/server/certificates.py: listener.sni_callback = newest": "ssl",
    "extender/telemetry/sources/prometheus.py: response.json = lambda **_: self.decoder.decode(response": ("requests"),
}
"""What is given to objects that are made, and why it still is. What goes is to be taken off; nothing is to be added."""

IDLE: Final = {
    "extender/core/policies/registry.py: forget": "tests of other packages' policies begin anew by it",
    "model/workloads/nvidia.py: resource_slices": "the devices of `inventory` as a driver publishes them",
    "model/workloads/traces.py: write_trace": "the counterpart of what reads traces",
}
"""Public names that tests alone use, and why they are there. Nothing is to be added."""


@cache
def wheel() -> Tree:
    """The wheel's modules."""
    return Tree.of(ROOT)


def test_no_call_splats_what_was_made_for_it() -> None:
    tools = Tree.of(ROOT, ("tests/tools",)).modules.values()
    modules = [*wheel().modules.values(), *(module for module in tools if "test_" not in module.name)]
    assert not [str(fault) for module in modules for fault in splats(module)]


def test_nothing_is_given_to_what_is_made() -> None:
    outside = Outside(wheel())
    found = {f"{at.path}: {at.text}" for module in wheel().modules.values() for at in outside.faults(module)}
    assert found == GIVEN.keys()


def test_public_names_are_those_that_others_use() -> None:
    idle = {f"{fault.path}: {fault.text}" for fault in idle_names(wheel(), [*users(), named_elsewhere()])}
    assert idle == IDLE.keys()


def users() -> Iterator[Module]:
    """The documented plugin API: its example and the recipes of CONTRIBUTING.md."""
    yield from Tree.of(ROOT, ("docs/examples",)).modules.values()
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    yield Module("recipes", "CONTRIBUTING.md", "\n".join(line for line in lines if _IMPORT.match(line)))


def named_elsewhere() -> Module:
    """What is looked up by name: entry points, and the commands of `kerf`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["scripts"].values(), *project["entry-points"]["kerf.commands"].values()]
    for name, command in COMMANDS.items():
        function = name.replace("-", "_")
        module = command.module or f"extender.cli.{function}"
        named += [f"{module}:{function}", f"{module}:app"]
    named += [
        where for face in faces().values() for where in (*face.kinds.values(), *face.installs.values(), face.checks)
    ]
    named += [f"extender.parts.{name}:FACE" for name in faces()]
    named += [name for part in PARTS for name in (f"extender.parts.{part.name}.settings:PART", f"{part.module}:build")]
    named += [f"{part.module}:prepare" for part in PARTS if part.early]
    return Module("pyproject", "pyproject.toml", f"NAMED = {named!r}")
