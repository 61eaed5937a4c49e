"""Two simulated GPUs in a PyTorch without CUDA, for tests: see README.md in this folder."""
