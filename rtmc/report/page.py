"""The page: `report.html`, one file that stands alone. No network: a policy inside it lets nothing in or out.

What this is not: the figures. The page's script draws them from the JSON of data.py; a template fills in what needs no
script: what was read, the summary, the quality of the signatures.

Texts of logs reach the page in two ways, and neither lets them become markup: the template escapes, and the JSON has no
`<` (block.py) and is put on the page by the script as text alone. Only the script written here runs: the page's policy
names its hash.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import replace
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from rtmc.atomic import atomic_path
from rtmc.logs.credit import Credit
from rtmc.report.block import data_block
from rtmc.report.data import page_data, value_method
from rtmc.report.texts import Collector
from rtmc.signatures.quality import SignatureQuality, signature_quality

# In this order: each uses what stands before it.
_SCRIPTS = ("inflate.js", "core.js", "reader.js", "tree.js", "bars.js", "compare.js", "start.js")


def write_report(credit: Credit, collector: Collector, path: str | PathLike[str], title: str = "") -> int:
    """Write the page to `path`, an older file of that name is replaced; returns its size in bytes.

    collector   has seen the rollouts of `credit`: it was its `on_rollout`
    title       heading of the page (default: the number of rollouts and tasks)

    Raises ValueError for a collector of other rollouts, ModuleNotFoundError without jinja2, OSError where the file
    cannot be written.
    """
    content = page(credit, collector, title).encode()
    with atomic_path(path) as part:
        Path(part).write_bytes(content)
    return len(content)


def page(credit: Credit, collector: Collector, title: str = "") -> str:
    """The page as text; see `write_report`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    data, shown = page_data(credit, collector)
    block = data_block(data, collector.store, shown)
    script = "\n".join(_part(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(autoescape=True, loader=PackageLoader("rtmc.report", ""), undefined=StrictUndefined)
    environment.filters |= {"share": _share, "decimal": _decimal}
    text = environment.get_template("page.html.j2").render(
        title=title or _counted(len(data["rollouts"]["id"]), "rollout") + " of " + _counted(len(data["tasks"]), "task"),
        credit=credit,
        block=block,
        value=data["value"],
        unknown=credit.table.n_rollouts - credit.known,
        summary=[record for record in credit.summary(0) if record["task_id"] is None],
        quality=_quality(credit, collector),
        counted=_counted,
        digest=digest,
        # These two are not escaped: they are ours.
        raw_style=_part("page.css"),
        raw_script=script,
    )
    # A lone surrogate of a log can stand in no UTF-8 file.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _quality(credit: Credit, collector: Collector) -> SignatureQuality:
    """Of the table that is there; the share of zeros is that of the method whose values are shown, options and all."""
    rollouts = [found.rollout for found in collector.rollouts]
    found = signature_quality(rollouts, table=credit.table, method="grpo")
    method = value_method(credit) or credit.methods[0]
    advantage = credit.estimates[method].advantage
    zero = float((advantage == 0).double().mean()) if len(advantage) else math.nan
    return replace(found, method=method, zero_advantage=zero)


def _part(name: str) -> str:
    return files("rtmc.report").joinpath(name).read_text(encoding="utf-8")


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _share(value: Any) -> str:
    return "–" if value is None or value != value else f"{100 * value:.1f} %"


def _decimal(value: Any, digits: int = 4) -> str:
    return "–" if value is None or value != value else f"{value:.{digits}f}"
