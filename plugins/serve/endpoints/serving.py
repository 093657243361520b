"""What every endpoint works with: the engine, the tokenizer, the model's dialect."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core import registry
from core.checkpoint import open_checkpoint
from core.errors import EngineDead, UserError
from core.interfaces import Dialect
from core.setup import open_tokenizer
from plugins.serve.endpoints.bodies import read_json
from plugins.serve.engine.submission import Busy, Refused, Stopped
from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.reading import Fields, read
from plugins.serve.protocol.sampling import own_defaults, refused
from plugins.serve.text.prompts import PromptReader

if TYPE_CHECKING:
    from starlette.requests import Request

    from core.config import Config
    from plugins.serve.engine.client import EngineClient, EngineInfo
    from plugins.serve.metrics import Meter


@dataclass
class Serving:
    """Found in `request.app.state.serving`."""

    client: EngineClient
    prompts: PromptReader
    dialect: Dialect
    meter: Meter
    defaults: Mapping[str, Any]  # sampling parameters that the model brings
    holds_forms: bool = False  # the sampler can hold an answer to a form
    started: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def open(cls, config: Config, client: EngineClient, meter: Meter) -> Serving:
        """Open the tokenizer of a configuration; the engine has been started."""
        checkpoint = open_checkpoint(config.model)
        architecture = registry.models.get(checkpoint.architecture)
        prompts = PromptReader(open_tokenizer(config), client.info.max_length)
        prompts.warm_up()
        defaults = own_defaults(client.info.defaults)
        forms = _holds_forms(config)
        return cls(client, prompts, architecture.dialect, meter, defaults, forms)

    @property
    def info(self) -> EngineInfo:
        """What the engine said of itself."""
        return self.client.info

    async def read(self, request: Request, kind: type[Fields]) -> Fields:
        """The JSON body of a request as a struct. ApiError names every field that is wrong."""
        return read(await read_json(request), kind)

    def check_model(self, name: str | None) -> None:
        """ApiError for a model that is not served; None is the one that is."""
        if name is not None and name != self.info.model:
            raise ApiError(
                f"The model {name[:200]!r} does not exist. This server has {self.info.model!r}.",
                status=404,
                param="model",
                code="model_not_found",
            )

    def check_length(self, ids: Sequence[int], field: str, which: str | None = None) -> None:
        """ApiError for a prompt without a token, and for one that leaves no room for an answer.

        `which`: the place in the field, of a prompt that is one of several.
        """
        name = which or "The prompt"
        if not ids:
            raise ApiError(
                f"{name} is empty. Give at least one token.", param=field, code="invalid_value"
            )
        if len(ids) >= self.info.max_length:
            raise ApiError(
                f"{name} has {len(ids)} tokens, and a request may hold {self.info.max_length} "
                "with at least one for the answer. Shorten it.",
                param=field,
                code="context_length_exceeded",
            )

    def check_ids(self, ids: Sequence[int], field: str, which: str | None = None) -> None:
        """ApiError for numbers that are no token ids of this model. `which`: as in
        `check_length`."""
        end = self.info.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < end:
            at, wrong = next((at, i) for at, i in enumerate(ids) if not 0 <= i < end)
            raise ApiError(
                f"Token {at} of {which or field} is {wrong}. Token ids are whole numbers from 0 to "
                f"{end - 1}.",
                param=field,
                code="invalid_value",
            )

    def check_priority(self, priority: int | None) -> int:
        """ApiError for a priority that nobody would look at, or of more than 32 bits."""
        priority = priority or 0
        if not -(2**31) < priority < 2**31:
            raise ApiError(
                f"priority is {priority}: it must be a whole number of 32 bits.",
                param="priority",
                code="invalid_value",
            )
        if priority and not self.info.reads_priority:
            raise ApiError(
                "This server's scheduler does not look at priorities. Leave priority out.",
                param="priority",
                code="invalid_value",
            )
        return priority


def _holds_forms(config: Config) -> bool:
    """Whether the sampler's processor for structured outputs is there, with its packages."""
    chosen = getattr(config.sampler.options, "structured", None)
    name = chosen.get("use") if isinstance(chosen, Mapping) else chosen
    if not registry.samplers.get(config.sampler.use).structured:
        return False
    # the plugin of the usual one may be switched off; other unknown names were refused before
    found = name in registry.processors.names()
    return found and not registry.processors.entry(name).missing()


def as_api_error(error: Exception, refusal: Callable[[list[str]], ApiError] = refused) -> ApiError:
    """What is wrong with a request, or the engine had against it. Others are raised again.

    `refusal` makes it of the engine's sentences.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(str(error), code="invalid_value")
    if isinstance(error, Refused):
        return refusal(error.sentences)
    if isinstance(error, Busy):
        return ApiError(
            "Too many requests are waiting. Try again later.",
            status=429,
            code="rate_limit_exceeded",
            headers={"Retry-After": str(max(1, round(error.retry_after)))},
        )
    if isinstance(error, Stopped):
        return ApiError(
            "The server is stopping, and this answer had not ended in the time that it had for "
            "that.",
            status=503,
            code="server_stopping",
        )
    if isinstance(error, EngineDead):
        return ApiError(
            "The engine has stopped, so nothing can be answered any more.",
            status=503,
            code="engine_stopped",
        )
    raise error
