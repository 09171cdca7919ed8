"""Writes scripts/gpu/llm.csv: the products of decoding and prefilling with some language models.

    python scripts/gpu/llm.py

x [m, k] times a weight that `nn.Linear` keeps as [n, k], so layout nt. Sizes are from the models'
published configurations: hidden size, heads, key and value heads of 128, feed-forward size; q, k
and v are one product, and so are gate and up. No tensor parallelism.
"""

import csv
from pathlib import Path

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 4096)
HEAD = 128
MODELS = {
    # hidden, query heads, key and value heads, feed-forward
    "Llama-3-8B": (4096, 32, 8, 14336),
    "Llama-3-70B": (8192, 64, 8, 28672),
    "Qwen2.5-7B": (3584, 28, 4, 18944),
    "Qwen2.5-32B": (5120, 40, 8, 27648),
}


def layers(hidden: int, heads: int, kv_heads: int, inner: int) -> dict[str, tuple[int, int]]:
    """Width and depth, n and k, of each product of one block."""
    return {
        "qkv": ((heads + 2 * kv_heads) * HEAD, hidden),
        "out": (hidden, heads * HEAD),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def main() -> None:
    """Write the file."""
    with Path(__file__).with_name("llm.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "layer", "m", "n", "k", "layout", "dtype"))
        for model, sizes in MODELS.items():
            for layer, (n, k) in layers(*sizes).items():
                for m in ROWS:
                    writer.writerow((model, layer, m, n, k, "nt", "float16"))


if __name__ == "__main__":
    main()
