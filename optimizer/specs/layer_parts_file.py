"""The parts of a layer as a model file states them: experts, latent attention, Mamba, linear attention, indexer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from layoutopt.optimizer.specs.file_model import FileModel
from layoutopt.optimizer.specs.kinds import SWITCH, quantity, whole
from layoutopt.optimizer.specs.layer_runs import MAX_LAYERS
from layoutopt.optimizer.specs.model import LinearSpec, MoeSpec, groups_of_node_limit
from layoutopt.optimizer.specs.units import NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.specs.file_model import Finding, PartialFields

MAX_WIDTH = 10_000_000

Width = Annotated[int, whole(most=MAX_WIDTH)]
OptionalWidth = Annotated[int | None, whole(most=MAX_WIDTH)]
Switch = Annotated[bool, SWITCH]


class MoeFile(FileModel):
    """Mixture of experts."""

    experts: Annotated[int, whole(least=2, most=1_000_000)] = Field(
        description="routed experts per MoE layer"
    )
    top_k: Annotated[int, whole(most=1_000_000)] = Field(description="experts that each token is routed to")
    ffn: Width = Field(description="width of one expert")
    shared_ffn: Annotated[int, whole(least=0, most=MAX_WIDTH)] = Field(
        default=0, description="total width of the shared experts, 0 for none"
    )
    dense_layers: Annotated[int, whole(least=0, most=MAX_LAYERS)] = Field(
        default=0, description="leading layers with a dense MLP"
    )
    every: Annotated[int, whole(most=64)] = Field(
        default=1,
        description="after the leading dense layers, each n-th layer is MoE and the others are dense",
    )
    node_limit: Annotated[int | None, whole(most=1_000_000)] = Field(
        default=None,
        description="older spelling of router_group_limit, of 8 groups where router_groups is left out",
    )
    capacity_factor: Annotated[float | None, quantity(NUMBER)] = Field(
        default=None, description="expert capacity over the mean load; left out: dropless"
    )
    router_bias: Switch = Field(default=False, description="one bias per expert in the router")
    shared_gate: Switch = Field(default=False, description="a gate vector on the shared experts")
    expert_bias: Switch = Field(default=False, description="biases in the experts' matrices")
    router_scaling: Annotated[float | None, quantity(NUMBER)] = Field(
        default=None, description="factor on the router's probabilities; for launch files"
    )
    router_groups: Annotated[int | None, whole(most=1_000_000)] = Field(
        default=None, description="equal groups of neighbouring experts that the router chooses among"
    )
    router_group_limit: Annotated[int | None, whole(most=1_000_000)] = Field(
        default=None, description="groups that one token's experts may be in"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that a token can reach ``top_k`` different experts, and that groups are of equal size."""
        yield from _check_groups(given)
        if given.top_k and given.experts and given.top_k > given.experts:
            what = f"{given.top_k} of only {given.experts} experts"
            yield ("top_k",), what, f"at most experts, {given.experts}"

    def spec(self) -> MoeSpec:
        """Convert to the form that the other rooms use."""
        placing = ("dense_layers", "every", "node_limit")
        stated = {name: value for name, value in self if name not in placing}
        # The older key states one number of the two; where both groups are stated it may repeat their limit, no more.
        if self.node_limit is not None and self.router_groups is None:
            stated |= groups_of_node_limit(self.experts, self.node_limit)
        elif self.router_group_limit is None:
            stated["router_group_limit"] = self.node_limit
        return MoeSpec(**stated)


def _check_groups(given: PartialFields) -> Iterator[Finding]:
    """Check that both numbers of the router's groups are there, and that they divide the experts."""
    groups, limit = given.router_groups, given.router_group_limit
    key = "router_group_limit"
    if groups is not None and limit is None and given.node_limit is not None:
        limit, key = given.node_limit, "node_limit"
    if (groups is None) != (limit is None):
        missing = "router_group_limit" if limit is None else "router_groups"
        yield (missing,), "missing", "router_groups and router_group_limit come together"
    elif groups and limit and limit > groups:
        yield (key,), f"{limit} of only {groups} groups", f"at most router_groups, {groups}"
    if groups and given.experts and given.experts % groups:
        yield ("router_groups",), f"experts {given.experts} is not a multiple", divisors_text(given.experts)
    elif groups and limit and given.experts and given.top_k:
        # Groups that hold fewer experts than a token is routed to leave the router without a choice that is allowed.
        each = given.experts // groups
        if limit * each < given.top_k:
            what = f"{limit} groups of {each} are {limit * each} experts for the {given.top_k} of a token"
            yield (key,), what, f"at least {-(-given.top_k * groups // given.experts)}"
    if limit and given.node_limit and given.node_limit != limit:
        what = f"{given.node_limit}, and router_group_limit says {limit}"
        yield ("node_limit",), what, "router_group_limit alone"


