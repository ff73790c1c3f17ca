"""``idode.adapt``: a network of another library as a diffusion ODE, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from idode.adapters import ADAPTERS
from idode.adapters.convention import Convention
from idode.dataclass_io import field_types, parse
from idode.diffusion.model import DiffusionODE
from idode.diffusion.wrapping import DataRange, wrap
from idode.errors import InputError, choose

__all__ = ["PREFIX", "adapt", "folder_of", "open_model"]

PREFIX = "diffusers:"  # of a folder, where a run is expected


@dataclass(frozen=True)
class Options:
    """Arguments of :func:`adapt` that a specification may have after a question mark."""

    extend: bool = False
    levels: int = 256
    data_range: tuple[float, ...] = (-1.0, 1.0)


def adapt(
    thing: Any,  # noqa: ANN401  whatever other libraries have
    *,
    levels: int | Literal["auto"] | None = "auto",
    data_range: DataRange | None = None,
    data_scale: float = 1.0,
    gamma_min: float | None = None,
    gamma_max: float | None = None,
    extend: bool = False,
    shape: tuple[int, ...] | None = None,
    verbose: bool = True,
) -> DiffusionODE:
    """A network of another library as a diffusion ODE.

    Recognised are, by what they have and not by their class: a diffusers pipeline or a pair
    (model, scheduler); a GaussianDiffusion of denoising-diffusion-pytorch; a pair (network,
    GaussianDiffusion) of improved-diffusion or guided-diffusion; denoisers of k-diffusion, EDM
    and EDM2; pairs (network, flow matcher) of torchcfm and (network, path) of
    flow_matching; a CNF of zuko; pairs (network, SDE) of score_sde. The network is put into
    evaluation mode. What is assumed is printed and kept as ``model.description``; every part of
    it can be overridden here.

    Args:
        thing: The object, or the pair.
        levels: Grey levels of the data, ``None`` for continuous data; by default 256 for networks
            of images and none for others.
        data_range: Scale of the pixels the network was trained on, as of :func:`idode.wrap`.
        data_scale: Root mean square of the data; for images it need not be given.
        gamma_min: Least noise; by default what the network knows and the data needs.
        gamma_max: Most noise, likewise.
        extend: Start lower than the network knows, with it held at its last time.
        shape: Shape of one sample, where the network does not say it and samples are wanted.
        verbose: Print the line of what was understood.
    """
    found = _understood(thing)
    found.net.eval()
    chosen = found.levels if levels == "auto" else levels
    usual: DataRange = found.data_range if chosen is not None else "bin-centres"
    if chosen is not None and found.levels is None:
        usual = "[-1, 1]"  # a network of vectors used for pixels: what most libraries do
    own = chosen == found.levels
    model = wrap(
        found.net,
        found.predicts,
        found.schedule,
        found.clock,
        levels=chosen,
        data_range=usual if data_range is None else data_range,
        data_scale=data_scale,
        gamma_min=found.gamma_min if gamma_min is None and own and not extend else gamma_min,
        gamma_max=found.gamma_max if gamma_max is None else gamma_max,
        extend=extend,
        shape=found.shape if shape is None else shape,
        gaussian_path=found.gaussian_path,
    )
    scale = usual if data_range is None else data_range
    model.description = _description(found, model, scale)
    if verbose:
        print(model.description)
    return model


def open_model(spec: str, *, verbose: bool = False) -> DiffusionODE:
    """The model of a specification such as ``diffusers:FOLDER?extend=true``.

    Args:
        spec: ``diffusers:`` and a folder written by a pipeline's ``save_pretrained``; after a
            question mark any of ``extend``, ``levels`` and ``data_range``, joined by ``&``.
        verbose: Print what was understood.
    """
    from idode.adapters.diffusers import open_folder

    given = _options(spec)
    return adapt(open_folder(folder_of(spec)), verbose=verbose, **given)


def folder_of(spec: str) -> str:
    """The folder of a specification."""
    if not spec.startswith(PREFIX):
        raise InputError(f"{spec!r} is no foreign model: write {PREFIX}FOLDER")
    return spec.removeprefix(PREFIX).partition("?")[0]


def _options(spec: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for item in filter(None, spec.partition("?")[2].split("&")):
        name, _, value = item.partition("=")
        hint = choose(f"option of {PREFIX}FOLDER", name, field_types(Options))
        given[name] = parse(value, hint, f"{spec}: {name}")
    return given


def _understood(thing: object) -> Convention:
    for source in ADAPTERS.values():
        if source.recognises(thing):
            found: Convention = source.read(thing)
            return found
    kinds = "; ".join(f"{name}: {ADAPTERS.summaries[name]}" for name in ADAPTERS)
    what = (
        f"a pair of {' and '.join(type(part).__name__ for part in thing)}"
        if isinstance(thing, tuple | list)
        else f"a {type(thing).__name__}"
    )
    raise InputError(
        f"{what} is not recognised ({kinds}): use idode.wrap and say what the network predicts, "
        "on which path and clock"
    )


def _description(found: Convention, model: DiffusionODE, data_range: DataRange) -> str:
    """One line of what was understood."""
    path = found.schedule if isinstance(found.schedule, str) else type(found.schedule).__name__
    clock = found.clock if isinstance(found.clock, str) else type(found.clock).__name__
    data = (
        "continuous data"
        if model.levels is None
        else f"pixels of {model.levels} levels scaled to {data_range}"
    )
    parts = [
        f"predicts {found.predicts}",
        f"path {path}",
        f"clock {clock}",
        data,
        f"gamma {model.gamma_min:.2f} to {model.gamma_max:.2f}",
        *found.remarks,
    ]
    return f"{found.source}: {', '.join(parts)}"
