"""Heads that estimators make by name (`likelihood`, `loss`), for tests below the estimators."""

from skuq.networks import _heads, _mixture_heads, _nomu

__all__ = [
    "CategoricalHead",
    "GaussianMixtureHead",
    "NomuHead",
    "PackedHead",
    "QuantileHead",
    "SquaredErrorHead",
    "StudentTHead",
    "build_nomu",
]

CategoricalHead, SquaredErrorHead = _heads.CategoricalHead, _heads.SquaredErrorHead
StudentTHead, QuantileHead = _heads.StudentTHead, _heads.QuantileHead
GaussianMixtureHead, PackedHead = _mixture_heads.GaussianMixtureHead, _mixture_heads.PackedHead
NomuHead, build_nomu = _nomu.NomuHead, _nomu.build_nomu
