from ._corruptions import corrupt_images as corrupt_images
from ._corruptions import corrupt_table as corrupt_table
from ._functions import make_function as make_function
from ._functions import make_gapped_sine as make_gapped_sine
from ._functions import make_scarce_regression as make_scarce_regression
from ._operator_problems import make_operator_problem as make_operator_problem
