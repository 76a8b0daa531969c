"""What every test can use: the devices, poisoned memory for the op tests, the place of the shared evidence."""

from pathlib import Path

import pytest
import torch

from tests.kernel_cases import poison_fresh_memory

ROOT = Path(__file__).resolve().parents[1]
OPS = {path.stem for path in (ROOT / "kernels").glob("*.py")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
