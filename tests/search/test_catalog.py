import numpy as np
import pytest

from skuq.networks import Member
from skuq.search import Catalog, TrialRecord


def member(score, seed=1):
    history = {"loss": np.array([3.0, 2.0]), "val_loss": np.array([score + 1, score]),
               "learning_rate": np.array([0.1, 0.1])}  # fmt: skip
    return Member("{}", np.ones(4, "float32"), (), history, 1, np.zeros((3, 2)), seed, 0.1, "graph")


@pytest.fixture
def catalog():
    no_luck = TrialRecord(1, {"a": 3}, status="failed", message="no luck")
    scores = [(2, 1, 0.5), (0, 2, 0.7)]
    done = [TrialRecord(n, {"a": a}, score=s, result=member(s)) for n, a, s in scores]
    return Catalog([*done, no_luck])


def test_catalog_of_trials_and_members(catalog):
    assert [record.trial_number for record in catalog] == [0, 1, 2]
    np.testing.assert_array_equal(catalog.completed, [0, 2])
    assert repr(catalog) == "<Catalog of 3 trials, 2 completed>"
    assert catalog.member(2).score == 0.5
    with pytest.raises(LookupError, match="Trial 1 has no member: no luck"):
        catalog.member(1)
    small = catalog.keep_arrays_of([2])
    assert small.member(0).weights is None and small.member(0).score == 0.7
    assert small.member(2).weights is not None
    assert catalog.member(0).weights is not None  # the original is as it was


def test_to_frame(catalog):
    frame = catalog.to_frame()
    assert frame["status"].tolist() == ["completed", "failed", "completed"]
    assert frame["a"].tolist() == [2, 3, 1]
    assert frame["best_epoch"].tolist() == [1, -1, 1]
    assert frame["message"][1] == "no luck"
    configuration = {"score": 7, "message": "hello", "units": 8}
    (row,) = Catalog([TrialRecord(0, configuration, score=0.5)]).to_frame().to_dict("records")
    assert (row["score"], row["decision_score"], row["units"]) == (0.5, 7, 8)
    assert (row["message"], row["decision_message"]) == ("", "hello")
