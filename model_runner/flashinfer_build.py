"""Compiles FlashInfer's kernels for a GPU on a machine that has none, and says what it made: `make gpu-build`.

    python -m model_runner.flashinfer_build build/flashinfer --head-dim 64 --head-dim 128

What comes out is laid as FlashInfer looks for it: copied into its package's `data/aot` on the GPU's machine, nothing is
compiled there, and with FLASHINFER_DISABLE_JIT=1 a kernel that is missing is an error at once. `manifest.json` beside
the modules names them, with their sums. Each is loaded once, with a stub of the driver. Needs the CUDA toolkit
(CUDA_HOME), ninja and a C compiler; sampling and norm also need headers of cuRAND and cuBLAS (--include).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"

_KINDS = ("attention", "rope", "activation", "norm", "sampling")
_LOADS = "import sys, tvm_ffi; [tvm_ffi.load_module(sys.argv[1]).get_function(name) for name in sys.argv[2:]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One compiled module; `seconds` is 0 where it had been compiled before."""

    name: str
    num_bytes: int
    sha256: str
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, copy, write the manifest."""
    parser = argparse.ArgumentParser(prog="python -m model_runner.flashinfer_build", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="directory for the modules and the manifest")
    parser.add_argument("--arch", default="9.0a", help="the GPU's architecture (default: 9.0a, an H100 or H200)")
    parser.add_argument("--dtype", action="append", choices=("bfloat16", "float16"), help="default: bfloat16")
    parser.add_argument("--head-dim", action="append", type=int, choices=(64, 128, 256), help="default: 64")
    parser.add_argument("--window", action="store_true", help="also for layers with a sliding window")
    parser.add_argument("--softcap", action="store_true", help="for models whose scores are capped, instead")
    parser.add_argument("--leave-out", action="append", default=[], choices=_KINDS, help="a kind of module")
    parser.add_argument("--include", action="append", default=[], type=Path, help="a folder of headers")
    parser.add_argument("--cache", type=Path, help="where FlashInfer compiles (default: its own cache)")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once (default: 1)")
    args = parser.parse_args(argv)
    home = Path(os.environ.setdefault("CUDA_HOME", "/usr/local/cuda"))
    for needed in (home / "lib64", home / "bin" / "nvcc"):
        if not needed.exists():
            print(f"{needed} is not there; set CUDA_HOME to a CUDA toolkit's folder", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory() as stubs:
        _set_environment(args, Path(stubs))
        built = [_build(spec, functions, args.out, Path(stubs)) for spec, functions in _specs(args)]
    _write_manifest(args, built)
    for one in built:
        print(f"{one.num_bytes / 1e6:6.2f} MB {one.seconds:7.1f} s  {one.name}")
    return 0


def _set_environment(args: argparse.Namespace, stubs: Path) -> None:
    """What FlashInfer reads when it is imported, and something to link with in place of the driver."""
    source = stubs / "driver.c"
    source.write_text("int cuInit(unsigned flags) { return 0; }\n")
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", stubs / "libcuda.so", source], check=True)
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = args.arch
    os.environ["FLASHINFER_EXTRA_LDFLAGS"] = f"-L{stubs}"
    os.environ["MAX_JOBS"] = str(args.jobs)
    if args.include:
        os.environ["FLASHINFER_EXTRA_CUDAFLAGS"] = " ".join(f"-I{folder.resolve()}" for folder in args.include)
    if args.cache is not None:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = str(args.cache.resolve())


def _specs(args: argparse.Namespace) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """What the backend, the ops and the sampler load, and what they call in it; attention in every combination."""
    import torch  # both read the environment
    from flashinfer.jit import activation, norm, rope, sampling
    from flashinfer.jit.attention import modules

    # Since 0.7 the wrappers take one that is made for K and V of equal strides, as ours are.
    attention = getattr(modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module)
    for name in () if "attention" in args.leave_out else args.dtype or ["bfloat16"]:
        dtype = getattr(torch, name)
        for head_dim in args.head_dim or [64]:
            for has_window in (False, True) if args.window else (False,):
                spec = attention(
                    "fa2", *3 * [dtype], torch.int32, head_dim, head_dim, 0, has_window, args.softcap, False
                )
                yield spec, ("plan", "paged_run")
    if "rope" not in args.leave_out:
        yield rope.gen_rope_module(), ("apply_rope_pos_ids_cos_sin_cache",)
    for name in () if "activation" in args.leave_out else ("silu", "gelu_tanh"):
        yield activation.gen_act_and_mul_module(name), (f"{name}_and_mul",)
    if "norm" not in args.leave_out:
        yield norm.gen_norm_module(), ("rmsnorm", "fused_add_rmsnorm")
    if "sampling" not in args.leave_out:
        yield sampling.gen_sampling_module(), ("top_k_renorm_probs", "top_p_renorm_probs")


def _build(spec: Any, functions: Sequence[str], out: Path, stubs: Path) -> Built:  # noqa: ANN401
    library, started = Path(spec.jit_library_path), time.monotonic()
    before = library.stat().st_mtime_ns if library.exists() else 0
    print(f"building {spec.name}", flush=True)
    spec.build(verbose=False)
    is_new = library.stat().st_mtime_ns != before
    copy = out / spec.name / library.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, copy)
    search = os.pathsep.join((str(stubs), str(Path(os.environ["CUDA_HOME"]) / "lib64")))
    subprocess.run(
        [sys.executable, "-c", _LOADS, copy, *functions], check=True, env={**os.environ, "LD_LIBRARY_PATH": search}
    )
    return Built(
        name=spec.name,
        num_bytes=copy.stat().st_size,
        sha256=hashlib.sha256(copy.read_bytes()).hexdigest(),
        seconds=round(time.monotonic() - started, 1) if is_new else 0.0,
    )


def _write_manifest(args: argparse.Namespace, built: Iterable[Built]) -> None:
    import flashinfer

    nvcc = Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc"
    version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    manifest = {
        "flashinfer": flashinfer.__version__,
        "arch": args.arch,
        "nvcc": version.strip().splitlines()[-1],
        "modules": [asdict(one) for one in built],
    }
    (args.out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
