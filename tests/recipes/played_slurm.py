"""A Slurm job on two nodes, simulated by scripts on this machine."""

import os
from pathlib import Path
from typing import Dict

from tests.common import BIN, ROOT

SRUN = r"""#!/usr/bin/env bash
# simulates srun: runs the command once per node, all on this machine
echo "srun $*" >>"$SLURM_LOG"
while [ $# -gt 0 ]; do
    case $1 in --nodes) nodes=$2 ;; --ntasks* | --cpus-per-task) ;; --*) shift && continue ;; *) break ;; esac
    shift 2
done
pids=()
trap 'kill -TERM "${pids[@]}"' TERM
for ((node = 0; node < nodes; node++)); do SLURM_NODEID=$node SLURM_PROCID=$node "$@" & pids+=($!); done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
"""
SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >>"$SLURM_LOG"
if [ "$1 $2" = "show hostnames" ]; then printf '127.0.0.1\\nelsewhere\\n'; fi
"""


def job(folder: Path) -> Dict[str, str]:
    """Environment of a job on two nodes; srun and scontrol are scripts in a folder."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (program := folder / "bin" / name).parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return {
        "PATH": os.pathsep.join([str(folder / "bin"), str(BIN), os.environ["PATH"]]),
        "SLURM_LOG": str(folder / "slurm.log"),
        "SLURM_JOB_ID": str(1_230_000 + os.getpid() % 10000),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RECIPE_CONFIG": str(ROOT / "recipes" / "wmt14_en_de" / "rehearsal.yaml"),
    }
