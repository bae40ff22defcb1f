"""What each framework and software release does by default: state dtypes, overlap, loss, host time."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import framework_named, parse_release
from layoutopt.optimizer.frameworks.switches import BY_NAME, acting
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.model import ADAMW
from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Dispatcher, Saver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.frameworks.switches import Switch, Value
    from layoutopt.optimizer.specs.layout import Layout, Switches
    from layoutopt.optimizer.specs.model import ModelSpec, OptimizerSpec, TrainingSpec


class NarrowWeights(StrEnum):
    """How a framework keeps the weights that multiply in a narrow format over a step.

    It casts them anew for every multiplication, keeps cast copies beside the 16-bit ones, or keeps and gathers the
    narrow ones alone (NVIDIA/Megatron-LM --fp8-param-gather).
    """

    CAST = "cast"
    COPIES = "copies"
    ALONE = "alone"


class EpOverlap(StrEnum):
    """What hides expert all-to-all: nothing, the shared expert, the other micro-batch, or DualPipe's pairing."""

    NONE = "none"
    SHARED = "shared"
    BATCH = "batch"
    DUALPIPE = "dualpipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPreset:
    """Switches and host times of one framework and release.

    Bytes are per parameter. ``fsdp_weight_bytes`` is the sharded weight's size under ZeRO-3 (4 keeps fp32
    weights and no separate master). ``grad_comm_bytes`` is what the gradient reduction sends.
    ``bucket_bytes`` are those of 16-bit gradients that stay in communication buckets beside the gradient buffer;
    ``logit_bytes`` is what an unfused loss keeps per logit.
    ``stored_fp8_inputs``: 8-bit training keeps linear layers' inputs in 8 bits, ``fp8_function_inputs`` those of
    the activation function too; ``fp8_attention_output_bytes`` per element where attention's backward and the
    output projection then share one copy (0: a 16-bit and an 8-bit one). ``keeps_function_output`` False: the
    activation function's output is always computed again.
    ``norm_bytes`` per element are what an RMSNorm keeps beside its output, ``casts_inputs``: every linear layer keeps a
    16-bit copy of its input of its own (autocast), ``fused_function`` False: a gated MLP keeps the activation function's
    output beside its product. ``copies_values`` False: values of latent attention stay with the keys that they were
    multiplied with. ``keeps_gathered_keys``: keys and values that context parallelism gathered are kept for the
    backward pass, ``keeps_gathered_inputs``: inputs of matrices that sequence parallelism gathered.
    ``gathers_tokens``: expert-tensor ranks gather tokens before they are routed, not their routed copies.
    ``repeats_keys``: every tensor-parallel rank has whole key-value heads; else a matrix of fewer heads than ranks is
    split and what it yields gathered. ``splits_mtp_projection`` False: tensor-parallel ranks all hold the projection in
    front of a prediction layer.
    ``fused_sinks`` False: attention's output is kept before its sinks too. ``router_input_bytes`` per element are what a
    router with biases keeps of its input beside the 16-bit one, ``routed_output_bytes`` what is kept of routed experts'
    output where it is multiplied with the probabilities, ``routed_index_bytes`` per element what positions of routed rows
    take while a layer runs, where they are spelled out for every element.
    ``tp_async_backward``: the backward pass launches tensor-parallel collectives beside its multiplications; without
    sequence parallelism only where ``tp_async_all_reduce`` too.
    ``loss_chunks``: parts of the tokens whose logits exist one after another.
    ``optimizer`` is the run's. ``narrow_weights``: what is kept of weights that multiply in 8 or 4 bits.
    ``offload_optimizer``, ``offload_activations``: where the optimizer's state, with weights that have no separate
    master copy, and what blocks keep for the backward pass live in host memory.
    ``keep_gathered_with_pp``: with pp > 1 ZeRO-3 keeps weights gathered over the step.
    ``torch_pipeline``: stages run under torch's own schedules, which keep what a stage puts out until its backward pass,
    a receive buffer for every micro-batch, and whole gradients up to the last one.
    ``holds_back_traffic``: whole gradients, HSDP replicas and ZeRO-2 without master weights are reduced in the last
    micro-batch alone (``no_sync``).
    ``zero1_all_reduce``: ZeRO-1 reduces whole gradients on every rank.
    ``partitioned_sends``: tensor-parallel ranks send a share each of activations between pipeline stages and gather it
    there, ``partitioned_gradients``: of their gradients; ``gathers_received``: into whole tensors of their own.
    ``host_layer_s`` is host time of one dense layer's forward, ``host_step_s`` per optimizer step.
    ``blocking_launches``: the host waits for every kernel that it launches (CUDA_LAUNCH_BLOCKING=1), and so the GPU for it.
    ``adds_gradients``: a kernel of its own adds each 16-bit gradient to the gradient buffer, instead of the epilogue of
    the multiplication.
    ``hopper_gemm_speed`` is the release's multiplication library over a current one on Hopper (the first ones ran
    Ampere kernels there), ``attention_speed`` its attention kernels over their kind's on any GPU; ``fused_attention``
    says that it has attention kernels that keep no scores, ``flash_attention_2`` that these are FlashAttention-2's,
    ``fp8_attention`` that they multiply in 8 bits.
    ``reserved_sm_share``: of the SMs that kernels of the expert exchange hold where they run beside another
    micro-batch's compute.
    ``grouped_experts``: one launch multiplies for all local experts instead of one for each.
    ``separate_product``: a gated MLP multiplies in a kernel of its own (as where ``fused_function`` is False), which
    keeps no more. ``copies_gathered``: sharded weights are copied out of the buffer they are gathered in, and gradients
    into the one they are reduced from. ``bucket_parameters``: parameters reduced or gathered by one call, 0 for about a
    block of layers, and at least ``rank_bucket_parameters`` for each rank; ``broadcast_parameters``: every rank
    broadcasts the weights that it updated, whole tensors of so many parameters in the mean (0: weights are gathered).
    ``repeats_last_matrix`` False: recomputing a layer ends before its last matrix multiplication.
    ``joint_projections`` False: query, key and value, and gate and up, are multiplied one by one.
    ``fused_norm`` False: RMS normalisation is a chain of element-wise kernels in 32 bits; ``fused_softmax`` False:
    materialised scores are masked by a kernel of their own. ``splits_loss`` False: tensor-parallel ranks gather the
    logits and each compute the whole loss. ``gathers_once`` False: every matrix gathers its input for itself.
    ``whole_gradients``: ZeRO-3 adds up unsharded gradients and reduces them in the last micro-batch.
    ``allocator_reserve`` is memory reserved over allocated, ``overhead_bytes`` context and NCCL buffers,
    ``borderline_share`` the share of usable memory from which runs both ran and died.
    """

    weight_bytes: float
    grad_bytes: float
    master_bytes: float
    moment_bytes: float
    fsdp_weight_bytes: float
    grad_comm_bytes: float
    bucket_bytes: float
    logit_bytes: float
    loss_chunks: int
    pad_vocab: bool
    fused_loss: bool
    dummy_wgrad: bool
    compiled: bool
    stored_fp8_inputs: bool
    fp8_function_inputs: bool
    fp8_attention_output_bytes: float
    keeps_function_output: bool
    norm_bytes: float
    casts_inputs: bool
    fused_function: bool
    copies_values: bool
    keeps_gathered_keys: bool
    keeps_gathered_inputs: bool
    gathers_tokens: bool
    repeats_keys: bool
    splits_mtp_projection: bool
    fused_sinks: bool
    router_input_bytes: float
    routed_output_bytes: float
    routed_index_bytes: float
    narrow_weights: NarrowWeights
    offload_optimizer: bool
    offload_activations: bool
    tp_overlap: bool
    tp_async_backward: bool
    tp_async_all_reduce: bool
    dp_overlap: bool
    param_overlap: bool
    pp_overlap: bool
    pp_fill_overlap: bool
    ep_overlap: EpOverlap
    delay_wgrad: bool
    cp_comm: CpComm
    reduce_each_micro_batch: bool
    holds_back_traffic: bool
    keep_gathered_with_pp: bool
    torch_pipeline: bool
    zero1_all_reduce: bool
    dispatch_fp8: bool
    dispatcher: Dispatcher
    cuda_graph: CudaGraph
    host_layer_s: float
    host_step_s: float
    blocking_launches: bool
    allocator_reserve: float
    overhead_bytes: float
    borderline_share: float
    hopper_gemm_speed: float
    attention_speed: float
    fused_attention: bool
    flash_attention_2: bool
    fp8_attention: bool
    partitioned_sends: bool
    partitioned_gradients: bool
    gathers_received: bool
    adds_gradients: bool
    reserved_sm_share: float
    grouped_experts: bool
    copies_gathered: bool
    separate_product: bool
    bucket_parameters: float
    rank_bucket_parameters: float
    broadcast_parameters: float
    repeats_last_matrix: bool
    joint_projections: bool
    fused_norm: bool
    fused_softmax: bool
    splits_loss: bool
    gathers_once: bool
    whole_gradients: bool
    optimizer: OptimizerSpec = ADAMW

    def with_training(self, training: TrainingSpec) -> FrameworkPreset:
        """Apply the dtypes and switches that the training spec states."""
        own: dict[str, Any] = {
            name: getattr(training, name) for name in _OF_TRAINING if getattr(training, name) is not None
        }
        if "grad_bytes" in own:
            own["grad_comm_bytes"] = min(own["grad_bytes"], 4)
        if training.fp8_param_gather is not None:
            own["narrow_weights"] = NarrowWeights.ALONE if training.fp8_param_gather else NarrowWeights.COPIES
        own["optimizer"] = training.optimizer
        without_master = self._sixteen_bit() if training.master_bytes == 0 else {}
        return replace(self, **{**without_master, **own})

    def _sixteen_bit(self) -> dict[str, Any]:
        """Fields of training without master weights: gradients and moments take the weights' format, as torch makes them."""
        same = ("fsdp_weight_bytes", "grad_bytes", "grad_comm_bytes", "moment_bytes")
        return dict.fromkeys(same, self.weight_bytes)

    def runs(self, training: TrainingSpec) -> TrainingSpec:
        """Return a run as the release trains it: with materialised scores where it has no fused attention."""
        return replace(training, flash=training.flash and self.fused_attention)

    def saving(self, savers: tuple[Saver, ...]) -> FrameworkPreset:
        """Apply memory savers."""
        if not savers:
            return self
        own: dict[str, Any] = {
            "offload_optimizer": self.offload_optimizer or Saver.OFFLOAD_OPTIMIZER in savers,
            "offload_activations": self.offload_activations or Saver.OFFLOAD_ACTIVATIONS in savers,
        }
        if Saver.BF16_MOMENTS in savers:
            own["moment_bytes"] = min(self.moment_bytes, 2)
        return replace(self, **own)

    def switched(self, switches: Switches) -> FrameworkPreset:
        """Apply the launch switches that a layout states."""
        return _switched(self, switches) if switches else self


