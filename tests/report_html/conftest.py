"""A headless Chromium, driven over a pipe by the DevTools protocol, and solved plans to draw."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layoutopt.optimizer.plan.training_plan import TrainingPlan
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.sweep.rows import Row

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
TIMEOUT_S = 60.0
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1100, "height": 900, "deviceScaleFactor": 1, "mobile": False}


class Browser:
    """One tab of a browser process; notes what goes wrong in it and what it asks the network for."""

    def __init__(self, profile: Path) -> None:
        read_commands, self._write = os.pipe()
        self._read, write_answers = os.pipe()

        # The browser reads commands from descriptor 3 and answers on 4; both ends are moved up first, since either
        # may have one of those numbers.
        high_in, high_out = (
            os.dup2(read_commands, 100, inheritable=True),
            os.dup2(write_answers, 101, inheritable=True),
        )
        shell = f'exec "$0" "$@" 3<&{high_in} 4>&{high_out}'
        assert CHROMIUM is not None
        self._process = subprocess.Popen(
            ["bash", "-c", shell, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(high_in, high_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (read_commands, write_answers, high_in, high_out):
            os.close(descriptor)
        self._buffer = b""
        self._count = 0
        self._session = ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._attach()

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, noting the events that come before it."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0.0))
            assert ready, "the browser does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method", ""), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(str(params["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(str(params["request"]["url"])[:200])

    def show(self, path: Path, *, device: dict[str, Any], dark: bool = False) -> None:
        """Open a page and wait until its charts are drawn."""
        self.errors, self.requests = [], []
        self.call("Emulation.setDeviceMetricsOverride", **device)
        self.theme("dark" if dark else "light")
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + TIMEOUT_S
        while not self.run("document.documentElement && document.documentElement.dataset.drawn || ''"):
            assert time.monotonic() < end, f"not drawn: {self.errors}"
            time.sleep(0.05)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def theme(self, name: str, *, media: str = "screen") -> None:
        """Ask for the light or the dark theme, or for print."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, script: str) -> Any:
        """Run JavaScript in the page and return its value."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """Print the page."""
        self.call("Emulation.setEmulatedMedia", media="")
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=TIMEOUT_S)
        os.close(self._write)
        os.close(self._read)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for the whole session; tests that need it are skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def plan() -> Plan:
    """A dense model over several levels of a network, with a pipeline and runners-up."""
    from layoutopt.optimizer.solve.plan import Alternative

    found = solved("llama3-70b", "h100-1024")
    assert found.layout is not None
    assert found.estimate is not None
    # Which runners-up there are depends on the cost model's constants; two made up ones are always there.
    made = []
    for slower, share in ((0.004, 0.7), (0.018, 0.95)):
        peak = found.estimate.memory.capacity_bytes * share
        memory = replace(found.estimate.memory, peak_bytes=peak)
        step_time_s = found.estimate.step_time_s * (1 + slower)
        estimate = replace(found.estimate, step_time_s=step_time_s, memory=memory)
        made.append(
            Alternative(layout=found.layout, estimate=estimate, slower=slower, why=f"{share:.0%} of memory")
        )
    return replace(found, alternatives=(*found.alternatives, *made))


@pytest.fixture(scope="session")
def moe_plan() -> Plan:
    """A mixture of experts on a machine with other levels."""
    return solved("deepseek-v3", "h800-2048")


def solved(model: str, cluster: str) -> Plan:
    """Solve a built-in model on a built-in cluster with some runners-up."""
    from layoutopt.optimizer.solve.api import solve_layout
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.loading import load_cluster, load_workload

    return solve_layout(load_workload(model), load_cluster(cluster), SolveOptions(top=4, near=0.02))


@pytest.fixture(scope="session")
def infeasible() -> Plan:
    """A model that does not fit a single node."""
    return solved("llama3-405b", "h100x8")


@pytest.fixture(scope="session")
def training(plan: Plan) -> TrainingPlan:
    """A training plan with a later phase of longer sequences."""
    from layoutopt.optimizer.plan.options import PlanOptions
    from layoutopt.optimizer.plan.training_plan import make_training_plan
    from layoutopt.optimizer.specs.loading import load_cluster, load_workload

    workload = load_workload("llama3-70b")
    later = replace(workload.training, sequence_length=16_384, global_batch=256, total_tokens=1e11)
    options = PlanOptions(gpu_hour_cost=2.0, simulated_runs=50)
    long = replace(workload, phases=(later,), phase_names=("long",))
    return make_training_plan(long, load_cluster("h100-1024"), plan, options)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Rows of a small sweep over sizes and networks; one point fits nowhere."""
    from layoutopt.optimizer.report.json_forms import plan_to_plain
    from layoutopt.optimizer.specs.loading import load_workload
    from layoutopt.optimizer.sweep.executors.local import SerialExecutor
    from layoutopt.optimizer.sweep.families import load_family
    from layoutopt.optimizer.sweep.points import SweepGrid
    from layoutopt.optimizer.sweep.run import run_sweep
    from layoutopt.optimizer.sweep.store import SweepStore

    grid = SweepGrid(
        workloads=[load_workload("llama3-8b")],
        families=[load_family("h100")],
        gpus=(1, 8, 16, 32),
        network_gbit_per_s=(200.0, 400.0),
    )
    path = tmp_path_factory.mktemp("sweep") / "sweep.db"
    points = grid.points()
    run_sweep(points, path, SerialExecutor(), write_plan=plan_to_plain)
    with SweepStore(path) as store:
        return list(store.rows(point.key for point in points))
