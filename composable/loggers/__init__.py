"""Logger destinations, one per file."""

from composable.core.destination import LoggerDestination
from composable.core.logger import Logger
from composable.loggers.console import ConsoleLogger
from composable.loggers.in_memory import InMemoryLogger
from composable.loggers.json_lines import JSONLinesLogger
from composable.loggers.progress_bar import ProgressBarLogger

__all__ = [
    "ConsoleLogger",
    "InMemoryLogger",
    "JSONLinesLogger",
    "Logger",
    "LoggerDestination",
    "ProgressBarLogger",
]
