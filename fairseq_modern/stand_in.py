"""Gives one module of fairseq its own view of another module, such as torch or NumPy, which itself stays as it is."""

from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """Stands for a module: some names of its own, then all of that module's."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        super().__init__(module.__name__, f"{module.__name__} as one module of fairseq sees it")
        vars(self).update(names, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
