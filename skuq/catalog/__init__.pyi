from ._catalog import Catalog as Catalog
from ._folder import CatalogFolder as CatalogFolder
from ._records import Member as Member
from ._records import TrialRecord as TrialRecord