_FIELDS = {"cp_kind": "cp_comm"}
"""Switches whose field of a preset has another name."""

_MERGED = ("ep_overlap", "shared_expert_overlap", "fp8_param_gather")
"""Switches that one field of a preset holds together with others or in other words."""


@lru_cache(maxsize=1024)
def _switched(preset: FrameworkPreset, switches: Switches) -> FrameworkPreset:
    own: dict[str, Any] = {
        _FIELDS.get(name, name): value for name, value in switches.stated().items() if name not in _MERGED
    }
    overlap = _expert_overlap(switches, preset.ep_overlap)
    if switches.dp_overlap is False:
        own["param_overlap"] = False  # it needs the other
    own |= {"ep_overlap": overlap, "narrow_weights": _narrow_weights(switches, preset.narrow_weights)}
    return replace(preset, **own)


def preset_value(preset: FrameworkPreset, switch: Switch) -> Value:
    """Return what a preset has where a layout states nothing."""
    if switch.name == "ep_overlap":
        return preset.ep_overlap is EpOverlap.BATCH
    if switch.name == "shared_expert_overlap":
        return preset.ep_overlap is EpOverlap.SHARED
    if switch.name == "fp8_param_gather":
        return preset.narrow_weights is NarrowWeights.ALONE
    value: Value = getattr(preset, _FIELDS.get(switch.name, switch.name))
    return value


