from . import bayesopt as bayesopt
from . import ensembles as ensembles
from . import estimators as estimators
from . import exceptions as exceptions
from . import files as files
from . import metrics as metrics
from . import model_selection as model_selection
from . import networks as networks
from . import plotting as plotting
from . import predictive as predictive
from . import search as search
from . import tables as tables
from . import training as training
from ._messages import show_versions as show_versions
from .estimators._base import all_estimators as all_estimators
from .estimators.methods._calibrated import (
    CalibratedUncertaintyClassifier as CalibratedUncertaintyClassifier,
)
from .estimators.methods._calibrated import (
    CalibratedUncertaintyRegressor as CalibratedUncertaintyRegressor,
)
from .estimators.methods._deep import DeepEnsembleClassifier as DeepEnsembleClassifier
from .estimators.methods._deep import DeepEnsembleRegressor as DeepEnsembleRegressor
from .estimators.methods._deep import HyperDeepEnsembleClassifier as HyperDeepEnsembleClassifier
from .estimators.methods._deep import HyperDeepEnsembleRegressor as HyperDeepEnsembleRegressor
from .estimators.methods._deep import MCDropoutClassifier as MCDropoutClassifier
from .estimators.methods._deep import MCDropoutRegressor as MCDropoutRegressor
from .estimators.methods._hq import HQEnsembleSelector as HQEnsembleSelector
from .estimators.methods._neon import NEONRegressor as NEONRegressor
from .estimators.methods._neon import OperatorEnsembleRegressor as OperatorEnsembleRegressor
from .estimators.methods._nomu import NOMURegressor as NOMURegressor
from .estimators.methods._pipeline import UncertaintyPipeline as UncertaintyPipeline
from .estimators.methods._pipeline import make_pipeline as make_pipeline
from .estimators.methods._searches import AutoDEUQClassifier as AutoDEUQClassifier
from .estimators.methods._searches import AutoDEUQRegressor as AutoDEUQRegressor
from .estimators.methods._searches import NESClassifier as NESClassifier
from .estimators.methods._searches import NESRegressor as NESRegressor
from .estimators.tabular._tabular_ensemble import (
    TabularEnsembleClassifier as TabularEnsembleClassifier,
)
from .estimators.tabular._tabular_ensemble import (
    TabularEnsembleRegressor as TabularEnsembleRegressor,
)
from .files._save import load as load
from .files._save import save as save

__version__: str
