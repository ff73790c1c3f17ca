"""The model as a module, conditions, and one sentence for wrong input in Python and the shell."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from how import settings
from torch import Tensor, nn

import idode
from idode.cli.main import main
from idode.diffusion.schedules import VariancePreserving, start_gamma
from idode.ode.adams import Adams
from idode.sampling.dpm import DPM

SHAPE, LEVELS = (1, 4, 4), 4


class Labelled(nn.Module):
    """A network that is told a class: it expects images as bright as their label."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([-0.5, 0.5]))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(labels)
        return x - self.bias[labels].reshape(-1, 1, 1, 1) * (1 - t).reshape(-1, 1, 1, 1)


def labelled(net: nn.Module | None = None) -> idode.DiffusionODE:
    return idode.DiffusionODE(
        net or Labelled(),
        VariancePreserving(),
        start_gamma(LEVELS),
        5.0,
        levels=LEVELS,
        shape=SHAPE,
    )


def images(n: int = 6) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, LEVELS, (n, *SHAPE), generator=g).to(torch.uint8)


class TestModule:
    def test_it_is_a_module_like_any_other(self) -> None:
        model = labelled()
        assert [name for name, _ in model.named_parameters()] == ["net.bias"]
        assert list(model.state_dict()) == ["net.bias"]
        assert (model.device.type, model.dtype) == ("cpu", torch.float32)
        assert model.to(torch.float64).dtype == torch.float64
        assert "gamma -4.97 to 5" in repr(model)
        assert "(net): Labelled()" in repr(model)

    def test_a_copy_and_a_pickle_give_the_same_velocity(self) -> None:
        model = labelled()
        x, gamma = torch.randn(2, *SHAPE), torch.tensor(0.3)
        labels = torch.tensor([0, 1])
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        others = (copy.deepcopy(model), torch.load(stored, weights_only=False))
        for other in others:
            assert torch.equal(other(x, gamma, labels=labels), model(x, gamma, labels=labels))
        with torch.no_grad():
            others[0].net.bias.add_(1.0)
        assert torch.equal(model.net.bias, torch.tensor([-0.5, 0.5]))

    def test_it_compiles(self) -> None:
        model = labelled()
        compiled = torch.compile(model, backend="eager")
        x, gamma, labels = torch.randn(2, *SHAPE), torch.tensor(0.3), torch.tensor([0, 1])
        torch.testing.assert_close(
            compiled(x, gamma, labels=labels), model(x, gamma, labels=labels)
        )

    def test_a_training_loop_of_ones_own_learns_from_the_loss(self) -> None:
        model, pixels, labels = labelled(), images(64), torch.zeros(64, dtype=torch.long)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []
        for step in range(30):
            g = torch.Generator().manual_seed(step)
            loss = model.loss(pixels, generator=g, labels=labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-5:]) < np.mean(losses[:5])
        assert model.net.bias[1] == 0.5  # no image of that class: no gradient

    def test_the_loss_is_the_diffusion_term_of_the_bound(self) -> None:
        model, pixels = labelled(), images(8)
        labels = torch.zeros(8, dtype=torch.long)
        bound = model.sde_bound(pixels, draws=512, labels=labels)
        draws = torch.stack(
            [
                model.loss(pixels, generator=torch.Generator().manual_seed(s), labels=labels)
                for s in range(256)
            ]
        ).detach()
        error = float(draws.std()) / 16
        assert float(draws.mean()) == pytest.approx(bound.diffusion, abs=4 * error)

    def test_the_states_have_the_dtype_of_the_model(self) -> None:
        seen: list[torch.dtype] = []

        class Watching(Labelled):
            def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
                seen.append(x.dtype)
                return super().forward(x, t, labels)

        model = labelled(Watching()).double()
        labels = torch.tensor([0, 1])
        quick = idode.LikelihoodSettings(solver=Adams(steps=4))
        model.bits_per_dim(images(2), quick, labels=labels)
        model.sde_bound(images(2), draws=2, labels=labels)
        model.sample(2, solver=Adams(steps=4), labels=labels)
        assert set(seen) == {torch.float64}

    @pytest.mark.parametrize("method", ["bits_per_dim", "sde_bound", "loss"])
    def test_images_of_another_shape_are_refused(self, method: str) -> None:
        wrong = images(2).permute(0, 2, 3, 1)
        with pytest.raises(idode.InputError, match=r"got data of shape .*: pass \(N, C, H, W\)"):
            getattr(labelled(), method)(wrong, labels=torch.tensor([0, 1]))

    def test_a_list_is_refused(self) -> None:
        for method in ("bits_per_dim", "sde_bound", "loss"):
            with pytest.raises(idode.InputError, match="must be a tensor or an array .* got list"):
                getattr(labelled(), method)([1, 2], labels=torch.tensor([0, 1]))

    def test_states_of_another_shape_are_refused(self) -> None:
        with pytest.raises(idode.InputError, match="the model is of samples of shape"):
            labelled().log_prob(torch.zeros(2, 5), labels=torch.tensor([0, 1]))

    def test_a_misspelt_argument_is_no_condition(self) -> None:
        model, x = labelled(), torch.zeros(1, *SHAPE)
        for call in (
            lambda: model.sample(2, bach_size=8),
            lambda: model.log_prob(x, labels=[1]),
            lambda: model.loss(images(2), labels=torch.tensor([0])),
            lambda: idode.encode(model, x, condition={"labels": torch.tensor([0, 1])}),
        ):
            with pytest.raises(idode.InputError, match="passed on to the network, so it must be"):
                call()


