from ._calibration import QuantileCalibrationDisplay as QuantileCalibrationDisplay
from ._coverage import CoverageWidthDisplay as CoverageWidthDisplay
from ._errors import PredictionBandDisplay as PredictionBandDisplay
from ._errors import RetentionDisplay as RetentionDisplay
from ._history import SearchHistoryDisplay as SearchHistoryDisplay
from ._members import TeamDisplay as TeamDisplay
