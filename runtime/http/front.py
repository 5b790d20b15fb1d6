"""What every route needs: the generator, the gate, the model's name and files, metrics, the last prompts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from aiohttp import web

from runtime.config import TokenizerLaunch
from runtime.doctor.latest import LatestDiagnosis
from runtime.doctor.window import PromptWindow
from runtime.generator import Generator
from runtime.metrics import Metrics
from runtime.records import Records
from runtime.text.answer_form import AnswerForm
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import ModelFiles

from .fields import Fields
from .gate import Gate


@dataclass(slots=True, kw_only=True)
class Front:
    """One server's HTTP front. `template` is None when the model has none; `answer_form` is how it writes."""

    launch: TokenizerLaunch
    files: ModelFiles
    generator: Generator
    metrics: Metrics
    template: ChatTemplate | None
    answer_form: AnswerForm
    gate: Gate
    window: PromptWindow
    records: Records
    diagnosis: LatestDiagnosis = field(default_factory=LatestDiagnosis)
    started_at: int = field(default_factory=lambda: int(time.time()))
    unknown_fields: dict[str, str] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """The model's name in requests and replies."""
        return self.launch.model_name

    def warn_unknown(self, *read: Fields) -> None:
        """Log fields that no route has read, and tell the client."""
        for fields in read:
            fields.warn_unknown(self.unknown_fields)


FRONT = web.AppKey("front", Front)
