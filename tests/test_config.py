from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from idode.errors import InputError
from idode.likelihood.dequantization import Uniform, uniform_start
from idode.nets.config import CustomNetConfig, MLPConfig, UNetConfig
from idode.nets.unet import UNet
from idode.runs.config import Config, TrainConfig, fit, from_json, override, to_json
from idode.runs.objective_config import LEARNED
from idode.runs.presets import PRESETS, SUMMARIES
from idode.runs.run import Run, diffusion_ode
from idode.training.resolve import finetuning_config
from idode.training.state import State
from idode.training.trainer import Trainer

every_preset = pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)
PAPER = [name for name in PRESETS if SUMMARIES[name].startswith("the paper")]


@every_preset
def test_json_is_an_exact_round_trip(config: Config) -> None:
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


@given(
    lr=st.floats(0, 1, allow_nan=False),
    steps=st.integers(1, 10**9),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
    clip=st.none() | st.floats(0, 1e6),
    data=st.text(),
)
def test_any_value_survives_json_and_the_command_line(lr, steps, betas, clip, data) -> None:
    train = TrainConfig(lr=lr, steps=steps, betas=betas, clip=clip)
    config = dataclasses.replace(PRESETS["digits"], train=train, data=data)
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    typed = [
        f"train.{name}={text}"
        for name, text in {
            "lr": repr(lr),
            "steps": str(steps),
            "betas": ",".join(map(repr, betas)),
            "clip": "none" if clip is None else repr(clip),
        }.items()
    ]
    assert override(PRESETS["vectors"], typed).train == dataclasses.replace(
        PRESETS["vectors"].train, lr=lr, steps=steps, betas=betas, clip=clip
    )


def test_presets_are_listed_with_a_summary_each() -> None:
    assert list(PRESETS) == list(SUMMARIES)
    assert all(config.name == name for name, config in PRESETS.items())


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_presets_have_the_papers_optimiser(name: str) -> None:
    train, model = PRESETS[name].train, PRESETS[name].model
    assert (train.lr, train.betas, train.eps, train.weight_decay) == (
        2e-4,
        (0.9, 0.99),
        pytest.approx(1e-8 * 3072 * math.log(2)),  # theirs is for a loss in bits/dim
        0.01,
    )
    assert (train.warmup, train.decay, train.clip, train.ema) == (100, "constant", None, 0.9999)
    assert (model.gamma_min, model.gamma_max, model.predictor) == (
        -13.3,
        5.0,
        "normalized-velocity",
    )
    objective = PRESETS[name].objective
    assert (objective.order, objective.density, objective.weighting) == (
        1,
        "designed",
        "likelihood",
    )
    assert objective.low_discrepancy
    assert objective.ratio == 0.1


@pytest.mark.parametrize(
    ("name", "schedule", "width", "dropout", "batch", "steps", "further", "pieces"),
    [
        ("cifar10-vp", "vp", 128, 0.1, 128, 6_000_000, 200_000, 1),
        ("cifar10-sp", "sp", 128, 0.1, 128, 6_000_000, 200_000, 1),
        ("imagenet32-vp", "vp", 256, 0.1, 128, 2_000_000, 250_000, 1),
        ("imagenet32-sp", "sp", 256, 0.1, 128, 2_000_000, 250_000, 1),
        ("imagenet32-old-vp", "vp", 256, 0.1, 512, 2_000_000, 125_000, 4),
        ("imagenet32-old-sp", "sp", 256, 0.1, 512, 2_000_000, 125_000, 4),
    ],
)
def test_the_papers_presets_differ_where_the_paper_does(
    name, schedule, width, dropout, batch, steps, further, pieces
) -> None:
    config = PRESETS[name]
    assert (config.model.schedule, config.net.width, config.net.depth) == (schedule, width, 32)
    assert (config.net.dropout, config.net.attention) == (dropout, "middle")
    assert (config.train.batch_size, config.train.steps) == (batch, steps)
    assert (config.finetune.steps, config.finetune.accumulate) == (further, pieces)
    assert config.finetune.lr is None
    assert config.finetune.continues


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("cifar10-vp", -12.0),
        ("cifar10-sp", -11.9),
        ("imagenet32-vp", -11.7),
        ("imagenet32-old-sp", -11.6),
    ],
)
def test_uniform_noise_starts_where_the_paper_has_it(name: str, start: float) -> None:
    model = diffusion_ode(torch.nn.Identity(), PRESETS[name])
    assert Uniform().gamma(model) == Uniform().gamma(model.with_net(torch.nn.Identity())) == start
    assert Uniform(-12.5).gamma(model) == -12.5
    plain = diffusion_ode(torch.nn.Identity(), PRESETS["cifar10-small"])
    assert Uniform().gamma(plain) == uniform_start(256)


