"""On the path of an `axil serve`, makes its model runner run FlashInfer's real wrappers over reference kernels.

Python imports this by its name when it starts. The backend takes float32 then too, so that greedy tokens can be
compared with those of other code.
"""

import sys

if "model_runner.process" in sys.orig_argv:
    import torch

    from model_runner import implementation
    from model_runner.attention import choice
    from model_runner.attention.flashinfer_backend import FlashInferAttention
    from model_runner.flashinfer_ops import FlashInferOps
    from tests.model_runner.reference_kernels import reference_kernels

    def make_backend(name, spec, device, library, *, max_graph_rows, is_deterministic):  # noqa: ANN001, ANN201
        assert name == "flashinfer"
        return FlashInferAttention(spec, device)

    torch.set_num_threads(1)
    entered = reference_kernels(is_recorded=False)
    entered.__enter__()
    choice.make_backend = make_backend
    implementation._torch_ops = lambda config, spec, device: FlashInferOps()
