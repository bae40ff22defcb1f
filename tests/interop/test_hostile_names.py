"""No name and no value runs, hides or ends what it stands in: every exported file is what its own format says it is."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import tomllib
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from layoutopt.optimizer.frameworks.registry import EXPORTED
from layoutopt.optimizer.interop.launch.target import Target, make_target
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.canonical import cluster_from_plain, to_plain, workload_from_plain
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training, parse_layout
from layoutopt.optimizer.specs.printable import as_name, is_name
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.specs.model import ModelSpec

PIECES = (
    "x", "llama 3", 'my "best" run', "'", '"', "\\", "\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\x1b[2J", "\x00",
    "\x7f",     "\u202e", "\ud800", "touch PWNED", "$(touch PWNED)", "`touch PWNED`", "; touch PWNED;",
    "&& touch PWNED #", "| touch PWNED",
    '" + str(__import__("os").system("touch PWNED")) + "', "'+__import__('os').system('touch PWNED')+'", '"""', "'''", "#",
    "# ", "%s{0}", "${HOME}", "!!python/object/apply:os.system [touch PWNED]", "&a [*a]", "- a: b", "]", "}", "\nEOF\n",
    "[section]", "a = 1", "\\u0022", "\\x22", "ä", "模型", "\U0001f600", "<script>", "--help", "~", "*", "?",
)  # fmt: skip
"""What ends a string, a comment or a line somewhere, or starts a command, an object or an escape."""

COUNT = 1000
CANARY = "PWNED"


def hostile() -> list[str]:
    """Return names of one to four pieces, the same in every run."""
    draw = random.Random(11)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 4))) for _ in range(COUNT)]


def forged(model: ModelSpec, name: str) -> ModelSpec:
    """Return a model of a name that its own construction refuses: writers must not rely on it."""
    changed = replace(model)
    object.__setattr__(changed, "name", name)
    return changed


def targets() -> dict[str, Target]:
    """Return one export for every exporter and era, of a model that it writes."""
    model = load_workload("llama2-7b")
    workload = Workload(model=model.model, training=override_training(model, global_batch=64).training)
    cluster = load_cluster("h100x16")
    layout = parse_layout("tp=1,pp=1,dp=16,zero=3,micro_batch=1,micro_batches=4,sp=false")
    whole = layout.complete(workload, cluster)
    found = {f"{one}": make_target(whole, workload, cluster, one) for one in EXPORTED}
    found["torchtitan A"] = make_target(whole, workload, cluster, "torchtitan", version="A")
    return found


TARGETS = targets()


def write(target: Target, name: str) -> dict[str, str]:
    """Write the files of one export for a model and a release of that name."""
    module = import_module(f"layoutopt.optimizer.interop.{target.framework.record.folder}.write")
    files: dict[str, str] = module.export(
        replace(target, model=forged(target.model, name), version=name)
    ).files
    return files


class Anything:
    """Stands for every module and class that an exported configuration uses, and writes down calls of the canary."""

    calls: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Anything:
        if name in ("system", "popen"):
            self.calls.append(name)
        return self

    def __call__(self, *args: Any, **_: Any) -> Anything:
        """Remember what a registry was asked for."""
        if args and isinstance(args[0], str):
            self.calls.append(args[0])
        return self


def run_python(text: str) -> list[str]:
    """Run an exported configuration with stand-ins for all that it imports; return strings that calls were given."""
    Anything.calls.clear()
    space: dict[str, Any] = {"__builtins__": {"__import__": lambda *_: Anything()}}
    exec(compile(text, "layoutopt_config.py", "exec"), space)
    space["layoutopt_config"]()
    return list(Anything.calls)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_files_parse_and_no_canary_runs(target: str, tmp_path: Path) -> None:
    """A thousand hostile names, also ones that no construction lets in: parsed, loaded and, if scripts, really run."""
    scripts = []
    for number, name in enumerate(hostile()):
        for file, text in write(TARGETS[target], name).items():
            shown = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
            suffix = file.rpartition(".")[2]
            if suffix == "toml":
                read = tomllib.loads(shown)
                if is_name(name):
                    assert read["job"]["description"] == f"{name}, written by layoutopt"
            elif suffix == "py":
                ast.parse(shown)
                asked = run_python(shown)
                assert not {"system", "popen"} & set(asked)
                assert not is_name(name) or name in asked
            elif suffix == "json":
                json.loads(text)
            elif suffix == "yaml":
                read = yaml.safe_load(shown)
                if is_name(name) and "general" in read:
                    assert read["general"]["run"] == name
            else:
                assert suffix == "sh", file
                place = tmp_path / f"{number}.sh"
                place.write_text(shown)
                scripts.append(place.name)
    if scripts:
        _run(scripts, tmp_path)
    assert not (tmp_path / CANARY).exists()


def _run(scripts: list[str], folder: Path) -> None:
    """Run scripts in one bash whose launchers are functions that do nothing but count."""
    stubs = "torchrun() { printf . >> ran; }; deepspeed() { torchrun; }; python() { torchrun; }\n"
    (folder / "all.bash").write_text(stubs + 'for f in "$@"; do ( . "./$f" ) || echo "$f" >> failed; done\n')
    subprocess.run(["bash", "all.bash", *scripts], cwd=folder, check=True, timeout=120, capture_output=True)
    assert not (folder / "failed").exists()
    assert len((folder / "ran").read_text()) == len(scripts)


def test_hostile_pieces_do_harm_where_they_are_not_quoted(tmp_path: Path) -> None:
    """The canary sings: the same names in a naive script run the command."""
    naive = [
        f'# {name}\necho "{name}"\n' for name in hostile() if "\x00" not in name and "\ud800" not in name
    ]
    for number, text in enumerate(naive[:100]):
        (tmp_path / f"{number}.sh").write_text(text)
    loop = "for f in *.sh; do ( . ./$f ); done; true"
    subprocess.run(["bash", "-c", loop], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    assert (tmp_path / CANARY).exists()


def test_names_obey_their_rule_at_construction() -> None:
    """Models, clusters and GPUs refuse what is not one printable line, whichever way they are made."""
    model, cluster = load_workload("llama3-8b").model, load_cluster("h100x8")
    for name in ("", "  ", "a\nb", "\x1b[2J", "a\u202eb", "x" * 201, "\ud800"):
        assert not is_name(name)
        for record in (model, cluster, cluster.gpu):
            with pytest.raises(InputError, match=r"name: .* is not a name"):
                replace(record, name=name)
    for name in ('my "best" run', "模型 7B", "$(x)"):
        assert replace(model, name=name).name == name


def test_names_of_other_tools_are_made_names() -> None:
    """A configuration's path with a line break is written out, not refused and not run."""
    config = {
        "model_type": "llama", "_name_or_path": "x\ntouch PWNED\n#", "hidden_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000,
    }  # fmt: skip
    found = import_text(json.dumps(config), "config.json").value.model
    assert found.name == r"x\ntouch PWNED\n#"
    assert all(is_name(as_name(name)) for name in hostile())


def test_a_plan_with_a_forged_name_is_bad_input() -> None:
    """What reads a plan builds its records anew, and their construction refuses the name."""
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x8")
    plain, machine = to_plain(workload), to_plain(cluster)
    assert workload_from_plain(plain) == workload
    plain["model"]["name"] = machine["name"] = "x\n#"
    for read, data in ((workload_from_plain, plain), (cluster_from_plain, machine)):
        with pytest.raises(InputError, match="is not a name"):
            read(data)
