"""Megatron-LM's pipeline layout strings (read and written in ``specs.layout_string``)."""

from layoutopt.optimizer.specs.layout_string import (
    StageItems,
    check_stages,
    parse_layout_string,
    stages_from_lists,
    write_layout_string,
)

__all__ = ["StageItems", "check_stages", "parse_layout_string", "stages_from_lists", "write_layout_string"]
