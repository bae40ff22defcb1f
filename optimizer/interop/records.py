"""What importers give back and exporters hand out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import AdapterSpec, ModelSpec, OptimizerSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Fp8Recipe, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """A model read from a file.

    ``sequence_length`` is a suggestion: the length it was pre-trained for where the file says so, else its
    longest context, in tokens. ``notes`` say what was taken from class defaults and what is not modelled.
    """

    model: ModelSpec
    sequence_length: int | None = None
    precision: Precision | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTraining:
    """The batch and number formats as far as a launch file states them; None is unknown.

    ``global_batch`` in sequences; ``grad_bytes``, ``moment_bytes`` bytes per parameter; ``flash`` False where the attention
    scores are kept.
    """

    sequence_length: int | None = None
    global_batch: int | None = None
    train_steps: int | None = None
    precision: Precision | None = None
    fp8_recipe: Fp8Recipe | None = None
    grad_bytes: int | None = None
    moment_bytes: int | None = None
    optimizer: OptimizerSpec | None = None
    pad_vocab: bool | None = None
    flash: bool | None = None
    dropout: bool | None = None
    adapter: AdapterSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Switches that change a job's speed or memory but not its layout; None is the framework's default.

    The first group has the names of the cost model's framework presets: gradient reduction (``dp``),
    parameter gathering, pipeline sends, expert all-to-all (``none``, ``shared`` or ``batch``).
    ``optimizer_offload`` is the fraction of the optimizer kept in host memory, ``checkpoint_interval``
    counts steps. ``cp_windows`` is the kind of context parallelism of layers with a window, where it is stated apart.
    ``fp8_param_gather``: weights are kept and gathered in 8 bits alone.
    """

    tp_overlap: bool | None = None
    dp_overlap: bool | None = None
    param_overlap: bool | None = None
    pp_overlap: bool | None = None
    ep_overlap: str | None = None
    cp_comm: CpComm | None = None
    cp_windows: CpComm | None = None
    compiled: bool | None = None
    moe_dispatcher: str | None = None
    microbatch_group: int | None = None
    optimizer_offload: float | None = None
    activation_offload: bool | None = None
    checkpoint_interval: int | None = None
    checkpoint_async: bool | None = None
    fp8_param_gather: bool | None = None
    delay_wgrad: bool | None = None
    cuda_graph: CudaGraph | None = None
    loss_chunks: int | None = None

    def preset_overrides(self) -> dict[str, object]:
        """Return the stated switches under the names of the framework preset's fields."""
        overlaps = ("tp_overlap", "dp_overlap", "param_overlap", "pp_overlap", "ep_overlap")
        names = (*overlaps, "cp_comm", "compiled")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJob:
    """Somebody's launch configuration.

    ``layout`` holds the axes as far as the file states them and, in ``split``, the stages that the
    framework makes of them.
    ``model`` is None when the file only names it (``model_name``); ``mtp_layers`` are then its multi-token-prediction
    layers where the file says how many. ``gpus`` is the number of processes if stated or derivable. ``replicas`` is how
    often the shards of the states are held, where the ranks that share one copy are what the GPUs leave (``hsdp_shard``
    open). ``notes`` say which values are the framework's defaults and why; ``missing`` names what a price needs and the
    file does not state.
    """

    framework: Framework
    layout: PartialLayout
    training: JobTraining
    options: JobOptions = field(default_factory=JobOptions)
    version: str | None = None
    model: ModelSpec | None = None
    model_name: str | None = None
    mtp_layers: int | None = None
    gpus: int | None = None
    replicas: int = 1
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def precision(self) -> Precision | None:
        """The precision that is stated, of the run or of its layout; None is unknown."""
        return self.training.precision or self.layout.precision


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """One measured run as columns of the measured-run table (``validate``), and what was assumed.

    ``timers_s`` are a trainer's own timers: the least and the most seconds a step over ranks, ``rank_timers_s`` those of
    each rank where the log lists them. ``samples_per_s`` is the whole job's rate where the log states no step time,
    ``steps`` counts the steps that are logged.
    """

    columns: dict[str, str | int | float]
    notes: tuple[str, ...] = ()
    steps: int = 0
    timers_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    rank_timers_s: dict[str, dict[int, float]] = field(default_factory=dict)
    samples_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The memory line of a torch out-of-memory message, bytes; None is not stated by that generation."""

    tried_bytes: float
    capacity_bytes: float
    free_bytes: float | None = None
    in_use_bytes: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    gpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBlock:
    """Nodes that share a switch or block, and the name of the level above, empty for none."""

    name: str
    nodes: tuple[str, ...]
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSet:
    """Nodes of an allocation or of a whole cluster.

    ``kind`` is ``flat``, ``tree``, ``block``, ``ring`` or ``torus``. ``block_size`` is the planning size of
    a block in nodes. ``gpus_per_node`` None if the scheduler does not say.
    """

    nodes: tuple[str, ...]
    gpus_per_node: int | None = None
    kind: str = "flat"
    blocks: tuple[NodeBlock, ...] = ()
    block_size: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTopology:
    """One node as ``nvidia-smi topo -m`` shows it.

    ``nvlink_domain`` is the largest set of GPUs that reach each other over NVLink, ``nvlinks`` the fewest
    bonded links between two of them (0: no NVLink). ``gpu_nics`` names, per GPU, the NICs usable with
    GPU-direct; ``nics`` counts those that serve any GPU.
    """

    gpus: int
    nvlink_domain: int
    nvlinks: int
    nics: int
    gpu_nics: tuple[tuple[str, ...], ...]
    other_nics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInterval:
    """How often the exported job saves, in steps, and whether training goes on meanwhile."""

    interval_steps: int
    asynchronous: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    """A launch configuration.

    ``files`` maps file names to their text, ``command`` starts the job from their folder. ``memory_check``
    is a command that confirms one rank's memory on a single GPU, or why there is none. ``notes`` are
    choices the reader should know.
    """

    framework: Framework
    version: str
    files: dict[str, str]
    command: str
    memory_check: str
    layout: Layout
    notes: tuple[str, ...] = ()
