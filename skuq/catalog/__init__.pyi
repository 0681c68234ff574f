from ._catalog import Catalog as Catalog
from ._folder import CatalogFolder as CatalogFolder
from ._records import FoldedMember as FoldedMember
from ._records import HeldOut as HeldOut
from ._records import Member as Member
from ._records import TrialBudget as TrialBudget
from ._records import TrialOutcome as TrialOutcome
from ._records import TrialRecord as TrialRecord
