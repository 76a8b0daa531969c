"""What every test can use: the devices, poisoned memory for the op tests, the place of the shared evidence."""

from pathlib import Path

import pytest
import torch

from tests.kernel_cases import poison_fresh_memory

ROOT = Path(__file__).resolve().parents[1]
# Hundreds of sandboxes one after the other take minutes: these files are marked `sandboxed` (make test-swe).
SANDBOXED = {
    "test_cli_swe",
    "test_sandbox",
    "test_sandbox_attacks",
    "test_sandbox_runtime",
    "test_sandbox_walls",
    "test_swe_cheats",
    "test_swe_embedded",
    "test_swe_embedded_answers",
    "test_swe_env",
    "test_swe_env_forks",
    "test_swe_grading",
    "test_swe_grading_equal",
    "test_swe_grading_equal_faults",
    "test_swe_grading_equal_honest",
    "test_swe_grading_parts",
    "test_swe_grading_session",
    "test_swe_grading_trust",
    "test_swe_line_ends",
    "test_swe_mutate_describe",
    "test_swe_mutate_make",
    "test_swe_mutate_validate",
    "test_swe_ready_wrong",
    "test_swe_real",
    "test_swe_repository",
    "test_swe_soundness",
    "test_swe_tree_leftovers",
    "test_worlds_play",
    "test_worlds_swe",
}
OPS = {path.stem for path in (ROOT / "kernels").glob("*.py")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SANDBOXED:
            item.add_marker("sandboxed")
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The same test body on each device; cuda is skipped, with the reason, where there is none."""
    return str(request.param)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of evidence beside the checkout; tests that read it are skipped without it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the evidence folder {folder.name}/ beside the checkout")
    return folder


@pytest.fixture(autouse=True)
def _poisoned_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is poisoned in test_<op>.py and where the kernel cases run."""
    if request.path.stem.removeprefix("test_") in OPS | {"kernel_cases"}:
        poison_fresh_memory(monkeypatch.setattr)
