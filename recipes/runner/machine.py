"""What runs where: cards, precision, how the effective batch is divided, how processes are started."""

import logging
import os
import socket
import subprocess
from dataclasses import dataclass
from typing import Iterator, List, NamedTuple, Optional

from fairseq_modern import processor

from .settings import PYTHON, RecipeError, SettingsError

logger = logging.getLogger("recipe")

#: settings whose flags `Machine.training_flags` decides
DECIDED_BY_MACHINE = (
    "common.fp16",
    "common.bf16",
    "common.cpu",
    "dataset.max_tokens",
    "optimization.update_freq",
    "distributed_training.distributed_world_size",
    "distributed_training.distributed_backend",
)
#: fairseq leaves out longer sentences (--max-source-positions)
LONGEST = 1024


class Cards(NamedTuple):
    """The GPUs of this machine: how many, the lowest compute capability times 10, the least memory in GiB."""

    number: int
    capability: int = 0
    memory: int = 0


def cards() -> Cards:
    """What torch sees."""
    import torch

    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = [torch.cuda.get_device_properties(n) for n in range(number)]
    capability = min((10 * card.major + card.minor for card in found), default=0)
    return Cards(number, capability, min((card.total_memory >> 30 for card in found), default=0))


def choose_device(name: str, number: int) -> str:
    """`cpu` or `gpu`; the environment of what is started there is set."""
    device = ("gpu" if number else "cpu") if name == "auto" else name
    if device == "gpu":
        os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"  # cuDNN makes a plan for every new shape of a batch
    elif device == "cpu":
        # glibc keeps what is freed: to get it from the kernel again takes longer than what is computed with it
        os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 33))
        os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 32))
    else:
        raise SettingsError(f"--device must be auto, gpu or cpu, got '{name}'")
    return device


