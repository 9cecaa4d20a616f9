"""Machine of a run: device, precision, division of the batch among processes, launch of these processes."""

import logging
import os
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Tuple

from collab_fairseq.records.environment import usable_gpus
from fairseq_modern import processor
from fairseq_modern.errors import UserError

from .launch import free_port
from .settings import PYTHON

logger = logging.getLogger("recipe")

#: settings whose flags `Machine.training_flags` gives
SET_BY_MACHINE = (
    *("common.fp16", "common.bf16", "common.cpu", "dataset.max_tokens", "optimization.update_freq"),
    *("distributed_training.distributed_world_size", "distributed_training.distributed_backend"),
)
#: tokens of the longest sentence; fairseq skips longer ones (--max-source-positions)
LONGEST = 1024


class Gpus(NamedTuple):
    """GPUs of this machine: their number, lowest compute capability (times 10) and smallest memory (GiB)."""

    number: int
    capability: int = 0
    memory: int = 0


def find_gpus() -> Gpus:
    """The GPUs that torch can use."""
    import torch

    gpus = [torch.cuda.get_device_properties(n) for n in range(usable_gpus())]
    if not gpus:
        return Gpus(0)
    capability = min(10 * gpu.major + gpu.minor for gpu in gpus)
    return Gpus(len(gpus), capability, min(gpu.total_memory >> 30 for gpu in gpus))


def choose_device(name: str, gpus: int) -> str:
    """`cpu` or `cuda`. Also sets environment variables for the processes that will use it."""
    name = "cuda" if name == "gpu" else name  # its name in earlier versions
    if name not in ("auto", "cuda", "cpu"):
        raise UserError(f"--device must be auto, cuda or cpu; got '{name}'")
    if name == "cuda" or (name == "auto" and gpus):
        os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"  # cuDNN plans again for every new shape of a batch
        return "cuda"
    # let glibc keep freed memory: getting it from the kernel again takes longer than the computation
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 33))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 32))
    return "cpu"


