"""ONNX models: read completely, opened for the CPU, and run with a time limit."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fixstar.durable import open_regular_file
from fixstar.errors import InputError, MissingExtraError, ModelError

_WEIGHTS_BESIDE = "session.model_external_initializers_file_folder_path"


@contextmanager
def time_limit(seconds: float) -> Iterator[Any]:
    """onnxruntime's options for one run, with a timeout in seconds: a loop in the model may never end."""
    options = importlib.import_module("onnxruntime").RunOptions()
    ended = threading.Event()

    def end() -> None:
        ended.set()
        options.terminate = True

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield options
    except Exception:
        if ended.is_set():
            raise TimeoutError(f"it took more than {seconds:g} s") from None
        raise
    finally:
        timer.cancel()


def read_onnx(path: Path) -> bytes:
    """An ONNX model with all its weights, also those in files beside it: a version must not depend on other files."""
    try:
        with open_regular_file(path) as file:
            content = file.read()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}. Is the path right?") from None
    if b"location" not in content:  # the key of external file names
        return content
    try:
        onnx = importlib.import_module("onnx")
        helper = importlib.import_module("onnx.external_data_helper")
    except ImportError:
        return content  # if there are external weights, opening it will fail
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # onnxruntime will report the error
        return content
    try:
        helper.load_external_data_for_model(model, str(path.parent.absolute()))
        whole: bytes = model.SerializeToString()
    except Exception as error:  # onnx and protobuf raise their own errors
        raise ModelError(
            f"{path} has weights in files beside it, and they cannot be read ({error}). Keep them together, or save "
            "the model with its weights inside, which takes up to 2 GB"
        ) from None
    return whole


def open_session(content: bytes, title: str) -> Any:
    """An ONNX model ready to run on the CPU."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx", "running an ONNX model") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    options.add_session_config_entry(
        _WEIGHTS_BESIDE, os.devnull
    )  # so that external weights are never found
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common base class for its errors
        raise ModelError(
            f"{title} is not an ONNX model that can be run ({error}). Weights must be inside the file, "
            "not in separate files"
        ) from None


def chosen_output(session: Any, output: str | None, title: str) -> str:
    """The name of the feature output: the only one, or the requested one."""
    names: dict[str, list[Any]] = {one.name: one.shape for one in session.get_outputs()}
    if output is None and len(names) == 1:
        return next(iter(names))
    if output is not None and output in names:
        return output
    listed = ", ".join(f"{name} {shape}" for name, shape in names.items())
    asked = "" if output is None else f", and none is called {output!r}"
    raise InputError(
        f"{title} has {len(names)} outputs{asked}. Name the one that is the feature: {listed}"
    )
