"""What a card and this build of torch can do, in a minute: what was compiled in, which shapes each way of torch to
compute attention takes, how long a new shape takes it, how wrong it is, and whether torch.compile works.

    python recipes/gpu/probe.py [--device cpu]        a line for each finding; one that fails never ends the others
"""

import argparse
import time
from typing import Any, Callable, Dict, List

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

WAYS = {
    "plain": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
#: heads that share a key or have their own, widths of queries and of values
HEADS = (("shared key", 128, 64), ("shared key", 32, 32), ("own keys", 64, 64), ("own keys", 16, 64))


def report(name: str, find: Callable[[], Any]) -> None:
    """Print a finding, or why there is none."""
    try:
        found = find()
    except Exception as error:  # whatever a card may say
        found = f"fails: {(str(error).strip() or type(error).__name__).splitlines()[0][:150]}"
    print(f"{name}: {found}", flush=True)  # noqa: T201


def compiled(device: str) -> str:
    """Seconds of a first call through torch.compile."""
    x, start = torch.ones(8, 8, device=device), time.perf_counter()
    torch.compile(lambda x: torch.relu(x @ x) + 1)(x)
    return f"works, {time.perf_counter() - start:.1f} s"


def attention(way: SDPBackend, inputs: Dict[str, torch.Tensor], wait: Callable[[], None]) -> str:
    """Milliseconds of the first and the second call, forward and backward; the largest relative error of any result."""

    def call(dtype: torch.dtype, backend: SDPBackend) -> List[torch.Tensor]:
        leaves = [inputs[name].detach().to(dtype, copy=True).requires_grad_() for name in ("query", "key", "value")]
        query, key, value = leaves
        heads = key.expand(-1, query.size(1), -1, -1)
        with sdpa_kernel([backend]):
            context = scaled_dot_product_attention(query, heads, value, inputs["mask"].to(dtype), scale=1.0)
        context.backward(torch.ones_like(context))
        wait()
        return [x.detach().double() for x in (context, query.grad, key.grad, value.grad)]

    seconds, found = [], []
    for _ in range(2):
        start = time.perf_counter()
        found = call(inputs["query"].dtype, way)
        seconds.append(1e3 * (time.perf_counter() - start))
    truth = call(torch.float64, SDPBackend.MATH)
    off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, truth, strict=True))
    return f"{seconds[0]:.1f} ms, then {seconds[1]:.1f} ms, off by {off:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = parser.parse_args().device
    card = device == "cuda"
    wait = torch.cuda.synchronize if card else lambda: None
    report("torch", lambda: f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
    report("order of ways", torch._C._get_sdp_priority_order)
    if card:
        report("card", lambda: torch.cuda.get_device_properties(0))
        report("compiled for", torch.cuda.get_arch_list)
        report("bfloat16", torch.cuda.is_bf16_supported)
    report("compile", lambda: compiled(device))
    for dtype in (torch.bfloat16, torch.float16, torch.float32) if card else (torch.float32,):
        for keys, width, value_width in HEADS:
            for length in (33, 64, 192) if card else (9,):
                torch.manual_seed(0)
                shapes = {"query": (24, 8, length, width), "value": (24, 8, length, value_width)}
                shapes["key"] = (24, 1 if keys == "shared key" else 8, length, width)
                inputs = {name: torch.randn(shape, device=device) / width**0.25 for name, shape in shapes.items()}
                inputs["mask"] = torch.zeros(24, 1, 1, length, device=device)
                inputs["mask"][1, ..., length // 2 :] = -torch.inf
                inputs = {name: x.to(dtype) for name, x in inputs.items()}
                for name, way in WAYS.items():
                    row = f"{str(dtype)[6:]}, {keys}, widths {width} and {value_width}, length {length}, {name}"
                    report(row, lambda way=way, inputs=inputs: attention(way, inputs, wait))


if __name__ == "__main__":
    main()