@dataclass
class Machine:
    """Where a run is trained. `gpus` are processes of a node; `threads` CPU threads of a node."""

    device: str = "auto"
    gpus: int = 0  # 0: all
    nodes: int = 1
    node_rank: int = 0
    master: str = ""
    threads: int = 1
    dry_run: bool = False
    precision: str = "auto"
    gpu_precision: Optional[str] = None  # what `auto` means there; else it follows from the card
    cpu_precision: str = "bf16"  # where the CPU has units for it
    max_tokens: int = 0
    update_freq: int = 1
    capability: Optional[int] = None  # None: of another machine, for which a command is printed
    memory: int = 0

    @property
    def processes(self) -> int:
        return self.gpus * self.nodes

    def find_cards(self) -> None:
        """Set device, gpus, capability and memory."""
        number, self.capability, self.memory = cards()
        self.device = choose_device(self.device, number)
        if self.device == "cpu":
            self.gpus = self.gpus or 1
            return
        if self.dry_run and not number and self.gpus:
            number, self.capability = self.gpus, None
        if not number:
            raise RecipeError("--device gpu: torch sees no GPU here (see collab doctor)")
        self.gpus = self.gpus or number
        if self.gpus > number:
            raise RecipeError(f"--gpus {self.gpus}: this machine has {number}")

    def choose_precision(self) -> None:
        """Set precision to fp16, bf16 or fp32."""
        name = self.precision
        if name not in ("auto", "fp16", "bf16", "fp32"):
            raise SettingsError(f"--precision must be auto, fp16, bf16 or fp32, got '{name}'")
        if self.device == "gpu":
            if name == "auto":
                if self.gpu_precision is None and self.capability is None:
                    raise RecipeError("--precision must be fp16, bf16 or fp32 where there is no GPU to ask, got 'auto'")
                # bf16 has the range of fp32 and needs no loss scale, but only capability 8.0 (A100) and later have it
                self.precision = self.gpu_precision or ("bf16" if (self.capability or 0) >= 80 else "fp16")
            elif name == "bf16" and self.capability is not None and self.capability < 80:
                told = f"{self.capability // 10}.{self.capability % 10}; use fp16"
                raise RecipeError(f"--precision bf16 needs a GPU of compute capability 8.0, this one has {told}")
        elif name == "fp16":
            raise RecipeError("--precision fp16 needs a GPU; a CPU trains in fp32 or bf16")
        elif name == "auto":
            self.precision = self.cpu_precision if processor.bfloat16_units() else "fp32"
        elif name == "bf16" and not processor.bfloat16_units():
            raise RecipeError(
                "--precision bf16: this CPU has no units for bfloat16; leave out the option or give --precision fp32"
            )

    @property
    def threads_each(self) -> int:
        return max(1, self.threads // self.gpus)

    def split_batch(self, batch: int, most: int) -> None:
        """Set max_tokens and update_freq, so that processes × max_tokens × update_freq are the tokens of `batch`.

        Unless `max_tokens` is given it is at most `most`, which is for cards of 16 GiB; larger ones would only wait for
        the launches of so small passes.
        """
        longest = min(LONGEST, batch)  # a trial, with short sentences
        processes, given = self.processes, self.max_tokens

        def shares(processes: int, most: int) -> Iterator[int]:
            """The max-tokens up to `most` that give the batch in whole updates, the largest first."""
            for times in range(1, batch // (processes * longest) + 1):
                if batch % (processes * times) == 0 and batch // (processes * times) <= most:
                    yield batch // (processes * times)

        if given and given not in shares(processes, batch):
            possible = ", ".join(map(str, shares(processes, batch)))
            raise SettingsError(
                f"--max-tokens {given} on {processes} processes does not give {batch} tokens per update; "
                + (f"possible with --max-tokens {possible}" if possible else "no number does on so many")
            )
        if self.device == "gpu" and self.memory >= 48:
            most *= self.memory // 24
        self.max_tokens = given or next(shares(processes, most), 0)
        if not self.max_tokens:
            numbers = ", ".join(str(number) for number in range(1, 65) if next(shares(number, most), 0))
            raise RecipeError(
                f"{batch} tokens per update cannot be divided evenly among {processes} processes with at least "
                f"{longest} each (the longest sentence); possible numbers: {numbers}"
            )
        self.update_freq = batch // (processes * self.max_tokens)
        kind = "GPU" if self.device == "gpu" else "CPU process"
        logger.info(
            "%d %s(s) x %d tokens x update-freq %d = %d tokens per update, %s",
            processes,
            kind,
            self.max_tokens,
            self.update_freq,
            batch,
            self.precision,
        )

    def flags(self) -> List[str]:
        """Of fairseq's programs: one GPU or the CPU. Without a world size they would take every GPU that they see."""
        return ["--distributed-world-size", "1", *(["--cpu"] if self.device == "cpu" else [])]

    def training_flags(self) -> List[str]:
        """Of fairseq-train."""
        words = [*self.flags(), "--max-tokens", str(self.max_tokens), "--update-freq", str(self.update_freq)]
        if self.precision != "fp32":
            # --amp refuses a CPU without units for bfloat16; parameters stay in fp32
            words.append("--amp" if self.device == "cpu" else f"--{self.precision}")
        if self.processes > 1:
            words[1] = str(self.processes)
            words += [] if self.device == "gpu" else ["--distributed-backend", "gloo"]
        return words

    def launch(self) -> List[str]:
        """What starts fairseq-train in several processes: nothing for one."""
        if self.processes == 1:
            return []
        address, port, job = "127.0.0.1", rendezvous_port(), os.environ.get("SLURM_JOB_ID")
        if self.nodes > 1 and job:
            hosts = subprocess.run(
                ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            address = hosts.stdout.split()[0]
        elif self.nodes > 1:
            address, _, port = self.master.rpartition(":")
            if not address or not port.isdigit():
                raise SettingsError(
                    f"--nodes {self.nodes} outside Slurm needs --master HOST:PORT and, on each node, --node-rank R"
                )
        words = [PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", str(self.gpus)]
        words += ["--nnodes", str(self.nodes), "--master_addr", address, "--master_port", port]
        if self.nodes == 1 or not job:
            return [*words, "--node_rank", str(self.node_rank)]
        # one torchrun per node; only there is its rank known. srun does not take over the job's --cpus-per-task since
        # Slurm 22.05: one core for all processes of a node
        cores = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or str(self.threads)
        nodes = str(self.nodes)
        return [
            "srun",
            "--nodes",
            nodes,
            "--ntasks",
            nodes,
            "--ntasks-per-node",
            "1",
            "--kill-on-bad-exit=1",
            "--cpus-per-task",
            cores,
            "bash",
            "-c",
            'exec "${@:1:3}" --node_rank "$SLURM_NODEID" "${@:4}"',
            "torchrun",
            *words,
        ]


def rendezvous_port() -> str:
    """One that the job's number tells, so that all nodes know it and jobs on a shared node differ; else a free one."""
    if given := os.environ.get("MASTER_PORT"):
        return given
    if job := os.environ.get("SLURM_JOB_ID"):
        return str(20000 + int(job) % 10000)  # below the ports that systems give out
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
