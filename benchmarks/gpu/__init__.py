"""What only a GPU can show: `make gpu`, or `python -m benchmarks.gpu`."""
