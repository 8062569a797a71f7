"""The part of its GPU's compute that a MIG device has."""

from extender.core.resources.mig import mig_slices


def test_slices_of_a_profile() -> None:
    for profile, model, slices in (
        ("1g.5gb", "", (1, 7)),
        ("7g.80gb", "NVIDIA H100 80GB HBM3", (7, 7)),
        ("3g.20gb.me", "a100-sxm4-40gb", (3, 7)),
        ("1g.6gb", "", (1, 4)),
        ("1g.6gb+me", "", (1, 4)),  # as drivers write it
        ("1g.6gb.me", "", (1, 4)),  # as the device plugin does
        ("2g.48gb-me", "", (2, 4)),
        ("1g.24gb", "NVIDIA GH200 480GB", (1, 7)),
        ("1g.24gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition", (1, 4)),
        ("1g.24gb", "rtx-pro-6000-blackwell-server-edition", (1, 4)),
        ("", "NVIDIA A30", (1, 4)),
        ("7g.80gb", "a30", (4, 4)),
        ("2c.3g.20gb", "", (2, 7)),
        ("nonsense", "", (1, 7)),
        ("9g.80gb", "", (1, 7)),
        ("", "", (1, 7)),
    ):
        assert mig_slices(profile, model) == slices, profile
