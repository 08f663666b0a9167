"""Importing our modules: nothing heavy where it is not needed, and nothing of the world."""

import subprocess
import sys

import pytest

from tests.imports import ROOT, module_name, sources
from tests.test_architecture import HEAVY

pytestmark = pytest.mark.process


# Commands whose models may be behind an endpoint, or that need no model for part of their work.
LIGHT_COMMANDS = {
    "services.cli.main",
    "services.curate.authoring.command",
    "services.curate.evaluation.audit",
    "services.curate.evaluation.measure",
    "services.curate.pipeline.command",
    "services.curate.refinement.command",
    "services.curate.review.command",
    "services.score.evaluation.evaluate",
    "services.score.evaluation.suite.command",
}


def test_client_core_gateway_and_light_commands_load_without_torch_and_statistics() -> None:
    modules = [module_name(path) for path in sources() if path.name != "__main__.py"]
    light = [m for m in modules if m.startswith(("fovea", "gateway.", "services.core.")) or m in LIGHT_COMMANDS]
    light.remove("fovea.haystack")  # Haystack itself loads torch where it is installed
    program = f"""
import importlib, sys
for module in {light!r}:
    importlib.import_module(module)
print([name for name in {(*HEAVY, "scipy.stats")!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("room", "absent"),
    [("services.generate.", ("open_clip", "torchvision")), ("services.predict.", ("PIL", "open_clip", "torchvision"))],
)
def test_services_and_jobs_load_without_packages_of_others(room: str, absent: tuple[str, ...]) -> None:
    modules = [module_name(path) for path in sources() if path.name != "__main__.py"]
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({absent!r}))  # importing them raises ModuleNotFoundError
for module in {[module for module in modules if module.startswith(room)]!r}:
    importlib.import_module(module)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_of_ours_reads_the_environment_or_opens_a_file_on_import() -> None:
    modules = [module_name(path) for path in sources() if path.name != "__main__.py"]
    program = f"""
import importlib, os, sys

OURS = {[str(ROOT / name) for name in ("fovea", "services", "gateway")]!r}

def asker():
    # the innermost frame that is ours or a library's decides who asked; importing itself opens files all the time
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(tuple(OURS)):
            return f"{{file}}:{{frame.f_lineno}}"
        if "site-packages" in file or "importlib" in file:
            return None
        frame = frame.f_back
    return None

found = []
def watch(event, arguments):
    if event == "open" and (where := asker()):
        found.append(f"{{where}} opens {{arguments[0]}}")
sys.addaudithook(watch)

class Watched(type(os.environ)):
    def __getitem__(self, key):
        if where := asker():
            found.append(f"{{where}} reads {{key}}")
        return super().__getitem__(key)
os.environ.__class__ = Watched

for module in {modules!r}:
    importlib.import_module(module)
print("\\n".join(found))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
