"""``idode sample`` and the pictures it draws."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

import idode
from idode.cli.main import main
from idode.cli.tables import write_file
from idode.data import load
from idode.errors import InputError
from idode.runs.config import Config, fit, override
from idode.runs.presets import PRESETS
from idode.runs.run import Run, build_net, save_model
from idode.sampling.features import Features
from idode.sampling.pictures import grid, png
from idode.sampling.reading import read_samples
from idode.sampling.samplers import OdeSampler, SampleBatch


class TestPictures:
    def test_a_grid_shows_every_image_enlarged_and_apart(self) -> None:
        pixels = torch.arange(6).reshape(6, 1, 1, 1).expand(6, 1, 8, 8)
        picture = grid(pixels, 6, columns=3)
        height, width, colours = picture.shape
        scale = (width - 4 * 4) // (3 * 8)
        assert (width - 16, height - 12, colours) == (3 * 8 * scale, 2 * 8 * scale, 1)
        assert 800 <= width < 800 + 3 * 8
        cell = 8 * scale + 4
        for i in range(6):
            top, left = 4 + i // 3 * cell, 4 + i % 3 * cell
            assert (picture[top : top + 8 * scale, left : left + 8 * scale] == 51 * i).all()
            assert (picture[top - 4 : top] == 255).all()
        assert grid(pixels[:5], 6, columns=3).shape == picture.shape

    def test_colour_and_large_images_keep_their_pixels(self, tmp_path: Path) -> None:
        g = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (1, 3, 900, 900), generator=g)
        picture = grid(pixels, 256)
        (tmp_path / "a.png").write_bytes(png(picture))
        with Image.open(tmp_path / "a.png") as image:
            shown = np.asarray(image)
        assert shown.shape == (908, 908, 3)
        np.testing.assert_array_equal(shown[4:-4, 4:-4], pixels[0].permute(1, 2, 0).numpy())

    def test_what_is_no_image_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"write them to a \.npz file"):
            grid(torch.zeros(3, 2, dtype=torch.long), 4)
        with pytest.raises(InputError, match="no images to draw"):
            grid(torch.zeros(0, 1, 4, 4, dtype=torch.long), 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_run(tmp_path_factory.mktemp("tiny") / "run", tiny.config(), None)


def fresh_run(path: Path, config: Config, data: str | None) -> Path:
    """A run whose network has not learned anything."""
    made = Run(path, dataclasses.replace(config, data=data), None)
    made.write_config()
    save_model(path, build_net(made.config, torch.Generator().manual_seed(0)).state_dict())
    return path


class TestCommand:
    def sample(self, run: Path | str, out: Path, *more: str) -> int:
        quick = ["--solver", "dpm", "--steps", "4", "--count", "6", "--device", "cpu"]
        return main(["sample", str(run), "--out", str(out), *quick, *more])

    def refused(self, capsys: pytest.CaptureFixture[str]) -> str:
        said = capsys.readouterr()
        assert said.out == ""
        assert len(said.err.splitlines()) == 1
        return said.err

    def test_a_grid_an_archive_and_a_folder_hold_the_same_samples(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("a.png", "a.npz", "many"):
            assert self.sample(run, tmp_path / name, "--quiet") == 0
        assert capsys.readouterr() == ("", "")
        with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
            data, x = arrays["data"], arrays["x"]
        assert (data.shape, data.dtype, x.shape) == ((6, 1, 4, 4), np.uint8, (6, 1, 4, 4))
        assert len(np.unique(data)) == 4
        names = sorted(p.name for p in (tmp_path / "many").iterdir())
        assert names == [f"{i:05d}.png" for i in range(6)]
        with Image.open(tmp_path / "many" / "00003.png") as image:
            np.testing.assert_array_equal(np.asarray(image), data[3, 0] * 85)
        with Image.open(tmp_path / "a.png") as image:
            np.testing.assert_array_equal(
                np.asarray(image), grid(torch.from_numpy(data), 4)[..., 0]
            )

    def test_figures_for_people_and_programs(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        json_file = tmp_path / "a.json"
        assert self.sample(run, tmp_path / "a.npz", "--likelihood", "--json", str(json_file)) == 0
        figures = json.loads(json_file.read_text())
        assert (figures["count"], figures["solver"], figures["nfe"]) == (6, "dpm", 5)
        with np.load(tmp_path / "a.npz") as arrays:
            assert figures["per_sample"]["log_p"] == arrays["log_p"].tolist()
            assert figures["bits_per_dim"] == pytest.approx(arrays["bits_per_dim"].mean())
        shown = capsys.readouterr().out
        assert f"{figures['bits_per_dim']:.4f}" in shown
        assert str(tmp_path / "a.npz") in shown

    def test_the_seed_decides(self, run: Path, tmp_path: Path) -> None:
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
            assert self.sample(run, tmp_path / f"{name}.png", "--seed", seed, "--quiet") == 0
        a, b, c = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
        assert a == b != c

    def test_nothing_is_replaced_without_force(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "a.png").write_text("mine")
        (tmp_path / "many").mkdir()
        for name in ("00099.png", "notes.txt"):
            (tmp_path / "many" / name).write_text("mine")
        for out in ("a.png", "many"):
            assert self.sample(run, tmp_path / out) == 2
            assert "force" in self.refused(capsys)
        assert self.sample(run, tmp_path / "b.png", "--json", str(tmp_path / "a.png")) == 2
        assert not (tmp_path / "b.png").exists()
        assert (tmp_path / "a.png").read_text() == "mine"
        capsys.readouterr()
        # A folder with anything else in it is not ours to write to.
        assert self.sample(run, tmp_path / "many", "--force") == 2
        assert "holds other files than samples" in self.refused(capsys)
        assert (tmp_path / "many" / "00099.png").read_text() == "mine"
        (tmp_path / "many" / "notes.txt").unlink()
        for out in ("a.png", "many"):
            assert self.sample(run, tmp_path / out, "--force", "--quiet") == 0
        assert sorted(p.name for p in (tmp_path / "many").iterdir()) == [
            f"{i:05d}.png" for i in range(6)
        ]

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (("--count", "0"), "--count: must be at least 1, got 0"),
            (("--count", "-3"), "--count: must be at least 1, got -3"),
            (("--steps", "0"), "--steps: must be at least 1, got 0"),
            (("--batch-size", "0"), "--batch-size: must be at least 1, got 0"),
            (("--solver", "euler"), "choose one of adams, dopri5, rk4, dpm, ancestral"),
            (("--solver", "dopri5"), "dopri5 has no steps: leave it out, or choose adams"),
            (("--solver", "ancestral", "--likelihood"), "choose dopri5, adams or dpm"),
            (("--device", "abacus"), "(there is no such kind): use cpu"),
            (("--fid",), "does not record its data set"),
            (("--fid", "--count", "1"), "at least 2 samples"),
            (("--fid", "--data", "digits"), "choose data of its kind"),
            (("--fid", "--data", "npy:none.npy"), "there is no file or folder none.npy"),
            (("--data", "digits"), "add --fid"),
        ],
    )
    def test_wrong_input_is_one_sentence_before_any_bar(
        self, more: tuple[str, ...], said: str, run: Path, tmp_path: Path, capsys
    ) -> None:
        assert self.sample(run, tmp_path / "a.png", *more) == 2
        assert said in self.refused(capsys)
        assert not (tmp_path / "a.png").exists()

    def test_wrong_places_are_one_sentence(self, run: Path, tmp_path: Path, capsys) -> None:
        (tmp_path / "half").mkdir()
        shutil.copytree(run, tmp_path / "young")
        (tmp_path / "young" / "model.safetensors").unlink()
        shutil.copytree(run, tmp_path / "torn")
        torn = tmp_path / "torn" / "model.safetensors"
        torn.write_bytes(torn.read_bytes()[:-9])
        (tmp_path / "file").write_text("")
        (tmp_path / "d.png").mkdir()
        for place, out, said in (
            (tmp_path / "none", "a.png", "there is no run folder"),
            (tmp_path / "half", "a.png", "not the folder of a run"),
            (tmp_path / "young", "a.png", "has no model.safetensors: training stopped before"),
            (tmp_path / "torn", "a.png", "cannot be read"),
            (run, "a.jpeg", "no place for samples"),
            (run, "file", "is a file: give a folder"),
            (run, "d.png", "is a folder"),
            (run, "no/a.png", "there is no folder"),
            (run, "no/many", "there is no folder"),
        ):
            assert self.sample(place, tmp_path / out, "--force") == 2
            assert said in self.refused(capsys)
        assert self.sample(run, tmp_path / "a.npz", "--json", str(tmp_path / "a.npz")) == 2
        assert "are the same file" in self.refused(capsys)

    @pytest.mark.parametrize("sync", [True, False])
    def test_a_file_that_cannot_be_written_leaves_nothing(self, tmp_path: Path, sync: bool):
        (tmp_path / "taken").mkdir()
        with pytest.raises(InputError, match="cannot write .*choose another place"):
            write_file(tmp_path / "taken", b"content", sync)
        assert [p.name for p in tmp_path.iterdir()] == ["taken"]

    def test_ctrl_c_keeps_the_batches_that_are_done(
        self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        assert self.sample(run, tmp_path / "all.npz", "--quiet") == 0
        draw = OdeSampler.draw

        def interrupted(sampler: OdeSampler, batch: SampleBatch) -> object:
            if batch.indices[0] == 4:
                signal.raise_signal(signal.SIGINT)
            return draw(sampler, batch)

        monkeypatch.setattr(OdeSampler, "draw", interrupted)
        words = ("--batch-size", "2", "--json", str(tmp_path / "some.json"), "--quiet")
        assert self.sample(run, tmp_path / "some.npz", *words) == 130
        assert capsys.readouterr().err == (
            f"idode sample: interrupted, 4 of 6 samples are in {tmp_path / 'some.npz'}; "
            "re-run with --force to continue\n"
        )
        with np.load(tmp_path / "some.npz") as some, np.load(tmp_path / "all.npz") as whole:
            np.testing.assert_array_equal(some["data"], whole["data"][:4])
        figures = json.loads((tmp_path / "some.json").read_text())
        assert (figures["count"], figures["complete"], figures["nfe"]) == (4, False, 4)
        # Nothing is done yet: nothing is written.
        monkeypatch.setattr(OdeSampler, "draw", lambda *_: signal.raise_signal(signal.SIGINT))
        assert self.sample(run, tmp_path / "nothing.npz", "--quiet") == 130
        assert capsys.readouterr().err == "idode sample: interrupted\n"
        assert not (tmp_path / "nothing.npz").exists()

    def test_batches_are_kept_until_all_is_written(
        self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, value: object) -> None:
            raise InputError(f"cannot write {path} (no space left)")

        words = ("--json", str(tmp_path / "a.json"), "--force", "--quiet")
        with monkeypatch.context() as patch:
            patch.setattr("idode.cli.tables.write_json", full)
            assert self.sample(run, tmp_path / "a.npz", *words) == 2
        monkeypatch.setattr(OdeSampler, "draw", None)  # nothing is drawn again
        assert self.sample(run, tmp_path / "a.npz", *words) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.npz"]

    def test_fid_can_be_to_other_data_than_that_of_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))
        monkeypatch.setattr(
            "idode.sampling.fid.inception_features",
            lambda levels, device: lambda pixels: pixels.double().flatten(1),
        )
        place = fresh_run(tmp_path / "run", tiny.config(), None)
        for name, images in (("same", tiny.images()), ("dark", 0 * tiny.images())):
            np.save(tmp_path / f"{name}.npy", images)
            spec = f"npy:{tmp_path / name}.npy?levels=4"
            more = ("--fid", "--data", spec, "--json", str(tmp_path / f"{name}.json"))
            assert self.sample(place, tmp_path / f"{name}.png", *more) == 0
            assert f"training split of npy:{name}.npy" in capsys.readouterr().out
        same, dark = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("same", "dark"))
        assert same["fid"] < dark["fid"]
        (tmp_path / "pictures").mkdir()
        (tmp_path / "pictures" / "a.png").write_bytes(b"no picture")
        more = ("--fid", "--data", f"folder:{tmp_path / 'pictures'}")
        assert self.sample(place, tmp_path / "a.png", *more) == 2
        assert "a.png is not a readable image" in self.refused(capsys)
        assert not (tmp_path / "a.png").exists()

    def test_fid_of_the_digits(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = override(PRESETS["digits"], tiny.SETTINGS)
        place = fresh_run(tmp_path / "run", config, "digits")
        written = tmp_path / "a.json"
        assert self.sample(place, tmp_path / "a.png", "--fid", "--json", str(written)) == 0
        figures = json.loads(written.read_text())
        assert figures["fid"] > 10 * figures["fid_of_test_split"] > 0
        assert "FID by digits features" in capsys.readouterr().out

    def test_statistics_of_other_data_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))
        np.save(tmp_path / "x.npy", tiny.images())
        seen = []

        def network(levels: int, device: torch.device) -> Features:
            assert levels == 4
            return lambda pixels: (seen.append(len(pixels)), pixels.double().flatten(1))[1]

        monkeypatch.setattr("idode.sampling.fid.inception_features", network)
        spec = f"npy:{tmp_path / 'x.npy'}?levels=4"
        place = fresh_run(tmp_path / "run", tiny.config(), spec)
        figures = []
        for name in ("a", "b"):
            more = ("--fid", "--quiet", "--json", str(tmp_path / f"{name}.json"))
            assert self.sample(place, tmp_path / f"{name}.png", *more) == 0
            figures.append(json.loads((tmp_path / f"{name}.json").read_text()))
        assert figures[0]["fid"] == figures[1]["fid"] > figures[0]["fid_of_test_split"]
        assert sum(seen) == 48 + 6 + 6  # both splits once, the samples each time
        for kept in (tmp_path / "data" / "features").iterdir():
            kept.write_text("broken")
        assert self.sample(place, tmp_path / "c.png", "--fid") == 2
        assert "make it again" in self.refused(capsys)

    def test_continuous_samples_are_an_archive(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flat = fit(PRESETS["vectors"], None, (2,))
        place = fresh_run(tmp_path / "run", flat, None)
        assert self.sample(place, tmp_path / "a.png") == 2
        assert "write them to a .npz file" in self.refused(capsys)
        assert self.sample(place, tmp_path / "a.npz", "--likelihood", "--quiet") == 0
        with np.load(tmp_path / "a.npz") as arrays:
            assert arrays["data"].shape == (6, 2)
            assert arrays["data"].dtype == np.float32
            # log_p is of the states, bits_per_dim of the data, which are the states over alpha.
            model = idode.load(place, device="cpu")
            least = torch.tensor(model.gamma_min, dtype=torch.float64)
            log_p = arrays["log_p"] + 2 * float(model.schedule.log_alpha(least))
            np.testing.assert_allclose(
                arrays["bits_per_dim"], -log_p / (2 * math.log(2)), rtol=1e-9
            )


class TestFid:
    def test_samples_on_disk_are_judged_as_those_just_drawn(self, tmp_path: Path, capsys) -> None:
        words = ["sample", "pretrained:digits", "--count", "8", "--solver", "dpm", "--quiet"]
        for out in ("some.npz", "folder"):
            assert main([*words, "--steps", "3", "--out", str(tmp_path / out)]) == 0
        values = []
        for name in ("some.npz", "folder"):
            file = tmp_path / f"{name}.json"
            judged = ["fid", str(tmp_path / name), "--against", "digits", "--json", str(file)]
            assert main(judged) == 0
            values.append(json.loads(file.read_text())["fid"])
        assert values[0] == pytest.approx(values[1], rel=1e-9)
        assert "FID by digits features" in capsys.readouterr().out

    def test_arrays_of_16_bits_are_judged(self, tmp_path: Path) -> None:
        values = []
        for name, dtype in (("small", np.uint8), ("wide", np.uint16)):
            np.savez(tmp_path / name, data=load("digits").test[:20].astype(dtype))
            file = tmp_path / f"{name}.json"
            judged = ["fid", str(tmp_path / f"{name}.npz"), "--against", "digits", "--quiet"]
            assert main([*judged, "--json", str(file)]) == 0
            values.append(json.loads(file.read_text())["fid"])
        assert values[0] == values[1]

    def test_pictures_of_16_bits_have_their_own_white(self, tmp_path: Path) -> None:
        for i, grey in enumerate((0, 20000, 65535)):
            Image.fromarray(np.full((8, 8), grey, np.uint16)).save(tmp_path / f"{i}.png")
        for levels, middle in ((17, 5), (256, 78), (65536, 20000)):
            images = read_samples(tmp_path, levels)
            assert images[:, 0, 0, 0].tolist() == [0, middle, levels - 1]

    @pytest.mark.parametrize(
        ("arrays", "told"),
        [
            ({"data": np.zeros((4, 1, 8, 8), np.float32)}, "no images: it needs an array"),
            ({"data": np.full((4, 1, 8, 8), 17)}, "integers below 17"),
            ({"arr_0": np.zeros((4, 4, 4, 1), np.uint8)}, r"of the shape of digits, \(1, 8, 8\)"),
            ({"other": np.zeros(3)}, "no images: it needs an array"),
        ],
    )
    def test_what_holds_no_samples_is_refused(self, tmp_path: Path, arrays, told, capsys) -> None:
        np.savez(tmp_path / "x.npz", **arrays)
        assert main(["fid", str(tmp_path / "x.npz"), "--against", "digits"]) == 2
        assert re.search(told, capsys.readouterr().err)
