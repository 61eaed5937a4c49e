"""The blocks of steps that a calibration measures, and when they begin."""

import attrs

__all__ = ["Blocks", "CalibrationError"]


class CalibrationError(RuntimeError):
    """The cost of a step cannot be measured."""


@attrs.frozen
class Blocks:
    """Blocks of steps at some points of a run.

    Args:
        points: The points, as fractions of the run.
        rounds: The number of measured blocks at each point; one more before them is not measured.
        steps: The number of measured steps of a block.
    """

    points: tuple[float, ...]
    rounds: int
    steps: int

    @property
    def length(self) -> int:
        """The number of batches at a point; each block begins with a step that is not measured."""
        return (self.rounds + 1) * (self.steps + 1)

    def fitted(self, batches: int) -> "Blocks":
        """Return blocks that fit between the points of a run: shorter ones, and then fewer.

        Args:
            batches: The number of batches of the run.

        Raises:
            CalibrationError: The run is too short.
        """
        # The first batch determines the length of the run, and each point follows one batch.
        most = (batches - 1) // len(self.points) - 1
        block = max(2, min(self.steps + 1, most // (self.rounds + 1)))
        rounds = min(self.rounds, most // block - 1)
        if rounds < 1:
            raise CalibrationError(
                f"a run of {batches} batches is too short to measure the cost of a step at "
                f"{len(self.points)} points, which needs 5 batches for each; pass fewer points, or "
                "a longer duration."
            )
        return Blocks(self.points, rounds, block - 1)

    def starts(self, batches: int) -> list[int]:
        """Return the batch after which each point begins, so that its blocks surround it."""
        starts, free = [], 1
        for point in self.points:
            middle = round(point * batches - self.length / 2)
            starts.append(max(free, min(middle, batches - self.length)))
            free = starts[-1] + self.length + 1
        return starts
