#!/usr/bin/env python3
"""What importance costs beside training, and what removing heads saves: ratios of medians, in one process, in turns.

    benchmark.py --model CHECKPOINT --data DATA_BIN --output RECORD.json

importance   one pass of the importance of all heads, beside a training pass (forward, backward of all parameters, no
             update) over the same batches; of the model, and of the same with collaborative heads at its full key dim
removal      beam search of the first sentences of the test split with half of the heads masked, beside the same
             model with these heads removed; what both compute is compared before

CPU time of one thread where there is no GPU, else wall time.
"""

import argparse
import logging
import shlex
import sys
from typing import Any, Callable, Dict, List

import torch

from collab_fairseq.bench.cases import Options
from collab_fairseq.bench.measure import interleave, ratio, stopwatch
from collab_fairseq.checkpoints import file_setting
from collab_fairseq.heads.importance import gradients
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.heads.taps import layers_of, masked
from collab_fairseq.records.record import Record
from collab_fairseq.reparam.fairseq import converted, sources
from collab_fairseq.translation import TrainedModel, batches, load_model, translate, with_state


def in_turns(one: Callable[[], Any], other: Callable[[], Any], options: Options) -> Dict[str, Any]:
    """Seconds of both in every round, and the ratio of their medians."""
    times = interleave([{"one": one, "other": other}], stopwatch(options), options, warmup=1)
    return {"seconds": times, "ratio": ratio(times["one"], times["other"])}


def importance(trained: TrainedModel, args: argparse.Namespace, options: Options) -> Dict[str, Any]:
    samples = list(batches(trained, "valid", max_tokens=args.max_tokens, sentences=args.sentences))

    def train() -> None:
        trained.model.train()
        for sample in samples:
            trained.model.zero_grad(set_to_none=True)
            trained.criterion(trained.model, sample)[0].backward()
        trained.model.zero_grad(set_to_none=True)
        trained.model.eval()

    def rank() -> None:
        for sample in samples:
            gradients(trained, sample, trained.criterion)

    return in_turns(rank, train, options)


def removal(trained: TrainedModel, args: argparse.Namespace, options: Options) -> Dict[str, Any]:
    heads = {place: tuple(range(0, layer.num_heads, 2)) for place, layer in layers_of(trained).items()}
    result = remove_heads(trained.state, heads)
    smaller = with_state(trained, result.state)
    search = {"sentences": args.translate, "max_len_b": 20, "beam": 4}

    def mask() -> List[str]:
        with masked(layers_of(trained), heads):
            return translate(trained, "test", **search)

    def cut() -> List[str]:
        return translate(smaller, "test", **search)

    if mask() != cut():
        raise SystemExit("benchmark.py: error: the masked and the smaller model translate differently")
    sizes = [result.parameters_before, result.parameters_after]
    return {**in_turns(cut, mask, options), "attention_parameters": sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="CHECKPOINT", help="of fairseq's transformer")
    parser.add_argument("--data", required=True, metavar="DATA_BIN")
    parser.add_argument("--sentences", type=int, default=1000, help="of valid, for importance (default: 1000)")
    parser.add_argument("--translate", type=int, default=32, help="sentences of test to translate (default: 32)")
    parser.add_argument("--max-tokens", type=int, default=2000, help="per batch (default: 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--output", required=True, metavar="FILE.json")
    args = parser.parse_args()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    clock = "wall" if device == "cuda" else "processor"
    options = Options(device=device, clock=clock, rounds=args.rounds, least=args.rounds)
    settings = {key: value for key, value in vars(args).items() if key not in ("model", "data", "output")}
    record = Record(
        "heads", "benchmark", shlex.join(["recipes/heads/benchmark.py", *sys.argv[1:]]),
        {**settings, "checkpoint": file_setting(args.model)}, args.output,
        device="gpu" if device == "cuda" else "cpu", threads=1,
    )  # fmt: skip
    trained = load_model(args.model, args.data, device=device)
    collaborative = with_state(trained, converted(trained, sources(trained)))
    for name, model in (("as it is", trained), ("collaborative", collaborative)):
        found = record.part(f"importance/{name}", lambda model=model: importance(model, args, options))
        sys.stdout.write(f"importance, heads {name}: {found['ratio']['median']:.2f} × a training pass\n")
    found = record.part("removal", lambda: removal(trained, args, options))
    sys.stdout.write(f"half of the heads removed: {found['ratio']['median']:.2f} × the time of masking them\n")


if __name__ == "__main__":
    main()