class MlaFile(FileModel):
    """Multi-head latent attention."""

    q_lora_rank: Annotated[int, whole(least=0, most=MAX_WIDTH)] = Field(
        default=0, description="rank of the query projection, 0 for a full one"
    )
    kv_lora_rank: Width = Field(description="rank of the joint key-value projection")
    qk_nope_head_dim: Width = Field(description="query and key width per head without positions")
    qk_rope_head_dim: Width = Field(description="query and key width per head with rotary positions")
    v_head_dim: Width = Field(description="value width per head")


class CompressedFile(FileModel):
    """Attention to one key of all heads, which is the value too, beside keys of several tokens (DeepSeek-V4)."""

    query_rank: Width = Field(description="rank of the query projection")
    output_groups: Width = Field(description="groups of heads that the output projection takes apart")
    output_rank: Width = Field(description="rank of the output projection of one group")


class MambaFile(FileModel):
    """Mamba-2 mixers."""

    heads: Width = Field(description="heads of the mixer")
    head_dim: Width = Field(description="width of one head")
    state: Width = Field(description="state size per head")
    groups: Width = Field(default=1, description="groups that share B and C")
    conv: Annotated[int, whole(most=1024)] = Field(default=4, description="width of the causal convolution")


class LinearFile(FileModel):
    """Linear attention with a state: gated delta rule, Kimi delta attention, lightning attention."""

    key_heads: OptionalWidth = Field(
        default=None, description="heads of queries and keys; default value_heads"
    )
    value_heads: Width = Field(description="heads of values, each with a state")
    key_head_dim: Width = Field(description="width of one head of queries and keys")
    value_head_dim: OptionalWidth = Field(
        default=None, description="width of one head of values; default key_head_dim"
    )
    conv: Annotated[int, whole(least=0, most=1024)] = Field(
        default=4, description="width of the causal convolution, 0 for none"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that value heads share out key heads."""
        if given.key_heads and given.value_heads and given.value_heads % given.key_heads:
            what = f"value_heads {given.value_heads} is not a multiple of {given.key_heads}"
            yield ("key_heads",), what, divisors_text(given.value_heads)

    def spec(self) -> LinearSpec:
        """Convert to the form that the other rooms use."""
        return LinearSpec(
            key_heads=self.key_heads or self.value_heads,
            value_heads=self.value_heads,
            key_head_dim=self.key_head_dim,
            value_head_dim=self.value_head_dim or self.key_head_dim,
            conv=self.conv,
        )


class IndexerFile(FileModel):
    """Sparse attention: an indexer chooses the keys that a query attends to."""

    heads: Width = Field(description="heads whose scores choose keys")
    head_dim: Width = Field(description="width of one of them")
    top_k: Width = Field(description="keys that a query attends to")
    block: OptionalWidth = Field(
        default=None, description="keys of the blocks that each head chooses for one group of query heads"
    )
    dense_layers: Annotated[int, whole(least=0, most=MAX_LAYERS)] = Field(
        default=0, description="leading layers that attend to every key"
    )
    every: Annotated[int, whole(most=MAX_LAYERS)] = Field(
        default=1,
        description="an indexer in each n-th layer, whose keys the layers up to the next one use too",
    )
    offset: Annotated[int, whole(least=0, most=MAX_LAYERS)] = Field(
        default=2, description="with every: leading layers before the count, all with an indexer but the last"
    )


def divisors_text(heads: int) -> str:
    """Say what divides a number of heads, each one where they are few."""
    # Trial division of a number that a file states, at most ten million: only where the list would be read anyway.
    divisors = [str(part) for part in range(1, heads + 1) if heads % part == 0] if heads <= 1024 else []
    return f"a divisor of {heads}" + (f": {', '.join(divisors)}" if divisors else "")