def telling(switches: Switches, layout: Layout, model: ModelSpec | None, preset: FrameworkPreset) -> Switches:
    """Leave out what can't change anything in a layout, and what is as a preset has it anyway.

    ``model`` None: of one that is not known.
    """
    own = acting(switches, layout, model)
    usual = []
    for name, value in own.stated().items():
        switch = BY_NAME[name]
        both = value, preset_value(preset, switch)
        one, other = both if model is None else (switch.meant(each, model) for each in both)
        usual += [name] * (one == other)
    return replace(own, **dict.fromkeys(usual)) if usual else own


def _expert_overlap(switches: Switches, own: EpOverlap) -> EpOverlap:
    """Return what hides expert traffic: what is switched on, nothing where what a preset has is switched off."""
    if switches.ep_overlap:
        return EpOverlap.BATCH
    if switches.shared_expert_overlap:
        return EpOverlap.SHARED
    stated = {EpOverlap.BATCH: switches.ep_overlap, EpOverlap.SHARED: switches.shared_expert_overlap}
    return own if stated.get(own) is None else EpOverlap.NONE


def _narrow_weights(switches: Switches, own: NarrowWeights) -> NarrowWeights:
    if switches.fp8_param_gather is None:
        return own
    return NarrowWeights.ALONE if switches.fp8_param_gather else NarrowWeights.COPIES


