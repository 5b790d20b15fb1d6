"""Routes that clients of SGLang and OpenAI know and this server refuses, each with the reason and what to do instead.

They are said to be here, so that nobody takes a refusal for a wrong address. Reads nothing of a request.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

from wire.errors import NotOffered

from .route import Method, Route

_EMBEDDINGS = (
    "this server runs models that generate text, and none that gives embeddings. Ask a server of an embedding model."
)
_CLASSES = (
    "this server runs models that generate text, and none that rates or classifies. POST /v1/score tells how likely "
    "given tokens are behind a text."
)
_WEIGHTS = "the weights are read once, at start, and stay. Start the server again with the other model."
_MEMORY = "the weights and the KV pool stay in memory while the server runs. Stop it, or POST /flush_cache."
_ADAPTERS = "there are no LoRA adapters here. Start a server of a model into which the adapter was merged."
_STATE = "the configuration is fixed at start. Start the server again with other flags; see GET /server_info."
_TIERS = "there is one tier of cache, the KV pool. See GET /tree for what is in it, and POST /flush_cache."
_MEDIA = "this server reads and writes text only. Send the text."

_REASONS: Mapping[str, tuple[str, tuple[Method, ...], tuple[str, ...]]] = {
    "Give an embedding of a text.": (
        _EMBEDDINGS,
        ("POST",),
        ("/v1/embeddings", "/encode", "/api/embed", "/api/embeddings"),
    ),
    "Rate or classify texts.": (_CLASSES, ("POST",), ("/classify", "/v1/classify", "/v1/rerank")),
    "Load or unload an adapter.": (
        _ADAPTERS,
        ("POST",),
        ("/load_lora_adapter", "/load_lora_adapter_from_tensors", "/unload_lora_adapter"),
    ),
    "Change the model's weights.": (
        _WEIGHTS,
        ("POST",),
        (
            "/update_weights_from_disk",
            "/update_weights_from_tensor",
            "/update_weights_from_distributed",
            "/update_weights_from_ipc",
            "/init_weights_update_group",
            "/destroy_weights_update_group",
            "/begin_weight_update",
            "/end_weight_update",
            "/update_weight_version",
            "/get_weights_by_name",
            "/weights_checker",
        ),
    ),
    "Give up memory for a while, or take it again.": (
        _MEMORY,
        ("POST",),
        ("/release_memory_occupation", "/resume_memory_occupation"),
    ),
    "Change the running server's settings.": (
        _STATE,
        ("POST",),
        ("/set_internal_state", "/configure_logging", "/set_trace_level", "/freeze_gc", "/slow_down"),
    ),
    "Manage a further tier of cache.": (_TIERS, ("GET", "PUT", "DELETE"), ("/hicache/storage-backend",)),
    "Empty a further tier of cache.": (_TIERS, ("POST",), ("/hicache/storage-backend/clear",)),
    "Turn speech into text.": (_MEDIA, ("POST",), ("/v1/audio/transcriptions",)),
}
"""Summary to reason, methods and paths."""


def _refusing(summary: str, reason: str) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        raise NotOffered(f"{request.path} is not offered: {reason}")

    refuse.__doc__ = f"{summary} Not offered: {reason}"
    return refuse


ROUTES = tuple(
    Route(method=method, path=path, handler=handler, answer=None)
    for summary, (reason, methods, paths) in _REASONS.items()
    for handler in (_refusing(summary, reason),)
    for method in methods
    for path in paths
)
