"""Heads, spaces and networks that estimators make of names, for tests below the estimators."""

from skuq.estimators.tabular import _preset as _tuned_space
from skuq.networks import _dense, _given_spaces, _heads
from skuq.networks import _nomu_network as _nomu
from skuq.networks import _tabular_network as _tabular

CategoricalHead, SquaredErrorHead = _heads.CategoricalHead, _heads.SquaredErrorHead
GaussianMixtureHead = _heads.GaussianMixtureHead
NomuHead, READOUTS = _heads.NomuHead, _nomu.READOUTS
WidthDepthSpace, build_mlp = _dense.WidthDepthSpace, _dense.build_mlp
build_tabular, resolve_search_space = _tabular.build_tabular, _given_spaces.resolve_search_space
class_recipes = _tuned_space.class_recipes


def build_nomu(input_shape, n_outputs, *, l2=0.0, side_l2=0.0, given=None, sample=None, **settings):
    """NOMU's network, by the settings of `NOMUNetwork`."""
    loss = _nomu.NOMULoss(l2=l2, side_l2=side_l2)
    parts = NomuHead(n_outputs), _nomu.NOMUNetwork(**settings), loss
    return _nomu.build_nomu(input_shape, *parts, given=given, sample=sample)


def bound_tabular_space(x, categories=None, n_rows=None, **settings):
    """The tuned space of tabular networks, for rows x."""
    given = x, categories or {}, None
    return _tuned_space.TunedSpace(*given, n_rows=n_rows or len(x), **settings)
