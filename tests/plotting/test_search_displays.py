"""Displays of searches, members and teams."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from numpy.testing import assert_allclose
from scipy.stats import t as student
from tiers import cases
from training_data import FoldedMember, HeldOut

from skuq import plotting
from skuq.catalog import Catalog, TrialRecord
from skuq.ensembles import Selection, architecture_diversity, select_teams
from skuq.networks import DenseSpace
from skuq.plotting import CatalogDisplay, MemberDiversityDisplay, SearchHistoryDisplay, TeamDisplay
from skuq.predictive import CategoricalMixture, QuantileMixture


def make_catalog(n=30):
    """Trials whose score is decided by the learning rate alone; two failed."""
    rng = np.random.default_rng(0)
    records = []
    for k in range(n):
        configuration = {
            "learning_rate": float(10 ** rng.uniform(-4, -1)),
            "units": int(rng.integers(1, 5)) * 16,
            "activation": str(rng.choice(["relu", "tanh", "elu"])),
            "fixed": 1,
        }
        score = abs(np.log10(configuration["learning_rate"]) + 2)
        outcome = {"status": "failed", "message": "no"} if k in (1, 7) else {"score": score}
        member = SimpleNamespace(n_epochs=1, best_epoch=0)
        records.append(TrialRecord(k, configuration, seconds=0.5, result=member, **outcome))
    return Catalog(records)


def test_search_history_by_trial_and_time():
    catalog = make_catalog()
    frame = catalog.to_frame()
    display = SearchHistoryDisplay.from_catalog(catalog)
    best = frame["score"].fillna(np.inf).cummin()
    assert_allclose(display.line_.get_ydata(), best)
    assert display.failed_.get_xdata().tolist() == [1, 7]
    done = frame["score"].notna()
    n_shown = len(display.scatter_.get_offsets())
    n_beyond = 0 if display.beyond_ is None else len(display.beyond_.get_xdata())
    assert n_shown + n_beyond == done.sum()
    by_time = SearchHistoryDisplay.from_estimator(SimpleNamespace(catalog_=catalog), by="time")
    assert_allclose(by_time.line_.get_xdata(), 0.5 * np.arange(1, 31))


def test_the_share_of_training_is_no_decision():
    display = CatalogDisplay.from_catalog(make_catalog())
    assert list(display.configurations) == ["learning_rate", "units", "activation"]


def test_search_history_of_outliers_and_failures():
    display = SearchHistoryDisplay([1.0, 1.1, 1e9, 0.9, 1.2, 1.0]).plot()
    assert display.beyond_.get_xdata().tolist() == [2]
    assert display.ax_.get_ylim()[1] < 3
    assert display.failed_ is None
    display = SearchHistoryDisplay([np.nan, 2.0, 3.0]).plot()
    assert display.line_.get_xdata().tolist() == [1, 2]
    display = SearchHistoryDisplay([2.0, np.nan, 1.0], seconds=[3.0, np.nan, 4.0]).plot(by="time")
    assert display.line_.get_xdata().tolist() == [3, 3, 7]


def test_parallel_coordinates_put_values_where_they_belong():
    decisions = {"rate": [1e-4, 1e-2, 1e-3], "layer": ["128-relu", "16-relu", "64-relu"]}
    decisions |= {"skip": [0, 1, 0], "same": "x"}
    frame = pd.DataFrame({"status": "completed", "score": [3.0, 1.0, 2.0], **decisions})
    display = CatalogDisplay.from_catalog(frame)
    assert display.decisions_ == ["rate", "layer", "skip"]
    worst, middle, best = (segment[:, 1] for segment in display.lines_.get_segments())
    assert_allclose(worst, [0, 1, 0])
    assert_allclose(middle, [0.5, 0.5, 0], atol=1e-12)  # logarithms; 16 < 64 < 128
    assert_allclose(best, [1, 0, 1])
    assert display.lines_.get_array().tolist() == [3, 2, 1]
    assert [text.get_text() for text in display.ax_.get_xticklabels()][0] == "rate (log)"
    # Values stand just right of their axes.
    offsets = np.array([text.get_position()[0] for text in display.ax_.texts]) % 1
    assert len(offsets) > 6 and (offsets > 0).all() and (offsets < 0.1).all()


def test_importance_finds_the_decision_that_decides():
    model = SimpleNamespace(catalog_=make_catalog(60))
    display = CatalogDisplay.from_estimator(model, kind="importance")
    assert display.decisions_[0] == "learning_rate"
    means = display.importances["mean"]
    assert means["learning_rate"] > 5 * means.drop("learning_rate").abs().max()
    assert display.r2 > 0.5
    assert_allclose([bar.get_width() for bar in display.bars_], means)
    assert "fixed" not in display.decisions_


def test_parallel_coordinates_show_the_eight_most_important(rng):
    frame = pd.DataFrame(rng.random((20, 12)), columns=[f"d{k}" for k in range(12)])
    frame = frame.assign(status="completed", score=frame["d11"])
    display = CatalogDisplay.from_catalog(frame)
    assert len(display.decisions_) == 8 and "d11" in display.decisions_
    assert display.ax_.get_title() == "8 of 12 decisions, the most important"
    chosen = CatalogDisplay.from_catalog(frame, decisions=["d3", "d1"])
    assert chosen.decisions_ == ["d3", "d1"] and chosen.importances is None
    frame = frame.assign(score=rng.random(20))
    display = CatalogDisplay.from_catalog(frame, kind="importance")
    assert "importances are chance" in display.ax_.get_title()
    display = CatalogDisplay.from_catalog(frame)
    assert display.ax_.get_title() == "8 of 12 decisions, the first ones"
    assert display.decisions_ == [f"d{k}" for k in range(8)]


def test_missing_decisions_leave_gaps():
    decisions = {"units": [16, np.nan, 32], "norm": ["layer", None, "batch"], "none": np.nan}
    frame = pd.DataFrame({"status": "completed", "score": [3.0, 2.0, 1.0], **decisions})
    display = CatalogDisplay.from_catalog(frame)
    assert display.decisions_ == ["units", "norm"]
    heights = [path.vertices[:, 1] for path in display.lines_.get_paths()]
    assert_allclose(heights, [[0, 1], [np.nan, 0], [1, 0.5]])
    display.figure_.canvas.draw()


def test_members_far_apart_in_prediction_are_apart_in_the_picture(rng):
    centres = np.repeat([0.0, 50.0], 10)[:, None]
    groups = np.repeat(["a", "b"], 10)
    predictions = centres + rng.normal(size=(20, 30))
    display = MemberDiversityDisplay.from_predictions(predictions, groups=groups)
    first, second = (np.asarray(scatter.get_offsets()) for scatter in display.scatters_)
    spread = max(first.std(axis=0).max(), second.std(axis=0).max())
    assert np.linalg.norm(first.mean(axis=0) - second.mean(axis=0)) > 2 * spread
    faces = {colors.to_hex(scatter.get_facecolor()[0]) for scatter in display.scatters_}
    assert len(faces) == 2


def test_groups_of_members_can_be_tuples_of_any_length():
    predictions = np.random.default_rng(0).normal(size=(4, 9))
    groups = [(16,), (16,), (16, 8), (16, 8)]
    display = MemberDiversityDisplay.from_predictions(predictions, groups=groups)
    assert [len(scatter.get_offsets()) for scatter in display.scatters_] == [2, 2]
    texts = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert texts == ["(16,)", "(16, 8)"]


def test_networks_of_repeated_trials_are_a_group():
    network = SimpleNamespace(n_epochs=1, best_epoch=0)
    quantiles = np.sort(np.random.default_rng(0).normal(size=(5, 2, 6)), axis=1)
    folds, more = (FoldedMember((network,) * n, None, score=1.0) for n in (2, 3))
    model = SimpleNamespace(
        catalog_=Catalog([TrialRecord(k, result=folds) for k in range(3)]),
        selection_=Selection(np.array([2, 0]), np.full(2, 0.5)),
        refitted_={},
        repeated_={2: more},
        predict_distribution=lambda X: QuantileMixture(np.array([0.2, 0.8]), quantiles),
    )
    display = MemberDiversityDisplay.from_estimator(model, np.zeros((6, 1)))
    assert display.groups == ["trial 2"] * 3 + ["trial 0"] * 2


def test_distances_are_those_of_the_search_space():
    space = DenseSpace(n_nodes=1)
    parts = space.decisions()
    drawn = parts.architecture + parts.hyperparameters
    configurations = drawn.sample_many(np.random.default_rng(0), 4)
    records = [TrialRecord(k, c) for k, c in enumerate(configurations)]
    model = SimpleNamespace(
        decisions_=parts,
        selection_=Selection(np.array([3, 0, 2]), np.full(3, 1 / 3)),
        catalog_=Catalog(records, HeldOut(None, np.zeros((5, 1)), np.ones(5))),
    )
    display = MemberDiversityDisplay.from_estimator(model, kind="distance")
    vectors = parts.architecture.embed([configurations[k] for k in (3, 0, 2)])
    expected = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    assert_allclose(display.image_.get_array(), expected)
    assert display.diversity == architecture_diversity(vectors)
    assert display.ax_.get_xticklabels()[0].get_text() == "trial 3"


@pytest.fixture(scope="module")
def chosen():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=300)
    right = rng.random((6, 300)) < np.linspace(0.65, 0.8, 6)[:, None]
    return select_teams(np.where(right, y, 1 - y), y)


def _offsets(scatter):
    return np.asarray(scatter.get_offsets())


def test_teams_are_drawn_by_what_became_of_them(chosen):
    display = TeamDisplay.from_teams(chosen)
    teams = chosen.teams_.dropna()
    fates = {"alpha": ~teams["alpha"], "kmeans": teams["alpha"] & ~teams["kept"]}
    for fate, rows in {**fates, "kept": teams["kept"]}.items():
        scatter = display.scatters_[fate]
        assert_allclose(_offsets(scatter), teams.loc[rows, ["hq", "accuracy"]])
    selected = teams[teams["team"] == chosen.selected_].iloc[0]
    assert_allclose(np.ravel(display.selected_.get_data()), [selected["hq"], selected["accuracy"]])
    assert_allclose(display.best_.get_ydata(), chosen.accuracies_.max())
    assert_allclose(display.average_.get_ydata(), chosen.accuracies_.mean())
    assert display.colorbar_ is not None


def test_threshold_divides_teams_of_one_size(chosen):
    display = TeamDisplay.from_teams(chosen, size=3)
    (line,) = display.thresholds_
    at = line.get_xdata()[0]
    assert (_offsets(display.scatters_["kept"])[:, 0] < at).all()
    assert (_offsets(display.scatters_["kmeans"])[:, 0] >= at).all()
    assert display.colorbar_ is None
    assert not TeamDisplay.from_teams(chosen, size=3, score="q").thresholds_


def test_teams_by_q_with_the_mean_as_the_threshold(rng):
    y = rng.integers(0, 2, size=100)
    labels = np.where(rng.random((4, 100)) < 0.7, y, 1 - y)
    chosen = select_teams(labels, y, score="q", filters=("mean",))
    display = TeamDisplay.from_teams(chosen, score="q")
    (line,) = display.thresholds_
    assert_allclose(line.get_xdata(), chosen.teams_["q"].mean(), rtol=1e-3)
    assert set(display.scatters_) == {"mean", "kept"}
    proba = np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 6))
    model = SimpleNamespace(predict_distribution=lambda X: CategoricalMixture(proba))
    display = MemberDiversityDisplay.from_estimator(model, np.zeros((6, 1)))
    assert display.coordinates.shape == (4, 2)


def test_frame_of_teams_has_no_single_models(chosen):
    display = TeamDisplay.from_teams(chosen.teams_)
    assert display.best_ is display.average_ is display.selected_ is None
    assert not display.thresholds_


def test_regret_is_distance_of_the_best_so_far():
    values = {"a": [[5.0, np.nan, 3.0, 4.0], [2.0, 6.0, 2.0, 1.0], [9.0, 9.0, 9.0, 0.5]]}
    display = plotting.RegretDisplay.from_values(values, optimum=0.5)
    expected = np.array([[4.5, 4.5, 2.5, 2.5], [1.5, 1.5, 1.5, 0.5], [8.5, 8.5, 8.5, 0]])
    assert_allclose(display.curves["a"], expected)
    assert_allclose(display.lines_[0].get_ydata(), np.median(expected, axis=0))
    assert display.lines_[0].get_xdata().tolist() == [1, 2, 3, 4]
    assert display.ax_.get_yscale() == "log"


def test_regret_of_the_mean_has_its_confidence_interval():
    runs = np.array([[3.0, 2.0], [5.0, 2.0], [4.0, 2.0]])
    display = plotting.RegretDisplay.from_values({"a": -runs}, maximize=True, average="mean")
    assert_allclose(display.lines_[0].get_ydata(), [-4, -2])
    half = student.ppf(0.975, 2) * 1 / np.sqrt(3)
    ends = display.bands_[0].get_paths()[0].vertices[:, 1]
    assert_allclose([ends.min(), ends.max()], [-4 - half, -2 if half < 2 else -4 + half])
    assert display.ax_.get_ylabel() == "best value so far"


def test_regret_of_few_seeds():
    display = plotting.RegretDisplay.from_values({"a": [3.0, 1.0], "b": [2.0, 2.0, 1.5]})
    assert display.bands_ == [] and len(display.lines_) == 2
    display = plotting.RegretDisplay.from_values({"a": [1.3, 0.3]}, optimum=0.1 + 0.2)
    assert_allclose(display.curves["a"], [[1.0, 0.0]])
    assert display.curves["a"].min() == 0
    values = {name: np.ones((n, 2)) for name, n in (("a", 3), ("b", 5), ("c", 9))}
    title = plotting.RegretDisplay.from_values(values).ax_.get_legend().get_title().get_text()
    assert title == "median of 3 to 9 seeds, band holds 50% of them"


of_predictions = MemberDiversityDisplay.from_predictions
of_embeddings = MemberDiversityDisplay.from_embeddings


@cases(
    ("draw", "message"),
    (lambda c: SearchHistoryDisplay([np.nan]).plot(), "None of the 1 trials was completed"),
    (lambda c: SearchHistoryDisplay([1.0]).plot(by="time"), "seconds"),
    (lambda c: SearchHistoryDisplay([1.0]).plot(by="hour"), "`by` must be one of"),
    (lambda c: CatalogDisplay.from_catalog(pd.DataFrame()), "lacks the columns"),
    (lambda c: CatalogDisplay.from_catalog(make_catalog(), decisions=["x"]), "unknown"),
    (lambda c: CatalogDisplay.from_catalog(Catalog([TrialRecord(0, score=1.0)])), "no deci"),
    (lambda c: CatalogDisplay.from_catalog(make_catalog(9), kind="importance"), "at least 10"),
    (lambda c: CatalogDisplay.from_catalog(make_catalog()).plot(kind="importance"), "no `imp"),
    (lambda c: of_predictions(np.ones((2, 3))), "three members"),
    (lambda c: of_embeddings([1, 2]), "n_decisions"),
    (lambda c: MemberDiversityDisplay.from_estimator(c), "needs `X`"),
    (lambda c: MemberDiversityDisplay(distances=np.eye(2)).plot(kind="tsne"), "no data"),
    (lambda c: of_predictions(np.ones((4, 5))), "All members predict the same"),
    (lambda c: of_predictions([[1.0, np.nan], [0.0, 1.0], [2.0, 0.0]]), "finite"),
    (lambda c: of_predictions(np.eye(3), groups=[0]), "`groups` must be one for each of 3"),
    (lambda c: of_embeddings(np.eye(3), names=np.array(["a"])), "`names` must be one for each"),
    (lambda c: TeamDisplay.from_teams(c, size=9), "No team of size 9"),
    (lambda c: TeamDisplay.from_teams(c, score="x"), "`score` must be one of"),
    (lambda c: plotting.RegretDisplay.from_values({"a": [1.0]}, optimum=2), "than `optimum`"),
    (lambda c: plotting.RegretDisplay.from_values({"a": [1.0]}, interval=2), "interval"),
)
def test_search_displays_say_what_is_wrong_of_values(chosen, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(chosen)


@cases(
    ("draw", "message"),
    (lambda c: SearchHistoryDisplay.from_catalog([1]), "Catalog or its frame"),
    (lambda c: MemberDiversityDisplay.from_estimator(c, [[0]]), "predict_distribution"),
    (lambda c: MemberDiversityDisplay.from_estimator(c, kind="distance"), "AutoDEUQ"),
    (lambda c: TeamDisplay.from_teams([1]), "TeamSelection"),
    (lambda c: plotting.RegretDisplay.from_values([1.0]), "dict.*result.values for"),
    (lambda c: plotting.RegretDisplay.from_values({"a": [c]}), "such as `result.values`"),
)
def test_search_displays_say_what_is_wrong_of_other_kinds(chosen, draw, message):
    with pytest.raises(TypeError, match=message):
        draw(chosen)


def test_the_catalog_of_searches_in_one_another():
    inner = SimpleNamespace(catalog_=make_catalog())
    outer = SimpleNamespace(best_estimator_=SimpleNamespace(best_estimator_=inner))
    display = SearchHistoryDisplay.from_estimator(outer)
    assert len(display.scores) == len(make_catalog())
