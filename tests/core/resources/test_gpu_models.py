"""One GPU product has one canonical name and many names to ask for it."""

import pytest

from extender.core.resources.gpu_models import UNKNOWN_MODEL, canonical_name, describe_model, models_allowed
from extender.core.vendors.registry import PRODUCT_MEMORY_MIB, PRODUCTS
from tests.core.builders import pattern


@pytest.mark.parametrize(
    ("product", "name"),
    [
        pytest.param("NVIDIA-A100-SXM4-80GB", "a100-sxm4-80gb", id="GPU Feature Discovery"),
        pytest.param("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb", id="DCGM"),
        pytest.param("A100-SXM4-80GB", "a100-sxm4-80gb", id="older driver"),
        pytest.param("NVIDIA-A100-SXM4-80GB-SHARED", "a100-sxm4-80gb", id="time-sliced"),
        pytest.param("NVIDIA-A100-SXM4-80GB-MIG-1g.5gb", "a100-sxm4-80gb", id="MIG"),
        pytest.param("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me-SHARED", "a100-sxm4-80gb", id="MIG with media, shared"),
        pytest.param("Tesla-T4", "t4", id="Tesla"),
        pytest.param("NVIDIA-Tesla-T4", "t4", id="two brands"),
        pytest.param("NVIDIA GeForce RTX 3090", "rtx-3090", id="GeForce"),
        pytest.param("  nvidia__h100  PCIe ", "h100-pcie", id="separators run together"),
        pytest.param("NVIDIA", "nvidia", id="a brand alone is a name"),
        pytest.param("", "", id="empty"),
        pytest.param("   ", "", id="blank"),
        pytest.param("Früchte-GPU", "früchte-gpu", id="non-ASCII"),
    ],
)
def test_canonical_name(product: str, name: str) -> None:
    assert canonical_name(product) == name


def test_a_model_is_tried_by_label_canonical_name_spaces_and_aliases() -> None:
    aliases = {"Big": ["nvidia a100 sxm4 80gb"], "other": ["Tesla-T4"]}
    assert describe_model("NVIDIA-A100-SXM4-80GB-SHARED", aliases).names == (
        "nvidia-a100-sxm4-80gb",
        "nvidia a100 sxm4 80gb",
        "a100-sxm4-80gb",
        "a100 sxm4 80gb",
        "big",
    )


def test_spellings_of_one_product_are_equal_in_name() -> None:
    assert describe_model("NVIDIA-A100-SXM4-80GB", {}).name == describe_model("A100-SXM4-80GB", {}).name


def test_a_blank_product_is_the_unknown_model() -> None:
    assert describe_model(" ", {"alias": [""]}) == UNKNOWN_MODEL


def test_memory_table_is_keyed_by_canonical_names() -> None:
    assert [name for name in PRODUCT_MEMORY_MIB if canonical_name(name) != name] == []


A100 = describe_model("NVIDIA-A100-SXM4-80GB", {"ampere": ["A100-SXM4-80GB"]})
T4 = describe_model("Tesla-T4", {})


@pytest.mark.parametrize(
    ("include", "exclude", "allowed"),
    [
        pytest.param(None, None, [True, True, True], id="no wish"),
        pytest.param("a100", None, [True, False, False], id="include"),
        pytest.param("A100", None, [True, False, False], id="include in capitals"),
        pytest.param("a100|t4", None, [True, True, False], id="alternatives"),
        pytest.param("^a100 sxm4", None, [True, False, False], id="with spaces"),
        pytest.param("^nvidia-a100-sxm4-80gb$", None, [True, False, False], id="the whole label, as Genius matches it"),
        pytest.param("^ampere$", None, [True, False, False], id="alias"),
        pytest.param(".*", None, [True, True, False], id="an unknown model satisfies no include"),
        pytest.param(None, "a100", [False, True, False], id="exclude: unknown may be an a100"),
        pytest.param(None, "ampere", [False, True, False], id="exclude by alias"),
        pytest.param("a100|t4", "t4", [True, False, False], id="both"),
    ],
)
def test_models_allowed(include: str | None, exclude: str | None, allowed: list[bool]) -> None:
    mask = models_allowed(
        [A100, T4, UNKNOWN_MODEL], pattern(include) if include else None, pattern(exclude) if exclude else None
    )
    assert mask.tolist() == allowed


def test_patterns_are_equal_by_text() -> None:
    assert pattern("a100") == pattern("a100")
    assert hash(pattern("a100")) == hash(pattern("a100"))
    assert pattern("a100") != pattern("A100")


@pytest.mark.parametrize(
    "product",
    [
        *("NVIDIA-A40", "NVIDIA-A16", "NVIDIA-A2", "NVIDIA-A10G", "NVIDIA-A800-SXM4-80GB", "NVIDIA-L4", "NVIDIA-L40"),
        *("NVIDIA-L40S", "NVIDIA-L20", "NVIDIA-H20", "NVIDIA-H100-NVL", "NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3"),
        *("NVIDIA-H200", "NVIDIA-H200-NVL", "NVIDIA-H800", "NVIDIA-GH200-480GB", "NVIDIA-B200", "NVIDIA-GB200"),
        *("NVIDIA-B300-SXM6-AC", "NVIDIA-GB300", "Tesla-P40", "Tesla-V100S-PCIE-32GB", "NVIDIA-RTX-A6000"),
        *("NVIDIA-RTX-6000-Ada-Generation", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "Quadro-RTX-8000"),
        *("NVIDIA-TITAN-RTX", "NVIDIA-GeForce-RTX-4090", "NVIDIA-GeForce-GTX-1070-Ti", "NVIDIA GeForce RTX 5090"),
    ],
)
def test_g7_the_table_has_what_nvidia_sells(product: str) -> None:
    """By the labels that GPU Feature Discovery writes, or DCGM."""
    assert canonical_name(product) in PRODUCTS


def test_products_are_of_this_world() -> None:
    """What a slip of a digit would break; encoders alone may be none."""
    for name, product in PRODUCTS.items():
        assert 8 <= product.multiprocessors <= 200, name
        assert 1 <= product.decoders <= 8, name
        assert 0 <= product.encoders <= 4, name
        assert 100 <= product.bandwidth_gb_s <= 10_000, name
        assert 50 <= product.power_limit_w <= 1500, name
        assert product.memory_mib == 0 or 6000 <= product.memory_mib <= 300_000, name
    for smaller, larger in (("t4", "a10"), ("a30", "a100-80gb-pcie"), ("rtx-4080", "rtx-4090"), ("h100-pcie", "h200")):
        assert all(a <= b for a, b in zip(PRODUCTS[smaller], PRODUCTS[larger], strict=True) if a and b)