class TestCondition:
    """Labels stay with their images through pilot, batches, draws and finer grids."""

    labels = torch.tensor([0, 1, 1, 0, 1, 0])

    def test_bits_follow_the_labels_image_by_image(self) -> None:
        model, pixels = labelled(), images()
        how = settings(importance=3, batch_size=4, tolerance=0.05)
        found = model.bits_per_dim(pixels, how, labels=self.labels).per_image
        for i in range(6):
            same = self.labels == self.labels[i]
            alone = model.bits_per_dim(pixels, how, labels=torch.full((6,), int(self.labels[i])))
            torch.testing.assert_close(found[same], alone.per_image[same], atol=0.02, rtol=0)
        other = model.bits_per_dim(pixels, how, labels=1 - self.labels).per_image
        assert ((found - other).abs() > 0.05).all()

    def test_a_generative_classifier_finds_the_class(self) -> None:
        model = labelled()
        bright, dark = torch.full((1, *SHAPE), 3), torch.zeros((1, *SHAPE), dtype=torch.long)
        pixels = torch.cat([dark, bright])
        bits = torch.stack(
            [model.sde_bound(pixels, labels=torch.full((2,), k)).per_image for k in (0, 1)]
        )
        assert bits.argmin(0).tolist() == [0, 1]

    def test_samples_have_the_condition_of_their_row(self) -> None:
        drawn = labelled().sample(6, solver=DPM(10), labels=self.labels)
        assert (drawn.dtype, drawn.shape) == (torch.uint8, (6, *SHAPE))
        mean = drawn.double().mean((1, 2, 3))
        assert mean[self.labels == 1].min() > mean[self.labels == 0].max()

    def test_log_prob_passes_it_on(self) -> None:
        model, x = labelled(), torch.zeros(2, *SHAPE)
        how = {"solver": Adams(steps=40)}
        both = model.log_prob(x, **how, labels=torch.tensor([0, 1]))
        swapped = model.log_prob(x, **how, labels=torch.tensor([1, 0]))
        torch.testing.assert_close(both.flip(0), swapped)

    @pytest.mark.parametrize(
        "wrong", [torch.zeros(5, dtype=torch.long), torch.tensor(1), [0, 1, 1, 0, 1, 0]]
    )
    def test_a_condition_that_is_not_one_row_for_each_image(self, wrong: object) -> None:
        with pytest.raises(idode.InputError, match="one row for each of 6 samples"):
            labelled().bits_per_dim(images(), labels=wrong)


def test_arrays_and_tensors_give_the_same(tmp_path: Path) -> None:
    model, pixels = labelled(), images()
    labels = torch.zeros(6, dtype=torch.long)
    how = settings(tolerance=0.05)
    found = model.bits_per_dim(pixels, how, labels=labels)
    array = model.bits_per_dim(pixels.numpy(), how, labels=labels)
    assert found.mean == array.mean
    assert str(found) == f"{found.mean:.4f} ± {found.standard_error:.4f} bits/dim"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run, out: idode.load("nowhere"), ["evaluate", "nowhere"]),
        (lambda run, out: idode.load("pretrained:tigers"), ["evaluate", "pretrained:tigers"]),
        (
            lambda run, out: idode.evaluate(run, data="digits"),
            ["evaluate", "RUN", "--data", "digits"],
        ),
        (
            lambda run, out: idode.evaluate(run, settings=settings(start=9.0)),
            ["evaluate", "RUN", "--start", "9"],
        ),
        (lambda run, out: idode.evaluate(run, draws=3), ["evaluate", "RUN", "--draws", "3"]),
        (lambda run, out: idode.train("digts", out=out), ["train", "digts", "--out", "OUT"]),
        (
            lambda run, out: idode.train("digits", out=out, settings=["train.lrr=1"]),
            ["train", "digits", "--out", "OUT", "--set", "train.lrr=1"],
        ),
        (
            lambda run, out: idode.finetune(run, out=run.path),
            ["finetune", "RUN", "--out", "RUN"],
        ),
        (
            lambda run, out: idode.compare(["vdm", "abc"], out=out),
            ["compare", "--systems", "vdm,abc", "--out", "OUT"],
        ),
        (
            lambda run, out: idode.report(run, out=out, data="npy:none.npy"),
            ["report", "RUN", "--out", "OUT", "--data", "npy:none.npy"],
        ),
        (
            lambda run, out: idode.import_checkpoint(Path("none.flax"), out=out),
            ["import", "none.flax", "--out", "OUT"],
        ),
    ],
)
def test_wrong_input_is_the_same_sentence_in_python_and_in_the_shell(
    call, words: list[str], tmp_path: Path, capsys
) -> None:
    run = tiny.train(tmp_path / "run", "train.steps=1").run
    capsys.readouterr()
    with pytest.raises(idode.InputError) as refused:
        call(run, tmp_path / "out")
    places = {"RUN": str(run.path), "OUT": str(tmp_path / "out")}
    assert main([places.get(word, word) for word in words]) == 2
    said = capsys.readouterr().err
    assert said == f"idode {words[0]}: {refused.value}\n"
    assert not (tmp_path / "out").exists()
