from ._preprocessing import TablePreprocessor as TablePreprocessor
from ._splits import TrainingData as TrainingData
from ._target_transforms import TargetTransform as TargetTransform
