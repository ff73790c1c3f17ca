"""Networks of other libraries, read as diffusion ODEs by :func:`idode.adapt`.

One module for each source, with ``recognises(thing)`` and ``read(thing)``, which returns a
:class:`~idode.adapters.convention.Convention`, and one line in the table below. No module imports
the library it is for: it reads what it needs from the object itself.
"""

from __future__ import annotations

from types import ModuleType

from idode.registry import Registry

__all__ = ["ADAPTERS"]

ADAPTERS: Registry[ModuleType] = Registry(
    "source",
    {
        "diffusers": ("idode.adapters.diffusers", "a pipeline, or (model, scheduler)"),
        "denoising-diffusion-pytorch": ("idode.adapters.ddpm_pytorch", "a GaussianDiffusion"),
        "guided-diffusion": ("idode.adapters.guided_diffusion", "(network, GaussianDiffusion)"),
        "k-diffusion": ("idode.adapters.k_diffusion", "a Denoiser, or a network of EDM"),
        "torchcfm": ("idode.adapters.torchcfm", "(network, flow matcher)"),
        "flow_matching": ("idode.adapters.flow_matching", "(network, path)"),
        "zuko": ("idode.adapters.zuko", "a CNF"),
        "score_sde": ("idode.adapters.score_sde", "(network, SDE)"),
    },
)
