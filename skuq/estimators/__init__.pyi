from ._base import UncertaintyClassifier as UncertaintyClassifier
from ._base import UncertaintyRegressor as UncertaintyRegressor
