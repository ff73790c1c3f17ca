r"""diffusers: pipelines, and pairs of a model and its scheduler.

DDPM-like schedulers have a table of :math:`\bar\alpha` at integer times; the network is asked
between them, where its sinusoidal embedding is defined as well. Flow matching has
:math:`x = (1-\sigma)x_0 + \sigma\epsilon` at time :math:`1000\sigma` and predicts
:math:`\epsilon - x_0`. Data is in [-1, 1]; the variance-exploding ScoreSDE has it in [0, 1].
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from idode.adapters.convention import Convention, Named, pair, without_variances
from idode.diffusion.clocks import NoiseLevel, StraightTime, TableTime
from idode.errors import InputError, one_line

__all__ = ["open_folder", "read", "recognises"]

PREDICTIONS = {"epsilon": "noise", "v_prediction": "normalized-velocity", "sample": "data"}
LABELS = {"labels": "class_labels"}
# Their networks jump to the data, or are told another time than the step of the table.
DISTILLED = ("LCMScheduler", "TCDScheduler")


def recognises(thing: object) -> bool:
    """A pipeline, a pair, or one of the library's models alone, which is refused."""
    both = pair(thing)
    if both is not None:
        return _is_scheduler(both[1])
    if type(thing).__module__.partition(".")[0] == "diffusers" and isinstance(thing, nn.Module):
        return True
    return _is_scheduler(getattr(thing, "scheduler", None)) and _network(thing) is not None


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the scheduler, for the model."""
    if isinstance(thing, nn.Module) and not _is_scheduler(getattr(thing, "scheduler", None)):
        raise InputError(
            f"a {type(thing).__name__} alone does not say how it was trained: adapt the pair "
            "(model, scheduler), or the pipeline"
        )
    both = pair(thing)
    net, scheduler = both if both is not None else (_network(thing), thing.scheduler)
    if both is None and getattr(thing, "vae", None) is not None:
        raise InputError(
            f"{type(thing).__name__} diffuses latents of an autoencoder, not pixels, so it has no "
            "likelihood of images: for the density of latents adapt (model, scheduler) with "
            "levels=None"
        )
    config = getattr(net, "config", {})
    if _get(config, "time_embedding_type") == "learned":
        raise InputError(
            "the network has a learned time embedding, a table that says nothing between "
            "integers: a diffusion ODE needs a network of continuous time"
        )
    size, channels = _get(config, "sample_size"), _get(config, "in_channels")
    side = size if isinstance(size, tuple | list) else (size, size)
    found = Convention(
        source=f"diffusers {type(net).__name__} with {type(scheduler).__name__}",
        net=Named(net, _call, LABELS),
        predicts="noise",
        schedule="vp",
        clock="gamma",
        levels=256,
        data_range="[-1, 1]",
        shape=None if size is None or channels is None else (channels, side[0], side[1]),
    )
    return _scheduled(found, net, scheduler)


def open_folder(folder: Path | str) -> Any:  # noqa: ANN401
    """The pipeline saved in a folder; diffusers must be installed."""
    if importlib.util.find_spec("diffusers") is None:
        raise InputError("diffusers is not installed: pip install diffusers, then try again")
    if not (Path(folder) / "model_index.json").is_file():
        raise InputError(
            f"{folder} has no model_index.json: give a folder written by a pipeline's "
            "save_pretrained"
        )
    library = importlib.import_module("diffusers")
    logging = getattr(getattr(library, "utils", None), "logging", None)
    if logging is not None:
        logging.disable_progress_bar()  # commands have their own
    try:
        # Without safetensors it would unpickle.
        return library.DiffusionPipeline.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True
        )
    except Exception as error:  # of any of the many libraries it imports
        raise InputError(
            f"diffusers cannot load {folder} ({one_line(str(error))}): check the folder and the "
            "installation of diffusers, or load the network yourself and pass it to idode.adapt"
        ) from error
    finally:
        if logging is not None:
            logging.enable_progress_bar()


def _scheduled(found: Convention, net: Any, scheduler: Any) -> Convention:  # noqa: ANN401
    """The convention with path, clock and prediction of the scheduler filled in."""
    config, kind = scheduler.config, type(scheduler).__name__
    steps = int(_get(config, "num_train_timesteps") or 1000)
    if "FlowMatch" in kind:
        return dataclasses.replace(
            found,
            net=Named(net, lambda n, x, t, **c: _call(n, x, steps * t, **c), LABELS),
            predicts="velocity",
            schedule="sp",
            clock=StraightTime(),
            remarks=("flow matching",),
        )
    if "ScoreSdeVe" in kind:
        clock = NoiseLevel(float(config["sigma_min"]), float(config["sigma_max"]))
        return dataclasses.replace(
            found, predicts="score", schedule="ve", clock=clock, data_range="[0, 1]"
        )
    if not isinstance(getattr(scheduler, "alphas_cumprod", None), Tensor):
        raise InputError(
            f"the convention of {kind} is not known: use idode.wrap and say what the network "
            "predicts, on which path and clock"
        )
    if kind in DISTILLED or _get(config, "timestep_type") == "continuous":
        raise InputError(
            f"a network for {kind} with these settings follows no ODE in the steps of its table "
            "(a distilled model, or continuous times): adapt it with the scheduler it was trained "
            "with"
        )
    prediction = _get(config, "prediction_type") or "epsilon"
    if prediction not in PREDICTIONS:
        raise InputError(
            f"a prediction_type of {prediction!r} is not known: it must be one of "
            f"{', '.join(PREDICTIONS)}"
        )
    remarks: tuple[str, ...] = (f"a table of {steps} steps",)
    if _get(config, "clip_sample") or _get(config, "thresholding"):
        remarks = (*remarks, "clipping of predictions left out")
    return dataclasses.replace(
        found,
        predicts=PREDICTIONS[prediction],
        clock=TableTime(scheduler.alphas_cumprod),
        remarks=remarks,
    )


def _call(net: Any, x: Tensor, time: Tensor, **condition: Tensor) -> Tensor:  # noqa: ANN401
    said = net(x, time, **condition)
    tensor: Tensor = said[0] if isinstance(said, tuple) else getattr(said, "sample", said)
    return without_variances(tensor, x)


def _network(pipeline: object) -> Any:  # noqa: ANN401
    return getattr(pipeline, "unet", None) or getattr(pipeline, "transformer", None)


def _is_scheduler(thing: object) -> bool:
    config = getattr(thing, "config", None)
    return config is not None and _get(config, "num_train_timesteps") is not None


def _get(config: Any, name: str) -> Any:  # noqa: ANN401
    return config.get(name) if hasattr(config, "get") else getattr(config, name, None)
