"""Logger destinations, one per file."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.core.destination import LoggerDestination as LoggerDestination
    from composable.core.logger import Logger as Logger
    from composable.loggers.console import ConsoleLogger as ConsoleLogger
    from composable.loggers.in_memory import InMemoryLogger as InMemoryLogger
    from composable.loggers.json_lines import JSONLinesLogger as JSONLinesLogger
    from composable.loggers.progress_bar import ProgressBarLogger as ProgressBarLogger
else:
    export_lazily(__name__)
