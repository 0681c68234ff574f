from ._band import PredictionBandDisplay as PredictionBandDisplay
from ._band import RetentionDisplay as RetentionDisplay
from ._calibration_plots import CoverageWidthDisplay as CoverageWidthDisplay
from ._calibration_plots import QuantileCalibrationDisplay as QuantileCalibrationDisplay
from ._history import SearchHistoryDisplay as SearchHistoryDisplay
from ._team_plots import TeamDisplay as TeamDisplay
