"""Our mathematics on the authors' weights against the outputs of the authors' own code.

The files hold a random network and, for VP and SP, what the authors' network, predictors and ODE
gave on it (NHWC). The log-likelihood of two images was solved by them with 180 RK4 steps; ours
of the first on VP and of the second on SP shows as much in half the time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.diffusion.objectives import diffuse
from idode.diffusion.predictors import NOISE, NORMALIZED_VELOCITY
from idode.diffusion.schedules import SCHEDULES
from idode.likelihood import log_prob as density
from idode.likelihood.dequantization import centres
from idode.nets import flax_format, vdm_weights
from idode.nets.unet import UNet
from idode.ode.adams import Adams
from idode.ode.divergence import hutchinson

FOLDER = Path(__file__).parent / "reference"
both = pytest.mark.parametrize("name", ["tiny", "tiny_attention"])
schedules = pytest.mark.parametrize("path", ["VP", "SP"])


def nchw(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).movedim(-1, 1).contiguous()


def load(name: str, path: str) -> tuple[DiffusionODE, dict[str, np.ndarray]]:
    tree = flax_format.read(FOLDER / f"{name}.flax")
    config = vdm_weights.infer_config(tree)
    net = UNet(config)
    net.load_state_dict(vdm_weights.to_state_dict(tree, config))
    model = DiffusionODE(
        net.eval().requires_grad_(False), SCHEDULES[path.lower()], -13.3, 5.0, levels=256
    )
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as arrays:
        return model, dict(arrays)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@both
@schedules
def test_state_network_noise_and_drift_are_theirs(name: str, path: str) -> None:
    model, ref = load(name, path)
    gamma, flag = torch.from_numpy(ref["gamma"]), torch.from_numpy(ref["cond"]).reshape(-1)
    x0 = centres(nchw(ref["pixels"]), 256)
    z = diffuse(x0, nchw(ref["eps"]), gamma, model.schedule)
    # float32 states at gamma = -13.3: the noise is a thousandth of the data
    assert relative(z, nchw(ref[f"{path}_velocity_z"])) < 1e-5
    z = nchw(ref[f"{path}_velocity_z"])
    said = model.predict(z, gamma, NORMALIZED_VELOCITY, flag=flag)
    assert relative(said, nchw(ref[f"{path}_net"])) < 1e-4
    assert relative(model.noise(z, gamma, flag=flag), nchw(ref[f"{path}_velocity_eps_hat"])) < 1e-4
    assert (
        relative(model.velocity(z, gamma, flag=flag), nchw(ref[f"{path}_velocity_drift"])) < 1e-4
    )


@both
@schedules
def test_the_same_network_read_as_a_noise_predictor_is_theirs(name: str, path: str) -> None:
    model, ref = load(name, path)
    vdm = DiffusionODE(model.net, model.schedule, -13.3, 5.0, NOISE, levels=256)
    gamma, flag = torch.from_numpy(ref["gamma"]), torch.from_numpy(ref["cond"]).reshape(-1)
    z = nchw(ref[f"{path}_noise_z"])
    assert relative(vdm.noise(z, gamma, flag=flag), nchw(ref[f"{path}_noise_eps_hat"])) < 1e-4
    assert relative(vdm.velocity(z, gamma, flag=flag), nchw(ref[f"{path}_noise_drift"])) < 1e-4


@both
@schedules
def test_the_probed_divergence_is_theirs(name: str, path: str) -> None:
    model, ref = load(name, path)
    gamma, flag = torch.from_numpy(ref["gamma"]), torch.from_numpy(ref["cond"]).reshape(-1)
    probe = nchw(ref[f"{path}_div_probe"])
    z = nchw(ref[f"{path}_velocity_z"])
    with torch.no_grad():
        _, div = hutchinson(lambda x: model.velocity(x, gamma, flag=flag), z, probe[None])
    theirs = torch.from_numpy(ref[f"{path}_div"])
    torch.testing.assert_close(div[0], theirs, rtol=1e-4, atol=1e-2)


@pytest.mark.once
@both
@schedules
def test_the_log_likelihood_of_an_image_is_theirs_to_two_nats(name: str, path: str) -> None:
    model, ref = load(name, path)
    image = slice(0, 1) if path == "VP" else slice(1, 2)
    x, probe, end = (nchw(ref[f"{path}_{k}"])[image] for k in ("x_start", "probe", "z_end"))
    with torch.no_grad():
        found = density.solve_log_prob(model, x, Adams(steps=48), probes=probe[None])
    theirs = torch.from_numpy(ref[f"{path}_log_p"]).double()[image]
    # 0.001 bits/dim: what 48 steps miss of these rough fields; twice as many miss a quarter of it.
    assert (found.log_p - theirs).abs().max() < 2
    assert relative(found.z, end) < 1e-3
