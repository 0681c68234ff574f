from ._job import TrainingJob as TrainingJob
from ._predict import predict_members as predict_members
from ._recipe import Recipe as Recipe
from ._recipe import Training as Training
from ._train import TrainingRun as TrainingRun
from ._train import cache_compiled_programs as cache_compiled_programs
from ._train import train as train
