"""Adapters for other people's trainers: each file needs the library that it is named after."""
