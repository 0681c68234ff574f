"""Data of the papers: synthetic problems, and loaders of real sets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_bnn": ["BNNFunction", "make_bnn_function"],
        "_functions": [
            "FUNCTIONS_1D",
            "FUNCTIONS_2D",
            "FUNCTIONS_ND",
            "SyntheticFunction",
            "make_function",
            "make_scarce_regression",
        ],
        "_image_corruptions": ["TEST_CORRUPTIONS", "VALIDATION_CORRUPTIONS", "corrupt_images"],
        "_interferometer": ["InterferometerRuns", "load_interferometer"],
        "_operator_problems": ["OPERATOR_PROBLEMS", "OperatorProblem", "make_operator_problem"],
        "_solar": ["load_solar_irradiance"],
        "_table_corruptions": ["TABLE_CORRUPTIONS", "corrupt_table"],
        "_toy": ["make_gapped_sine"],
    },
)
