from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import IO

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from idode.diffusion.clocks import ScaledGamma
from idode.diffusion.schedules import start_gamma
from idode.errors import InputError
from idode.runs.run import Parent, Run, build_net, diffusion_ode, open_run, save_model


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = tiny.new_run(tmp_path / "run")
    save_model(run.path, build_net(run.config, torch.Generator().manual_seed(5)).state_dict())
    return run


def edit(run: Run, **changes: object) -> None:
    path = run.path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_run_is_what_was_written(run: Run) -> None:
    assert open_run(run.path) == run
    assert open_run(str(run.path)).identity == tiny.dataset().identity


def test_the_model_has_the_stored_weights_and_is_ready_to_evaluate(run: Run) -> None:
    model, stored = open_run(run.path).model(), load_file(run.path / "model.safetensors")
    assert isinstance(model.net, torch.nn.Module)
    assert not model.net.training
    assert not any(p.requires_grad for p in model.net.parameters())
    assert all(torch.equal(v, stored[k]) for k, v in model.net.state_dict().items())
    assert (model.levels, model.gamma_min, model.gamma_max) == (4, start_gamma(4), 5.0)


def test_the_model_is_read_as_the_configuration_says() -> None:
    config = tiny.config("model.schedule=sp", "model.predictor=noise", "model.clock=-13.3,5")
    model = diffusion_ode(build_net(config), config)
    assert type(model.schedule).__name__ == "StraightPath"
    assert type(model.predictor).__name__ == "Noise"
    assert model.clock == ScaledGamma(-13.3, 5.0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.schedule=cosine", "no schedule called 'cosine'.*vp, sp"),
        ("model.predictor=eps", "no predictor called 'eps'.*noise"),
        ("model.gamma_min=6", "gamma_min < gamma_max"),
    ],
)
def test_names_and_ranges_are_checked(setting: str, message: str) -> None:
    config = tiny.config(setting)
    with pytest.raises(InputError, match=message):
        diffusion_ode(build_net(config), config)


def test_continuous_data_needs_a_least_noise() -> None:
    config = tiny.config()
    continuous = dataclasses.replace(
        config, model=dataclasses.replace(config.model, levels=None, gamma_min=None)
    )
    with pytest.raises(InputError, match=r"--set model\.gamma_min=-8"):
        diffusion_ode(build_net(config), continuous)


def test_a_missing_folder_and_a_strange_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run folder"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"has no config\.json"):
        open_run(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', '{"config": {}}'])
def test_a_damaged_config_is_refused(run: Run, text: str) -> None:
    (run.path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        open_run(run.path)


def test_another_format_and_other_fields_are_refused(run: Run) -> None:
    edit(run, format=2)
    with pytest.raises(InputError, match="has format 2"):
        open_run(run.path)
    edit(run, format=1, config={"net": {"kind": "unet"}})
    with pytest.raises(InputError, match="lacks"):
        open_run(run.path)


def test_a_run_without_its_model_says_the_command_that_makes_it(run: Run) -> None:
    def said(changed: Run) -> str:
        with pytest.raises(InputError, match=r"has no model\.safetensors: ") as caught:
            changed.model()
        return str(caught.value)

    (run.path / "model.safetensors").unlink()
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    again = f"`idode train --resume --out {run.path}`"
    assert said(run).endswith(f"training stopped before its first checkpoint; go on by {again}")
    tuned = dataclasses.replace(run, parent=Parent("pretrained:digits", None, "0" * 64))
    assert f"`idode finetune pretrained:digits --resume --out {run.path}`" in said(tuned)
    imported = dataclasses.replace(run.config, name="import:a.flax")
    assert "import it again" in said(dataclasses.replace(run, config=imported))
    second = dataclasses.replace(imported, name="import:a.flax+second-order")
    assert said(dataclasses.replace(tuned, config=second)) == said(tuned)
    spaced = dataclasses.replace(run, parent=Parent("my runs/first", 3, "0" * 64))
    assert f"`idode finetune 'my runs/first' --resume --out {run.path}`" in said(spaced)
    (run.checkpoints / "step-000000010").mkdir(parents=True)
    for each in (run, tuned):
        assert said(each).endswith(f"write it again from the last checkpoint by {again}")


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"\xff" * 64])
def test_a_damaged_model_is_refused(run: Run, content: bytes) -> None:
    (run.path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        open_run(run.path).model()


def test_weights_of_another_network_are_refused(run: Run) -> None:
    weights = load_file(run.path / "model.safetensors")
    weights["conv_in.bias"] = torch.zeros(3)
    del weights["conv_out.bias"]
    save_file(weights, run.path / "model.safetensors")
    with pytest.raises(InputError, match=r"2 arrays differ, such as conv_in\.bias"):
        open_run(run.path).model()


def test_a_failed_write_leaves_the_old_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run.path / "model.safetensors").read_bytes()

    def full(file: IO[bytes], tensors: object, described: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("idode.runs.tensor_file.write_tensors", full)
    with pytest.raises(InputError, match="No space left"):
        save_model(run.path, {"x": torch.zeros(1)})
    assert (run.path / "model.safetensors").read_bytes() == before
    assert sorted(p.name for p in run.path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_configuration_that_asks_for_any_size_is_refused_without_the_memory(run: Run) -> None:
    stored = json.loads((run.path / "config.json").read_text())
    stored["config"]["net"]["width"] = 3_200_000
    (run.path / "config.json").write_text(json.dumps(stored))
    save_model(run.path, {"time.dense0.weight": torch.zeros(1)})
    with pytest.raises(InputError, match="arrays differ"):
        open_run(run.path).net()


def test_what_a_configuration_refuses_is_told_with_its_file(run: Run) -> None:
    stored = json.loads((run.path / "config.json").read_text())
    stored["config"]["net"]["width"] = -3
    (run.path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match=r"config\.json: .*width: must be at least 4, got -3"):
        open_run(run.path)
    with pytest.raises(InputError, match="is a file: give the folder of a run"):
        open_run(run.path / "config.json")
