"""Training for a given time: what is chosen, and that it ends on time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import idode
from idode.cli.main import main
from idode.data.memory import from_arrays
from idode.data.prepared import Dataset
from idode.errors import InputError
from idode.nets.config import UNetConfig
from idode.numerics import cpu_threads
from idode.runs.config import Config, override
from idode.runs.distributed import World
from idode.runs.run import Run, open_run
from idode.training import plan, trainer
from idode.training.budget import Budget
from idode.training.optimisation import learning_rate
from idode.training.resolve import training_config
from idode.training.speed import step_seconds
from idode.training.trainer import Trainer


class Clock:
    """Seconds that pass by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def images(side: int, count: int = 500, colours: int = 1) -> Dataset:
    drawn = np.random.default_rng(0).integers(0, 256, (count + 10, colours, side, side), np.uint8)
    return from_arrays(drawn[:-10], drawn[-10:])


def steady(seconds: float) -> plan.Speed:
    """A machine on which a step of the preset's network takes these seconds."""

    def speed(config: Config, data: Dataset, world: World, limit: float) -> list[float]:
        net = config.net
        assert isinstance(net, UNetConfig)
        work = net.width**2 * (2 * net.depth + 1) / (1 + net.halvings) * config.train.batch_size
        return [seconds * work / (32**2 * 7 / 2 * 16)]

    return speed


def costly(seconds: float) -> plan.Speed:
    """A machine on which a step takes these seconds, and as many more for each 5.33 images."""
    return lambda config, data, world, limit: [seconds * (1 + config.train.batch_size * 3 / 16)]


class TestBudget:
    def test_steps_follow_the_speed(self) -> None:
        clock = Clock()
        budget = Budget(1.0, 0, 1000, clock=clock)
        clock.now += 6
        assert budget.steps(10) == 100  # 0.6 s each, of 60 s
        clock.now += 30  # the machine slows down: 24 s for as many steps as fit at 36 / 20
        assert budget.steps(20) == 20 + int(24 / 1.8)
        clock.now += 100
        assert budget.steps(30) == 31  # late: the next step is the last
        late = Budget(1.0, 0, 1000, spent=12.0, clock=clock)  # to measure the speed
        clock.now += 6
        assert late.steps(10) == 80

    def test_a_resumed_run_has_the_time_that_its_schedule_has_left(self) -> None:
        clock = Clock()
        budget = Budget(10.0, 75, 100, clock=clock)
        clock.now += 15
        assert budget.steps(80) == 80 + int((150 - 15) / 3)

    @pytest.mark.parametrize("slows_at", [None, 50])
    def test_training_ends_on_time_with_its_rate_decayed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slows_at: int | None
    ) -> None:
        clock = Clock()
        monkeypatch.setattr(trainer, "Budget", lambda *given: Budget(*given, clock=clock))
        rates: list[float] = []

        class Passing:
            def notice(self, text: str) -> None: ...

            def progress(self, step: int, metrics: object) -> None:
                clock.now += 1.0 if slows_at is None or step < slows_at else 2.0
                rates.append(learning_rate(running.settings, step - 1, 1.0))

        few = ["train.log_every=2", "train.evaluate_every=90", "train.decay=cosine"]
        more = ["train.minutes=2", "train.steps=90", "train.checkpoint_every=90"]
        config = tiny.config(*few, *more, "train.sample_every=0", "train.warmup=0")
        run = Run(tmp_path, config, tiny.dataset().identity)
        running = Trainer(run, tiny.dataset(), tiny.CPU, Passing())
        result = running.train()
        # Planned were 90 steps in 120 s; there is time for 120, or for 50 + 35.
        assert abs(result.step - (120 if slows_at is None else 85)) <= 2
        assert abs(clock.now - 220) <= 4
        assert rates[-1] < 0.01
        assert max(abs(np.diff(rates))) < 0.08  # no jumps on the way
        stored = open_run(tmp_path)
        assert stored.config.train.steps == result.step
        assert max(int(p.name[5:]) for p in stored.checkpoints.iterdir()) == result.step


