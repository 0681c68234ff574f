from . import bayesopt as bayesopt
from . import catalog as catalog
from . import ensembles as ensembles
from . import estimators as estimators
from . import exceptions as exceptions
from . import metrics as metrics
from . import networks as networks
from . import persistence as persistence
from . import plotting as plotting
from . import predictive as predictive
from . import search as search
from . import tables as tables
from . import training as training
from ._utils._environment import show_versions as show_versions
from .estimators._base import all_estimators as all_estimators
from .estimators._calibration._calibrated import (
    CalibratedUncertaintyClassifier as CalibratedUncertaintyClassifier,
)
from .estimators._calibration._calibrated import (
    CalibratedUncertaintyRegressor as CalibratedUncertaintyRegressor,
)
from .estimators._calibration._hq import HQEnsembleSelector as HQEnsembleSelector
from .estimators._calibration._pipeline import UncertaintyPipeline as UncertaintyPipeline
from .estimators._calibration._pipeline import make_pipeline as make_pipeline
from .estimators._ensembles._deep import DeepEnsembleClassifier as DeepEnsembleClassifier
from .estimators._ensembles._deep import DeepEnsembleRegressor as DeepEnsembleRegressor
from .estimators._ensembles._deep import MCDropoutClassifier as MCDropoutClassifier
from .estimators._ensembles._deep import MCDropoutRegressor as MCDropoutRegressor
from .estimators._ensembles._hyper import HyperDeepEnsembleClassifier as HyperDeepEnsembleClassifier
from .estimators._ensembles._hyper import HyperDeepEnsembleRegressor as HyperDeepEnsembleRegressor
from .estimators._ensembles._tabular import TabularEnsembleClassifier as TabularEnsembleClassifier
from .estimators._ensembles._tabular import TabularEnsembleRegressor as TabularEnsembleRegressor
from .estimators._nomu._regressor import NOMURegressor as NOMURegressor
from .estimators._operators._regressors import NEONRegressor as NEONRegressor
from .estimators._operators._regressors import (
    OperatorEnsembleRegressor as OperatorEnsembleRegressor,
)
from .estimators._searches._autodeuq import AutoDEUQClassifier as AutoDEUQClassifier
from .estimators._searches._autodeuq import AutoDEUQRegressor as AutoDEUQRegressor
from .estimators._searches._nes import NESClassifier as NESClassifier
from .estimators._searches._nes import NESRegressor as NESRegressor
from .persistence._save import load as load
from .persistence._save import save as save

__version__: str
