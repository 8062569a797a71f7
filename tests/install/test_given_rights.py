"""What is told of a right that Kerf lacks, which manifest gives it, is so."""

import pytest
import yaml

from extender.kube.rights import _KERNEL, BY_CHART, _given_by
from extender.kube.transport import Right
from extender.settings.tree import PARTS
from tests.controlplane.kerf import ROOT


def given(manifest: str) -> set[Right]:
    """All rights of the roles of a manifest."""
    documents = [one for one in yaml.safe_load_all((ROOT / manifest).read_text()) if one]
    return {
        Right(verb, group, resource)
        for document in documents
        if document["kind"] in ("Role", "ClusterRole")
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


GIVEN = _given_by([*_KERNEL, *(rights for part in PARTS for rights in part.rights)])
MANIFESTS = sorted({rights.manifest for rights in GIVEN.values()} - {BY_CHART})


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_gives_what_is_said_of_it_and_nothing_else(manifest: str) -> None:
    told = {right for right, rights in GIVEN.items() if rights.manifest == manifest}
    assert told <= given(manifest)
    assert given(manifest) <= GIVEN.keys(), "one that no sentence names a manifest for"
