#!/usr/bin/env python3
"""What importance costs beside training, and what removing heads saves: ratios of medians, in one process, in turns.

    benchmark.py --data DATA_BIN --output RECORD.json

importance   one pass of the importance of all heads, beside a training pass (forward, backward of all parameters, no
             update) over the same batches; the base model with random weights on the data's vocabulary
removal      beam search of the first sentences of the test split with half of the heads masked, beside the same
             model with these heads removed; what both compute was compared before

CPU time of one thread where there is no GPU, else wall time.
"""

import argparse
import logging
import shlex
import statistics
import sys
import time
from argparse import Namespace
from typing import Any, Callable, Dict, List, Sequence

import torch
from fairseq import tasks
from fairseq.data.data_utils import infer_language_pair
from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf

import collab_fairseq.models  # noqa: F401  (registers the presets)
from collab_fairseq.checkpoints import file_setting
from collab_fairseq.heads.importance import gradients
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.heads.taps import masked
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, batches, translate
from collab_fairseq.translation.load import run_state

logger = logging.getLogger("benchmark")


def base_model(data: str, heads: str, device: str) -> TrainedModel:
    """The base preset with random weights on the dictionaries of a data-bin."""
    source, target = infer_language_pair(data)
    # what fairseq's whole configuration would fill in
    task_config = {"_name": "translation", "data": data, "source_lang": source, "target_lang": target,
                   "train_subset": "train", "dataset_impl": None, "required_seq_len_multiple": 1}  # fmt: skip
    task = tasks.setup_task(OmegaConf.create(task_config))
    args = Namespace(arch="transformer_collab", _name="transformer_collab", collaborative_heads=heads,
                     share_all_embeddings=True)  # fmt: skip
    ARCH_CONFIG_REGISTRY["transformer_collab"](args)
    criterion = {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1, "sentence_avg": False}
    state = {
        "cfg": {
            "model": args,
            "task": task_config,
            "criterion": {**criterion, "ignore_prefix_size": 0, "report_accuracy": False},
            "dataset": {"required_batch_size_multiple": 8},
        },
        "model": task.build_model(args).state_dict(),
    }
    return run_state(state, "the base model", data, device=device)


def seconds(action: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        began = time.process_time()
        action()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def in_turns(actions: Dict[str, Callable[[], Any]], rounds: int, device: str) -> Dict[str, Any]:
    """Median seconds of every action, each round beginning with another one. They have all been run before."""
    times: Dict[str, List[float]] = {name: [] for name in actions}
    names = list(actions)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(seconds(actions[name], device))
        logger.info("round %d of %d: %s", number + 1, rounds, {name: f"{t[-1]:.2f} s" for name, t in times.items()})
    return {name: {"median": statistics.median(t), "all": t} for name, t in times.items()}


def importance(args: argparse.Namespace, device: str, heads: str) -> Dict[str, Any]:
    trained = base_model(args.data, heads, device)
    samples = list(batches(trained, "valid", max_tokens=args.max_tokens, sentences=args.sentences))

    def train(some: Sequence[Any] = samples) -> None:
        trained.model.train()
        for sample in some:
            trained.model.zero_grad(set_to_none=True)
            trained.criterion(trained.model, sample)[0].backward()
        trained.model.zero_grad(set_to_none=True)
        trained.model.eval()

    def rank(some: Sequence[Any] = samples) -> None:
        for sample in some:
            gradients(trained, sample, trained.criterion)

    train(samples[:1])
    rank(samples[:1])
    found = in_turns({"training": train, "importance": rank}, args.rounds, device)
    return {**found, "sentences": sum(len(s["id"]) for s in samples),
            "ratio": found["importance"]["median"] / found["training"]["median"]}  # fmt: skip


def removal(args: argparse.Namespace, device: str) -> Dict[str, Any]:
    trained = base_model(args.data, "none", device)
    heads = {place: tuple(range(0, layer.num_heads, 2)) for place, layer in attention_layers(trained.model).items()}
    result = remove_heads(trained.state, heads)
    smaller = run_state(result.state, "the smaller model", args.data, device=device)
    search = {"sentences": args.translate, "max_len_b": 20, "beam": 4}

    def mask() -> List[str]:
        with masked(attention_layers(trained.model), heads):
            return translate(trained, "test", **search)

    def cut() -> List[str]:
        return translate(smaller, "test", **search)

    if mask() != cut():
        raise SystemExit("benchmark.py: error: the masked and the smaller model translate differently")
    found = in_turns({"masked": mask, "removed": cut}, args.rounds, device)
    return {**found, "sentences": args.translate, "ratio": found["removed"]["median"] / found["masked"]["median"],
            "attention_parameters": [result.parameters_before, result.parameters_after]}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DATA_BIN")
    parser.add_argument("--sentences", type=int, default=1000, help="of valid, for importance (default: 1000)")
    parser.add_argument("--translate", type=int, default=32, help="sentences of test to translate (default: 32)")
    parser.add_argument("--max-tokens", type=int, default=2000, help="per batch (default: 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--output", required=True, metavar="FILE.json")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dictionary = f"{args.data}/dict.{infer_language_pair(args.data)[0]}.txt"
    settings = {key: value for key, value in vars(args).items() if key not in ("data", "output")}
    record = Record(
        "heads", "benchmark", shlex.join(["recipes/heads/benchmark.py", *sys.argv[1:]]),
        {**settings, "dictionary": file_setting(dictionary)}, args.output,
        device="gpu" if device == "cuda" else "cpu", threads=1,
    )  # fmt: skip
    for heads in ("none", "encoder_cross_decoder"):
        found = record.part(f"importance/{heads}", lambda heads=heads: importance(args, device, heads))
        sys.stdout.write(f"importance, collaborative heads {heads}: {found['ratio']:.2f} × a training pass\n")
    found = record.part("removal", lambda: removal(args, device))
    sys.stdout.write(f"half of the heads removed: {found['ratio']:.2f} × the time of masking them\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