_OF_TRAINING = ("grad_bytes", "moment_bytes", "master_bytes", "pad_vocab", "fused_loss", "loss_chunks")
"""Fields that the training spec may state."""

MEASURED = (
    "host_layer_s",
    "host_step_s",
    "hopper_gemm_speed",
    "attention_speed",
    "allocator_reserve",
    "overhead_bytes",
)
"""Fields that are measured, not switched: a calibration overrides one as ``field.framework``."""


def calibrated(
    preset: FrameworkPreset, framework: Framework, calibration: Mapping[str, float]
) -> FrameworkPreset:
    """Return the preset with the measured fields that a calibration names for this framework."""
    names = {field: f"{field}.{framework.value}" for field in MEASURED}
    own: dict[str, Any] = {field: calibration[name] for field, name in names.items() if name in calibration}
    return replace(preset, **own)


LIKE, UNTIL = "like", "until"
"""Keys of a preset file: the framework whose preset it builds on, and what differed up to older releases."""

_ENUMS: Mapping[str, Callable[[Any], Any]] = {
    "ep_overlap": EpOverlap,
    "cp_comm": CpComm,
    "cuda_graph": CudaGraph,
    "dispatcher": Dispatcher,
    "narrow_weights": NarrowWeights,
}


@cache
def _table(folder: str) -> Mapping[str, Any]:
    """Read a framework's preset file, or ``base``."""
    import yaml

    file = resources.files("layoutopt.optimizer.frameworks").joinpath(f"{folder}.yaml")
    if not file.is_file():
        raise input_error("no such preset", "what differs from base.yaml", file=f"frameworks/{folder}.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    return table


@cache
def load_preset(framework: Framework, software: str | None = None) -> FrameworkPreset:
    """Return the preset of a framework's release, see ``read_release``."""
    return preset_of_release(framework, parse_release(framework, software))


@cache
def preset_of_release(framework: Framework, release: Release) -> FrameworkPreset:
    """Return the preset of a framework's release.

    Raises ``InputError`` where its file has an unknown field or lacks one.
    """
    values = {**_table("base"), **_settings(framework)}
    for last, own in _table(framework.record.folder).get(UNTIL, {}).items():
        if release <= parse_release(framework, last):
            values |= own
    known = [field.name for field in fields(FrameworkPreset) if field.name != "optimizer"]
    if wrong := [name for name in (*values, *known) if name not in values or name not in known]:
        what = "is unknown" if wrong[0] in values else "is missing"
        raise input_error(what, "the fields of FrameworkPreset", key=wrong[0], file=_file_name(framework))
    return FrameworkPreset(**{name: _ENUMS.get(name, _as_it_is)(value) for name, value in values.items()})


def _settings(framework: Framework) -> dict[str, Any]:
    """Collect an entry's own settings over those of the preset it builds on."""
    table = _table(framework.record.folder)
    inherited = _settings(framework_named(table[LIKE])) if LIKE in table else {}
    return inherited | {name: value for name, value in table.items() if name not in (LIKE, UNTIL, "source")}


def _file_name(framework: Framework) -> str:
    return f"frameworks/{framework.record.folder}.yaml"


def _as_it_is(value: Any) -> Any:
    return value
