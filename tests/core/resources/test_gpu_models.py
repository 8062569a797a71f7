"""One GPU product has one canonical name and many names by which it may be requested."""

from extender.core.resources.gpu_models import UNKNOWN_MODEL, canonical_name, describe_model, models_allowed
from extender.core.vendors.registry import PRODUCT_MEMORY_MIB, PRODUCTS
from tests.core.builders import pattern


def test_canonical_names() -> None:
    for name, products in {
        "a100-sxm4-80gb": [
            *("NVIDIA-A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB-SHARED"),
            *("NVIDIA-A100-SXM4-80GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me-SHARED"),
        ],
        "t4": ["Tesla-T4", "NVIDIA-Tesla-T4"],
        "rtx-3090": ["NVIDIA GeForce RTX 3090"],
        "h100-pcie": ["  nvidia__h100  PCIe "],
        "nvidia": ["NVIDIA"],
        "": ["", "   "],
        "früchte-gpu": ["Früchte-GPU"],
    }.items():
        assert {canonical_name(product) for product in products} == {name}
    assert [name for name in PRODUCT_MEMORY_MIB if canonical_name(name) != name] == []


def test_patterns_match_the_label_the_canonical_name_spaces_and_aliases() -> None:
    aliases = {"Big": ["nvidia a100 sxm4 80gb"], "other": ["Tesla-T4"]}
    assert describe_model("NVIDIA-A100-SXM4-80GB-SHARED", aliases).names == (
        *("nvidia-a100-sxm4-80gb", "nvidia a100 sxm4 80gb", "a100-sxm4-80gb", "a100 sxm4 80gb", "big"),
    )
    assert describe_model(" ", {"alias": [""]}) == UNKNOWN_MODEL
    models = [describe_model("NVIDIA-A100-SXM4-80GB", aliases), describe_model("Tesla-T4", {}), UNKNOWN_MODEL]
    for include, exclude, allowed in (
        ("", "", [True, True, True]),
        ("A100", "", [True, False, False]),
        ("a100|t4", "", [True, True, False]),
        ("^a100 sxm4", "", [True, False, False]),
        ("^nvidia-a100-sxm4-80gb$", "", [True, False, False]),  # the whole label, like Genius
        ("^big$", "", [True, False, False]),
        (".*", "", [True, True, False]),
        ("", "a100", [False, True, False]),  # an unknown model may be an a100
        ("", "big", [False, True, False]),
        ("a100|t4", "t4", [True, False, False]),
    ):
        first, second = (pattern(text) if text else None for text in (include, exclude))
        assert models_allowed(models, first, second).tolist() == allowed
    assert pattern("a100") == pattern("a100") != pattern("A100")
    assert hash(pattern("a100")) == hash(pattern("a100"))


def test_g7_the_table_has_nvidias_products() -> None:
    """By the labels of GPU Feature Discovery, or DCGM."""
    sold = [
        *("NVIDIA-A40", "NVIDIA-A16", "NVIDIA-A2", "NVIDIA-A10G", "NVIDIA-A800-SXM4-80GB", "NVIDIA-L4", "NVIDIA-L40"),
        *("NVIDIA-L40S", "NVIDIA-L20", "NVIDIA-H20", "NVIDIA-H100-NVL", "NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3"),
        *("NVIDIA-H200", "NVIDIA-H200-NVL", "NVIDIA-H800", "NVIDIA-GH200-480GB", "NVIDIA-B200", "NVIDIA-GB200"),
        *("NVIDIA-B300-SXM6-AC", "NVIDIA-GB300", "Tesla-P40", "Tesla-V100S-PCIE-32GB", "NVIDIA-RTX-A6000"),
        *("NVIDIA-RTX-6000-Ada-Generation", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "Quadro-RTX-8000"),
        *("NVIDIA-TITAN-RTX", "NVIDIA-GeForce-RTX-4090", "NVIDIA-GeForce-GTX-1070-Ti", "NVIDIA GeForce RTX 5090"),
    ]
    assert [product for product in sold if canonical_name(product) not in PRODUCTS] == []


def test_products_have_plausible_data() -> None:
    """Finds wrong digits; only encoders may be 0."""
    for name, product in PRODUCTS.items():
        assert 8 <= product.multiprocessors <= 200, name
        assert 1 <= product.decoders <= 8, name
        assert 0 <= product.encoders <= 4, name
        assert 100 <= product.bandwidth_gb_s <= 10_000, name
        assert 50 <= product.power_limit_w <= 1500, name
        assert product.memory_mib == 0 or 6000 <= product.memory_mib <= 300_000, name
    for smaller, larger in (("t4", "a10"), ("a30", "a100-80gb-pcie"), ("rtx-4080", "rtx-4090"), ("h100-pcie", "h200")):
        assert all(a <= b for a, b in zip(PRODUCTS[smaller], PRODUCTS[larger], strict=True) if a and b)
