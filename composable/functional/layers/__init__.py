"""The layers that model surgery inserts."""
