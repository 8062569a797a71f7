"""`kerf hand-in`: submits a fitted model to a running Kerf."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from extender.cli.client.kerf import FAILED, fail
from extender.cli.printing import echo
from extender.cli.settings import ContextOption, KubeconfigOption, cluster


def hand_in(
    model: Annotated[Path, typer.Option(help="Folder of the model (kerf fit --out).")],
    to: Annotated[str, typer.Option(help="NAMESPACE/NAME of the ConfigMap: setting learning.config_map.")],
    replace: Annotated[bool, typer.Option(help="Replace a model that is on trial.")] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Submit a fitted model to a running Kerf, which tries it before it serves (docs/guides/your-own-rank.md)."""
    import msgspec

    from extender.kube.client import ClusterError
    from extender.kube.transport import is_name
    from extender.parts.learning.model_store import LearnedModels
    from extender.ranking import files

    namespace, _, name = to.partition("/")
    if not (is_name(namespace) and is_name(name)):
        raise typer.BadParameter(f"{to}: write NAMESPACE/NAME", param_hint="--to")

    async def submit(contents: dict[str, bytes]) -> str:
        async with cluster(kubeconfig, context, writes=True) as server:
            return await LearnedModels(server, namespace, name).hand_in(contents, replace=replace)

    try:
        contents = {name: files.contents(model / name) for name in (files.MANIFEST, files.WEIGHTS)}
        checked = files.model_in(contents, str(model))
        on_trial = asyncio.run(submit(contents))
    except (files.ModelError, ClusterError, msgspec.DecodeError) as error:
        fail(f"kerf hand-in: {error}", FAILED)
    if on_trial:
        echo(f"model {on_trial[:12]} is on trial; nothing was submitted (--replace replaces it)", err=True)
        return
    echo(f"model {checked.manifest.sha256[:12]} was submitted to ConfigMap {to}", err=True)