class TestSpeed:
    def test_measuring_stops_when_its_time_is_over(self) -> None:
        ticks = iter(range(0, 1000, 5))
        seconds = step_seconds(
            tiny.config(), tiny.dataset(), tiny.CPU, clock=lambda: next(ticks), limit=1.0
        )
        assert seconds == [5]  # one to warm up, one that is timed
        slow = iter([0, 9, 9, 12, 12, 13, 13, 99])
        seconds = step_seconds(
            tiny.config(), tiny.dataset(), tiny.CPU, clock=lambda: next(slow), limit=4.0
        )
        assert seconds == [1]  # the first two are slower, and count for more time
        assert len(step_seconds(tiny.config(), tiny.dataset(), tiny.CPU)) == 4

    def test_steps_are_measured_with_the_threads_of_the_settings(self) -> None:
        found: set[int] = set()

        def clock() -> float:
            found.add(torch.get_num_threads())
            return 0.0

        with cpu_threads(2):
            step_seconds(tiny.config(), tiny.dataset(), tiny.CPU, clock=clock)
            assert found == {2}
            found.clear()
            step_seconds(tiny.config("train.threads=1"), tiny.dataset(), tiny.CPU, clock=clock)
            assert found == {1}


class TestPlan:
    def test_the_network_follows_the_time(self) -> None:
        shapes = {}
        for minutes in (32, 34, 98, 102):  # 9,600, 10,200, 29,400 and 30,600 steps of the first
            config = plan.suited(images(28, 50_000), minutes, tiny.CPU, steady(0.2))
            net = config.net
            assert isinstance(net, UNetConfig)
            shapes[minutes] = (net.width, net.depth, net.halvings)
            assert config.train.batch_size >= 16  # of a wider network fewer steps fit
        wide, first, largest = (48, 3, 1), (32, 3, 1), (64, 3, 1)
        assert shapes == {32: first, 34: wide, 98: wide, 102: largest}

    def test_short_trainings_have_small_batches_where_these_save_time(self) -> None:
        def batches(speed: plan.Speed, world: World) -> list[int]:
            every = (1, 9, 30)
            return [plan.suited(images(28), m, world, speed).train.batch_size for m in every]

        assert batches(steady(0.2), tiny.CPU) == [4, 8, 16]
        assert batches(lambda *given: [0.2], tiny.CPU) == [16, 16, 16]  # as on GPUs
        # Images per second: 0.57 of those of 16 with 4 images in a step, 0.8 with 8.
        assert batches(costly(0.2 / 4), tiny.CPU) == [8, 8, 16]
        three = World(torch.device("cpu"), size=3)
        assert batches(steady(0.2), three) == [16, 16, 16]  # 4 and 8 cannot be shared

    @pytest.mark.parametrize(
        ("share", "minutes", "lower", "chosen"),
        [
            (0.8, 10, True, "bf16"),
            (0.95, 10, True, "float32"),
            (14.0, 10, True, "float32"),
            (0.8, 3, True, "float32"),  # too short to try it
            (0.8, 10, False, "float32"),  # a network of the user's
            (1e9, 1e-9, True, "float32"),  # no step fits
        ],
    )
    def test_bfloat16_is_taken_where_it_saves_time(
        self, share: float, minutes: float, lower: bool, chosen: str
    ) -> None:
        def speed(config: Config, *given: object) -> list[float]:
            return [0.2 * (share if config.train.precision == "bf16" else 1.0)]

        config = plan.suited(images(28), minutes, tiny.CPU, speed, lower=lower)
        assert config.train.precision == chosen
        assert chosen in plan.described(override(config, ["train.minutes=10"]))

    def test_a_device_without_bfloat16_is_not_asked_for_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan, "available_precisions", lambda device: ["float32"])

        def speed(config: Config, *given: object) -> list[float]:
            assert config.train.precision == "float32"
            return [0.2]

        assert plan.suited(images(28), 10, tiny.CPU, speed).train.precision == "float32"

    @pytest.mark.parametrize(
        ("share", "all_of_them", "chosen"), [(0.8, 2, 1), (1.1, 2, None), (0.8, 1, None)]
    )
    def test_one_thread_is_taken_where_it_is_faster(
        self, share: float, all_of_them: int, chosen: int | None
    ) -> None:
        def speed(config: Config, *_: object) -> list[float]:
            return [0.2 * (share if config.train.threads == 1 else 1.0)]

        def threads(*settings: str, world: World = tiny.CPU) -> int | None:
            timed = override(tiny.config(), ["train.minutes=10", *settings])
            found = plan.scheduled(timed, tiny.dataset(), world, speed)
            assert ("1 thread" in plan.described(found)) == (found.train.threads == 1)
            pace = speed(found)[0]
            assert found.train.minutes is not None
            most = 60 * found.train.minutes * 0.97 / pace
            assert most - 2 < found.train.steps <= most
            return found.train.threads

        with cpu_threads(all_of_them):
            assert threads() == chosen
            assert threads("train.threads=2") == 2  # the user's
            assert threads(world=World(torch.device("cpu"), size=2)) is None  # a core for each
            assert threads(world=World(torch.device("cuda"))) is None
            assert threads("train.minutes=0.2") is None  # trying would take much of it
            assert plan.suited(images(28), 10, tiny.CPU, speed).train.threads is None

    def test_the_network_is_chosen_for_the_threads_that_are_faster(self) -> None:
        def speed(config: Config, *rest: object) -> list[float]:
            return [(1.0 if config.train.threads == 1 else 2.0) * steady(0.18)(config, *rest)[0]]

        with cpu_threads(2):
            net = plan.suited(images(28), 34, tiny.CPU, speed).net
        assert isinstance(net, UNetConfig)
        assert net.width == 48  # with all threads half of the 10,000 steps would fit

    def test_time_that_was_spent_on_choosing_is_not_trained(self) -> None:
        timed = override(tiny.config(), ["train.minutes=10"])
        began = time.perf_counter() - 300
        found = plan.scheduled(timed, tiny.dataset(), tiny.CPU, lambda *_: [0.2], began=began)
        assert 0.9 * 300 / 0.2 < found.train.steps < 300 / 0.2

    @pytest.mark.parametrize(("side", "halvings"), [(8, 0), (28, 1), (29, 0)])
    def test_small_and_odd_images_are_not_halved(self, side: int, halvings: int) -> None:
        net = plan.suited(images(side), 20, tiny.CPU, steady(0.3)).net
        assert isinstance(net, UNetConfig)
        assert net.halvings == halvings

    def test_much_time_gives_larger_batches_and_few_images_dropout(self) -> None:
        short = plan.suited(images(8), 1, tiny.CPU, steady(0.05))
        long = plan.suited(images(8), 60, tiny.CPU, steady(0.05))
        assert short.train.batch_size == 16  # no smaller ones for tiny images
        longest = plan.suited(images(8), 240, tiny.CPU, steady(0.05))
        assert (long.train.batch_size, longest.train.batch_size) == (64, 128)
        rates = []
        for minutes in (1, 4, 10, 60):  # 27, 107, 269 and 1,613 passes
            net = plan.suited(images(8), minutes, tiny.CPU, steady(0.05)).net
            assert isinstance(net, UNetConfig)
            rates.append(net.dropout)
        assert rates == [0.0, 0.1, 0.2, 0.3]

    def test_vectors_have_their_own_preset(self) -> None:
        data = from_arrays(np.zeros((20, 3), np.float32), np.ones((5, 3), np.float32))
        assert plan.suited(data, 1, tiny.CPU).name == "vectors"

    def test_evaluation_takes_a_small_share(self) -> None:
        config = tiny.config("train.minutes=10", "train.batch_size=16", "train.evaluate_count=512")
        found = plan.scheduled(config, tiny.dataset(), tiny.CPU, lambda *given: [0.2]).train
        assert 60 * 10 / 0.2 * 0.95 < found.steps <= 60 * 10 / 0.2
        forwards = 8 * found.evaluate_count * (found.steps // found.evaluate_every)
        assert forwards <= 0.03 * found.steps * 3 * 16
        assert found.decay == "cosine"

    def test_grids_of_samples_take_a_small_share(self) -> None:
        def grids(minutes: float) -> int:
            often = ["train.sample_every=9", f"train.minutes={minutes}", "train.batch_size=16"]
            config = tiny.config(*often)
            found = plan.scheduled(config, tiny.dataset(), tiny.CPU, lambda *given: [0.2]).train
            drawn = found.sample_every and -(-found.steps // found.sample_every)
            assert 64 * 20 * drawn <= 0.04 * found.steps * 3 * 16
            return drawn

        assert grids(1) == 0  # a grid costs as much as 27 steps
        assert 1 <= grids(15) <= 6
        assert 5 <= grids(600) <= 6

    def test_what_the_user_sets_stays(self) -> None:
        own = {"warmup": 9, "decay": "constant", "log_every": 70, "evaluate_every": 3}
        own |= {"evaluate_count": 17, "checkpoint_every": 7, "sample_every": 11}
        every = [f"train.{name}={value}" for name, value in own.items()]
        base = ["train.minutes=60", "train.batch_size=64", "train.sample_every=9"]

        def found(*settings: str) -> dict[str, object]:
            config = tiny.config(*base, *settings)
            speed = steady(0.2)
            return vars(
                plan.scheduled(config, tiny.dataset(), tiny.CPU, speed, settings=settings).train
            )

        planned = found()
        assert all(planned[name] != value for name, value in own.items())
        for setting, (name, value) in zip(every, own.items(), strict=True):
            alone = found(setting)
            assert alone[name] == value
            free = own.keys() - {name, "evaluate_count"}  # fewer samples where there are more
            assert {n: alone[n] for n in free} == {n: planned[n] for n in free}
        together = found(*every)
        assert {name: together[name] for name in own} == own
        assert together["steps"] == planned["steps"]
        assert found("train.sample_every=0")["sample_every"] == 0

    def test_values_that_are_asked_for_often_are_of_fewer_samples(self) -> None:
        often = ["train.minutes=10", "train.batch_size=16", "train.evaluate_every=120"]
        found = plan.scheduled(
            tiny.config(*often), tiny.dataset(), tiny.CPU, lambda *_: [0.2], settings=often
        ).train
        assert found.evaluate_every == 120
        assert 8 * found.evaluate_count <= 0.03 * 120 * 3 * 16

    def test_all_threads_stay_where_the_user_sets_them(self) -> None:
        every = ["train.minutes=10", "train.threads=none"]

        def speed(config: Config, *_: object) -> list[float]:
            return [0.1 if config.train.threads == 1 else 0.2]

        with cpu_threads(2):
            for settings, threads in ([], 1), (every, None):
                timed, data = tiny.config(*every), tiny.dataset()
                found = plan.scheduled(timed, data, tiny.CPU, speed, settings=settings)
                assert found.train.threads == threads


class TestTrain:
    def test_a_folder_of_photos_and_minutes_are_enough(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        np.save(tmp_path / "photos.npy", tiny.images())
        spec = f"npy:{tmp_path / 'photos.npy'}"
        words = ["train", spec, "--minutes", "0.01", "--out", str(tmp_path / "run")]
        small = ["--set", "net.width=8", "--set", "train.sample_every=0"]
        assert main([*words, *small]) == 0
        printed = capsys.readouterr().err
        run = open_run(tmp_path / "run")
        assert "0.01 minutes: " in printed
        assert main([*words[:-2], "--dry-run", *small]) == 0
        shown = capsys.readouterr()
        assert "0.01 minutes: " in shown.err
        assert json.loads(shown.out)["data"] == spec
        assert "U-Net of width 8, depth 2, 0 halvings" in printed
        assert run.config.train.minutes == 0.01
        assert run.config.data == spec
        lines = [json.loads(x) for x in run.metrics.read_text().splitlines()]
        assert lines[-1]["step"] == run.config.train.steps
        assert main([*words, *small, "--resume", "--quiet"]) == 0  # nothing is left to do
        assert open_run(tmp_path / "run").config == run.config

    def test_from_python(self, tmp_path: Path) -> None:
        few = ["net.width=8", "train.sample_every=0"]
        pair = (tiny.images()[:40], tiny.images()[40:])
        run = idode.train(
            data=pair, minutes=0.01, out=tmp_path / "run", settings=few, progress=False
        )
        assert run.config.name == "images"
        assert run.config.train.steps >= 1

    def test_settings_stay_in_every_way_to_train(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        own = {"decay": "constant", "warmup": 9, "checkpoint_every": 7, "evaluate_every": 3}
        settings = ["net.width=8", *(f"train.{name}={value}" for name, value in own.items())]

        def kept(train: object) -> dict[str, object]:
            return {name: vars(train)[name] for name in own}

        out = tmp_path / "run"
        run = idode.train("digits", minutes=0.01, out=out, settings=settings, progress=False)
        assert kept(run.config.train) == own
        words = ["train", "digits", "--minutes", "0.01"]
        for setting in settings:
            words += ["--set", setting]
        assert main([*words, "--dry-run"]) == 0
        shown = capsys.readouterr()
        planned = json.loads(shown.out)["train"]
        assert {name: planned[name] for name in own} == own
        assert "with constant decay" in shown.err
        assert main([*words, "--quiet", "--out", str(tmp_path / "other")]) == 0
        assert kept(open_run(tmp_path / "other").config.train) == own
        # A run that is resumed has its schedule already.
        again = ["--resume", "--out", str(out), "--set", "train.warmup=8", "--dry-run"]
        assert main(["train", *again]) == 0
        resumed = json.loads(capsys.readouterr().out)["train"]
        assert {name: resumed[name] for name in own} == own | {"warmup": 8}
        assert resumed["steps"] == run.config.train.steps

    def test_refusals(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = ["--out", str(tmp_path / "run")]
        for data in ("folder:photos", "fashion-mnist"):
            assert main(["train", data, *out]) == 2
            assert "is a data set and no preset: give it as data" in capsys.readouterr().err
        assert main(["train", "digits", "--minutes", "1", "--steps", "5", *out]) == 2
        assert "steps=5 and minutes=1 are given: choose one" in capsys.readouterr().err
        assert main(["train", "digits", "--minutes", "0", *out]) == 2
        assert "must be above 0" in capsys.readouterr().err
        assert main(["train", "digits", "--minutes", "1", "--set", "train.steps=5", *out]) == 2
        assert "steps=5 and minutes=1 are given: choose one" in capsys.readouterr().err
        assert main(["train", "cifr10-small", "--minutes", "1", *out]) == 2
        assert "no preset called 'cifr10-small' (did you mean cifar10-small?)" in (
            capsys.readouterr().err
        )
        (tmp_path / "photos").mkdir()
        assert main(["train", str(tmp_path / "photos"), "--minutes", "1", *out]) == 2
        assert f"(did you mean folder:{tmp_path / 'photos'}?)" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("minutes", [0, -1, float("nan"), "abc", [1], True])
    def test_minutes_are_a_number_in_python_too(self, tmp_path: Path, minutes: object) -> None:
        with pytest.raises(InputError, match="must be a number above 0"):
            idode.train(data=tiny.dataset(), minutes=minutes, out=tmp_path)  # type: ignore[arg-type]

    def test_what_is_wrong_is_said_before_anything_is_measured(self, tmp_path: Path) -> None:
        def measured(minutes: float) -> Config:
            pytest.fail("too late")

        for bad in ("train.lrr=1", "train.threads=0"):
            with pytest.raises(InputError, match=r"lrr|threads"):
                training_config(None, minutes=1, settings=[bad], suited=measured)
        for settings in ("train.lr=1e-3", {"train.lr": 1e-3}):
            with pytest.raises(InputError, match="put it in brackets"):
                idode.train("digits", settings=settings, out=tmp_path)
        with pytest.raises(InputError, match="is a data set and no preset: give it as data"):
            idode.train("folder:photos", minutes=1, out=tmp_path)

    def test_minutes_among_the_settings_are_planned_in_a_dry_run(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["train", "digits", "--set", "train.minutes=0.01", "--set", "net.width=8"]
        assert main([*words, "--dry-run"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["train"]["steps"] < 100
        assert "0.01 minutes: " in shown.err

    def test_a_dry_run_of_steps_asks_for_no_device(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(
            "idode.runs.distributed.best_device", lambda name: pytest.fail("asked for")
        )
        assert main(["train", "digits", "--dry-run", "--device", "cuda"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "digits"

    def test_a_finished_run_is_not_given_other_minutes(self, tmp_path: Path) -> None:
        tiny.train(tmp_path, "train.minutes=30", "train.steps=4", "train.log_every=4")
        steps = open_run(tmp_path).config.train.steps
        with pytest.raises(InputError, match=f"done all of its {steps} steps: give a larger"):
            training_config(None, out=tmp_path, resume=True, minutes=60)
        assert training_config(None, out=tmp_path, resume=True, minutes=30).train.minutes == 30


def test_training_has_the_threads_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    class Counting:
        def notice(self, text: str) -> None: ...

        def progress(self, step: int, metrics: object) -> None:
            found.append(torch.get_num_threads())

    few = ["train.steps=2", "train.evaluate_every=2", "train.checkpoint_every=2"]
    with cpu_threads(2):
        tiny.train(tmp_path / "all", *few, reporter=Counting())
        tiny.train(tmp_path / "one", *few, "train.threads=1", reporter=Counting())
        assert torch.get_num_threads() == 2  # of the user's process again
    assert found == [2, 2, 1, 1]
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail("set again"))
    tiny.train(tmp_path / "other", *few)
    for bad in ("0", "many"):
        with pytest.raises(InputError, match="threads"):
            tiny.config(f"train.threads={bad}")


def test_steps_given_to_a_timed_run_replace_its_minutes(tmp_path: Path) -> None:
    tiny.train(tmp_path, "train.minutes=30", "train.steps=4")
    stored = training_config(None, out=tmp_path, resume=True, steps=9)
    assert (stored.train.steps, stored.train.minutes) == (9, None)
