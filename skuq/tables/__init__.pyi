from ._preprocessing import TablePreprocessor as TablePreprocessor
from ._splits import TrainingData as TrainingData