def equal_shares(batch: int, processes: int, least: int) -> List[int]:
    """Values of max-tokens, at least `least`, that give the batch in equal passes of all processes; largest first."""
    frequencies = range(1, batch // (processes * least) + 1)
    return [batch // (processes * freq) for freq in frequencies if batch % (processes * freq) == 0]


@dataclass
class Machine:
    """Where a run is trained. `gpus` are GPUs per node (on a CPU: processes), `threads` CPU threads per node."""

    device: str = "auto"
    gpus: int = 0  # 0: not requested
    default_gpus: int = 0  # without a request; 0: all
    nodes: int = 1
    node_rank: int = 0
    master: str = ""
    torchrun_port: str = ""  # agreed by the nodes; default: that of `master`
    threads: int = 1
    dry_run: bool = False
    precision: str = "auto"
    gpu_precision: Optional[str] = None  # meaning of `auto` on a GPU; default: by its compute capability
    cpu_precision: str = "bf16"  # meaning of `auto` on a CPU with native bf16 support
    max_tokens: int = 0
    update_freq: int = 1
    capability: Optional[int] = None  # None: unknown, in a dry run for another machine
    memory: int = 0

    @property
    def processes(self) -> int:
        return self.gpus * self.nodes

    def find_gpus(self) -> None:
        """Set device, gpus, capability and memory.

        Raises:
            UserError: GPUs were requested, by the device, by their number or from Slurm, and torch sees fewer.
        """
        number, self.capability, self.memory = find_gpus()
        request = f"--device {self.device}"
        if self.device == "auto" and self.gpus:
            self.device, request = "cuda", f"--gpus {self.gpus}"
        elif self.device == "auto" and os.environ.get("SLURM_GPUS_ON_NODE", "0") not in ("", "0"):
            self.device, request = "cuda", "this Slurm job has GPUs"
        self.device = choose_device(self.device, number)
        if self.device == "cpu":
            self.gpus = self.gpus or 1
            return
        if self.dry_run and not number and self.gpus:
            number, self.capability = self.gpus, None
        if not number:
            raise UserError(f"{request}: torch sees no GPU here (see collab doctor); --device cpu uses the CPU")
        self.gpus = self.gpus or min(self.default_gpus or number, number)
        if self.gpus > number:
            raise UserError(f"--gpus must be at most {number}, the GPUs that torch sees here; got {self.gpus}")

    def choose_precision(self) -> None:
        """Set precision to fp16, bf16 or fp32."""
        if self.precision not in ("auto", "fp16", "bf16", "fp32"):
            raise UserError(f"--precision must be auto, fp16, bf16 or fp32; got '{self.precision}'")
        self.precision = self._gpu_precision() if self.device == "cuda" else self._cpu_precision()

    def _gpu_precision(self) -> str:
        # bf16 has the range of fp32 and needs no loss scale; GPUs support it from compute capability 8.0 (A100) on
        capability = self.capability
        if self.precision == "bf16" and capability is not None and capability < 80:
            raise UserError(
                f"--precision bf16 needs a GPU of compute capability 8.0 or later; got {capability / 10}; use fp16"
            )
        if self.precision != "auto":
            return self.precision
        if self.gpu_precision:
            return self.gpu_precision
        if capability is None:
            raise UserError("--precision auto needs a GPU on this machine; give --precision fp16, bf16 or fp32")
        return "bf16" if capability >= 80 else "fp16"

    def _cpu_precision(self) -> str:
        bf16 = processor.bfloat16_units()
        if self.precision == "fp16":
            raise UserError("--precision fp16 needs a GPU; a CPU trains in fp32 or bf16")
        if self.precision == "bf16" and not bf16:
            raise UserError("--precision bf16 needs a CPU with native bf16 support; give --precision fp32 or omit it")
        if self.precision != "auto":
            return self.precision
        return self.cpu_precision if bf16 else "fp32"

    def split_batch(self, batch: int, limit: int) -> None:
        """Set max_tokens and update_freq such that processes × max_tokens × update_freq equals `batch`.

        Args:
            batch: tokens per update, padding included.
            limit: largest automatic max_tokens, for a GPU of 16 GiB. It is raised for GPUs of 48 GiB or more, which
                would spend most of such small passes waiting for kernel launches.
        """
        least = min(LONGEST, batch)  # a test with short sentences may have a smaller batch
        shares = equal_shares(batch, self.processes, least)
        if self.device == "cuda" and self.memory >= 48:
            limit *= self.memory // 24
        if self.max_tokens and self.max_tokens not in shares:
            possible = ", ".join(map(str, shares)) or "no value with this number of processes"
            raise UserError(
                f"--max-tokens must give {batch} tokens per update on {self.processes} processes; got "
                f"{self.max_tokens}; possible: {possible}"
            )
        if not self.max_tokens:
            self.max_tokens = next((share for share in shares if share <= limit), 0)
        if not self.max_tokens:
            numbers = [n for n in range(1, 65) if any(share <= limit for share in equal_shares(batch, n, least))]
            raise UserError(
                f"{batch} tokens per update cannot be divided evenly among {self.processes} processes with at least "
                f"{least} each (the longest sentence); possible numbers: {', '.join(map(str, numbers)) or 'none'}"
            )
        self.update_freq = batch // (self.processes * self.max_tokens)
        logger.info(
            "%d %s x %d tokens x update-freq %d = %d tokens per update, %s",
            *(self.processes, "GPU(s)" if self.device == "cuda" else "CPU process(es)"),
            *(self.max_tokens, self.update_freq, batch, self.precision),
        )

    def flags(self) -> List[str]:
        """Flags for fairseq's programs in one process. Without a world size, they would use all visible GPUs."""
        return ["--distributed-world-size", "1", *(["--cpu"] if self.device == "cpu" else [])]

    def training_flags(self) -> List[str]:
        """Flags for fairseq-train."""
        words = [*self.flags(), "--max-tokens", str(self.max_tokens), "--update-freq", str(self.update_freq)]
        if self.precision != "fp32":
            # on a CPU, --amp keeps parameters in fp32; it rejects a CPU without native bf16 support
            words.append("--amp" if self.device == "cpu" else f"--{self.precision}")
        if self.processes > 1:
            words[1] = str(self.processes)
            words += [] if self.device == "cuda" else ["--distributed-backend", "gloo"]
        return words

    def launch(self) -> List[str]:
        """The command that starts fairseq-train in the processes of this node; empty for one process."""
        if self.processes == 1:
            return []
        address, port = "127.0.0.1", os.environ.get("MASTER_PORT") or free_port()
        if self.nodes > 1:
            address, master_port = self.first_node()
            port = self.torchrun_port or str(master_port)
        words = [PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", str(self.gpus), "--nnodes", str(self.nodes)]
        return [*words, "--master_addr", address, "--master_port", port, "--node_rank", str(self.node_rank)]

    def first_node(self) -> Tuple[str, int]:
        """Host and port of --master."""
        address, _, port = self.master.rpartition(":")
        if not address or not port.isdigit():
            raise UserError(
                f"--nodes {self.nodes} needs --master HOST:PORT and, on each node, --node-rank R; "
                "in Slurm, submit recipes/slurm/run.sbatch"
            )
        return address, int(port)
