"""Runs in the referee's environment: Megatron-LM's own parser and validation of launches, without a GPU.

python megatron_launches.py TREE TRANSFORMER_ENGINE < launches.jsonl > findings.jsonl
python megatron_launches.py TREE TRANSFORMER_ENGINE --flags

A launch is ``{"argv": [...], "env": {...}, "world": N}``; a finding ``{"error": text or null, "derived": {...}}``.
CUDA and Transformer Engine are asked for their versions alone, which are stated; nothing of Megatron-LM is changed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

HOPPER = (9, 0)


def stub_machine() -> None:
    """A Hopper GPU that answers what it is, and runs nothing; ``typing.override``, which Python 3.11 lacks."""
    import typing

    import torch
    import typing_extensions
    from torch.utils import cpp_extension

    vars(typing).setdefault("override", typing_extensions.override)

    about = types.SimpleNamespace(major=HOPPER[0], minor=HOPPER[1], name="H100", total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *_: about

    def no_compiler(*_: Any, **__: Any) -> None:
        raise OSError("no extension is compiled here")

    cpp_extension.load_inline = no_compiler
    torch.cuda.get_device_capability = lambda *_: HOPPER
    torch.cuda.current_device = lambda: 0
    torch.distributed.get_rank = lambda *_: 0


def load(tree: Path, engine: str) -> Any:
    """Megatron-LM's arguments module; its package's own imports (data sets, models) are left out."""
    sys.path.insert(0, str(tree))
    package = types.ModuleType("megatron.training")
    package.__path__ = [str(tree / "megatron" / "training")]
    for name in (
        "get_args",
        "get_timers",
        "get_adlr_autoresume",
        "get_tokenizer",
        "get_wandb_writer",
        "print_rank_0",
    ):
        setattr(package, name, lambda *_: None)
    import megatron

    sys.modules["megatron.training"] = package
    megatron.training = package
    import megatron.core.utils as utils
    from packaging.version import Version

    utils.get_te_version = lambda: Version(engine)
    from megatron.core.models.common.embeddings import rope_utils

    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or NotImplemented
    import megatron.training.arguments as arguments

    return arguments


def stage_layers(arguments: Any, args: Any) -> dict[str, Any]:
    """Check the configuration that the model is built from; the layers of each rank and chunk."""
    config = arguments.core_transformer_config_from_args(args)
    from megatron.core import parallel_state
    from megatron.core.transformer import transformer_block

    pp, vp = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size or 1
    count = transformer_block.get_num_layers_to_build
    parameters = count.__code__.co_varnames[: count.__code__.co_argcount]
    parallel_state.set_virtual_pipeline_model_parallel_world_size(vp if vp > 1 else None)
    parallel_state.set_pipeline_model_parallel_world_size(pp)
    layers = []
    for chunk in range(vp):
        for rank in range(pp):
            parallel_state.set_pipeline_model_parallel_rank(rank)
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk if vp > 1 else None)
            known = {"config": config, "vp_stage": chunk if vp > 1 else None, "pp_rank": rank}
            layers.append(int(count(**{name: known[name] for name in parameters if name in known})))
    return {"layers": layers}


def judge(arguments: Any, launch: dict[str, Any]) -> dict[str, Any]:
    """Parse and validate one launch."""
    world = launch["world"]
    kept = dict(os.environ)
    os.environ.update({"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0", **launch["env"]})
    sys.argv = ["pretrain_gpt.py", *launch["argv"]]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            args = arguments.parse_args()
            arguments.validate_args(args)
            derived = stage_layers(arguments, args)
    except SystemExit:
        return {"error": f"parser: {said.getvalue().strip().splitlines()[-1]}", "derived": {}}
    except (AssertionError, ValueError, RuntimeError, ArithmeticError, NameError) as error:
        text = " ".join(str(error).split()) or where(error)
        return {"error": f"{type(error).__name__}: {text}", "derived": {}}
    except Exception as error:  # a stub that does not reach, which must not count as a verdict
        return {"error": f"referee: {type(error).__name__}: {error} at {where(error)}", "derived": {}}
    finally:
        os.environ.clear()
        os.environ.update(kept)
    per_rank = args.micro_batch_size * args.data_parallel_size
    return {
        "error": None,
        "derived": derived
        | {
            "dp": args.data_parallel_size,
            "vp": args.virtual_pipeline_model_parallel_size or 1,
            "micro_batches": args.global_batch_size / per_rank,
            "global_batch": args.global_batch_size,
            "padded_vocab": getattr(args, "padded_vocab_size", None),
        },
    }


def where(error: BaseException) -> str:
    """The line that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    import linecache

    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno} {line}"


def known_flags(arguments: Any) -> list[str]:
    """Every option string of the parser."""
    import argparse

    found: list[str] = []

    def note(self: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        found.extend(word for action in self._actions for word in action.option_strings)
        raise StopIteration

    parser = argparse.ArgumentParser
    with (
        mock.patch.object(parser, "parse_args", note),
        mock.patch.object(parser, "parse_known_args", note),
        contextlib.suppress(StopIteration),
    ):
        arguments.parse_args()
    return sorted(found)


def main() -> None:
    """Judge launches line by line, or list the flags."""
    warnings.simplefilter("ignore")
    stub_machine()
    arguments = load(Path(sys.argv[1]), sys.argv[2])
    if "--flags" in sys.argv:
        print(json.dumps(known_flags(arguments)))
        return
    for line in sys.stdin.read().splitlines():
        print(json.dumps(judge(arguments, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
