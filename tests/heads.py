"""Heads, spaces and networks that estimators make of names, for tests below the estimators."""

from skuq.networks import _dense, _given_spaces, _heads, _mixture_heads, _nomu, _tabular

CategoricalHead, SquaredErrorHead = _heads.CategoricalHead, _heads.SquaredErrorHead
GaussianMixtureHead = _mixture_heads.GaussianMixtureHead
NomuHead, build_nomu, READOUTS = _nomu.NomuHead, _nomu.build_nomu, _nomu.READOUTS
WidthDepthSpace, build_mlp = _dense.WidthDepthSpace, _dense.build_mlp
build_tabular = _tabular.build_tabular
resolve_search_space = _given_spaces.resolve_search_space
