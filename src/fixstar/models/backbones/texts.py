"""Text models as backbones: from transformers or sentence-transformers, an ONNX file, or a server.

    hf:NAME_OR_FOLDER                     a text model of transformers: the mean of its tokens, or its own pooling
    st:NAME_OR_FOLDER                     a text model of sentence-transformers, with its pooling and its prompts
    model.onnx and tokenizer.json         an exported one
    https://host/v1/embeddings?model=M    any server with OpenAI's embeddings API (``endpoint``)

A saved version is self-contained: its files hold weights, tokenizer and config. The exception is a server.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from fixstar.durable import open_regular_file
from fixstar.errors import FixstarError, InputError, MissingExtraError, ModelError
from fixstar.models.backbones.base import Backbone
from fixstar.models.backbones.hf import explained, hf_library, model_folder, plain_config, quiet
from fixstar.models.backbones.onnx_files import chosen_output, open_session, read_onnx, time_limit
from fixstar.texts import Prompts

TokenPooling = Literal["mean", "cls", "last"]

_TOKENIZER = "tokenizer.json"
_ST_FILES = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)
_TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_MOST_TOKENS = 512  # default if a model does not specify it
_SECONDS_PER_TEXT = 30.0  # time limit of an ONNX model
_ST_POOLINGS: dict[str, TokenPooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


class TextBackbone(Backbone):
    """A text model."""

    inputs: Prompts

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Texts, with their prompts, to vectors [N, feature_dim] of any length."""

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Not supported: there are no images."""
        raise ModelError(f"{self.name} reads texts, got a tensor {tuple(images.shape)}")


class Tokens(NamedTuple):
    """Token ids [B, T], attention mask [B, T], and segment ids, which are all zero."""

    input_ids: np.ndarray[Any, np.dtype[np.int64]]
    attention_mask: np.ndarray[Any, np.dtype[np.int64]]
    token_type_ids: np.ndarray[Any, np.dtype[np.int64]]


class _Tokenized(TextBackbone):
    """A local model; the bytes of its tokenizer file are stored as a tensor."""

    def __init__(
        self, name: str, options: dict[str, Any], feature_dim: int, prompts: Prompts
    ) -> None:
        super().__init__(name, options, feature_dim, prompts)
        self.register_buffer(
            "tokenizer_file", torch.zeros(options["tokenizer_size"], dtype=torch.uint8)
        )
        self.tokenizer_file: Tensor
        self._tokenizer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which create their own tokenizer."""
        return {**self.__dict__, "_tokenizer": None}

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts, truncated to the model's length and padded to the longest."""
        if self._tokenizer is None:
            self._tokenizer = _tokenizer(
                bytes(self.tokenizer_file.cpu().numpy()), int(str(self.options["max_tokens"]))
            )
        encoded = self._tokenizer.encode_batch(list(texts))
        ids = np.array([one.ids for one in encoded], np.int64)
        mask = np.array([one.attention_mask for one in encoded], np.int64)
        return Tokens(ids, mask, np.zeros_like(ids))


def _tokenizer(content: bytes, most: int) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("tokenizers", "backbones", "a model of texts") from None
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(f"the model's {_TOKENIZER} cannot be used: {error}") from None
    tokenizer.enable_truncation(most)
    padding = tokenizer.padding or {}
    tokenizer.enable_padding(
        pad_id=padding.get("pad_id", 0),
        pad_token=padding.get("pad_token", "[PAD]"),
        direction="right",
    )
    return tokenizer


def pooled(states: Tensor, mask: Tensor, pooling: TokenPooling) -> Tensor:
    """Token states [B, T, D] to one vector each [B, D]: their mean, the first or the last, ignoring padding."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        last = mask.sum(dim=1) - 1
        return states[torch.arange(len(states), device=states.device), last]
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


# --- transformers and sentence-transformers


class HFText(_Tokenized):
    """A text model of transformers with a pooling of its tokens."""

    def __init__(
        self,
        config: Mapping[str, Any],
        pooling: TokenPooling,
        max_tokens: int,
        tokenizer_size: int,
        prompts: Mapping[str, Any],
        model: Any = None,
    ) -> None:
        if pooling not in get_args(TokenPooling):
            raise InputError(
                f"unknown pooling {pooling!r}; allowed: {', '.join(get_args(TokenPooling))}"
            )
        options = {
            "config": dict(config),
            "pooling": pooling,
            "max_tokens": max_tokens,
            "tokenizer_size": tokenizer_size,
            "prompts": dict(prompts),
        }
        super().__init__("hf-text", options, 0, Prompts.from_json(prompts))
        self.model = _built(config) if model is None else model
        self.pooling: TokenPooling = pooling
        self.eval()
        self.feature_dim = int(self.model.config.hidden_size)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Texts to vectors [N, feature_dim]."""
        found = self.tokens(texts)
        device = self.tokenizer_file.device
        mask = torch.from_numpy(found.attention_mask).to(device)
        with explained(ModelError, "the model cannot run on texts"):
            states = self.model(
                input_ids=torch.from_numpy(found.input_ids).to(device), attention_mask=mask
            )
        return pooled(states.last_hidden_state.float(), mask, self.pooling)


