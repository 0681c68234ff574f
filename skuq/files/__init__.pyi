from ._save import dumps as dumps
from ._save import loads as loads
