"""Estimators by the rules of scikit-learn and PyOD, and densities against the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm, rankdata
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from idode.data import load
from idode.detection.separation import auroc
from idode.diffusion import exact
from idode.errors import InputError
from idode.ode.adams import Adams
from idode.sklearn import (
    DiffusionDensity,
    DiffusionOutlierDetector,
    PyODDetector,
    density,
    residual,
)
from idode.sklearn.columns import bend, fit_columns, unbend
from idode.sklearn.fitted import Corrected, Plain
from idode.sklearn.residual import Training, train_residual

DIGITS = np.asarray(load("digits").test)
MIXING = np.array([[1.0, 0.5, 0], [0, 1, 0.5], [0, 0, 1]])  # determinant 1
NORMAL = np.random.default_rng(0).normal(size=(400, 3)) @ MIXING
SKEWED = np.exp(NORMAL)
ONE = exact.mixture(
    torch.ones(1).double(), torch.zeros(1, 1).double(), torch.eye(1).double()[None]
)


def plain() -> DiffusionDensity:
    """A density without a network, which is exact and cheap."""
    return DiffusionDensity(max_steps=0)


@parametrize_with_checks([plain(), DiffusionOutlierDetector(max_steps=0)])
def test_the_rules_of_scikit_learn(estimator, check) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([DiffusionDensity(), DiffusionOutlierDetector()])
def test_the_rules_of_scikit_learn_with_a_network(estimator, check) -> None:
    check(estimator)


class TestDensity:
    def test_of_normal_rows_is_the_truth(self) -> None:
        """A normal fit loses its 9 parameters over 2 n nats; five times that is allowed."""
        new = np.random.default_rng(1).normal(size=(1000, 3))
        found = plain().fit(NORMAL).score_samples(new @ MIXING)
        truth = norm.logpdf(new).sum(1)
        assert np.abs(found - truth).mean() < 0.2
        assert 0 < truth.mean() - found.mean() < 5 * 9 / (2 * len(NORMAL))

    def test_new_units_change_it_by_their_log_jacobian(self) -> None:
        scale, shift = np.array([1e-3, 1.0, 5e4]), np.array([7.0, -3.0, 1e5])
        before, after = plain().fit(SKEWED), plain().fit(SKEWED * scale + shift)
        assert (before.columns_.power != 1).all()
        np.testing.assert_allclose(
            after.score_samples(SKEWED * scale + shift),
            before.score_samples(SKEWED) - np.log(scale).sum(),
            rtol=1e-6,
        )

    def test_integrates_to_one_over_skewed_columns(self) -> None:
        fitted = plain().fit(np.exp(0.5 * NORMAL[:, :2]))
        axis, step = np.linspace(-2, 18, 400, retstep=True)
        grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        assert abs(np.exp(fitted.score_samples(grid)).sum() * step**2 - 1) < 0.01
        assert fitted.score(grid) == pytest.approx(fitted.score_samples(grid).mean())  # a mean

    def test_columns_are_mapped_back(self) -> None:
        u, power = 3 * np.random.default_rng(2).normal(size=(50, 5)), np.linspace(0, 2, 5)
        bent, slope = bend(u, power)
        np.testing.assert_allclose(unbend(bent, power), u, rtol=1e-9)
        ahead, _ = bend(u + 1e-6, power)
        np.testing.assert_allclose((ahead - bent) / 1e-6, np.exp(slope), rtol=1e-4)
        columns = fit_columns(SKEWED)
        np.testing.assert_allclose(
            columns.backward(columns.forward(SKEWED)[0]), SKEWED, rtol=1e-8, atol=1e-8
        )

    def test_samples_follow_it_and_their_seed(self) -> None:
        fitted = plain().fit(NORMAL)
        drawn = fitted.sample(1000, random_state=0)
        np.testing.assert_array_equal(drawn, fitted.sample(1000, random_state=0))
        assert (drawn != fitted.sample(1000, random_state=1)).all()
        centred = NORMAL - NORMAL.mean(0)
        spread = centred[:, 0].std()
        assert kstest(drawn[:, 0] - NORMAL[:, 0].mean(), norm(scale=spread).cdf).pvalue > 1e-4
        np.testing.assert_allclose(np.cov(drawn.T), np.cov(NORMAL.T), atol=0.25)  # 5 sigma


def humps(count: int, seed: int) -> torch.Tensor:
    """Two normals of deviation 0.3 at -0.95 and 0.95; their variance is 1."""
    g = torch.Generator().manual_seed(seed)
    sides = 2 * torch.randint(2, (count, 1), generator=g) - 1
    return 0.95 * sides + 0.3 * torch.randn(count, 1, generator=g)


@pytest.fixture(scope="module")
def learned() -> Corrected:
    net = train_residual(ONE, humps(400, 0), humps(100, 1), Training(16, 1, 200))
    assert net is not None
    return Corrected(ONE, net.double(), Adams(steps=64))


class TestNetwork:
    """What a mixture of one normal misses of two humps, learned by a network."""

    def test_it_makes_new_rows_more_likely_and_stays_a_density(self, learned) -> None:
        new = humps(300, 2).double().numpy()
        assert learned.log_prob(new).mean() > Plain(ONE).log_prob(new).mean() + 0.1
        line, step = np.linspace(-6, 6, 201, retstep=True)
        assert abs(np.exp(learned.log_prob(line[:, None])).sum() * step - 1) < 0.01

    def test_its_samples_have_both_humps(self, learned) -> None:
        """One normal has 24% of its rows within 0.3 of the middle, the humps have 1.5%."""
        drawn = learned.sample(200, 0)
        assert (np.abs(drawn) < 0.3).mean() < 0.12
        assert 0.3 < (drawn > 0).mean() < 0.7

    @pytest.mark.parametrize(
        ("gains", "looks", "found"),
        [((1.0, 2.0), 2 + residual.PATIENCE, True), ((), residual.PATIENCE, False)],
    )
    def test_training_ends_where_held_out_rows_stop_improving(
        self, monkeypatch, gains: tuple[float, ...], looks: int, found: bool
    ) -> None:
        """A billion steps are allowed; from the look after the given gains on, there is none."""
        values = itertools.chain(gains, itertools.repeat(0.0))
        seen: list[float] = []
        monkeypatch.setattr(residual, "CHECK", 3)
        monkeypatch.setattr(
            residual._Look, "gain", lambda *args: seen.append(next(values)) or seen[-1]
        )
        net = train_residual(ONE, humps(40, 0), humps(20, 1), Training(8, 1, 10**9))
        assert (len(seen), net is not None) == (looks, found)

    @pytest.mark.parametrize(("gain", "kept"), [(1.0, True), (0.1, False), (-1.0, False)])
    def test_it_is_kept_if_held_out_rows_gain_more_than_the_error_of_the_gain(
        self, monkeypatch, gain: float, kept: bool
    ) -> None:
        """Half of the 60 rows gain two nats more, half two less: an error of 0.26."""

        class Moved(Plain):
            def log_prob(self, z: np.ndarray) -> np.ndarray:
                return super().log_prob(z) + gain + 2 * (-1.0) ** np.arange(len(z))

        monkeypatch.setattr(density, "train_residual", lambda *args: "a network")
        monkeypatch.setattr(density, "corrected", lambda mixture, *args: Moved(mixture))
        assert DiffusionDensity().fit(NORMAL).uses_network_ is kept


class TestOutliers:
    def test_signs_are_those_of_scikit_learn(self) -> None:
        found = DiffusionOutlierDetector(contamination=0.05, max_steps=0).fit(NORMAL)
        far = np.full((1, 3), 20.0)
        assert found.score_samples(far)[0] < found.score_samples(NORMAL).min()
        assert found.predict(far).tolist() == [-1]
        assert (found.predict(NORMAL) == -1).sum() == 0.05 * len(NORMAL)
        np.testing.assert_array_equal(
            found.decision_function(NORMAL), found.score_samples(NORMAL) - found.offset_
        )

    def test_images_are_taken_as_they_are_or_in_rows(self) -> None:
        rows = DIGITS.reshape(len(DIGITS), -1).astype(float)
        found = DiffusionOutlierDetector("pretrained:digits").fit(rows[:40])
        assert (found.predict(16 - rows[60:70]) == -1).all()
        own = found.fitted_
        np.testing.assert_allclose(
            found.score_samples(rows[60:64]), own.score_samples(DIGITS[60:64]), rtol=1e-6
        )
        with pytest.raises(InputError, match="grey images of 9x9 and the model is for grey"):
            own.score_samples(np.zeros((2, 1, 9, 9), np.uint8))

    def test_a_random_state_is_a_seed_or_a_generator(self) -> None:
        """The offset is the quantile of the half of the images that p-values are counted on."""
        states = (0, np.random.RandomState(0), 1)
        first, same, other = (
            DiffusionOutlierDetector("pretrained:digits", random_state=state).fit(DIGITS[:20])
            for state in states
        )
        assert first.offset_ == same.offset_ != other.offset_
        known = first.fitted_.detector.known
        assert len(known) == 10
        assert first.offset_ == np.quantile(-known, 0.1)


def contaminated(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows with a tenth of uniform ones, and their labels."""
    rng, outliers = np.random.default_rng(seed), count // 10
    usual = 5 + rng.normal(size=(count - outliers, 2))
    labels = np.repeat([0, 1], [count - outliers, outliers])
    return np.concatenate([usual, rng.uniform(-6, 6, (outliers, 2))]), labels