def _built(config: Mapping[str, Any]) -> Any:
    transformers = hf_library()
    values = dict(config)
    with quiet(transformers), explained(ModelError, "the text model cannot be built from its card"):
        made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        return transformers.AutoModel.from_config(
            made, dtype=torch.float32, trust_remote_code=False
        )


def is_text_model(model: str) -> bool:
    """Whether ``hf:`` or ``st:`` names a text model, by its config; False if unknown."""
    source = model.partition(":")[2]
    folder = Path(source).expanduser()
    try:
        if not folder.is_dir():
            folder = model_folder(hf_library(), source, weights=False)
        config = json.loads((folder / "config.json").read_text())
    except (FixstarError, OSError, ValueError):
        return False
    has_images = {"image_size", "vision_config", "num_channels", "patch_size"} & config.keys()
    return "vocab_size" in config and not has_images


def text_backbone(
    model: str, prompts: Prompts | None = None, pooling: TokenPooling | None = None
) -> HFText:
    """Load the text model of ``hf:NAME_OR_FOLDER`` or ``st:NAME_OR_FOLDER``."""
    kind, _, source = model.partition(":")
    transformers = hf_library()
    extra = [_TOKENIZER]
    if kind == "st":
        extra += _ST_FILES
    with quiet(transformers):
        folder = model_folder(transformers, source, weights=True, more=extra)
    if kind == "st":
        described = _sentence_transformer(folder, model)
    else:
        described = _Described(pooling or "mean", None, Prompts())
    content = _read(
        folder / _TOKENIZER, f"{model} has no {_TOKENIZER}, which splits texts into tokens"
    )
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"{folder} has no weights as safetensors, the only supported format: convert them with "
            "AutoModel.from_pretrained(...).save_pretrained(...)"
        )
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    with quiet(transformers), explained(ModelError, f"the model in {folder} cannot be loaded"):
        loaded = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, **safe).eval()
    longest = getattr(loaded.config, "max_position_embeddings", None) or _MOST_TOKENS
    backbone = HFText(
        plain_config(loaded.config),
        pooling or described.pooling,
        min(described.max_tokens or _MOST_TOKENS, longest),
        len(content),
        (prompts or described.prompts).to_json(),
        model=loaded,
    )
    backbone.tokenizer_file.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return backbone


class _Described(NamedTuple):
    """The description of a sentence transformer, from its files."""

    pooling: TokenPooling
    max_tokens: int | None
    prompts: Prompts


def _sentence_transformer(folder: Path, name: str) -> _Described:
    modules = [
        str(one["type"]).rpartition(".")[2] for one in _json(folder / "modules.json", default=[])
    ]
    unknown = [one for one in modules if one not in ("Transformer", "Pooling", "Normalize")]
    if unknown or modules[:1] != ["Transformer"]:
        raise ModelError(
            f"{name} has {', '.join(unknown or modules) or 'no modules.json'}; only a transformer with a pooling can "
            "be loaded directly. Export the model to ONNX, and give its tokenizer.json"
        )
    values = _json(folder / "1_Pooling" / "config.json", default={})
    mode = values.get("pooling_mode")
    chosen = [pooling for key, pooling in _ST_POOLINGS.items() if values.get(key)]
    if isinstance(mode, str):
        chosen = [{"mean": "mean", "cls": "cls", "lasttoken": "last"}.get(mode, "")]  # type: ignore[list-item]
    if len(chosen) != 1 or not chosen[0]:
        raise ModelError(
            f"{name} has an unknown pooling of its tokens: {values}. Export it to ONNX"
        )
    said = _json(folder / "config_sentence_transformers.json", default={}).get("prompts") or {}
    prompts = Prompts(
        item=said.get("document") or said.get("passage") or "", query=said.get("query") or ""
    )
    most = _json(folder / "sentence_bert_config.json", default={}).get("max_seq_length")
    return _Described(chosen[0], most, prompts)


