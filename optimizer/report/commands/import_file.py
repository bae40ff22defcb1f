"""``layoutopt import``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.report.commands.options import OutputOptions, output_options, reading_options
from layoutopt.optimizer.report.commands.values import Word
from layoutopt.optimizer.report.terminal import notes, print_document, print_json
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.records import RunChoices
    from layoutopt.optimizer.interop.sources import Imported

PARTS = ("model", "layout")


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--kind", metavar="KIND", help="What FILE is, where it doesn't give itself away, e.g. megatron-log."
)
@click.option("--part", type=Word(PARTS), help="Only the model file or the layout file of a launch file.")
@click.option("--job", metavar="FILE", type=click.Path(), help="Launch file of the run that a log is of.")
@click.option("--collective", metavar="NAME", help="The test of an nccl-tests log that doesn't name it.")
@click.option(
    "--topology", metavar="NAME", help="Which of the topologies of a Slurm topology.yaml; else its default."
)
@click.option(
    "--cluster", metavar="CLUSTER", help="Turn nccl-tests logs into the calibration of this cluster."
)
@reading_options
@output_options
def command(
    file: str,
    kind: str | None,
    part: str | None,
    job: str | None,
    collective: str | None,
    topology: str | None,
    cluster: str | None,
    reading: RunChoices,
    output: OutputOptions,
) -> None:
    """Read a file of another tool and print it in this tool's terms, as YAML.

    Hugging Face config.json, launch files of Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed, nanotron, accelerate,
    verl, slime, ms-swift, NeMo, Primus, LLaMA-Factory, axolotl and Hugging Face's trainer, their logs, torch's
    out-of-memory messages, Slurm and PBS node lists, nvidia-smi topo -m, nccl-tests logs, GraphML and node-link graphs.
    Models and layouts come out as files that MODEL and --layout read.
    """
    from layoutopt.optimizer.ask.load import import_given, require_used
    from layoutopt.optimizer.interop.files import notes_of, unwritten
    from layoutopt.optimizer.interop.sources import FileKind
    from layoutopt.optimizer.report.commands.inputs import OPTIONS, named

    launch = import_given(job, reading) if job else None
    with named(kind="--kind", collective="--collective", job="--job", name="--topology"):
        options = {
            "kind": kind,
            "job": launch.value if launch else None,
            "collective": collective,
            "name": topology,
        }
        # An importer takes options of its own alone: what was not given must not reach one that has no such.
        found = import_given(
            file, reading, **{name: value for name, value in options.items() if value is not None}
        )
    if topology is not None and found.kind != FileKind.SLURM_YAML:
        raise input_error(f"is {found.kind}", "only with Slurm's topology.yaml", key="--topology", file=file)
    require_used(reading, (found.kind, *((launch.kind,) if launch else ())), file, OPTIONS)
    notes((*notes_of(found), *unwritten(found)), output)
    plain = _plain(found, file, part, cluster)
    if output.json:
        print_json(plain)
        return
    import yaml

    print_document(yaml.safe_dump(plain, sort_keys=False, width=110, allow_unicode=True))


def _plain(found: Imported, file: str, part: str | None, cluster: str | None) -> dict[str, Any]:
    from layoutopt.optimizer.interop.files import calibration_to_plain, imported_to_plain
    from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
    from layoutopt.optimizer.interop.sources import FileKind

    if cluster is not None:
        if found.kind != FileKind.NCCL_TESTS:
            raise input_error(f"is {found.kind}", "only with nccl-tests logs", key="--cluster", file=file)
        from layoutopt.optimizer.ask.load import load_cluster

        return calibration_to_plain(suggest_calibration(found.value, load_cluster(cluster)))
    plain = imported_to_plain(found)
    if part is None:
        return plain
    # A file that holds a model alone is that part itself.
    if part == "model" and "architecture" in plain:
        return plain
    if not isinstance(plain.get(part), dict):
        named = plain.get("model_name")
        hint = f"it names the built-in model {named}" if named else f"{found.kind} holds none"
        raise input_error(f"has no {part}", hint, key="--part", file=file)
    return dict(plain[part])
