"""Runs in the referee's environment: Megatron-LM builds the model of a launch on the meta device, with Transformer Engine.

python megatron_models.py TREE ENGINE_TREE TRANSFORMER_ENGINE < launches.jsonl > findings.jsonl

Megatron-LM's own parser and validation read the launch, its ``parallel_state`` makes the groups of a fake world, and its
``gpt_builder`` builds every chunk of the first, the middle and the last pipeline rank of Transformer Engine's own classes.
A finding is ``{"error": text or null, "derived": {"parameters": [..]}}``. Transformer Engine's compiled parts, which none
of these asks for a size, and the answers of CUDA are stubs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import io
import json
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from config_files import Absent  # type: ignore[import-not-found]  # beside this script where it runs
from megatron_launches import load, stub_machine, where  # type: ignore[import-not-found]
from torch.overrides import TorchFunctionMode


class Compiled(Absent):  # type: ignore[misc]
    """What is built of CUDA sources, and packages that only its exports ask."""

    packages = (
        *("transformer_engine_torch", "fused_weight_gradient_mlp_cuda", "flash_attn"),
        *("onnxscript", "onnx", "nvdlfw_inspect"),
    )


def load_engine(tree: Path, version: str) -> None:
    """Transformer Engine's Python sources, without the libraries that they load."""
    import torch

    sys.meta_path.insert(0, Compiled())
    known = importlib.metadata.version
    importlib.metadata.version = lambda name: version if name.startswith("transformer") else known(name)  # type: ignore[assignment]
    package, common = (types.ModuleType(name) for name in ("transformer_engine", "transformer_engine.common"))
    package.__path__ = [str(tree / "transformer_engine")]
    common.__path__ = [str(tree / "transformer_engine" / "common")]
    vars(common).update(load_framework_extension=lambda _: None, get_te_path=lambda: None)
    vars(package).update(__version__=version, common=common)
    sys.modules.update({"transformer_engine": package, "transformer_engine.common": common})
    vars(package)["pytorch"] = importlib.import_module("transformer_engine.pytorch")
    vars(common)["recipe"] = importlib.import_module("transformer_engine.common.recipe")
    extensions = importlib.import_module("transformer_engine.pytorch.cpp_extensions")
    vars(extensions)["get_cudnn_version"] = lambda: 91_300
    torch.cuda.is_available = lambda: True
    torch.cuda.Stream = torch.cuda.Event = mock.MagicMock()
    torch.cuda.current_stream = torch.cuda.default_stream = mock.MagicMock()
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.current_device = lambda: "meta"


class OnMeta(TorchFunctionMode):  # type: ignore[misc]  # torch is in the environment alone
    """Puts what is made for a GPU on the meta device."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch with that device in place of another."""
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


def parallel(args: Any) -> Any:
    """The groups of this rank, as ``initialize_megatron`` asks for them."""
    from megatron.core import parallel_state, tensor_parallel

    named = {
        "order": "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        "create_gloo_process_groups": False,
    }
    known = inspect.signature(parallel_state.initialize_model_parallel).parameters
    asked = {name: getattr(args, name) for name in known if hasattr(args, name)}
    parallel_state.initialize_model_parallel(**{**asked, **named})
    tensor_parallel.model_parallel_cuda_manual_seed = lambda *_, **__: None
    return parallel_state


def chunks(args: Any, arguments: Any) -> list[Any]:
    """Every chunk of this rank, as ``get_model`` builds them."""
    import torch

    state, builder = parallel(args), importlib.import_module("gpt_builders").gpt_builder
    args.init_model_with_meta_device, args.perform_initialization = True, False
    multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    args.padded_vocab_size = -(-args.vocab_size // multiple) * multiple
    config = arguments.core_transformer_config_from_args(args)
    config.init_model_with_meta_device = True
    pp, rank = state.get_pipeline_model_parallel_world_size(), state.get_pipeline_model_parallel_rank()
    count = args.virtual_pipeline_model_parallel_size or 1
    built = []
    with torch.device("meta"), OnMeta():
        for chunk in range(count):
            if count > 1:
                state.set_virtual_pipeline_model_parallel_rank(chunk)
            ends = {
                "pre_process": rank == 0 and chunk == 0,
                "post_process": rank == pp - 1 and chunk == count - 1,
            }
            built.append(builder(args, **ends, vp_stage=chunk if count > 1 else None, config=config))
    return built


def held(parts: list[Any]) -> int:
    """Parameters, and the routers' biases, which are buffers and part of the checkpoint."""
    found = [p for part in parts for p in part.parameters()]
    found += [b for part in parts for name, b in part.named_buffers() if name.endswith("expert_bias")]
    return sum(int(one.numel()) for one in {id(one): one for one in found}.values())


def alone(arguments: Any, launch: dict[str, Any], rank: int) -> dict[str, Any]:
    """Play one rank of the launch's world."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world = launch["world"]
    os.environ.update({"WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": "0", **launch["env"]})
    sys.argv = ["pretrain_gpt.py", *launch["argv"]]
    args = arguments.parse_args()
    arguments.validate_args(args)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    dist.get_rank = lambda group=None: rank if group is None else dist.get_group_rank(group, rank)
    sys.modules["megatron.training"].get_args = lambda: args  # type: ignore[attr-defined]
    return {"error": None, "parameters": held(chunks(args, arguments))}


def apart(arguments: Any, launch: dict[str, Any], rank: int) -> dict[str, Any]:
    """Play the rank in a process of its own, which its groups end with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                answer = alone(arguments, launch, rank)
        except SystemExit:
            answer = {"error": f"parser: {said.getvalue().strip().splitlines()[-1]}"}
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            answer = {"error": f"referee: {type(error).__name__}: {text} at {where(error)}"}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "referee: the process died"}


def judge(arguments: Any, launch: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the first, the middle and the last pipeline rank."""
    pp = launch["layout"]["pp"]
    dense = launch["world"] // pp
    inner = launch["layout"]["tp"] * launch["layout"]["cp"]
    step = inner if "--use-tp-pp-dp-mapping" in launch["argv"] else dense
    found = [apart(arguments, launch, stage * step) for stage in (0, pp // 2, pp - 1)]
    refused = [one for one in found if one["error"]]
    if refused:
        return {"error": refused[0]["error"], "derived": {}}
    return {"error": None, "derived": {"parameters": [one["parameters"] for one in found]}}


def main() -> None:
    """Judge launches line by line."""
    warnings.simplefilter("ignore")
    stub_machine()
    load_engine(Path(sys.argv[2]), sys.argv[3])
    arguments = load(Path(sys.argv[1]), sys.argv[3])
    for name in ("megatron.legacy", "megatron.legacy.model", "megatron.training.yaml_arguments"):
        sys.modules.setdefault(name, mock.MagicMock(__path__=[], __spec__=None))
    for line in sys.stdin.read().splitlines():
        print(json.dumps(judge(arguments, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
