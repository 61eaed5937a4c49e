"""Run trials in processes, measure them, and keep the finished ones."""
