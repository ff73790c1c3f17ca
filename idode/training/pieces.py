"""How many pieces a batch is cut into so that one of them fits into memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from idode.batches import out_of_memory
from idode.errors import InputError
from idode.runs.distributed import World

__all__ = ["pieces_that_fit"]


def pieces_that_fit(attempt: Callable[[int], None], rows: int, pieces: int, world: World) -> int:
    """The number of pieces, doubled until no process runs out of memory.

    Args:
        attempt: Computes the gradients of one batch in so many pieces.
        rows: Samples of a process.
        pieces: To begin with.
        world: All processes take the same number.
    """
    while True:
        failed = False
        try:
            attempt(pieces)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            failed = True
        if not bool(world.sum(torch.tensor([float(failed)])) > 0):
            return pieces
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if rows % (2 * pieces):
            raise InputError(
                f"{rows // pieces} samples do not fit into the memory of {world.device} and "
                "cannot be halved: set net.checkpointing=true, or a train.batch_size with more "
                "factors of two"
            )
        pieces *= 2
