"""Problems that only benchmarks use."""

from problems.bnn import BNNFunction, make_bnn_function
from problems.corruptions import corrupt_images
from problems.functions import make_function, make_scarce_regression
from problems.operators import OPERATOR_PROBLEMS, make_operator_problem

__all__ = [
    "OPERATOR_PROBLEMS",
    "BNNFunction",
    "corrupt_images",
    "make_bnn_function",
    "make_function",
    "make_operator_problem",
    "make_scarce_regression",
]
