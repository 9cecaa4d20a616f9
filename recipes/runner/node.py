"""First program of each process of a training run on several nodes: node.py IDENTITY PROGRAM DATA_BIN [ARGUMENTS]

Each node verifies its data and compares IDENTITY, settings in JSON, and the fingerprint of the data with those of all
nodes. If they agree, PROGRAM runs in this process with the remaining arguments. torchrun starts it and provides the
store that the nodes share; nothing but the store need be shared.
"""

import json
import os
import runpy
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch.distributed as dist

from fairseq_modern.files import CHECKSUMS, damaged_files


def state_of(data: Path) -> Dict[str, str]:
    """The fingerprint of the data on this node, or what is wrong with them."""
    from runner.data import fingerprint

    try:
        damaged = damaged_files(data)
    except OSError as error:
        return {"error": f"{data / CHECKSUMS} cannot be read: {error.strerror or error}"}
    if damaged:
        return {"error": f"{data / damaged[0]} is missing, damaged or not listed in {CHECKSUMS}"}
    return {"data": str(fingerprint(data))}


def difference(identities: List[Dict[str, Any]]) -> Optional[str]:
    """What is wrong with a node, or different on it, as an error message; None if all nodes are equal."""
    first = identities[0]
    for node, identity in enumerate(identities):
        if "error" in identity:
            return f"node {node}: {identity['error']}"
    for node, identity in enumerate(identities):
        for name in {**first, **identity}:
            value, other = first.get(name), identity.get(name)
            if value != other:
                return f"{name} must be the same on all nodes; got {value} on node 0 and {other} on node {node}"
    return None


def main() -> None:
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    identity, program, data_bin = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    node, nodes, process = (int(os.environ[name]) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK"))
    store, _, _ = next(dist.rendezvous("env://"))
    if process == 0:
        store.set(f"recipe/{node}", json.dumps({**identity, **state_of(data_bin.parent)}))
    error = difference([json.loads(store.get(f"recipe/{other}")) for other in range(nodes)])
    if process == 0:
        store.set(f"recipe/read/{node}", "")
    if node == 0:  # the store ends with this node
        store.wait([f"recipe/read/{other}" for other in range(nodes)], timedelta(minutes=5))
    if error:
        sys.exit(f"{os.path.basename(program)}: error: {error}" if process == 0 else 1)
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
