"""Run in a Python of its own, started as fairseq-train would be; prints one JSON object.

python probe.py FOLDER, that of --user-dir
"""

import json
import os
import sys
import warnings
from argparse import Namespace
from typing import Any, Callable, Dict


def hook() -> Dict[str, Any]:
    """Has the `.pth` file of fairseq_modern put its finder in place? An import here would do so itself."""
    finders = (getattr(finder, "__module__", "") for finder in sys.meta_path)
    active = any(module.split(".")[0] == "fairseq_modern" for module in finders)
    return {"active": active, "setting": os.environ.get("FAIRSEQ_MODERN")}


def torch() -> Dict[str, Any]:
    """The build, and the GPUs that it sees: memory in bytes, and the error of a first multiplication."""
    import torch

    gpus = []
    with warnings.catch_warnings(record=True) as caught:  # of a driver that is too old or does not answer
        warnings.simplefilter("always")
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            gpu = {"name": about.name, "memory": about.total_memory, "capability": [about.major, about.minor]}
            try:
                ones = torch.ones(8, 8, device=f"cuda:{number}")
                (ones @ ones).sum().item()
            except RuntimeError as error:  # such as "no kernel image is available for execution on the device"
                gpu["error"] = str(error).strip().split("\n")[0]
            gpus.append(gpu)
    version, cuda, hip = str(torch.__version__), torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    return {"version": version, "build": build, "gpus": gpus, "warnings": [str(w.message) for w in caught]}


def user_dir(folder: str) -> Dict[str, Any]:
    """What --user-dir registers."""
    from fairseq import models, utils

    before = set(models.ARCH_MODEL_REGISTRY)
    utils.import_user_module(Namespace(user_dir=folder))
    return {"registered": sorted(set(models.ARCH_MODEL_REGISTRY) - before)}


def tell(look: Callable[..., Dict[str, Any]], *arguments: str) -> Dict[str, Any]:
    """What a look finds, or its error."""
    try:
        return look(*arguments)
    except Exception as error:  # what is installed decides
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    answer, sys.stdout = sys.stdout, sys.stderr  # what fairseq prints is no answer
    json.dump({"hook": tell(hook), "torch": tell(torch), "user_dir": tell(user_dir, sys.argv[1])}, answer)
