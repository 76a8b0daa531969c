"""`rtmc report`: the credit of every step of logs as one page, and as images."""

import argparse
from pathlib import Path
from typing import Any

from rtmc.cli.advantages import add_log_arguments, chosen_methods, printable, reading_progress
from rtmc.cli.command import Command, Parser, UsageError, add_json, print_json

# The three of the RTMC paper's Figure 4.
_METHODS = ("grpo", "grpo_step", "rtmc")
_DESCRIPTION = """One page on agent logs: which states the rollouts share, and which steps earned their reward.

The page stands alone: no network, nothing to install. It has the states of each task as a graph, the advantages step
by step and method by method, the quadrants of two methods, the steps on which they differ most, and the quality of the
signatures. Logs are read as by `rtmc advantages`. The default methods are grpo, grpo_step and rtmc."""


def _arguments(parser: Parser) -> None:
    add_log_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", default="report.html", help="the page (default: report.html in this folder)"
    )
    parser.add_argument("--title", default="", help="heading of the page")
    parser.add_argument(
        "--full-text", action="store_true", help="keep every text whole; else long ones are cut to keep the page small"
    )
    parser.add_argument("--png", metavar="DIR", help="write the figures as images into this folder, too")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    methods = chosen_methods(arguments, _METHODS)
    if Path(arguments.output).is_dir():
        raise UsageError(f"-o {arguments.output} is a folder; name a file in it, for instance report.html")
    if arguments.png is not None and Path(arguments.png).exists() and not Path(arguments.png).is_dir():
        raise UsageError(f"--png {arguments.png} is a file; name a folder")
    # Asked for here, so that the absence of a package is told before the work.
    import jinja2  # noqa: F401 - the page's template

    if arguments.png is not None:
        import matplotlib  # noqa: F401 - the images
    from rtmc.logs.credit import credit_logs
    from rtmc.logs.export import check_output, note_of_folder
    from rtmc.report import Collector, write_report

    check_output(arguments.output, arguments.files, arguments.rewards)
    collector = Collector(arguments.full_text)
    with reading_progress() as progress:
        credit = credit_logs(
            arguments.files,
            methods,
            arguments.signatures,
            arguments.rewards,
            arguments.step_rewards,
            arguments.skip_bad,
            arguments.format,
            progress,
            collector,
        )
    made = note_of_folder(arguments.output)
    size = write_report(credit, collector, arguments.output, arguments.title)
    credit.notes += made
    figures: list[Path] = []
    if arguments.png is not None:
        from rtmc.report.figures import write_figures

        figures = write_figures(credit, arguments.png)
    if arguments.json:
        whole: dict[str, Any] = credit.to_dict()
        del whole["steps"]
        print_json({"report": arguments.output, "bytes": size, "figures": [str(path) for path in figures], **whole})
        return 0
    table = credit.table
    counts = {"rollout": table.n_rollouts, "task": len(table.group_names or ()), "step": len(table)}
    print(", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items()))
    for note in credit.notes:
        print(printable(f"note: {note}"))
    print(printable(f"{arguments.output}: {size / 1e6:.2f} MB; open it in a browser"))
    if figures:
        print(printable(f"{arguments.png}: {len(figures)} images"))
    return 0


REPORT = Command("report", "one page on agent logs: which steps mattered", _arguments, _run, _DESCRIPTION)
