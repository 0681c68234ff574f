from ._corruptions import corrupt_table as corrupt_table
from ._operator_problems import make_operator_problem as make_operator_problem
