from ._preprocessing import TablePreprocessor as TablePreprocessor
from ._scaling import ImageScaling as ImageScaling
from ._scaling import NoScaling as NoScaling
from ._scaling import RobustScaling as RobustScaling
from ._scaling import Scaling as Scaling
from ._splits import split_rows as split_rows
from ._target_transforms import TargetTransform as TargetTransform
from ._training_data import TrainingData as TrainingData