def test_the_augmented_preset_is_the_papers() -> None:
    config = PRESETS["cifar10-aug"]
    assert (config.net.width, config.net.attention, config.net.dropout) == (
        256,
        "everywhere",
        0.05,
    )
    assert (config.train.batch_size, config.train.steps) == (1024, 2_000_000)
    assert config.objective.augment
    assert config.net.flag


def test_the_digits_network_has_216_thousand_parameters() -> None:
    count = sum(p.numel() for p in UNet(PRESETS["digits"].net).parameters())
    assert round(count, -3) == 216_000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.lr", "write NAME=VALUE"),
        ("train.rate=1", "no setting 'train.rate': perhaps train.*--dry-run` lists them all"),
        ("optimiser.lr=1", "no setting 'optimiser.lr'"),
        ("train=1", "no setting 'train'"),
        ("train.lr=fast", "train.lr=fast: must be a number$"),
        ("train.steps=1.5", "must be a whole number"),
        ("train.clip=much", "must be a number, or none"),
        ("train.ema_warmup=maybe", "must be true or false"),
        ("train.betas=a,b", "numbers separated by commas"),
        ("train.betas=0.9", "two betas"),
        ("train.lr=nan", "^train.lr: must be at least 0 and finite, got nan$"),
        ("train.lr=-1", "^train.lr: must be at least 0, got -1.0$"),
        ("train.steps=0", "^train.steps: must be at least 1, got 0$"),
        ("train.ema=1", "from 0 to below 1"),
        ("train.momentum=1", "^train.momentum=1.0: must be at least 0 and less than 1$"),
        ("train.sample_every=-1", "sample_every: must be at least 0, got -1"),
        ("train.precision=half", "no precision called 'half': choose one of float32, tf32, bf16"),
        ("train.accumulate=7", "must be a multiple of accumulate=7"),
        ("objective.order=3", "must be 1 or 2"),
        ("objective.unbiased=true", "^probes: must be at least 2 with unbiased, got 1$"),
        ("net.width=7", "^net.width=7: must be even"),
        ("model.clock=1", "two gammas"),
    ],
)
def test_a_bad_setting_is_refused_with_what_is_allowed(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        override(PRESETS["digits"], [setting])


@pytest.mark.parametrize("density", LEARNED)
def test_a_density_does_not_learn_from_losses_that_contain_it(density: str) -> None:
    settings = ["objective.weighting=simple", f"objective.density={density}"]
    config = tiny.config(*settings)  # earlier versions trained such runs, which still load
    with pytest.raises(InputError, match=f"weighting=simple with density={density}: .*; choose"):
        State(config, tiny.CPU)
    State(tiny.config(settings[0]), tiny.CPU)
    State(tiny.config(settings[1]), tiny.CPU)


def test_settings_that_only_fit_together_are_taken_together() -> None:
    changed = override(PRESETS["digits"], ["objective.unbiased=yes", "objective.probes=2"])
    assert changed.objective.unbiased
    assert changed.objective.probes == 2


def test_augmentation_without_its_flag_is_refused() -> None:
    with pytest.raises(InputError, match=r"net.flag=true"):
        override(PRESETS["digits"], ["objective.augment=true", "net.flag=false"])


def test_a_file_of_an_earlier_version_means_what_it_meant_then() -> None:
    fields = to_json(PRESETS["digits"])
    for name in ("sample_every", "precision", "compile"):
        del fields["train"][name]
    train = from_json(fields).train
    assert (train.sample_every, train.precision, train.compile) == (0, "float32", False)
    fields["train"]["precision"] = "bfloat16"
    assert from_json(fields).train.precision == "bf16"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["train"].update(speed=1), "train.speed, which this version does not know"),
        (lambda c: c["train"].pop("lr"), r"lacks train\.lr"),
        (lambda c: c.pop("train"), "lacks train"),
        (lambda c: c.update(extra=1), "extra, which"),
        (lambda c: c["train"].update(lr="fast"), r"train\.lr is 'fast'"),
        (lambda c: c["train"].update(steps=True), r"train\.steps is True"),
        (lambda c: c["train"].update(betas=0.9), r"train\.betas is 0\.9"),
        (lambda c: c["train"].update(lr=None), r"train\.lr is None"),
        (lambda c: c["net"].update(kind="resnet"), "no network called 'resnet'"),
        (lambda c: c.update(net=3), "no table `net`"),
        (lambda c: c.update(train=[]), r"train is \[\]"),
    ],
)
def test_json_that_is_not_a_configuration_is_refused(change, message: str) -> None:
    fields = to_json(PRESETS["digits"])
    change(fields)
    with pytest.raises(InputError, match=message):
        from_json(fields)


