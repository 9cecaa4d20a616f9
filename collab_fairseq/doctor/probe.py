"""Run in a Python of its own, started as fairseq-train would be; prints one JSON object.

python probe.py hook | torch | user_dir FOLDER | data FOLDER
"""

import json
import os
import sys
import warnings
from argparse import Namespace
from typing import Any, Dict


def hook() -> Dict[str, Any]:
    """Has the `.pth` file of fairseq_modern put its finder in place? An import here would do so itself."""
    finders = (getattr(finder, "__module__", "") for finder in sys.meta_path)
    active = any(module.split(".")[0] == "fairseq_modern" for module in finders)
    return {"active": active, "setting": os.environ.get("FAIRSEQ_MODERN")}


def torch() -> Dict[str, Any]:
    """The build, and the cards that it sees: memory in bytes, and the error of a first multiplication."""
    import torch

    cards = []
    with warnings.catch_warnings(record=True) as caught:  # of a driver that is too old or does not answer
        warnings.simplefilter("always")
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            card = {"name": about.name, "memory": about.total_memory, "capability": [about.major, about.minor]}
            try:
                ones = torch.ones(8, 8, device=f"cuda:{number}")
                (ones @ ones).sum().item()
            except RuntimeError as error:  # such as "no kernel image is available for execution on the device"
                card["error"] = str(error).strip().split("\n")[0]
            cards.append(card)
    version, cuda, hip = str(torch.__version__), torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    return {"version": version, "build": build, "cards": cards, "warnings": [str(w.message) for w in caught]}


def user_dir(folder: str) -> Dict[str, Any]:
    """What --user-dir registers."""
    from fairseq import models, utils

    before = set(models.ARCH_MODEL_REGISTRY)
    utils.import_user_module(Namespace(user_dir=folder))
    return {"registered": sorted(set(models.ARCH_MODEL_REGISTRY) - before)}


def data(folder: str) -> Dict[str, Any]:
    """How many sentences the splits of a data-bin have, by their files; fails where one is cut short."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    names = sorted(name[:-4] for name in os.listdir(folder) if name.endswith((".idx", ".bin")))
    try:
        return {"sentences": {name: len(MMapIndexedDataset(os.path.join(folder, name))) for name in names}}
    except Exception as error:  # what the files hold decides
        return {"error": str(error)}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    answer, sys.stdout = sys.stdout, sys.stderr  # what fairseq prints is no answer
    json.dump(globals()[sys.argv[1]](*sys.argv[2:]), answer)