@pytest.fixture(scope="module")
def fitted() -> PyODDetector:
    return PyODDetector(contamination=0.1, max_steps=0).fit(contaminated(200, 0)[0])


class TestPyOD:
    """The pattern of PyOD's own tests: 200 rows with a tenth of outliers, 100 new ones."""

    def test_attributes(self, fitted) -> None:
        assert fitted.decision_scores_.shape == fitted.labels_.shape == (200,)
        assert fitted.labels_.sum() == 20
        assert (fitted.labels_ == (fitted.decision_scores_ > fitted.threshold_)).all()
        assert (fitted._mu, fitted._sigma) == (
            pytest.approx(fitted.decision_scores_.mean()),
            pytest.approx(fitted.decision_scores_.std()),
        )
        assert clone(fitted).get_params() == fitted.get_params()

    def test_labels_scores_and_chances(self, fitted) -> None:
        x, y = contaminated(100, 1)
        scores = fitted.decision_function(x)
        assert auroc(scores[y == 0], scores[y == 1]) > 0.8  # higher is worse; PyOD's own floor
        labels, sure = fitted.predict(x, return_confidence=True)
        assert set(labels) == {0, 1}
        assert ((sure >= 0) & (sure <= 1)).all()
        for method in ("linear", "unify"):
            chances = fitted.predict_proba(x, method=method)
            assert chances.shape == (100, 2)
            np.testing.assert_allclose(chances.sum(1), 1)
            assert chances.min() >= 0
        with pytest.raises(ValueError, match="no method called 'other'"):
            fitted.predict_proba(x, method="other")

    def test_ranks_keep_the_order(self, fitted) -> None:
        x, _ = contaminated(100, 1)
        ranks, shares = (fitted._predict_rank(x, normalized=n) for n in (False, True))
        np.testing.assert_allclose(rankdata(ranks), rankdata(fitted.decision_function(x)), atol=3)
        assert ranks.max() <= 200
        np.testing.assert_allclose(shares, ranks / 200)

    def test_labels_that_may_change_are_rejected(self, fitted) -> None:
        """None at T = 0; more with higher T; those kept are the labels of predict."""
        x, _ = contaminated(100, 1)
        few, many = (fitted.predict_with_rejection(x, T=t) for t in (2, 32))
        assert not (fitted.predict_with_rejection(x, T=0) == -2).any()
        assert 0 < (few == -2).sum() < (many == -2).sum() < 100
        assert (few == fitted.predict(x))[few != -2].all()
        _, (share, bound, cost) = fitted.predict_with_rejection(x, return_stats=True)
        assert abs(share - (fitted.predict_with_rejection(x) == -2).mean()) < bound - share
        assert 0 < share < bound < 1
        assert cost > 0

    def test_scores_of_known_labels(self) -> None:
        x, y = contaminated(100, 0)
        detector = PyODDetector(max_steps=0)
        assert detector.fit_predict_score(x, y) > 0.9
        assert detector.fit_predict_score(x, y, scoring="prc_n_score") > 0.7
        assert (detector.fit_predict(x) == detector.labels_).all()
        with pytest.raises(NotImplementedError, match="must be one of roc_auc_score, prc_n_score"):
            detector.fit_predict_score(x, y, scoring="other")
        with pytest.raises(InputError, match=r"y: labels must be 0 .* and 1 .*, got \[2, 3\]"):
            detector.fit_predict_score(x, y + 2)


