"""Fréchet distances against closed forms, and the feature networks."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from idode.data import load
from idode.data.memory import from_arrays
from idode.errors import InputError
from idode.sampling.features import digits_features, inception_features, pixel_features
from idode.sampling.fid import (
    FeatureStatistics,
    FIDReference,
    fid,
    frechet_distance,
    statistics_of,
)


def normals(n: int, d: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64)


def with_moments(mean: Tensor, covariance: Tensor, n: int = 500, seed: int = 0) -> Tensor:
    """Features whose sample mean and covariance are exactly these."""
    white = normals(n, len(mean), seed)
    white = white - white.mean(0)
    white = white @ torch.linalg.inv(torch.linalg.cholesky(white.T @ white / (n - 1))).T
    return mean + white @ torch.linalg.cholesky(covariance).T


def rotation(d: int, seed: int) -> Tensor:
    return torch.linalg.qr(normals(d, d, seed))[0]


class TestDistance:
    def test_of_normals_with_common_axes_is_the_closed_form(self) -> None:
        turn = rotation(4, 1)
        a, b = torch.tensor([4.0, 1.0, 0.25, 2.0]).double(), torch.tensor([1.0, 1, 4, 9]).double()
        shift = torch.tensor([1.0, -2.0, 0.5, 0.0]).double()
        first = with_moments(torch.zeros(4).double(), turn @ torch.diag(a) @ turn.T)
        second = with_moments(shift, turn @ torch.diag(b) @ turn.T, n=300, seed=2)
        truth = float(shift.square().sum() + (a.sqrt() - b.sqrt()).square().sum())
        assert frechet_distance(first, second) == pytest.approx(truth, rel=1e-10)
        assert frechet_distance(second, first) == pytest.approx(truth, rel=1e-10)

    def test_in_two_dimensions_is_the_closed_form_without_common_axes(self) -> None:
        """Of a 2x2 product, tr of the root is sqrt(tr + 2 sqrt(det))."""
        a = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
        b = torch.tensor([[0.5, -0.3], [-0.3, 3.0]], dtype=torch.float64)
        zero = torch.zeros(2, dtype=torch.float64)
        product = a @ b
        root = math.sqrt(torch.trace(product) + 2 * math.sqrt(torch.linalg.det(product)))
        truth = float(torch.trace(a) + torch.trace(b)) - 2 * root
        found = frechet_distance(with_moments(zero, a), with_moments(zero, b, seed=3))
        assert found == pytest.approx(truth, rel=1e-10)

    def test_is_zero_to_itself_even_with_fewer_samples_than_dimensions(self) -> None:
        """A covariance of rank 9 in 200 dimensions: the root of rounding would show here."""
        features = 100 * normals(10, 200, 0)
        assert frechet_distance(features, features) < 1e-8 * float(features.square().sum())
        assert frechet_distance(features, features + 1) == pytest.approx(200, rel=1e-8)

    def test_refuses_what_cannot_be_compared(self) -> None:
        for a, b, said in (
            (normals(9, 3, 0), normals(9, 4, 0), "cannot be compared"),
            (normals(1, 3, 0), normals(9, 3, 0), "at least 2 samples"),
            (normals(9, 3, 0) * math.nan, normals(9, 3, 0), "not finite"),
            (torch.zeros(3), normals(9, 3, 0), r"must be \(N, D\)"),
        ):
            with pytest.raises(InputError, match=said):
                frechet_distance(a, b)


class TestStatistics:
    def test_batches_give_what_the_whole_gives_far_from_zero(self) -> None:
        """Sums of squares would lose all digits of a variance of 1 at a mean of a million."""
        features = 1e6 + normals(103, 5, 0)
        streamed = statistics_of(features, lambda rows: rows, batch_size=10)
        assert streamed.count == 103
        torch.testing.assert_close(streamed.mean, features.mean(0), rtol=1e-14, atol=0)
        torch.testing.assert_close(
            streamed.covariance, torch.cov(features.T), rtol=1e-7, atol=1e-8
        )

    def test_a_saved_file_reads_back_bit_for_bit(self, tmp_path: Path) -> None:
        made = FeatureStatistics.of(normals(20, 4, 0))
        path = tmp_path / "deep" / "a.npz"
        made.save(path)
        again = FeatureStatistics.load(path)
        assert again.count == 20
        assert torch.equal(again.mean, made.mean)
        assert torch.equal(again.scatter, made.scatter)
        assert [p.name for p in path.parent.iterdir()] == ["a.npz"]

    def test_a_file_that_is_none_is_refused(self, tmp_path: Path) -> None:
        good = {"count": 3, "mean": np.zeros(2), "scatter": np.eye(2)}
        bad = {
            "missing": {"mean": np.zeros(2)},
            "shape": {**good, "scatter": np.eye(3)},
            "nan": {**good, "mean": np.full(2, np.nan)},
            "pickled": {**good, "mean": np.array([{}, {}], dtype=object)},
            "count": {**good, "count": 0},
        }
        for name, arrays in bad.items():
            np.savez(tmp_path / f"{name}.npz", **arrays)
        (tmp_path / "text.npz").write_text("no")
        (tmp_path / "empty.npz").write_bytes(b"")
        for name in (*bad, "text", "empty", "absent"):
            with pytest.raises(InputError, match="make it again"):
                FeatureStatistics.load(tmp_path / f"{name}.npz")

    def test_different_networks_are_not_merged(self) -> None:
        a, b = FeatureStatistics.of(normals(4, 3, 0)), FeatureStatistics.of(normals(4, 2, 0))
        with pytest.raises(InputError, match="different networks"):
            a.merged(b)
        with pytest.raises(InputError, match="no images"):
            statistics_of(torch.zeros(0, 1, 8, 8), digits_features())


class TestDigits:
    def test_real_digits_are_near_and_noise_is_far(self) -> None:
        data, features = load("digits"), digits_features()
        real = fid(data.test[:148], data.test[148:], features)
        noise = np.random.default_rng(0).integers(0, 17, (149, 1, 8, 8), dtype=np.uint8)
        blurred = ((data.test[148:].astype(int) + noise // 4).clip(0, 16)).astype(np.uint8)
        far = fid(noise, data.test[:148], features)
        assert far > 8 * real
        assert real < fid(blurred, data.test[:148], features) < far

    def test_statistics_may_stand_for_the_reference(self) -> None:
        data, features = load("digits"), digits_features()
        known = statistics_of(data.test, features)
        direct = fid(data.train[:200], data.test, features)
        assert fid(data.train[:200], known, features) == pytest.approx(direct, rel=1e-12)
        assert digits_features() is features

    @pytest.mark.parametrize("dtype", ["<u2", ">u2", ">i4", ">i8"])
    def test_integers_of_any_kind_are_the_same_images(self, dtype: str) -> None:
        rows, features = load("digits").test[:40], digits_features()
        usual = statistics_of(rows, features)
        found = statistics_of(rows.astype(dtype), features)
        assert torch.equal(found.scatter, usual.scatter)

    def test_training_it_again_gives_the_same_network(self) -> None:
        pixels = torch.from_numpy(np.array(load("digits").test[:5]))
        before = digits_features()(pixels)
        digits_features.cache_clear()
        after = digits_features()(pixels)
        assert before.shape == (5, 32)
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)

    def test_other_images_are_refused(self) -> None:
        with pytest.raises(InputError, match="8x8 images of 17 levels"):
            digits_features()(torch.zeros(2, 1, 4, 4))
        with pytest.raises(InputError, match="8x8 images of 17 levels"):
            digits_features()(torch.full((2, 1, 8, 8), 255))


class TestReference:
    def test_of_the_digits_uses_their_own_features(self) -> None:
        data = load("digits")
        reference = FIDReference.for_data(data)
        direct = fid(data.test[:64], data.train, digits_features())
        found = reference.figures(data.test[:64])
        assert found["fid"] == pytest.approx(direct, rel=1e-12)
        assert found["fid_of_test_split"] == pytest.approx(reference.fid(data.test))
        assert (found["test_images"], found["fid_features"]) == (297, "digits")

    def test_of_other_images_keeps_inception_statistics_in_the_data_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        def features(pixels: Tensor) -> Tensor:
            calls.append(len(pixels))
            return pixels.double().flatten(1)[:, ::5]

        monkeypatch.setenv("IDODE_DATA", str(tmp_path))
        monkeypatch.setattr("idode.sampling.fid.inception_features", lambda *given: features)
        data = tiny.dataset()
        first = FIDReference.for_data(data)
        assert len(list((tmp_path / "features").iterdir())) == 2
        before = len(calls)
        second = FIDReference.for_data(data)
        assert len(calls) == before
        assert second.fid(data.test) == first.fid(data.test)

    def test_stored_statistics_are_of_the_same_data_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The hash is of the values, which other levels, splits and shapes may share."""
        monkeypatch.setenv("IDODE_DATA", str(tmp_path))
        rows, test = tiny.images(), tiny.images()[:2]
        shared = [
            from_arrays(rows[:40], rows[40:], 4),
            from_arrays(rows[:40], rows[40:], 16),
            from_arrays(rows[:8], rows[8:], 4),
            from_arrays(rows[:40].reshape(-1, 1, 2, 8), rows[40:].reshape(-1, 1, 2, 8), 4),
        ]
        assert len({data.identity.sha256 for data in shared}) == 1
        for data in shared:
            features = pixel_features(data.levels or 0)
            found = FIDReference(data, "pixels", features, stored=True)
            samples = test.reshape(-1, *data.shape)
            assert found.fid(samples) == fid(samples, data.train, features)
        kept = set((tmp_path / "features").iterdir())
        assert len(kept) == 4
        renamed = dataclasses.replace(shared[0].identity, name="renamed", version="other")
        again = dataclasses.replace(shared[0], identity=renamed)
        _ = FIDReference(again, "pixels", pixel_features(4), stored=True).train
        assert set((tmp_path / "features").iterdir()) == kept

    def test_continuous_data_has_none(self) -> None:
        data = tiny.dataset(np.zeros((20, 2), np.float32), levels=None)
        with pytest.raises(InputError, match="this data is continuous"):
            FIDReference.for_data(data)


