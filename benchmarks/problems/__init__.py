"""Problems that only benchmarks use."""

from problems.bnn import BNNFunction, make_bnn_function
from problems.corruptions import corrupt_images, corrupt_table
from problems.functions import make_function, make_scarce_regression
from problems.operators import OPERATOR_PROBLEMS, make_operator_problem
from problems.solar import load_solar_irradiance

__all__ = [
    "OPERATOR_PROBLEMS",
    "BNNFunction",
    "corrupt_images",
    "corrupt_table",
    "load_solar_irradiance",
    "make_bnn_function",
    "make_function",
    "make_operator_problem",
    "make_scarce_regression",
]
