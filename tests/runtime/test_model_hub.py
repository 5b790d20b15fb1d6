import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY_LISTENS = "http://127.0.0.1:9"
REVISION = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = """
import sys
from runtime.errors import BadModel
from runtime.model_files import resolve_model
try:
    files = resolve_model(sys.argv[1])
except BadModel as error:
    sys.exit(str(error))
print(files.name, files.weights)
"""


def resolve(name: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's package reads its settings when it is imported."""
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": NOBODY_LISTENS, "PYTHONPATH": str(Path.cwd())}
    return subprocess.run(
        [sys.executable, "-c", RESOLVE, name],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def cached_model(home: Path, *, shards: tuple[str, ...] = ()) -> Path:
    """A model as the hub's package keeps it."""
    repository = home / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    for file in ("config.json", "tokenizer.json", *(shards or ("model.safetensors",))):
        (snapshot / file).write_text("{}")
    if shards:
        index = {"weight_map": {f"tensor {i}": file for i, file in enumerate(shards)}}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    return snapshot


@pytest.mark.parametrize("shards", [(), ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")])
def test_a_model_in_the_local_cache_of_the_hub_needs_no_network(tmp_path: Path, shards: tuple[str, ...]) -> None:
    snapshot = cached_model(tmp_path, shards=shards)
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        found = resolve("org/name", tmp_path, **environment)
        assert found.stdout.split() == ["org/name", str(snapshot)], found.stderr


@pytest.mark.parametrize("environment", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_a_model_that_is_neither_cached_nor_to_be_had_is_refused_with_the_reason(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    refused = resolve("org/name", tmp_path, **environment)
    assert refused.returncode == 1
    assert "there is no path org/name, the local hub cache does not have" in refused.stderr
    assert "HF_HUB_OFFLINE" in refused.stderr


def test_a_cached_model_that_lacks_a_shard_is_not_taken_for_whole(tmp_path: Path) -> None:
    snapshot = cached_model(tmp_path, shards=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"))
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    refused = resolve("org/name", tmp_path)
    assert refused.returncode == 1
    assert f"org/name is not whole in {snapshot}" in refused.stderr
