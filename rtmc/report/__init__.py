"""The report on logs: one page that stands alone, and the same figures as images.

    from rtmc.report import Collector, write_report

    collector = Collector()
    credit = credit_logs(paths, methods, on_rollout=collector)
    write_report(credit, collector, "report.html")

texts.py keeps the steps' texts, graph.py draws the states of a task up, data.py puts together what the page shows,
page.py writes it, figures.py draws images. The page's own script is in *.js, its looks in page.css.

What this is not: it computes no credit (rtmc/logs/credit.py, rtmc/methods) and no signature.
"""

from rtmc.report.page import write_report
from rtmc.report.texts import Collector

__all__ = ["Collector", "write_report"]