def test_colours_and_levels_follow_the_data() -> None:
    config = fit(PRESETS["digits"], 256, (3, 32, 32))
    assert isinstance(config.net, UNetConfig)
    assert (config.net.channels, config.net.levels) == (3, 256)
    assert (config.model.levels, config.model.shape) == (256, (3, 32, 32))
    table = fit(PRESETS["vectors"], None, (7,))
    assert isinstance(table.net, MLPConfig)
    assert table.net.features == 7
    assert table.model.levels is None


def test_images_and_vectors_are_not_confused() -> None:
    with pytest.raises(InputError, match="preset `vectors`"):
        fit(PRESETS["digits"], None, (7,))
    with pytest.raises(InputError, match="image preset"):
        fit(PRESETS["vectors"], 256, (3, 32, 32))


def test_a_retired_field_is_read_where_it_changed_nothing_and_refused_elsewhere() -> None:
    stored = to_json(PRESETS["digits"])
    stored["net"]["patch"] = 1  # as every file of version 0.1 has it
    assert from_json(stored) == PRESETS["digits"]
    stored["net"]["patch"] = 2
    with pytest.raises(InputError, match=r"has net\.patch=2: networks on patches of pixels"):
        from_json(stored)


def test_a_custom_network_is_recorded_by_its_class_and_fits_any_data() -> None:
    net = CustomNetConfig.of(UNet(UNetConfig(depth=1)))
    config = dataclasses.replace(PRESETS["digits"], net=net)
    assert to_json(config)["net"] == {"kind": "custom", "name": "UNet"}
    assert from_json(to_json(config)) == config
    assert fit(config, None, (3,)).model.shape == (3,)


def test_holding_out_everything_is_refused_with_the_number_of_samples(tmp_path: Path) -> None:
    config = tiny.config("train.hold_out=40")
    with pytest.raises(InputError, match="hold_out=40 leaves nothing of 40 training samples"):
        Trainer(Run(tmp_path, config, None), tiny.dataset(), tiny.CPU)


def test_fine_tuning_of_learned_noise_levels_is_refused_for_what_they_are(tmp_path: Path) -> None:
    run = Run(tmp_path, tiny.config("path.bits=4", "objective.density=uniform-gamma"), None)
    with pytest.raises(InputError, match="no second-order objective"):
        finetuning_config(run)
