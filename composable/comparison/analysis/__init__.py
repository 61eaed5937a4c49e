"""From a study to its analysis: estimates, intervals and verdicts."""
