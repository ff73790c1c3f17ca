"""Models on a hub in the manner of Hugging Face, with the mixin of ``huggingface_hub``.

    from idode.adapters.hub import HubModel

    HubModel.of(model).push_to_hub("me/my-model")
    model = HubModel.from_pretrained("me/my-model")

Both also take local folders (``save_pretrained``), which are run folders. ``huggingface_hub`` is
the extra ``idode[hub]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from huggingface_hub import ModelHubMixin, snapshot_download
except ImportError:
    raise ImportError("huggingface_hub is not installed: pip install 'idode[hub]'") from None

from idode.diffusion.model import DiffusionODE
from idode.runs.run import load
from idode.runs.sharing import write_pretrained

__all__ = ["HubModel"]


class HubModel(ModelHubMixin, DiffusionODE, library_name="idode", tags=["idode"]):  # type: ignore[call-arg,misc]
    """A diffusion ODE with ``push_to_hub``, ``save_pretrained`` and ``from_pretrained``."""

    @classmethod
    def of(cls, model: DiffusionODE) -> HubModel:
        """The same model, which shares its network with the given one."""
        found = cls(
            model.net, model.schedule, model.gamma_min, model.gamma_max, model.predictor,
            model.clock, model.levels, model.shape, model.gaussian_path, model.path,
            model.quantization,
        )  # fmt: skip
        found.uniform_start = model.uniform_start
        return found

    def _save_pretrained(self, save_directory: Path) -> None:
        """Called by ``save_pretrained`` and ``push_to_hub`` of the mixin."""
        write_pretrained(self, save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        **_: Any,  # noqa: ANN401  what the mixin read from config.json
    ) -> HubModel:
        """Called by ``from_pretrained`` of the mixin."""
        folder = Path(model_id)
        if not folder.is_dir():
            folder = Path(
                snapshot_download(
                    model_id,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                    allow_patterns=["config.json", "model.safetensors"],
                )
            )
        return cls.of(load(folder, device="cpu"))
