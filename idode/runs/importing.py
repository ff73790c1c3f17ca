"""``idode.import_checkpoint``: a checkpoint of the paper's authors, or of VDM, as a run folder."""

from __future__ import annotations

from pathlib import Path

from idode.data.memory import Data, as_dataset, spec_of
from idode.diffusion.predictors import PREDICTORS
from idode.diffusion.schedules import SCHEDULES
from idode.errors import InputError, choose, whole
from idode.nets.flax_format import read
from idode.nets.unet import UNet
from idode.nets.vdm_weights import infer_config, learned_gamma_range, to_state_dict
from idode.runs.config import Config, ModelConfig, fit
from idode.runs.folder import claim, writing_run
from idode.runs.run import Run, diffusion_ode, save_model

__all__ = ["import_checkpoint"]

# The clock of every published U-Net, whatever noise schedule was learned beside it.
GAMMAS = (-13.3, 5.0)
SIDE = 32  # of an image, where nothing says it


def import_checkpoint(
    file: Path | str,
    *,
    out: Path | str,
    schedule: str = ModelConfig.schedule,
    predictor: str = ModelConfig.predictor,
    raw: bool = False,
    data: Data | None = None,
    levels: int = 256,
    size: int | None = None,
    force: bool = False,
) -> Run:
    """Convert a published checkpoint to a run.

    Args:
        file: The checkpoint, such as ``ckpt-6000000.flax``.
        out: Folder of the new run.
        schedule: The schedule it was trained with, ``"vp"`` or ``"sp"``.
        predictor: What the network predicts; ``"noise"`` for plain VDM.
        raw: Take the last weights instead of the averaged ones.
        data: The data it was trained on, if known.
        levels: Grey levels of a pixel.
        size: Side of an image in pixels; by default that of the data, 32 without.
        force: Replace the run in that folder.
    """
    file, out = Path(file), Path(out)
    # What costs nothing is refused before a large file is read.
    claim(out, force=force)
    if data is not None and size is not None:
        raise InputError(f"data and size={size} are given: leave out the size, which data has")
    side = SIDE if size is None else whole("size", size, 1)
    choose("schedule", schedule, SCHEDULES)
    choose("predictor", predictor, PREDICTORS)
    tree = read(file)
    net = infer_config(tree, raw=raw, levels=levels)
    weights = to_state_dict(tree, net, raw=raw)
    learned = learned_gamma_range(tree, raw=raw)
    gamma_min, gamma_max = learned or GAMMAS
    config = Config(
        name=f"import:{file.name}",
        data=None if data is None else spec_of(data),
        net=net,
        model=ModelConfig(
            schedule=schedule,
            predictor=predictor,
            gamma_min=gamma_min,
            gamma_max=gamma_max,
            clock=None if learned is None else GAMMAS,
            levels=levels,
            shape=(net.channels, side, side),
        ),
    )
    diffusion_ode(UNet(net), config)  # ranges are refused before anything is written
    found = None if data is None else as_dataset(data)
    if found is not None:
        config = fit(config, found.levels, found.shape)
        if config.net != net:
            raise InputError(
                f"{file} is a network for {net.channels} colours of {net.levels} levels, and "
                f"{found.identity.name} is of shape {found.shape} with {found.levels}: give its "
                "own data"
            )
    run = Run(out, config, None if found is None else found.identity)
    with writing_run(out, force=force):
        run.write_config()
        save_model(out, weights)
    return run
