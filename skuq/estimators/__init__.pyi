from ._base import UncertaintyClassifier as UncertaintyClassifier
from ._base import UncertaintyRegressor as UncertaintyRegressor
from ._base import all_estimators as all_estimators
from ._calibration._calibrated import (
    CalibratedUncertaintyClassifier as CalibratedUncertaintyClassifier,
)
from ._calibration._calibrated import (
    CalibratedUncertaintyRegressor as CalibratedUncertaintyRegressor,
)
from ._calibration._hq import HQEnsembleSelector as HQEnsembleSelector
from ._calibration._pipeline import UncertaintyPipeline as UncertaintyPipeline
from ._calibration._pipeline import make_pipeline as make_pipeline
from ._ensembles._deep import DeepEnsembleClassifier as DeepEnsembleClassifier
from ._ensembles._deep import DeepEnsembleRegressor as DeepEnsembleRegressor
from ._ensembles._hyper import HyperDeepEnsembleClassifier as HyperDeepEnsembleClassifier
from ._ensembles._hyper import HyperDeepEnsembleRegressor as HyperDeepEnsembleRegressor
from ._ensembles._mc_dropout import MCDropoutClassifier as MCDropoutClassifier
from ._ensembles._mc_dropout import MCDropoutRegressor as MCDropoutRegressor
from ._ensembles._tabular import TabularEnsembleClassifier as TabularEnsembleClassifier
from ._ensembles._tabular import TabularEnsembleRegressor as TabularEnsembleRegressor
from ._nomu._regressor import NOMURegressor as NOMURegressor
from ._operators._regressors import NEONRegressor as NEONRegressor
from ._operators._regressors import OperatorEnsembleRegressor as OperatorEnsembleRegressor
from ._searches._autodeuq import AutoDEUQClassifier as AutoDEUQClassifier
from ._searches._autodeuq import AutoDEUQRegressor as AutoDEUQRegressor
from ._searches._nes import NESClassifier as NESClassifier
from ._searches._nes import NESRegressor as NESRegressor
