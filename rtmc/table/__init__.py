"""The step table: the one data model of the library."""

from rtmc.table.steptable import StepTable

__all__ = ["StepTable"]
