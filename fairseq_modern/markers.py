"""Patches the buffers `_float_tensor` of fairseq's modules, which are memory that nothing initialises.

They tell a module its device and type, and are saved with every checkpoint: two copies of a model may differ in them,
and where the memory happens to hold NaN, not even one is equal to itself.
"""

from types import ModuleType
from typing import Any

from fairseq_modern.patching import names, wrap

MARKER = "_float_tensor"


def patch(module: ModuleType) -> None:
    """Set the buffers to zero in each class of the module that makes one, for itself or in a checkpoint it loads."""
    for owner in [value for value in vars(module).values() if isinstance(value, type)]:
        if owner.__module__ == module.__name__:
            patch_class(owner)


def patch_class(owner: type) -> None:
    """Wrap the constructor, and the method that adds the buffer to a checkpoint, where the class has them."""
    made, upgraded = (vars(owner).get(method) for method in ("__init__", "upgrade_state_dict_named"))

    if made and MARKER in names(made):

        @wrap(owner)
        def __init__(original: Any, self: Any, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            self._float_tensor.zero_()

    if upgraded and any(MARKER in str(name) for name in names(upgraded)):

        @wrap(owner)
        def upgrade_state_dict_named(original: Any, self: Any, state_dict: Any, name: str) -> Any:
            result = original(self, state_dict, name)
            for key in [key for key in state_dict if key.startswith(name) and key.endswith(MARKER)]:
                state_dict[key].zero_()
            return result
