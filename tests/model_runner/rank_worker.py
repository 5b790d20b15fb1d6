"""One rank of a tensor-parallel group in a process of its own: `python -m tests.model_runner.rank_worker JOB RANK`.

The job is a JSON file; rank 0 writes what came out beside it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from model_runner.kernel_choice import load_library
from model_runner.kernels.linear import LinearKernels
from model_runner.kernels.ops import KernelOps
from model_runner.kv_pool import CPU
from model_runner.linears import KernelLinears
from model_runner.model_config import read_model_config
from model_runner.models.registry import make_model
from model_runner.ranks import join
from model_runner.weights import load_weights

from .bed import Bed, greedy


def main() -> None:
    job_path, rank = Path(sys.argv[1]), int(sys.argv[2])
    job = json.loads(job_path.read_text())
    torch.set_num_threads(1)
    library = load_library()
    if library is not None:
        library.set_threads(1)
    ranks = join(job_path.parent, CPU, rank=rank, num_ranks=job["num_ranks"], is_order_fixed=False)
    print("joined", flush=True)
    outputs = {}
    with torch.inference_mode():
        for directory in job["models"]:
            for code, kernels in (("torch", None), ("kernels", library)):
                config = read_model_config(Path(directory) / "config.json")
                if kernels is None:
                    model = make_model(config, torch.float32, ranks=ranks)
                else:
                    ops, linears = (
                        KernelOps(kernels, is_whole=False),
                        KernelLinears(LinearKernels(kernels), torch.float32),
                    )
                    model = make_model(config, torch.float32, ops, linears, ranks)
                load_weights(model, Path(directory), lambda done, total: None)
                bed = Bed(model, library=kernels)
                prompts = [greedy(prompt) for prompt in job["prompts"]]
                for chunk_tokens in (None, 5):
                    results = bed.generate(prompts, job["num_tokens"], chunk_tokens=chunk_tokens)
                    name = f"{Path(directory).name} {code} {chunk_tokens}"
                    outputs[name] = [[result.token_ids, result.logprobs] for result in results]
    own_columns = torch.full((2, 3 if rank == 0 else 2), rank + 1.0)
    job_path.with_suffix(f".joined{rank}").write_text(json.dumps(ranks.joined_on_first(own_columns, 5).tolist()))
    if rank == 0:
        job_path.with_suffix(".out").write_text(json.dumps(outputs))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(os.EX_OK)  # as the runner ends: gloo's threads may abort a process that takes itself apart
