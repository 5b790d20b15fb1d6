"""What the model runner may use, and what its process is told at start. Imports no torch: the launcher reads this."""

from __future__ import annotations

from dataclasses import dataclass

from wire.flags import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """How the model is held and how large the KV pool is."""

    device: str = flag(
        "auto",
        "Where the model is computed; auto is a CUDA device where there are one and the package flashinfer-python, or "
        "triton.",
        choices=("auto", "cpu", "cuda"),
    )
    dtype: str = flag(
        "auto",
        "Type of weights and KV; auto is bfloat16 where the kernels in C++ run or the device multiplies it, else "
        "float16 on a GPU and float32 on a CPU.",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    model_impl: str = flag(
        "auto",
        "Code that computes the model: axil's own, or transformers' (slower); auto is axil's where it has the family.",
        choices=("auto", "axil", "transformers"),
    )
    attention: str = flag(
        "auto",
        "Attention backend; auto is the first that suits: on CUDA flashinfer, then triton; on a CPU the kernels in C++ "
        "(cpu), then plain torch.",
        choices=("auto", "cpu", "torch", "flashinfer", "triton"),
    )
    kernels: str = flag(
        "auto",
        "Kernels in C++ for the CPU, which the package brought along or the machine's compiler compiles once; auto is "
        "where that works, off is plain torch.",
        choices=("auto", "off"),
    )
    deterministic: bool = flag(
        False,
        "Answers have the same bits whatever was cached and whoever shared the batch. On CUDA: attention in Triton, "
        "matrix products in blocks of 128 tokens, no graphs. The kernels in C++ compute so anyway.",
    )
    cuda_graph_sizes: str = flag(
        "auto",
        "On CUDA: numbers of decode rows to record a graph for, by comma; none records none, auto 1 to 256.",
        metavar="N,N,…",
    )
    tensor_parallel: int = flag(
        1, "Processes that share one model, each with a part of every layer and, on CUDA, a device of its own."
    )
    quantize: str = flag(
        "none",
        "Weights and activations of linear layers in fewer bits, for speed at the cost of accuracy: 8-bit activations "
        "with 8-bit or 4-bit weights (the best token differs at some 5 or 10 % of positions of a small model). What a "
        "GGUF file holds in 4 bits stays so.",
        choices=("none", "int8", "int4"),
    )
    page_tokens: int = flag(16, "Tokens in one page of the KV pool.")
    max_total_tokens: int | None = flag(None, "Tokens in the KV pool; auto takes --mem-fraction of free memory.")
    max_total_bytes: int | None = flag(
        None, "The same in bytes, of each process that computes the model; instead of --max-total-tokens."
    )
    mem_fraction: float = flag(0.5, "Share of the memory that is free after loading, for the KV pool.")
    context_length: int | None = flag(None, "Longest prompt plus output; auto is what the model was made for.")
    profile_dir: str | None = flag(
        None,
        "Directory for what /stop_profile writes; auto is axil-profiles-UID in the directory for temporary files.",
        metavar="DIRECTORY",
    )
    threads: int | None = flag(
        None, "Threads for the arithmetic; auto is all usable cores. Fewer where other programs keep them busy."
    )

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: names the flag, its limit and the given value.
        """
        for name in ("page_tokens", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for name in ("max_total_tokens", "max_total_bytes", "context_length", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.max_total_tokens is not None and self.max_total_tokens < 2 * self.page_tokens:
            raise ValueError(
                f"--max-total-tokens must be at least two pages ({2 * self.page_tokens}), got {self.max_total_tokens}"
            )
        if self.max_total_bytes is not None and self.max_total_tokens is not None:
            raise ValueError("--max-total-tokens and --max-total-bytes both size the KV pool; leave one out")
        self.graph_sizes()
        if not 0 < self.mem_fraction <= 0.95:
            raise ValueError(f"--mem-fraction must be in (0, 0.95], got {self.mem_fraction}")

    def graph_sizes(self) -> tuple[int, ...]:
        """The numbers of rows of `cuda_graph_sizes`; none where answers are to be deterministic.

        Raises:
            ValueError: they are no such list.
        """
        if self.deterministic and self.cuda_graph_sizes not in ("auto", "none"):
            raise ValueError(
                f"--deterministic records no graphs; set --cuda-graph-sizes to none, got {self.cuda_graph_sizes!r}"
            )
        if self.cuda_graph_sizes in ("auto", "none"):
            is_none = self.deterministic or self.cuda_graph_sizes == "none"
            return () if is_none else (1, 2, 4, *range(8, 257, 8))
        words = self.cuda_graph_sizes.split(",")
        if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
            raise ValueError(
                f"--cuda-graph-sizes must be auto, none or positive numbers by comma, got {self.cuda_graph_sizes!r}"
            )
        return tuple(map(int, words))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLaunch:
    """What the launcher tells a runner process, which is `rank` of the `tensor_parallel` ones.

    `weights` is a `.gguf` file or a directory with safetensors; `model_config` a `config.json` in the form that
    transformers writes (for GGUF: converted from the file's header); `tokenizer` is its `tokenizer.json`.
    """

    run_dir: str
    weights: str
    model_config: str
    tokenizer: str
    config: RunnerConfig
    rank: int = 0
