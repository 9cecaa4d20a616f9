"""Defect: training cannot resume from a checkpoint of unpatched fairseq 0.12.2, and ends in a traceback.

Its optimizer state includes the parameters that the patch `encoder_layer` removes. Check: the checkpoint has such
parameters, the model has none, and the optimizer state is needed. The error then advises --reset-optimizer.
"""

from typing import Any, Dict

from fairseq_modern.encoder_layer import SURPLUS
from fairseq_modern.errors import UserError
from fairseq_modern.patching import step


@step()
def check(trainer: Any, state: Dict[str, Any], filename: str, reset_optimizer: bool) -> None:
    """Raise UserError for such a checkpoint, which a trainer has read."""
    if reset_optimizer or not state.get("last_optimizer_state"):
        return
    surplus = {name for name in state["model"] if name.rpartition(".")[2] in SURPLUS}
    # with --ddp-backend fully_sharded, state_dict() waits for the other processes, which do not call it
    if surplus and surplus.difference(trainer.get_model().state_dict()):
        raise UserError(
            f"{filename} was written by fairseq without fairseq_modern: its model can be loaded, but its optimizer "
            "state has more parameters; give --reset-optimizer or --finetune-from-model"
        )