class TestInception:
    """The library's part is imitated: what matters here is what is sent to it and said of it."""

    def install(self, monkeypatch: pytest.MonkeyPatch, extractor: object) -> None:
        module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
        module.FeatureExtractorInceptionV3 = extractor  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch_fidelity", types.ModuleType("torch_fidelity"))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def test_grey_levels_become_bytes_of_three_colours(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []

        class Extractor(torch.nn.Module):
            def __init__(self, name: str, wanted: list[str]) -> None:
                super().__init__()
                assert wanted == ["2048"]

            def forward(self, x: Tensor) -> tuple[Tensor]:
                seen.append(x)
                return (x.float().flatten(1),)

        self.install(monkeypatch, Extractor)
        features = inception_features(levels=17)
        assert features(torch.full((2, 1, 8, 8), 16)).shape == (2, 192)
        assert seen[0].dtype == torch.uint8
        assert seen[0].shape == (2, 3, 8, 8)
        assert (seen[0] == 255).all()
        with pytest.raises(InputError, match="1 or 3 colours"):
            features(torch.zeros(2, 64))

    def test_missing_weights_are_one_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def offline(name: str, wanted: list[str]) -> None:
            raise URLError("no route")

        self.install(monkeypatch, offline)
        with pytest.raises(InputError, match="cannot be downloaded"):
            inception_features(256)

    def test_a_torchvision_of_another_torch_is_one_sentence(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Broken(types.ModuleType):
            def __getattr__(self, name: str) -> object:
                raise RuntimeError("operator torchvision::nms does not exist")

        module = Broken("torch_fidelity.feature_extractor_inceptionv3")
        monkeypatch.setitem(sys.modules, "torch_fidelity", types.ModuleType("torch_fidelity"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        with pytest.raises(InputError, match="install the torchvision of your torch"):
            inception_features(256)

    def test_a_missing_library_is_one_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch_fidelity", None)
        name = "torch_fidelity.feature_extractor_inceptionv3"
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=r"install idode\[fid\]"):
            inception_features(256)