def _json(path: Path, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None


def _read(path: Path, missing: str) -> bytes:
    try:
        with open_regular_file(path) as file:
            return file.read()
    except OSError as error:
        raise ModelError(f"{missing} ({path}: {error.strerror or error})") from None


# --- ONNX


class OnnxText(_Tokenized):
    """An ONNX model on token ids; ``file`` holds its bytes."""

    def __init__(
        self,
        size: int,
        output: str,
        pooling: TokenPooling,
        max_tokens: int,
        tokenizer_size: int,
        feature_dim: int,
        prompts: Mapping[str, Any],
    ) -> None:
        options = {
            "size": size,
            "output": output,
            "pooling": pooling,
            "max_tokens": max_tokens,
            "tokenizer_size": tokenizer_size,
            "feature_dim": feature_dim,
            "prompts": dict(prompts),
        }
        super().__init__("onnx-text", options, feature_dim, Prompts.from_json(prompts))
        self.register_buffer("file", torch.zeros(size, dtype=torch.uint8))
        self.file: Tensor
        self.pooling: TokenPooling = pooling
        self._session: Any = None

    @classmethod
    def of(
        cls,
        path: Path,
        tokenizer: Path,
        *,
        prompts: Prompts | None = None,
        pooling: TokenPooling | None = None,
        output: str | None = None,
    ) -> OnnxText:
        """Load the model; raises unless it maps tokens to one vector, or to one vector per token."""
        content = read_onnx(path)
        cut = _read(tokenizer, "the tokenizer cannot be read; give its tokenizer.json")
        session = open_session(content, str(path))
        chosen = chosen_output(session, output, str(path))
        unknown = [one.name for one in session.get_inputs() if one.name not in _TOKEN_INPUTS]
        if unknown or not any(one.name == "input_ids" for one in session.get_inputs()):
            seen = ", ".join(one.name for one in session.get_inputs())
            raise ModelError(
                f"{path} must take {', '.join(_TOKEN_INPUTS)}, or some of them; it takes {seen}"
            )
        most = _truncation(cut) or _MOST_TOKENS
        backbone = cls(
            size=len(content),
            output=chosen,
            pooling=pooling or "mean",
            max_tokens=most,
            tokenizer_size=len(cut),
            feature_dim=0,
            prompts=(prompts or Prompts()).to_json(),
        )
        backbone.file.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        backbone.tokenizer_file.copy_(torch.frombuffer(bytearray(cut), dtype=torch.uint8))
        backbone._session = session
        backbone.feature_dim = int(backbone.embed(["a text", "another"]).shape[1])
        backbone.options["feature_dim"] = backbone.feature_dim
        return backbone

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which open their own session."""
        return {**super().__getstate__(), "_session": None}

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Texts to vectors [N, feature_dim]; no gradient flows."""
        if self._session is None:
            self._session = open_session(bytes(self.file.cpu().numpy()), "the saved ONNX model")
        tokens = self.tokens(texts)
        given = {one.name: getattr(tokens, one.name) for one in self._session.get_inputs()}
        try:
            with time_limit(_SECONDS_PER_TEXT * len(texts)) as options:
                (found,) = self._session.run([self.options["output"]], given, options)
        except Exception as error:  # onnxruntime has no common base class for its errors
            raise ModelError(f"the ONNX model cannot run on texts: {error}") from None
        states = torch.from_numpy(np.asarray(found, np.float32)).to(self.file.device)
        if states.ndim == 3:
            states = pooled(
                states, torch.from_numpy(tokens.attention_mask).to(states.device), self.pooling
            )
        if states.ndim != 2 or len(states) != len(texts):
            raise ModelError(
                f"the model returns {tuple(np.shape(found))} for {len(texts)} texts, not one vector each"
            )
        return states


def _truncation(tokenizer: bytes) -> int | None:
    """The maximum number of tokens in a tokenizer's file, if it has one."""
    try:
        said = json.loads(tokenizer).get("truncation") or {}
        most = said.get("max_length")
    except (ValueError, AttributeError):
        return None
    if isinstance(most, int) and most > 0:
        return most
    return None