@pytest.mark.parametrize(
    ("estimator", "x", "message"),
    [
        (plain(), np.full((5, 2), np.nan), "contains NaN"),
        (plain(), np.ones((1, 2)), "minimum of 3 is required"),
        (plain(), np.array([[1.0, 2], [1, 3], [1, 4]]), "column 0 has the same value in all 3"),
        (DiffusionDensity(validation_fraction=2), NORMAL, "must be between 0 and 1, got 2"),
        (DiffusionDensity(validation_fraction=0.9999), NORMAL[:100], "leaves 0 of 100 rows"),
        (DiffusionDensity(), NORMAL[:2], "minimum of 3 is required"),
        (DiffusionOutlierDetector(), NORMAL[:2], "minimum of 3 is required"),
        (DiffusionOutlierDetector(contamination=0.7), NORMAL, "at most 0.5, got 0.7"),
        (DiffusionOutlierDetector(contamination="auto"), NORMAL, "at most 0.5, got 'auto'"),
        (DiffusionOutlierDetector(), DIGITS[:5], "for images pass a trained model"),
        (DiffusionOutlierDetector("pretrained:digits"), DIGITS[:5], "at least 20"),
        (DiffusionOutlierDetector("pretrained:digits"), DIGITS[:, :, 1:], "grey images of 7x8"),
        (DiffusionOutlierDetector("pretrained:digits"), DIGITS * 9, "the model is for 0..16"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_in_a_sentence(estimator, x, message) -> None:
    with pytest.raises(ValueError) as caught:
        estimator.fit(x)
    assert message in str(caught.value)


def test_samples_are_counted_from_one() -> None:
    with pytest.raises(InputError, match="n_samples: must be at least 1, got 0"):
        plain().fit(NORMAL[:50]).sample(0)
